"""What several commands begin with: problems, a policy, the weights of a run."""

from __future__ import annotations

from pathlib import Path

from turnpoint.assemble import Policy, Problems, load_policy, load_problems, make_trainer
from turnpoint.config import RunConfig
from turnpoint.errors import RunFolderError
from turnpoint.reports.terminal import Terminal
from turnpoint.training.checkpoint import load_latest


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


def restore(config: RunConfig, policy: Policy, run: Path, terminal: Terminal) -> Path:
    """Loads the latest complete checkpoint of a run into the policy and returns the checkpoint's folder.

    Later ones that cannot be read are named. Raises RunFolderError when there is none.
    """
    found = load_latest(run / "checkpoints", skipped=lambda line: terminal.line(line, "yellow"))
    if found is None:
        raise RunFolderError(f"{run} has no complete checkpoint; train it first")
    path, checkpoint = found
    make_trainer(config, policy).load_state_dict(checkpoint.state)
    return path
