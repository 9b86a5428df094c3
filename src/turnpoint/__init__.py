"""turnpoint: RL post-training of language models with verifiable rewards.

Importing this package loads no torch, transformers, ray, vllm or tracker; names load on first use.
"""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.commands.bench import bench as bench
    from turnpoint.commands.doctor import doctor as doctor
    from turnpoint.commands.draft import DraftResult as DraftResult
    from turnpoint.commands.draft import draft as draft
    from turnpoint.commands.evaluate import evaluate as evaluate
    from turnpoint.commands.export import export as export
    from turnpoint.commands.filter import FilterResult as FilterResult
    from turnpoint.commands.filter import filter_tasks as filter_tasks
    from turnpoint.commands.inspect import inspect as inspect
    from turnpoint.commands.report import report as report
    from turnpoint.commands.resume import resume as resume
    from turnpoint.commands.sft import SftResult as SftResult
    from turnpoint.commands.sft import resume_sft as resume_sft
    from turnpoint.commands.sft import sft as sft
    from turnpoint.commands.train import TrainResult as TrainResult
    from turnpoint.commands.train import train as train
    from turnpoint.config import DraftConfig as DraftConfig
    from turnpoint.config import RunConfig as RunConfig
    from turnpoint.config import SftConfig as SftConfig
    from turnpoint.config import load_draft_recipe as load_draft_recipe
    from turnpoint.config import load_recipe as load_recipe
    from turnpoint.config import load_sft_recipe as load_sft_recipe
    from turnpoint.config import parse_recipe as parse_recipe
    from turnpoint.config import parse_sft_recipe as parse_sft_recipe

__version__ = "0.1.0"
__all__ = [
    "DraftConfig",
    "DraftResult",
    "FilterResult",
    "RunConfig",
    "SftConfig",
    "SftResult",
    "TrainResult",
    "bench",
    "doctor",
    "draft",
    "evaluate",
    "export",
    "filter_tasks",
    "inspect",
    "load_draft_recipe",
    "load_recipe",
    "load_sft_recipe",
    "parse_recipe",
    "parse_sft_recipe",
    "report",
    "resume",
    "resume_sft",
    "sft",
    "train",
]
__getattr__, __dir__ = lazy(
    __name__,
    {
        "FilterResult": "commands.filter",
        "DraftResult": "commands.draft",
        "draft": "commands.draft",
        "DraftConfig": "config",
        "load_draft_recipe": "config",
        "RunConfig": "config",
        "SftConfig": "config",
        "SftResult": "commands.sft",
        "TrainResult": "commands.train",
        "bench": "commands.bench",
        "doctor": "commands.doctor",
        "evaluate": "commands.evaluate",
        "export": "commands.export",
        "filter_tasks": "commands.filter",
        "inspect": "commands.inspect",
        "load_recipe": "config",
        "load_sft_recipe": "config",
        "parse_recipe": "config",
        "parse_sft_recipe": "config",
        "sft": "commands.sft",
        "report": "commands.report",
        "resume": "commands.resume",
        "resume_sft": "commands.sft",
        "train": "commands.train",
    },
)
