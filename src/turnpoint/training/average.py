"""A moving average of what training moves, as a model that can be asked.

    average  =  decay average + (1 - decay) weights,    once per step, from the weights as they began

in float32, from the optimiser's masters: in bfloat16 a hundredth of a small change would be lost. The model
holds the average rounded to its own type. With an adapter its matrices are averaged, not their product.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from turnpoint.errors import RunFolderError
from turnpoint.models.decoder import Decoder
from turnpoint.models.twin import own_weights


class Average:
    """Averages what `decoder`, a twin of the policy, has to itself, in place."""

    def __init__(self, decoder: Decoder, *, decay: float) -> None:
        self._weights = own_weights(decoder)
        self._averages = {name: weight.float() for name, weight in self._weights.items()}  # float32: itself
        self._decay = decay

    @torch.no_grad()
    def follow(self, trained: Mapping[str, Tensor]) -> None:
        """Takes in what one step made of the weights; `trained`: `Trainer.state_dict`."""
        for name, average in self._averages.items():
            average.lerp_(trained[f"master.{name}"], 1 - self._decay)
        self._round()

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the averages by name, float32 (no copies)."""
        return dict(self._averages)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from what `state_dict` returned; raises RunFolderError unless it is of the same model."""
        for name, average in self._averages.items():
            if name not in state or state[name].shape != average.shape:
                raise RunFolderError(
                    f"the checkpoint does not hold the average of {name} that a teacher of kind ema goes on "
                    f"from; start a new run"
                )
        for name, average in self._averages.items():
            average.copy_(state[name])
        self._round()

    @torch.no_grad()
    def _round(self) -> None:
        for name, weight in self._weights.items():
            if self._averages[name] is not weight:
                weight.copy_(self._averages[name])


class Averages:
    """The averages of a run's teachers, by teacher."""

    def __init__(self, averages: Mapping[str, Average]) -> None:
        self._averages = averages

    def follow(self, trained: Mapping[str, Tensor]) -> None:
        """As `Average.follow`, of each."""
        for average in self._averages.values():
            average.follow(trained)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns all averages as flat tensors (no copies)."""
        return {
            f"{teacher}/{name}": tensor
            for teacher, average in self._averages.items()
            for name, tensor in average.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """As `Average.load_state_dict`, of each."""
        for teacher, average in self._averages.items():
            own = f"{teacher}/"
            average.load_state_dict(
                {name.removeprefix(own): it for name, it in state.items() if name.startswith(own)}
            )
