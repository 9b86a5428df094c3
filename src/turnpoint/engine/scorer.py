"""Log-probabilities of given tokens from logits."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from turnpoint.engine.sampler import require_finite
from turnpoint.protocols import ScoreRequest, Scores


def score_logits(
    *,
    logits: Float[Tensor, "n V"],
    targets: Int[Tensor, " n"],
    request: ScoreRequest,
    policy_version: int,
) -> Scores:
    """Returns what `request` asks about `targets`, each predicted by its row of `logits`.

    Raises EngineError when a row is no law (NaN or inf logits).
    """
    if request.temperature != 1:
        logits = logits / request.temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    sampled = logprobs.gather(1, targets.unsqueeze(1)).squeeze(1)
    require_finite(sampled)
    top = logprobs.topk(request.top_k, dim=-1) if request.top_k else None
    return Scores(
        logprobs=sampled.cpu().numpy(),
        policy_version=policy_version,
        entropy=_entropy(logprobs).cpu().numpy() if request.entropy else None,
        top_ids=None if top is None else top.indices.int().cpu().numpy(),
        top_logprobs=None if top is None else top.values.cpu().numpy(),
    )


def _entropy(logprobs: Tensor) -> Tensor:
    probs = logprobs.exp()
    return -(probs * logprobs.masked_fill(probs == 0, 0.0)).sum(-1)  # 0 log 0 = 0: masked ids add nothing
