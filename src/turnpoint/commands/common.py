"""What several commands begin with: problems, a policy, the weights of a run."""

from __future__ import annotations

from pathlib import Path

from turnpoint.assemble import Policy, Problems, load_policy, load_problems
from turnpoint.config import RunConfig
from turnpoint.errors import RunFolderError
from turnpoint.objective import make_trainer
from turnpoint.reports.terminal import Terminal
from turnpoint.training.checkpoint import latest_checkpoint, load_checkpoint


def read_problems(config: RunConfig, terminal: Terminal) -> Problems:
    """As `load_problems`, with its progress shown."""
    with terminal.phase("reading problems"):
        return load_problems(config)


def read_policy(config: RunConfig, problems: Problems, terminal: Terminal) -> Policy:
    """As `load_policy`, with its progress shown."""
    with terminal.phase("loading the model"):
        return load_policy(config, problems.examples)


def recipe_of(source: Path) -> Path:
    """Returns the recipe of a run folder, or `source` itself when it is a file."""
    return source / "recipe.yaml" if source.is_dir() else source


def restore(config: RunConfig, policy: Policy, run: Path) -> Path:
    """Loads the latest checkpoint of a run into the policy and returns the checkpoint's folder.

    Raises RunFolderError when there is none.
    """
    path = latest_checkpoint(run / "checkpoints")
    if path is None:
        raise RunFolderError(f"{run} has no complete checkpoint; train it first")
    make_trainer(config, policy).load_state_dict(load_checkpoint(path).state)
    return path
