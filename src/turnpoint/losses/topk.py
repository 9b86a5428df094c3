"""KL divergences from a few candidates K per token: an unbiased one, and lower bounds under their own names.

    hybrid  exact on K, sampled outside      sum_{v in K} p_v g_v + [y not in K] w g_y,      y ~ p
    tail    the rest is one more outcome     sum_{v in K} p_v g_v + P log(P / Q),            P = 1 - sum_K p

with g = log p/q. The hybrid's mean over y is KL(p || q) for every K that does not depend on y, in value
and, with g held fixed, in gradient: sum_{v in K} g_v grad p_v + [y not in K] w g_y grad log p_y. (Letting
the derivative run through g adds a term whose mean is 0: noise, also where the laws are equal.) Its variance
falls to 0 as K grows. The tail forms are the KL of the laws with all ids outside K made one: between 0 and
the full KL, growing with K, without noise, but their gradient is not that of the KL: it cannot see which
ids of the tail are wrong, and on a small K it may push the wrong way.

Not here: the sum over K alone, which falls below 0 and pays for moving mass out of K; the laws renormalised
on K, which are blind to the mass outside and at k = 1 always 0; and any of these values as an advantage,
which does not depend on the sampled token and so has the expected gradient 0.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from turnpoint.losses.laws import LOWEST_LOGPROB, floored, log_laws, with_slope


def reverse_kl_topk_hybrid(
    *,
    student_logits: Float[Tensor, "*tokens V"],
    teacher_logits: Float[Tensor, "*tokens V"],
    sampled_ids: Int[Tensor, "*tokens"],
    k: int,
    weights: Float[Tensor, "*tokens"] | None = None,
) -> Float[Tensor, "*tokens"]:
    """Returns an unbiased estimate of KL(student || teacher) of each token, nats; K is the student's top k.

    `sampled_ids` were drawn from the student's law as given. If another law drew them, `weights` are
    p(y) / p_behaviour(y), truncated as far as bias is accepted (`truncated_weights`); they act on the
    sampled term alone and without them the estimate is biased. Single values may be negative.
    Differentiable once, in `student_logits` alone; at -inf as `reverse_kl`. With k = V there is no noise.

    Raises ValueError for logits of different shapes and for a k outside 1 to V.
    """
    log_p, log_q = log_laws(student_logits=student_logits, teacher_logits=teacher_logits)
    inside = _top(student_logits, k)
    gap = log_q.neg_().add_(log_p)
    drawn = sampled_ids.unsqueeze(-1)
    sampled = torch.where(inside.gather(-1, drawn), 0.0, gap.gather(-1, drawn)).squeeze(-1)
    if weights is not None:
        sampled = sampled * weights.detach()
    p = log_p.exp_()
    exact = gap.masked_fill_(~inside, 0.0)
    values = (p * exact).sum(-1) + sampled
    slope = exact.sub_(values.unsqueeze(-1)).mul_(p)
    slope.scatter_add_(-1, drawn, sampled.unsqueeze(-1))
    return with_slope(student_logits, values=values, slope=slope)


def reverse_kl_topk_hybrid_gathered(
    *,
    student_topk_logprobs: Float[Tensor, "*tokens k"],
    teacher_topk_logprobs: Float[Tensor, "*tokens k"],
    topk_ids: Int[Tensor, "*tokens k"],
    student_logprobs: Float[Tensor, "*tokens"],
    teacher_logprobs: Float[Tensor, "*tokens"],
    sampled_ids: Int[Tensor, "*tokens"],
    weights: Float[Tensor, "*tokens"] | None = None,
) -> Float[Tensor, "*tokens"]:
    """Returns what `reverse_kl_topk_hybrid` does from log-probabilities at K and at the sampled id.

    For teachers behind a server: they score `topk_ids` and the sampled id, nothing else. `topk_ids` are
    distinct, best the student's top k at sampling; any set is unbiased that was not chosen by looking at
    the sampled id, so an id that a server adds because it was sampled does not belong to it.
    `student_logprobs` and `teacher_logprobs` are of the sampled id. All are in nats, of the whole law at
    one temperature, not renormalised on K. Differentiable in the student's two; `weights` as there.
    """
    gap = floored(student_topk_logprobs) - floored(teacher_topk_logprobs)
    exact = (student_topk_logprobs.exp() * gap).sum(-1)
    sampled = floored(student_logprobs) - floored(teacher_logprobs)
    if weights is not None:
        sampled = sampled * weights.detach()
    inside = (topk_ids == sampled_ids.unsqueeze(-1)).any(-1)
    present = student_logprobs.clamp(min=LOWEST_LOGPROB)
    score = 1 + (present - present.detach())  # value 1, gradient that of log p
    return exact + torch.where(inside, 0.0, sampled) * score


def reverse_kl_topk_tail(
    *, student_logits: Float[Tensor, "*tokens V"], teacher_logits: Float[Tensor, "*tokens V"], k: int
) -> Float[Tensor, "*tokens"]:
    """Returns a lower bound of KL(student || teacher) of each token, nats; K is the student's top k.

    Equal to it, in value and gradient, where both laws are proportional outside K. Differentiable once, in
    `student_logits` alone; at -inf as `reverse_kl`. Raises as `reverse_kl_topk_hybrid` does.
    """
    log_p, log_q = log_laws(student_logits=student_logits, teacher_logits=teacher_logits)
    inside = _top(student_logits, k)
    tail = _log_rest(log_p, inside) - _log_rest(log_q, inside)
    gap = torch.where(inside, log_q.neg_().add_(log_p), tail)
    p = log_p.exp_()
    values = (p * gap).sum(-1)
    return with_slope(student_logits, values=values, slope=gap.sub_(values.unsqueeze(-1)).mul_(p))


def forward_kl_topk_tail(
    *, student_logits: Float[Tensor, "*tokens V"], teacher_logits: Float[Tensor, "*tokens V"], k: int
) -> Float[Tensor, "*tokens"]:
    """Returns a lower bound of KL(teacher || student) of each token, nats; K is the teacher's top k.

    As `reverse_kl_topk_tail` in all else.
    """
    log_p, log_q = log_laws(student_logits=student_logits, teacher_logits=teacher_logits)
    inside = _top(teacher_logits, k)
    rest_p, rest_q = _log_rest(log_p, inside), _log_rest(log_q, inside)
    q = log_q.exp()
    values = torch.where(inside, q * (log_q - log_p), 0.0).sum(-1)
    values += (rest_q.exp() * (rest_q - rest_p)).squeeze(-1)
    coarse = torch.where(inside, q, (log_p + (rest_q - rest_p)).exp())  # q's tail mass, shared out as p's is
    return with_slope(student_logits, values=values, slope=log_p.exp_().sub_(coarse))


def _top(logits: Tensor, k: int) -> Tensor:
    """Returns [.., V], True at the k largest."""
    if not 1 <= k <= logits.shape[-1]:
        raise ValueError(f"k = {k} of a vocabulary of {logits.shape[-1]} ids; it must be 1 to that many")
    ids = logits.detach().topk(k, dim=-1, sorted=False).indices
    return torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, ids, True)


def _log_rest(log_law: Tensor, inside: Tensor) -> Tensor:
    """Returns [.., 1], the log of the mass outside: summed there, not as 1 minus the rest, which cancels."""
    rest = log_law.masked_fill(inside, -torch.inf).logsumexp(-1, keepdim=True)
    return rest.clamp(min=LOWEST_LOGPROB)
