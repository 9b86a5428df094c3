"""What drafts of texts are worth, without speculating: acceptance by depth, and tokens per round.

    acceptance of depth i     sum alpha_i / sum 1        over the anchors that have this depth
    accept length, by laws    1 + A_1 + A_1 A_2 + ...    from those means: what end-to-end losses train
    accept length, by texts   sum N / sum R              tokens per expected round, `accept_length`

The last is of the very law that sampled the texts, and only there an expectation of what an engine counts;
means of a product are not the product of means, so that the two differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from turnpoint.drafting.acceptance import accept_length
from turnpoint.drafting.rows import DraftRows, draft_rows
from turnpoint.drafting.texts import DraftHeads, DraftText, PackedTexts, batches, pack_texts
from turnpoint.losses.chunked import LinearHead
from turnpoint.models.decoder import Decoder
from turnpoint.models.heads import detached_head

_CHUNK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFigures:
    """One text: the tokens behind its first sampled ones, and the expected rounds that they take."""

    tokens: int
    rounds: tuple[float, ...]  # by depth, 1 to gamma
    entropy: float  # of the policy, nats, summed over those tokens
    ahead: float  # of sum min(p, q) - p(argmax q), over tokens and depths: what verifying draws adds
    group: str  # as `DraftText.group`; "": none


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Sums over texts; ratios are of sums."""

    counts: npt.NDArray[np.float64]  # [gamma], anchors that have this depth
    overlaps: npt.NDArray[np.float64]  # [gamma], of sum min(p, q)
    best: npt.NDArray[np.float64]  # [gamma], of p(argmax q), what target_only accepts
    ahead: npt.NDArray[np.float64]  # [gamma], where rejection accepts more: total variation < 1 - p(argmax q)
    warmed: npt.NDArray[np.float64]  # [F, gamma], overlaps of drafts as warm as each of `factors`
    drift: float  # of |log-probability now - as recorded|, nats
    recorded: int  # tokens that it is summed over
    factors: tuple[float, ...] = ()  # of the policy's temperature
    texts: Sequence[TextFigures] = field(default=())

    def __add__(self, other: Measured) -> Measured:
        return Measured(
            counts=self.counts + other.counts,
            overlaps=self.overlaps + other.overlaps,
            best=self.best + other.best,
            ahead=self.ahead + other.ahead,
            warmed=self.warmed + other.warmed,
            factors=self.factors,
            drift=self.drift + other.drift,
            recorded=self.recorded + other.recorded,
            texts=[*self.texts, *other.texts],
        )

    @property
    def acceptance(self) -> list[float]:
        """Share of drafts accepted, by depth; NaN for a depth that no text has."""
        return _ratios(self.overlaps, self.counts)

    @property
    def target_only(self) -> list[float]:
        """The same for the draft's likeliest token, accepted as often as the policy draws it."""
        return _ratios(self.best, self.counts)

    @property
    def rejection_ahead(self) -> list[float]:
        """Share of the rows where verifying the drawn token accepts more than `target_only`, by depth."""
        return _ratios(self.ahead, self.counts)

    @property
    def sweep(self) -> dict[float, list[float]]:
        """Share of drafts accepted, by depth, that are drawn at a multiple of the policy's temperature."""
        return {
            factor: _ratios(sums, self.counts) for factor, sums in zip(self.factors, self.warmed, strict=True)
        }

    @property
    def problems_ahead(self) -> tuple[int, int]:
        """On how many groups verifying the drawn token accepts more than `target_only`, and of how many."""
        sums: dict[str, float] = {}
        for index, text in enumerate(self.texts):
            name = text.group or f"\0{index}"
            sums[name] = sums.get(name, 0.0) + text.ahead
        return sum(value > 0 for value in sums.values()), len(sums)

    @property
    def law_length(self) -> float:
        """Tokens per round that the means give, the policy's own included."""
        length = survival = 1.0
        for share in self.acceptance:
            survival *= share
            length += survival
        return length

    @property
    def text_lengths(self) -> list[float]:
        """Tokens per round along the texts, by depth of the drafts."""
        tokens = sum(it.tokens for it in self.texts)
        return [
            tokens / rounds if (rounds := sum(it.rounds[depth] for it in self.texts)) else float("nan")
            for depth in range(len(self.counts))
        ]

    @property
    def entropy(self) -> float:
        """Of the policy, nats per token."""
        tokens = sum(it.tokens for it in self.texts)
        return sum(it.entropy for it in self.texts) / tokens if tokens else float("nan")

    @property
    def mean_drift(self) -> float | None:
        """Mean |log-probability now - as recorded|, nats; None where nothing is recorded."""
        return self.drift / self.recorded if self.recorded else None


