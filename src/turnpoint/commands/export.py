"""`turnpoint export`: a trained run as a normal Hugging Face folder, or its adapter alone."""

from __future__ import annotations

from pathlib import Path

from turnpoint.assemble import open_model
from turnpoint.commands.common import read_policy, read_problems, recipe_of, restore
from turnpoint.commands.sft import restore_sft
from turnpoint.config import RunConfig, SftConfig, load_run_recipe
from turnpoint.errors import RecipeError
from turnpoint.models.export import export_adapter, export_model
from turnpoint.models.loading import LoadedModel
from turnpoint.reports.terminal import Terminal


def export(run: str | Path, folder: str | Path, *, adapter: bool = False) -> Path:
    """Writes the latest checkpoint of the run folder `run` as a Hugging Face folder and returns that.

    The run is one of `train` or of `sft`; the weights are in the type that they computed in. An adapter is
    merged into the weights of its base; with `adapter` it is written alone, as peft does. Raises
    RunFolderError when there is no checkpoint, and RecipeError when there is no adapter to write.
    """
    terminal = Terminal()
    config = load_run_recipe(recipe_of(Path(run)))
    if adapter and config.model.adapter is None:
        raise RecipeError(f"{run} has trained all weights and has no adapter; export it without --adapter")
    model = _trained(config, Path(run), terminal)
    if adapter and model.adapter is not None:
        written = export_adapter(model.decoder, adapter=model.adapter, base=config.model.path, folder=folder)
        terminal.line(f"written: {written}, an adapter for {model.source} that peft loads")
        return written
    written = export_model(model.decoder, tokenizer=model.folder, folder=folder, adapter=model.adapter)
    merged = ", its adapter merged" if model.adapter else ""
    terminal.line(f"written: {written}, a Hugging Face folder of {model.source} as trained{merged}")
    return written


def _trained(config: RunConfig | SftConfig, run: Path, terminal: Terminal) -> LoadedModel:
    match config:
        case SftConfig():
            with terminal.phase("loading the model"):
                model = open_model(config.model, seed=config.seed)
            restore_sft(config, model, run, terminal)
            return model
        case RunConfig():
            policy = read_policy(config, read_problems(config, terminal), terminal, tokens=0)
            restore(config, policy, run, terminal)
            return policy.model
