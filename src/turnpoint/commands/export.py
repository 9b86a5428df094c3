"""`turnpoint export`: a trained run as a normal Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from turnpoint.commands.common import read_policy, read_problems, recipe_of, restore
from turnpoint.config import load_recipe
from turnpoint.models.export import export_model
from turnpoint.reports.terminal import Terminal


def export(run: str | Path, folder: str | Path) -> Path:
    """Writes the latest checkpoint of the run folder `run` as a Hugging Face folder and returns that.

    The weights are in the type they were sampled in. Raises RunFolderError when there is no checkpoint.
    """
    terminal = Terminal()
    config = load_recipe(recipe_of(Path(run)))
    policy = read_policy(config, read_problems(config, terminal), terminal)
    restore(config, policy, Path(run), terminal)
    written = export_model(policy.model.decoder, tokenizer=policy.model.folder, folder=folder)
    terminal.line(f"written: {written}, a Hugging Face folder of {policy.model.source} as trained")
    return written
