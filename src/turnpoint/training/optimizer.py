"""AdamW on float32 master weights, with clipping, a schedule, and a refusal to step on what is not a number.

An update of 1e-6 on a bfloat16 weight of 1.0 is lost: its neighbours are 0.004 away. So gradients are added
up and applied in float32, and weights of another type are rounded copies of their masters. Where the
weights are float32 already, they are the masters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from turnpoint.errors import TrainingError
from turnpoint.metrics import Mean, Metric

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what AdamW keeps per tensor


class MasterAdamW:
    """Optimises the parameters of `model` by `torch.optim.AdamW` on float32 masters.

    Parameters that require no gradient are left alone: they have no master, no moments and no place in the
    state. Weight decay (decoupled, arXiv 1711.05101) applies to matrices, embeddings included, and not to
    vectors: norms and biases. A tied parameter is one master. Raises ValueError as `schedule_factor` does.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        schedule: str = "constant",
        warmup_steps: int = 0,
        total_steps: int | None = None,
    ) -> None:
        self.steps = 0  # calls of `step` so far
        self._weights = {name: it for name, it in model.named_parameters() if it.requires_grad}
        self._masters = {name: _master(weight) for name, weight in self._weights.items()}
        for name, weight in self._weights.items():
            if self._masters[name] is not weight:
                weight.register_post_accumulate_grad_hook(_add_to(self._masters[name]))
        matrices = [master for master in self._masters.values() if master.ndim >= 2]
        vectors = [master for master in self._masters.values() if master.ndim < 2]
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        self._adamw = torch.optim.AdamW(
            groups, lr=learning_rate, betas=betas, weight_decay=weight_decay, fused=True
        )
        self._max_grad_norm = max_grad_norm
        self._learning_rate = learning_rate
        self._schedule: dict[str, Any] = {
            "schedule": schedule,
            "warmup_steps": warmup_steps,
            "total_steps": total_steps,
        }
        schedule_factor(0, **self._schedule)

    def step(self) -> dict[str, Metric]:
        """Applies the gradients added up since the last step, and drops them; returns its metrics.

        Without any gradient (nothing trained) only the schedule moves on: no decay, no momentum. With
        gradients of zero it is an ordinary step of AdamW, whose momentum may still move.

        Raises TrainingError, with all weights as they were, for a gradient that is not finite; and after
        the step when gradients were not zero but the weights did not change.
        """
        rate = self._learning_rate * schedule_factor(self.steps, **self._schedule)
        grads = self.gradients()
        norms = torch.stack([_norm(grad) for grad in grads.values()] or [torch.zeros(())])
        norm = float(_norm(norms))
        if not math.isfinite(norm):
            self.zero_grad()
            raise TrainingError(f"{_first_not_finite(grads)}; no weight was changed")
        self.steps += 1  # before a weight moves: a state saved in between must not pass for the old one
        if not grads:
            return {}
        if norm > self._max_grad_norm:
            for grad in grads.values():
                grad.mul_(self._max_grad_norm / norm)
        self._apply(rate, list(grads)[int(norms.argmax())], moving=norm > 0)
        return {"grad_norm": Mean(norm, 1), "learning_rate": Mean(rate, 1)}

    @torch.no_grad()
    def _apply(self, rate: float, largest: str, *, moving: bool) -> None:
        """Steps; where anything is `moving`, a change must show in the master named `largest`."""
        master = self._masters[largest]
        before = master.clone()
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        self.zero_grad()
        self._round()
        if moving and torch.equal(before, master):
            raise TrainingError(
                f"the step changed no weight of {largest}, whose gradient is the largest: the learning "
                f"rate {rate:g} is lost in float32; raise it"
            )

    @torch.no_grad()
    def _round(self) -> None:
        for name, weight in self._weights.items():
            if self._masters[name] is not weight:
                weight.copy_(self._masters[name])

    def gradients(self) -> dict[str, Tensor]:
        """Returns by name what `step` would apply, float32 and not yet clipped; empty if nothing trained."""
        return {name: master.grad for name, master in self._masters.items() if master.grad is not None}

    def zero_grad(self) -> None:
        """Drops gradients that no step has applied."""
        self._adamw.zero_grad()

    def state_dict(self) -> dict[str, Tensor]:
        """Returns masters, moments and the step count as flat, detached tensors (no copies)."""
        state = {"steps": torch.tensor(self.steps)}
        for name, master in self._masters.items():
            state[f"master.{name}"] = master.detach()
            for moment, value in self._adamw.state.get(master, {}).items():
                state[f"{moment}.{name}"] = value
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state_dict` returned; raises TrainingError unless it is of the same model."""
        needed = {"steps", *(f"master.{name}" for name in self._masters)}
        for name in self._masters:  # one that never had a gradient has no moments, else it has all
            moments = {f"{moment}.{name}" for moment in _MOMENTS}
            needed |= moments if moments & set(state) else set()
        if wrong := sorted(needed ^ set(state)):
            raise TrainingError(f"state of another model: {wrong[0]} and {len(wrong) - 1} more do not match")
        self.steps = int(state["steps"])
        self._adamw.state.clear()
        for name, master in self._masters.items():
            if master.shape != state[f"master.{name}"].shape:
                raise TrainingError(f"state of another model: {name} has another shape")
            master.copy_(state[f"master.{name}"])
            if f"exp_avg.{name}" in state:
                self._adamw.state[master] = {
                    moment: state[f"{moment}.{name}"].to(master.device, copy=True) for moment in _MOMENTS
                }
        self._round()


def _master(weight: Tensor) -> Tensor:
    return weight if weight.dtype == torch.float32 else weight.detach().float()


def _norm(tensor: Tensor) -> Tensor:
    return cast(Any, torch.linalg).vector_norm(tensor)


def _add_to(master: Tensor) -> Callable[[Tensor], None]:
    def move(weight: Tensor) -> None:
        grad = cast(Tensor, weight.grad)
        master.grad = grad.float() if master.grad is None else master.grad.add_(grad)
        weight.grad = None

    return move


def _first_not_finite(grads: Mapping[str, Tensor]) -> str:
    for name, grad in grads.items():
        if count := int((~grad.isfinite()).sum()):
            return f"{count} of {grad.numel()} elements of the gradient of {name} are not finite"
    return "the gradient's norm overflows float32"


def schedule_factor(
    step: int, *, schedule: str, warmup_steps: int = 0, total_steps: int | None = None
) -> float:
    """Returns what multiplies the learning rate at `step` (from 0).

    It is below 1 for `warmup_steps` steps, rising in equal parts from more than 0 at step 0; then it
    stays 1, or falls to 0 at `total_steps`, one step after the last. Raises ValueError for an unknown
    schedule, and for one that falls without steps to fall over.
    """
    if schedule not in ("constant", "linear", "cosine"):
        raise ValueError(f"unknown schedule {schedule!r}; known: constant, linear, cosine")
    if schedule != "constant" and (total_steps is None or total_steps <= warmup_steps):
        raise ValueError(
            f"schedule {schedule!r} needs total_steps beyond its warm-up, got {total_steps} after "
            f"{warmup_steps} steps"
        )
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if schedule == "constant" or total_steps is None:
        return 1.0
    done = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
    return 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
