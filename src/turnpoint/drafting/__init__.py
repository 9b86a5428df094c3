"""Drafts: how much of them a target accepts, what trains them for it, and what they are worth."""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.drafting.acceptance import accept_length as accept_length
    from turnpoint.drafting.chains import accept_ratios as accept_ratios
    from turnpoint.drafting.chains import end_to_end_tv_loss as end_to_end_tv_loss
    from turnpoint.drafting.chains import pathwise_tv_loss as pathwise_tv_loss
    from turnpoint.drafting.fused import fused_linear_tv as fused_linear_tv
    from turnpoint.drafting.losses import draft_loss as draft_loss
    from turnpoint.drafting.losses import row_statistics as row_statistics
    from turnpoint.drafting.total_variation import overlap as overlap
    from turnpoint.drafting.total_variation import tv_loss as tv_loss

__all__ = [
    "accept_length",
    "accept_ratios",
    "draft_loss",
    "end_to_end_tv_loss",
    "fused_linear_tv",
    "overlap",
    "pathwise_tv_loss",
    "row_statistics",
    "tv_loss",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "accept_length": "acceptance",
        "accept_ratios": "chains",
        "draft_loss": "losses",
        "end_to_end_tv_loss": "chains",
        "fused_linear_tv": "fused",
        "overlap": "total_variation",
        "pathwise_tv_loss": "chains",
        "row_statistics": "losses",
        "tv_loss": "total_variation",
    },
)
