"""Losses: tensors to a scalar, with explicit denominators; no loss knows which algorithm ran."""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.losses.cross_entropy import cross_entropy_loss as cross_entropy_loss
    from turnpoint.losses.policy_gradient import policy_gradient_loss as policy_gradient_loss
    from turnpoint.losses.reductions import sequence_weights as sequence_weights

__all__ = ["cross_entropy_loss", "policy_gradient_loss", "sequence_weights"]

__getattr__ = lazy(
    __name__,
    {
        "cross_entropy_loss": "cross_entropy",
        "policy_gradient_loss": "policy_gradient",
        "sequence_weights": "reductions",
    },
)
