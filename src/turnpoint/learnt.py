"""The model that a run has learnt, from its folder alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnpoint.assemble import open_model
from turnpoint.config import load_run_recipe
from turnpoint.errors import ModelError
from turnpoint.models.loading import LoadedModel
from turnpoint.training.checkpoint import load_latest


def open_run(run: Path, *, device: str, dtype: Any) -> LoadedModel:
    """Returns the model of a run folder, of `train` or `sft`, with the weights of its latest checkpoint.

    Raises RunFolderError and ModelError in one line when there is none that can be read.
    """
    recipe = load_run_recipe(run / "recipe.yaml")
    model = open_model(recipe.model.model_copy(update={"device": device, "dtype": dtype}), seed=recipe.seed)
    found = load_latest(run / "checkpoints", skipped=lambda line: None)
    if found is None:
        raise ModelError(f"{run} has no complete checkpoint to teach from; train it first")
    _take_weights(model, found[1].state, run)
    return model


@torch.no_grad()
def _take_weights(model: LoadedModel, state: Mapping[str, Tensor], run: Path) -> None:
    for name, weight in model.decoder.model.named_parameters():
        if weight.requires_grad:
            master = state.get(f"master.{name}")
            if master is None or master.shape != weight.shape:
                raise ModelError(f"{run}: its checkpoint does not hold {name} of its own model")
            weight.copy_(master)
