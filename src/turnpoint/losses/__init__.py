"""Losses: tensors to a scalar, with explicit denominators; no loss knows which algorithm ran."""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.losses.correction import truncated_weights as truncated_weights
    from turnpoint.losses.cross_entropy import cross_entropy_loss as cross_entropy_loss
    from turnpoint.losses.kl import kl_loss as kl_loss
    from turnpoint.losses.policy_gradient import policy_gradient_loss as policy_gradient_loss
    from turnpoint.losses.reductions import sequence_weights as sequence_weights

__all__ = [
    "cross_entropy_loss",
    "kl_loss",
    "policy_gradient_loss",
    "sequence_weights",
    "truncated_weights",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "cross_entropy_loss": "cross_entropy",
        "kl_loss": "kl",
        "policy_gradient_loss": "policy_gradient",
        "sequence_weights": "reductions",
        "truncated_weights": "correction",
    },
)
