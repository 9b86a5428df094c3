"""Speculative decoding of the rows of a batch: ask a drafter, run the network once over its chains, verify.

    propose    what follows each row's newest token by a drafter's guess, each row to a depth of its own
    (runner)   one pass of the network over all of them
    verify     what the target's law keeps of each chain, and one more token (engine/verification.py)

Nothing is rolled back: keys and values of what was rejected lie behind a row's length, where nobody looks,
until they are written over. A row of depth 0 takes the plain step's draw, so that its tokens are the same
as without a drafter.

Draws that belong to a round are keyed by where it starts, and so are never used twice: the draft that a
rejection threw away is independent of the one that takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from turnpoint.engine.batch import Batch
from turnpoint.engine.depth import DepthRule, Survival, reached
from turnpoint.engine.filters import Filters
from turnpoint.engine.sampler import draw, require_finite
from turnpoint.engine.sequence import Generation
from turnpoint.engine.tempering import WATCHED_ROWS, Tempering
from turnpoint.engine.verification import verify_chains
from turnpoint.models.mtp import MtpHeads
from turnpoint.models.mtp_parallel import ParallelHeads
from turnpoint.protocols import Drafter

Drawn: TypeAlias = list[tuple[int, float]]  # tokens and their log-probabilities under the target's law, nats


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How an engine speculates; `mode` as in `verify_chain`.

    `tempered`: drafts are drawn at the temperatures of `Tempering`, else at the policy's. `learning`: heads
    of the drafter that may change between `load_weights` and the next request, in several workers too. Raises
    ValueError for tempered drafts of `target_only`, which have no temperature.
    """

    drafter: Drafter
    depth: DepthRule
    mode: str = "token"
    tempered: bool = False
    learning: MtpHeads | ParallelHeads | None = None

    def __post_init__(self) -> None:
        if self.tempered and self.mode == "target_only":
            raise ValueError("tempered drafts of mode target_only: the likeliest token has no temperature")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """Chains for the first n rows of a batch."""

    lengths: npt.NDArray[np.int64]  # [n]
    ids: Tensor  # [n, gamma]
    probs: Tensor  # [n, gamma, V], the law that each was drawn from
    coins: npt.NDArray[np.float64]  # [n, gamma]
    watched: npt.NDArray[np.int64]  # [w], rows that are looked at to choose temperatures
    logits: Tensor  # [w, gamma, V], the draft's

    @property
    def count(self) -> int:
        """How many tokens were drafted."""
        return int(self.lengths.sum())

    def behind(self, newest: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Returns each row's newest token with its chain behind it, row by row."""
        rows = np.column_stack([newest, self.ids.cpu().numpy()]).astype(np.int32)
        return rows[np.arange(rows.shape[1]) <= self.lengths[:, None]]


class Speculator:
    """Speculates for one batch, whose rows it follows."""

    def __init__(self, speculation: Speculation) -> None:
        self._drafter = speculation.drafter
        self._rule = speculation.depth
        self._mode = speculation.mode
        self._tempering = Tempering(speculation.depth.deepest) if speculation.tempered else None
        self.clear()

    def clear(self) -> None:
        """Forgets all rows."""
        self._known: list[int] = []  # of each row, the tokens whose hidden states the drafter has
        self._drafter.clear()

    def leave(self, row: int, last: int) -> None:
        """Follows `Batch.leave`: row `last` takes the place of `row`."""
        self._known += [0] * (last + 1 - len(self._known))
        known = self._known.pop()
        if row < last:
            self._known[row] = known
            if known:
                self._drafter.move(last, row)

    # --- draft ------------------------------------------------------------------------------------

    def propose(
        self, batch: Batch, *, rows: int, most: int, head: Callable[[Tensor], Tensor]
    ) -> Drafts | None:
        """Returns chains for the first `rows` rows, of `most` tokens at most; None where nobody drafts.

        `head` makes logits of hidden states.
        """
        self._known += [0] * (len(batch.sequences) - len(self._known))
        depths = self._depths(batch.sequences[:rows], most)
        drafting = depths.nonzero()[0]
        if not len(drafting):
            return None
        gamma, chosen = int(depths.max()), [batch.sequences[row] for row in drafting]
        known = [self._known[row] for row in drafting]
        watching = self._tempering is not None and self._tempering.next_round()
        chains = _Chains(
            chosen,
            depths[drafting],
            one_hot=self._mode == "target_only",
            factors=np.ones(gamma) if self._tempering is None else self._tempering.factors[:gamma],
            watched=WATCHED_ROWS if watching else 0,
        )
        self._drafter.propose(
            rows=[int(row) for row in drafting],
            starts=known,
            hidden=[batch.states(int(row), start) for row, start in zip(drafting, known, strict=True)],
            token_ids=[it.ids[start + 1 :] for it, start in zip(chosen, known, strict=True)],
            depths=[int(depth) for depth in depths[drafting]],
            head=head,
            draw=chains.draw,
        )
        for row, sequence in zip(drafting, chosen, strict=True):
            self._known[row] = sequence.length - 1
        coins = np.zeros((rows, gamma))
        coins[drafting] = chains.coins
        return Drafts(
            lengths=depths,
            ids=_spread(chains.ids, drafting, rows),
            probs=_spread(chains.probs, drafting, rows),
            coins=coins,
            watched=drafting[: len(chains.logits)],
            logits=chains.logits,
        )

    def _depths(self, sequences: Sequence[Generation], most: int) -> npt.NDArray[np.int64]:
        """Returns each row's depth: what the rule wants, but at most `most` and what its limit leaves."""
        wanted = min(self._rule.depth(rows=len(sequences)), most)
        left = np.array([sequence.limit - sequence.length - 1 for sequence in sequences], dtype=np.int64)
        return np.minimum(left, wanted).clip(min=0)

    def spent(self, rows: int, drafts: Drafts | None, *, drafting: float, verifying: float) -> None:
        """Tells the rule what a step that did nothing but decode took, seconds."""
        depth = 0 if drafts is None else drafts.ids.shape[1]
        tokens = rows + (0 if drafts is None else drafts.count)
        self._rule.spent(rows=rows, depth=depth, tokens=tokens, drafting=drafting, verifying=verifying)

    # --- verify -----------------------------------------------------------------------------------

    def verify(self, sequences: Sequence[Generation], drafts: Drafts, logits: Tensor) -> list[Drawn]:
        """Returns what each sequence goes on with.

        `logits` [T, V]: of the newest token and the chain of each row that drafts were made for, then of
        the newest token of each other row.
        """
        others = len(sequences) - len(drafts.lengths)
        lengths = np.concatenate([drafts.lengths, np.zeros(others, dtype=np.int64)])
        gamma = drafts.ids.shape[1]
        owners = np.repeat(np.arange(len(sequences)), 1 + lengths)
        temperatures = np.array([float(it.request.temperature) for it in sequences])
        filters = Filters.of(it.request for it in sequences)
        laws = _laws(logits, temperatures[owners], filters.rows(owners))
        starts = np.cumsum(1 + lengths) - (1 + lengths)
        places = starts[:, None] + np.minimum(np.arange(gamma + 1), lengths[:, None])
        target = laws[torch.from_numpy(places).to(laws.device)]  # [n, gamma + 1, V]
        uniforms = np.zeros((len(sequences), gamma + 1))
        uniforms[: len(drafts.coins), :gamma] = drafts.coins
        uniforms[:, gamma] = [sequence.uniforms.at(sequence.length) for sequence in sequences]
        ids = functional.pad(drafts.ids, (0, 0, 0, others))
        probs = functional.pad(drafts.probs, (0, 0, 0, 0, 0, others))
        accepted, following = verify_chains(
            target_probs=target,
            draft_probs=probs,
            draft_ids=ids,
            lengths=torch.from_numpy(lengths),
            uniforms=torch.from_numpy(uniforms).to(target.device),
            mode=self._mode,
        )
        both = target[:, :gamma], probs
        self._rule.observe(
            Survival.of_blocks(*both, ids, lengths=lengths)
            if self._mode == "block"
            else Survival.of(*both, lengths=lengths, accepted=accepted)
        )
        if self._tempering is not None and len(drafts.watched):
            watched: list[int] = drafts.watched.tolist()
            self._tempering.observe(
                target=target[watched, :gamma],
                logits=drafts.logits,
                temperatures=temperatures[watched],
                filters=filters.rows(drafts.watched),
                reached=reached(lengths[watched], accepted[watched], gamma),
            )
        ids = torch.cat([ids, torch.zeros_like(ids[:, :1])], 1).scatter_(
            1, accepted.unsqueeze(1), following.unsqueeze(1)
        )
        logprobs = target.gather(2, ids.unsqueeze(2)).squeeze(2).log()
        tokens, nats, kept = ids.cpu().numpy(), logprobs.cpu().numpy(), accepted.cpu().numpy()
        return [
            [(int(token), float(logprob)) for token, logprob in zip(*row, strict=True)]
            for row in ((tokens[at, : count + 1], nats[at, : count + 1]) for at, count in enumerate(kept))
        ]


class _Chains:
    """The chains of some rows while a drafter lengthens them."""

    def __init__(
        self,
        sequences: Sequence[Generation],
        depths: npt.NDArray[np.int64],
        *,
        one_hot: bool,
        factors: npt.NDArray[np.float64],
        watched: int,
    ) -> None:
        gamma = int(depths.max())
        draws = np.stack([sequence.uniforms.of_round(sequence.length, 2 * gamma) for sequence in sequences])
        # a depth's two draws are the same however deep other rows go
        self._uniforms, self.coins = draws[:, 0::2], draws[:, 1::2]
        self._temperatures = np.array([float(sequence.request.temperature) for sequence in sequences])
        self._filters = Filters.of(sequence.request for sequence in sequences)
        self._depths = depths
        self._one_hot = one_hot
        self._factors = factors  # of temperatures, by depth
        self._watched = min(watched, len(depths))
        self._logits: list[Tensor] = []  # [watched, V] of each depth
        self._ids: list[Tensor] = []  # [rows] of each depth, 0 for rows that do not go so deep
        self._probs: list[Tensor] = []  # [rows, V]

    def draw(self, logits: Tensor) -> Tensor:
        """Returns the next token of each row that goes so deep, by order, given the draft's logits."""
        at, count = len(self._ids), len(self._depths)
        rows = (self._depths > at).nonzero()[0]
        warmth = np.zeros(len(rows)) if self._one_hot else self._factors[at] * self._temperatures[rows]
        laws = _laws(logits, warmth, self._filters.rows(rows))
        if self._watched:
            here = rows[rows < self._watched]
            self._logits.append(_spread(logits[: len(here)].float(), here, self._watched))
        ids = draw(probs=laws, uniforms=torch.from_numpy(self._uniforms[rows, at]).to(laws.device))
        self._ids.append(_spread(ids, rows, count))
        self._probs.append(_spread(laws, rows, count))
        return ids

    @property
    def ids(self) -> Tensor:
        """[rows, gamma]"""
        return torch.stack(self._ids, 1)

    @property
    def probs(self) -> Tensor:
        """[rows, gamma, V]"""
        return torch.stack(self._probs, 1)

    @property
    def logits(self) -> Tensor:
        """[watched, gamma, V]"""
        return torch.stack(self._logits, 1) if self._watched else self._probs[0][:0].unsqueeze(1)


def _spread(given: Tensor, rows: npt.NDArray[np.int64], count: int) -> Tensor:
    """Returns `given` with its rows at `rows` of `count`, and zeros elsewhere."""
    if len(rows) == count:
        return given
    places = torch.from_numpy(rows).to(given.device)
    return given.new_zeros(count, *given.shape[1:]).index_copy_(0, places, given)


def _laws(logits: Tensor, temperatures: npt.NDArray[np.float64], filters: Filters) -> Tensor:
    """Returns the law of each row at its temperature, filtered, [n, V] float32; at 0 the likeliest has all.

    Raises EngineError when a row at 0 has none (NaN or inf logits); of others `draw` does.
    """
    greedy = torch.from_numpy(temperatures == 0).to(logits.device)
    divisors = torch.from_numpy(np.where(temperatures == 0, 1.0, temperatures).astype(np.float32))
    laws = filters(torch.softmax(logits.float() / divisors.to(logits.device).unsqueeze(1), dim=-1))
    if bool(greedy.any()):
        most, ids = logits.max(-1)
        require_finite(most[greedy])  # else NaN would be the likeliest token
        best = functional.one_hot(ids, logits.shape[-1])
        laws = torch.where(greedy.unsqueeze(1), best.to(laws), laws)
    return laws
