"""What several commands begin with: problems, a policy, the weights of a run."""

from __future__ import annotations

from pathlib import Path

from turnpoint.assemble import Policy, Problems, load_policy, load_problems
from turnpoint.commands.origin import Origin, check_model, model_checksum
from turnpoint.config import RunConfig, SftConfig
from turnpoint.errors import RecipeError, RunFolderError
from turnpoint.models.loading import LoadedModel
from turnpoint.objective import make_trainer
from turnpoint.reports.plan import AdapterFacts, ModelFacts
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.terminal import Terminal
from turnpoint.training.checkpoint import Checkpoint, load_latest


def read_problems(config: RunConfig, terminal: Terminal, *, trains: bool = True) -> Problems:
    """As `load_problems`, with its progress shown."""
    with terminal.phase("reading problems"):
        return load_problems(config, trains=trains)


def read_policy(
    config: RunConfig, problems: Problems, terminal: Terminal, *, tokens: int | None = None
) -> Policy:
    """As `load_policy`, with its progress shown, and what there is to know of its adapter."""
    with terminal.phase("loading the model"):
        policy = load_policy(config, problems.examples, tokens=tokens)
    for note in policy.model.adapter.notes if policy.model.adapter else ():
        terminal.line(note, "yellow")
    return policy


def model_facts(model: LoadedModel) -> ModelFacts:
    """Returns what a plan says about `model`."""
    adapter = model.adapter
    return ModelFacts(
        name=model.source,
        parameters=model.parameters,
        dtype=model.dtype,
        device=str(model.decoder.device),
        context_length=model.context_length,
        adapter=None
        if adapter is None
        else AdapterFacts(ranks=adapter.ranks, matrices=adapter.matrices, parameters=adapter.parameters),
    )


def recipe_of(source: Path) -> Path:
    """Returns the recipe of a run folder, or `source` itself when it is a file.

    Raises RecipeError when there is neither.
    """
    if not source.exists():
        raise RecipeError(f"{source}: no such recipe or run folder")
    return source / "recipe.yaml" if source.is_dir() else source


def restore(config: RunConfig, policy: Policy, run: Path, terminal: Terminal) -> Path:
    """Loads the latest complete checkpoint of a run into the policy and returns the checkpoint's folder.

    Later ones that cannot be read are named. Raises RunFolderError when there is none.
    """
    path, checkpoint = latest_of(run, terminal)
    check_base(config, policy.model, run)
    make_trainer(config, policy).load_state_dict(checkpoint.state)
    return path


def check_base(config: RunConfig | SftConfig, model: LoadedModel, run: Path) -> None:
    """Raises ModelError when the checkpoints of `run` hold an adapter alone, and `model` is another base."""
    if config.model.adapter is not None:
        origin = Origin.read(RunFolder(path=run))
        check_model(origin, model_checksum(config.model, model), source=model.source, run=run)


def latest_of(run: Path, terminal: Terminal) -> tuple[Path, Checkpoint]:
    """Returns the latest complete checkpoint of a run and its folder, naming what cannot be read.

    Raises RunFolderError when there is none.
    """
    found = load_latest(run / "checkpoints", skipped=lambda line: terminal.line(line, "yellow"))
    if found is None:
        raise RunFolderError(f"{run} has no complete checkpoint; train it first")
    return found
