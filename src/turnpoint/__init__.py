"""turnpoint: RL post-training of language models with verifiable rewards.

Importing this package loads no torch, transformers, ray, vllm or tracker; names load on first use.
"""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.config import RunConfig as RunConfig
    from turnpoint.config import load_recipe as load_recipe
    from turnpoint.config import parse_recipe as parse_recipe
    from turnpoint.run import TrainResult as TrainResult
    from turnpoint.run import evaluate as evaluate
    from turnpoint.run import export as export
    from turnpoint.run import train as train

__version__ = "0.1.0"
__all__ = ["RunConfig", "TrainResult", "evaluate", "export", "load_recipe", "parse_recipe", "train"]
__getattr__ = lazy(
    __name__,
    {
        "RunConfig": "config",
        "TrainResult": "run",
        "evaluate": "run",
        "export": "run",
        "load_recipe": "config",
        "parse_recipe": "config",
        "train": "run",
    },
)
