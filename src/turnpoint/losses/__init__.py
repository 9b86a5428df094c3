"""Losses: tensors to a scalar, with explicit denominators; no loss knows which algorithm ran."""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.losses.chunked import LinearHead as LinearHead
    from turnpoint.losses.chunked import chunked_distillation as chunked_distillation
    from turnpoint.losses.correction import truncated_weights as truncated_weights
    from turnpoint.losses.cross_entropy import cross_entropy_loss as cross_entropy_loss
    from turnpoint.losses.distillation import DistillationLoss as DistillationLoss
    from turnpoint.losses.distillation import distillation_loss as distillation_loss
    from turnpoint.losses.divergences import forward_kl as forward_kl
    from turnpoint.losses.divergences import jensen_shannon as jensen_shannon
    from turnpoint.losses.divergences import reverse_kl as reverse_kl
    from turnpoint.losses.kl import kl_loss as kl_loss
    from turnpoint.losses.policy_gradient import policy_gradient_loss as policy_gradient_loss
    from turnpoint.losses.reductions import sequence_weights as sequence_weights
    from turnpoint.losses.sampled import k2 as k2
    from turnpoint.losses.topk import forward_kl_topk_tail as forward_kl_topk_tail
    from turnpoint.losses.topk import reverse_kl_topk_hybrid as reverse_kl_topk_hybrid
    from turnpoint.losses.topk import reverse_kl_topk_hybrid_gathered as reverse_kl_topk_hybrid_gathered
    from turnpoint.losses.topk import reverse_kl_topk_tail as reverse_kl_topk_tail

__all__ = [
    "DistillationLoss",
    "LinearHead",
    "chunked_distillation",
    "cross_entropy_loss",
    "distillation_loss",
    "forward_kl",
    "forward_kl_topk_tail",
    "jensen_shannon",
    "k2",
    "kl_loss",
    "policy_gradient_loss",
    "reverse_kl",
    "reverse_kl_topk_hybrid",
    "reverse_kl_topk_hybrid_gathered",
    "reverse_kl_topk_tail",
    "sequence_weights",
    "truncated_weights",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "DistillationLoss": "distillation",
        "LinearHead": "chunked",
        "chunked_distillation": "chunked",
        "cross_entropy_loss": "cross_entropy",
        "distillation_loss": "distillation",
        "forward_kl": "divergences",
        "forward_kl_topk_tail": "topk",
        "jensen_shannon": "divergences",
        "k2": "sampled",
        "kl_loss": "kl",
        "policy_gradient_loss": "policy_gradient",
        "reverse_kl": "divergences",
        "reverse_kl_topk_hybrid": "topk",
        "reverse_kl_topk_hybrid_gathered": "topk",
        "reverse_kl_topk_tail": "topk",
        "sequence_weights": "reductions",
        "truncated_weights": "correction",
    },
)
