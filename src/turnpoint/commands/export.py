"""`turnpoint export`: a trained run as a normal Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from turnpoint.assemble import open_model
from turnpoint.commands.common import read_policy, read_problems, recipe_of, restore
from turnpoint.commands.sft import restore_sft
from turnpoint.config import RunConfig, SftConfig, load_run_recipe
from turnpoint.models.export import export_model
from turnpoint.models.loading import LoadedModel
from turnpoint.reports.terminal import Terminal


def export(run: str | Path, folder: str | Path) -> Path:
    """Writes the latest checkpoint of the run folder `run` as a Hugging Face folder and returns that.

    The run is one of `train` or of `sft`; the weights are in the type that they computed in. Raises
    RunFolderError when there is no checkpoint.
    """
    terminal = Terminal()
    model = _trained(Path(run), terminal)
    written = export_model(model.decoder, tokenizer=model.folder, folder=folder)
    terminal.line(f"written: {written}, a Hugging Face folder of {model.source} as trained")
    return written


def _trained(run: Path, terminal: Terminal) -> LoadedModel:
    match load_run_recipe(recipe_of(run)):
        case SftConfig() as config:
            with terminal.phase("loading the model"):
                model = open_model(config.model)
            restore_sft(config, model, run)
            return model
        case RunConfig() as config:
            policy = read_policy(config, read_problems(config, terminal), terminal)
            restore(config, policy, run)
            return policy.model
