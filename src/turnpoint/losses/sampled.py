"""k2: the one estimator of a KL divergence on sampled tokens that is right as a loss to differentiate.

    k2 = (log p(y) - log q(y))^2 / 2,    y ~ p;    grad k2 = (log p(y) - log q(y)) grad log p(y)

whose mean is the gradient of KL(p || q) (arXiv 2506.09477). Its own mean is not that KL: report k1.
Differentiated, k1 has the mean gradient 0, and k3 that of the other direction, KL(q || p).
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from turnpoint.losses.laws import LOWEST_LOGPROB, floored


def k2(
    *,
    student_logprobs: Float[Tensor, "*tokens"],
    teacher_logprobs: Float[Tensor, "*tokens"],
    weights: Float[Tensor, "*tokens"] | None = None,
) -> Float[Tensor, "*tokens"]:
    """Returns k2 of each sampled token, nats squared, differentiable in `student_logprobs` alone.

    Both are in nats, of the same token at the same temperature. The tokens were drawn from the student's
    law as given; if another law drew them, `weights` are p(y) / p_behaviour(y), without which the gradient
    is another divergence's. -inf counts as -100 (`losses.laws.LOWEST_LOGPROB`). It is the gradient of the
    sampled-token signal as an advantage, with the square of its size as value.
    """
    gap = student_logprobs.clamp(min=LOWEST_LOGPROB) - floored(teacher_logprobs)
    terms = gap.square() / 2
    return terms if weights is None else terms * weights.detach()
