"""Draws tokens from softmax(logits / temperature), filtered, by inverse CDF, one uniform number per token.

`torch.multinomial` takes as long as a small model's whole forward pass on CPUs and hides its random state.
Here the vocabulary is summed in blocks; the uniform number finds its block, then its token inside it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from turnpoint.engine.filters import Filters
from turnpoint.errors import EngineError

_BLOCK = 256
_CACHED_BYTES = 3 << 19  # of float32 logits that stay in the cache of a core from pass to pass


def sample_pieces(
    *,
    scores: Float[Tensor, "n V"],
    finish: Callable[[Tensor], Tensor],
    temperatures: npt.NDArray[np.float64],
    uniforms: npt.NDArray[np.float64],
    filters: Filters,
) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
    """Returns what `sample` does of `finish(scores)`, a few rows at a time on CPUs.

    So float32 logits are never written to memory, which would take longer than all the arithmetic on them.
    """
    rows = max(1, _CACHED_BYTES // (4 * scores.shape[1])) if scores.device.type == "cpu" else len(scores)
    drawn = [
        sample(
            logits=finish(scores[at : at + rows]),
            temperatures=temperatures[at : at + rows],
            uniforms=uniforms[at : at + rows],
            filters=filters.rows(slice(at, at + rows)),
        )
        for at in range(0, len(scores), rows)
    ]
    ids, logprobs = zip(*drawn, strict=True)
    return torch.cat(ids), torch.cat(logprobs)


def sample(
    *,
    logits: Float[Tensor, "n V"],
    temperatures: npt.NDArray[np.float64],
    uniforms: npt.NDArray[np.float64],
    filters: Filters,
) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
    """Returns one token per row and its log-probability in nats under the law it was drawn from.

    `temperatures` [n]: 0 takes the likeliest token, whose log-probability is then 0. `uniforms` [n] in
    [0, 1). Never returns a token of zero mass. Raises EngineError when a row is no law (NaN or inf logits).
    """
    logits = logits.float()  # a softmax rounded to bfloat16 is another law
    greedy = temperatures == 0
    if greedy.all():
        return _likeliest(logits)
    if (temperatures != 1).any():
        divisors = torch.from_numpy(np.where(greedy, 1.0, temperatures).astype(np.float32))
        logits = logits / divisors.to(logits.device).unsqueeze(-1)
    probs = filters(torch.softmax(logits, dim=-1))
    ids = draw(probs=probs, uniforms=torch.from_numpy(uniforms).to(logits.device))
    logprobs = probs.gather(1, ids.unsqueeze(1)).squeeze(1).log()
    if greedy.any():
        rows = torch.from_numpy(greedy.nonzero()[0]).to(logits.device)
        ids[rows], logprobs[rows] = _likeliest(logits[rows])
    return ids, logprobs


def _likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    values, ids = logits.max(dim=-1)
    require_finite(values)
    return ids, torch.zeros_like(values)


def draw(*, probs: Float[Tensor, "n V"], uniforms: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Returns per row the first token whose cumulative mass exceeds `uniforms` x the total mass.

    `probs` need not sum to one; `uniforms` are float64, and 1 itself gives the last token with mass.
    Raises EngineError when a row has no finite mass.
    """
    vocab = probs.shape[1]
    whole = vocab // _BLOCK * _BLOCK
    blocks = probs[:, :whole].reshape(len(probs), -1, _BLOCK).sum(-1)
    sums = torch.cat([blocks, probs[:, whole:].sum(-1, keepdim=True)], dim=1).double()
    require_finite(sums.sum(-1))
    block, rest = _find(sums, uniforms)
    index = block.unsqueeze(1) * _BLOCK + torch.arange(min(_BLOCK, vocab), device=probs.device)
    inside = probs.gather(1, index.clamp(max=vocab - 1)).double() * (index < vocab)
    offset, _ = _find(inside, rest)
    return block * _BLOCK + offset


def _find(masses: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the bin where each uniform falls and how far into the bin, in [0, 1]."""
    cumulative = masses.cumsum(-1)
    total = cumulative[:, -1:]
    # a fraction that rounding has carried up to 1 must not fall beyond the last bin that has mass
    below = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(uniforms.unsqueeze(1) * total, below)
    found = torch.searchsorted(cumulative, target, right=True)
    mass = masses.gather(1, found)
    into = (target - (cumulative.gather(1, found) - mass)) / mass
    return found.squeeze(1), into.clamp(0, 1).squeeze(1)


def require_finite(values: Tensor) -> None:
    """Raises EngineError unless `values`, one per sequence or position, are all finite."""
    finite = torch.isfinite(values)
    if not bool(finite.all()):
        raise EngineError(
            f"logits of {int((~finite).sum())} of {len(values)} rows are not finite; the weights or "
            f"the activations hold NaN or inf, as a learning rate that is too high makes them"
        )
