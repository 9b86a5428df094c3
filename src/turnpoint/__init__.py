"""turnpoint: RL post-training of language models with verifiable rewards.

Importing this package loads no torch, transformers, ray, vllm or tracker; names load on first use.
"""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.commands.doctor import doctor as doctor
    from turnpoint.commands.evaluate import evaluate as evaluate
    from turnpoint.commands.export import export as export
    from turnpoint.commands.train import TrainResult as TrainResult
    from turnpoint.commands.train import train as train
    from turnpoint.config import RunConfig as RunConfig
    from turnpoint.config import load_recipe as load_recipe
    from turnpoint.config import parse_recipe as parse_recipe

__version__ = "0.1.0"
__all__ = ["RunConfig", "TrainResult", "doctor", "evaluate", "export", "load_recipe", "parse_recipe", "train"]
__getattr__ = lazy(
    __name__,
    {
        "RunConfig": "config",
        "TrainResult": "commands.train",
        "doctor": "commands.doctor",
        "evaluate": "commands.evaluate",
        "export": "commands.export",
        "load_recipe": "config",
        "parse_recipe": "config",
        "train": "commands.train",
    },
)
