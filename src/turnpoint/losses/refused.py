"""Distillation losses that are widely used and not there, and why; torch is not needed to say so."""

from __future__ import annotations

from collections.abc import Mapping

_ADVANTAGE = (
    "a divergence as an advantage does not depend on the sampled token: its expected policy gradient is 0; "
    "use 'reverse_kl_topk_hybrid'"
)
_TRUNCATED = (
    "a sum over the top k alone is no divergence: it falls below 0 and pays for moving mass elsewhere; "
    "use 'reverse_kl_topk_hybrid', or a '_topk_tail'"
)
_RENORMALISED = (
    "laws renormalised on the top k are blind to the mass outside, and at k = 1 equal whatever they were; "
    "use 'reverse_kl_topk_hybrid', or a '_topk_tail'"
)
_K3 = "differentiated, its gradient is that of KL(teacher || student); use 'forward_kl' if that is meant"
REFUSED: Mapping[str, str] = {
    "k1": "differentiated, its expected gradient is 0; use 'k2', or k1 as an advantage: sampled_token_signal",
    "k3": _K3,
    "low_var_kl": _K3,
    "topk_advantage": _ADVANTAGE,
    "reverse_kl_advantage": _ADVANTAGE,
    "reverse_kl_topk": _TRUNCATED,
    "forward_kl_topk": _TRUNCATED,
    "reverse_kl_topk_renormalised": _RENORMALISED,
    "forward_kl_topk_renormalised": _RENORMALISED,
}
