"""`turnpoint export`: a trained run as a normal Hugging Face folder, or its adapter alone."""

from __future__ import annotations

from pathlib import Path

from turnpoint.commands.common import read_policy, read_problems, recipe_of, restore
from turnpoint.config import load_recipe
from turnpoint.errors import RecipeError
from turnpoint.models.export import export_adapter, export_model
from turnpoint.reports.terminal import Terminal


def export(run: str | Path, folder: str | Path, *, adapter: bool = False) -> Path:
    """Writes the latest checkpoint of the run folder `run` as a Hugging Face folder and returns that.

    An adapter is merged into the weights of its base; with `adapter` it is written alone, as peft does. The
    weights are in the type they were sampled in. Raises RunFolderError when there is no checkpoint, and
    RecipeError when there is no adapter to write.
    """
    terminal = Terminal()
    config = load_recipe(recipe_of(Path(run)))
    if adapter and config.model.adapter is None:
        raise RecipeError(f"{run} has trained all weights and has no adapter; export it without --adapter")
    policy = read_policy(config, read_problems(config, terminal), terminal)
    restore(config, policy, Path(run))
    model = policy.model
    if adapter and model.adapter is not None:
        written = export_adapter(model.decoder, adapter=model.adapter, base=config.model.path, folder=folder)
        terminal.line(f"written: {written}, an adapter for {model.source} that peft loads")
        return written
    written = export_model(model.decoder, tokenizer=model.folder, folder=folder, adapter=model.adapter)
    merged = ", its adapter merged" if model.adapter else ""
    terminal.line(f"written: {written}, a Hugging Face folder of {model.source} as trained{merged}")
    return written