def measure_drafts(
    heads: DraftHeads,
    decoder: Decoder,
    texts: Sequence[DraftText],
    *,
    depth: int,
    temperature: float = 1.0,
    batch_tokens: int = 4096,
    factors: Sequence[float] = (),
    progress: Callable[[int, int], None] = lambda texts, tokens: None,
) -> Measured:
    """Returns what drafts to `depth` by `heads` are worth on `texts`, to a policy sampled at `temperature`.

    `batch_tokens` go through the networks at once; `factors` of the temperature are tried on the drafts for
    `Measured.sweep`; `progress` is told texts and tokens. Full laws of a few
    tokens exist at a time. Changes nothing. Raises ModelError as `detached_head` does.
    """
    head, total = detached_head(decoder), _nothing(depth, tuple(factors))
    for batch in batches([len(it) for it in texts], tokens=batch_tokens):
        packed = pack_texts([texts[index] for index in batch], device=decoder.device)
        with torch.no_grad():
            rows = draft_rows(heads, decoder, packed, depth=depth)
            total += _measured(rows, packed, head, temperature, total.factors)
        progress(len(batch), len(packed.token_ids))
    return total


def _nothing(depth: int, factors: tuple[float, ...]) -> Measured:
    zeros = np.zeros(depth)
    return Measured(
        counts=zeros,
        overlaps=zeros,
        best=zeros,
        ahead=zeros,
        warmed=np.zeros((len(factors), depth)),
        factors=factors,
        drift=0.0,
        recorded=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Laws:
    """Of rows [N] and drafts [N, gamma]; what stands at drafts that do not count says nothing."""

    alphas: Tensor
    best: Tensor
    warmed: Tensor  # [N, gamma, F]
    draft_logprobs: Tensor
    target_logprobs: Tensor  # [N]
    entropy: Tensor  # [N]


def _measured(
    rows: DraftRows, packed: PackedTexts, head: LinearHead, temperature: float, factors: tuple[float, ...]
) -> Measured:
    laws, mask = _laws(rows, head, temperature, factors), rows.mask
    drift, recorded = _drift(laws, rows, packed)
    return Measured(
        counts=_sums(mask),
        overlaps=_sums(torch.where(mask, laws.alphas, 0.0)),
        best=_sums(torch.where(mask, laws.best, 0.0)),
        ahead=_sums(mask & (laws.alphas > laws.best)),
        warmed=_sums(laws.warmed.masked_fill(~mask.unsqueeze(-1), 0.0)).T,
        factors=factors,
        drift=drift,
        recorded=recorded,
        texts=list(_texts(laws, rows, packed)),
    )


def _laws(rows: DraftRows, head: LinearHead, temperature: float, factors: tuple[float, ...]) -> _Laws:
    gamma, count, _ = rows.draft_hidden.shape
    size = max(1, _CHUNK_BYTES // (4 * len(head.weight) * (gamma + 4)))
    parts: list[tuple[Tensor, ...]] = []
    for start in range(0, count, size):
        stop = min(start + size, count)
        places = torch.arange(start, stop + gamma - 1, device=rows.anchors.device).clamp_(max=count - 1)
        target = torch.log_softmax(head(rows.target_hidden[places]).float() / temperature, dim=-1)
        ids, found = rows.next_ids[places], list[tuple[Tensor, ...]]()
        for index in range(gamma):
            window = slice(index, index + stop - start)
            logits = head(rows.draft_hidden[index, start:stop]).float() / temperature
            draft = torch.log_softmax(logits, dim=-1)
            p, likeliest = target[window].exp(), draft.argmax(-1, keepdim=True)
            found.append(
                (
                    torch.minimum(p, draft.exp()).sum(-1),
                    p.gather(1, likeliest)[:, 0],
                    draft.gather(1, ids[window].unsqueeze(1))[:, 0],
                    _overlaps(p, logits, factors),
                )
            )
        here = target[: stop - start]
        entropy = -torch.where(here.exp() > 0, here.exp() * here, 0.0).sum(-1)
        own = here.gather(1, ids[: stop - start].unsqueeze(1))[:, 0]
        parts.append((*(torch.stack(column, 1) for column in zip(*found, strict=True)), own, entropy))
    if not parts:
        empty = torch.zeros(0, gamma)
        parts = [(empty, empty, empty, torch.zeros(0, gamma, len(factors)), torch.zeros(0), torch.zeros(0))]
    alphas, best, drafts, warmed, targets, entropy = (
        torch.cat(column) for column in zip(*parts, strict=True)
    )
    return _Laws(
        alphas=alphas,
        best=best,
        warmed=warmed,
        draft_logprobs=drafts,
        target_logprobs=targets,
        entropy=entropy,
    )


def _overlaps(p: Tensor, logits: Tensor, factors: tuple[float, ...]) -> Tensor:
    """Returns sum min(p, q) for drafts at each of `factors`, [n, F]."""
    found = [torch.minimum(p, torch.softmax(logits / factor, dim=-1)).sum(-1) for factor in factors]
    return torch.stack(found, -1) if found else p.new_zeros(len(p), 0)


def _sums(values: Tensor) -> npt.NDArray[np.float64]:
    return values.double().sum(0).cpu().numpy()


def _drift(laws: _Laws, rows: DraftRows, packed: PackedTexts) -> tuple[float, int]:
    """Returns sum and count of |log-probability now - as recorded| of the tokens that rows end in."""
    recorded = np.concatenate(
        [np.full(len(it), np.nan) if it.logprobs is None else it.logprobs for it in packed.texts]
    )
    before = torch.from_numpy(recorded).to(laws.target_logprobs.device)[rows.anchors + 2]
    known = before.isfinite()
    gap = (laws.target_logprobs.double() - before)[known].abs()
    return float(gap.sum()), int(known.sum())


def _texts(laws: _Laws, rows: DraftRows, packed: PackedTexts) -> list[TextFigures]:
    """Returns the figures of each text that has rows: of each stretch of sampled tokens, its rounds."""
    gamma = laws.alphas.shape[1]
    anchors = rows.anchors.cpu().numpy()
    ends = np.cumsum(packed.lengths)
    owners = np.searchsorted(ends, anchors, side="right")
    breaks = 1 + np.flatnonzero((np.diff(anchors) != 1) | (np.diff(owners) != 0))
    found: dict[int, TextFigures] = {}
    for part in np.split(np.arange(len(anchors)), breaks):
        if not len(part):
            continue
        here, owner = slice(part[0], part[-1] + 1), int(owners[part[0]])
        targets, drafts = laws.target_logprobs[here].cpu(), laws.draft_logprobs[here].cpu()
        rounds = [
            len(part) / accept_length(target_logprobs=targets, draft_logprobs=drafts[:, :depth])
            for depth in range(1, gamma + 1)
        ]
        group = packed.texts[owner].group
        new = TextFigures(tokens=0, rounds=(0.0,) * gamma, entropy=0.0, ahead=0.0, group=group)
        before = found.get(owner, new)
        ahead = torch.where(rows.mask[here], laws.alphas[here] - laws.best[here], 0.0)
        found[owner] = TextFigures(
            tokens=before.tokens + len(part),
            rounds=tuple(left + right for left, right in zip(before.rounds, rounds, strict=True)),
            entropy=before.entropy + float(laws.entropy[here].double().sum()),
            ahead=before.ahead + float(ahead.double().sum()),
            group=group,
        )
    return list(found.values())


def _ratios(sums: npt.NDArray[np.float64], counts: npt.NDArray[np.float64]) -> list[float]:
    return [
        float(total / count) if count else float("nan") for total, count in zip(sums, counts, strict=True)
    ]
