"""One step of the engine: admit, run the network once over a flat row of tokens, sample, score."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from turnpoint.engine.batch import Batch
from turnpoint.engine.filters import Filters
from turnpoint.engine.layout import SpanChunk, StepLayout
from turnpoint.engine.prefix_cache import PrefixCache
from turnpoint.engine.sampler import sample_pieces
from turnpoint.engine.scheduler import Chunk, Prefill, Scheduler
from turnpoint.engine.scorer import score_logits
from turnpoint.engine.sequence import Generation, Scoring
from turnpoint.engine.span import CacheShape, Span, empty_span
from turnpoint.engine.speculation import Drafts, Speculation, Speculator
from turnpoint.engine.stats import EngineStats
from turnpoint.models.decoder import Decoder
from turnpoint.models.packed import packed
from turnpoint.protocols import Completion, Scores

_SCORE_CHUNK = 256  # positions whose logits exist at the same time

Outcome: TypeAlias = "tuple[Generation, Completion] | tuple[Scoring, Scores]"


class Runner:
    """Owns what is computed: the batch that decodes, the prefix cache, and the sequences in both.

    In a step the newest token of every decoding sequence goes through the network, then each draws one more;
    with drafts behind it, as many more as are accepted.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        max_running: int,
        max_step_tokens: int,
        cache_tokens: int,
        pack: bool = True,
        speculation: Speculation | None = None,
    ) -> None:
        self.stats = EngineStats()
        self.policy_version = 0
        self._source = decoder
        self._pack = pack
        self._decoder = packed(decoder) if pack else decoder
        chain = 1 + speculation.depth.deepest if speculation else 1
        # every row has room for its drafts, so that how deep one goes does not depend on how many there are
        self._scheduler = Scheduler(
            max_running=min(max_running, max(1, max_step_tokens // chain)),
            max_step_tokens=max_step_tokens,
            cache_tokens=cache_tokens,
        )
        self._shape = CacheShape.of(decoder)
        self._batch = Batch(self._shape)
        self._cache = PrefixCache(cache_tokens)
        self._max_step_tokens = max_step_tokens
        self._speculator = speculation and Speculator(speculation)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return not self._batch.sequences and self._scheduler.idle

    def submit(self, sequence: Generation | Scoring) -> None:
        """Takes a sequence in; it is served by the steps that follow."""
        self._scheduler.submit(sequence)

    def forget(self) -> None:
        """Drops all sequences and everything computed."""
        self._scheduler.clear()
        self._batch.clear()
        self._cache.clear()
        if self._speculator is not None:
            self._speculator.clear()

    def renew(self, version: int) -> None:
        """Computes with weights that another process may have changed, and calls them `version`."""
        self._decoder = self._source  # its packed weights are let go of before there are others
        self._decoder = packed(self._source) if self._pack else self._source
        self.policy_version = version

    @torch.inference_mode()
    def step(self) -> list[Outcome]:
        """Runs one step and returns what it finished."""
        began, processor = time.perf_counter(), time.process_time()
        self._drop_abandoned()
        running = len(self._batch.sequences)  # those that join below have nothing for the network to do
        self._start(self._scheduler.admit(decoding=running, cached=self._cache.match))
        drafts = self._draft(running)
        drafted = time.perf_counter()
        tokens = running + (drafts.count if drafts else 0)
        chunks = self._scheduler.chunks(decoding=tokens)
        verified = self._run_network(running, chunks, drafts)
        finished = self._sample() if drafts is None else self._verify(drafts, verified)
        if self._speculator is not None and tokens and not chunks:
            self._speculator.spent(
                running, drafts, drafting=drafted - began, verifying=time.perf_counter() - drafted
            )
        outcomes = [*finished, *self._score()]
        self.stats += EngineStats(
            steps=1, seconds=time.perf_counter() - began, processor=time.process_time() - processor
        )
        return outcomes

    # --- in ---------------------------------------------------------------------------------------

    def _start(self, admitted: Sequence[Prefill]) -> None:
        """Gives each what is cached of its prefix: in a row when that is all, else in a buffer of its own."""
        joining: list[tuple[Prefill, list[Span]]] = []
        for prefill in admitted:
            cached = self._cache.read(prefill.ids)
            self.stats += EngineStats(cached=prefill.computed)
            prefill.owner.cached_tokens = prefill.computed
            if isinstance(prefill.owner, Generation) and prefill.complete:
                joining.append((prefill, cached))
                continue
            prefill.span = empty_span(self._shape, len(prefill.ids))
            prefill.span.fill(cached)
        self._decode_from_now_on(joining)

    def _decode_from_now_on(self, joining: Sequence[tuple[Prefill, list[Span]]]) -> None:
        """Gives each sequence a row; the spans hold its prefix."""
        generations: list[tuple[Generation, list[Span]]] = []
        for prefill, spans in joining:
            self._scheduler.leave(prefill)
            prefill.span = None
            assert isinstance(prefill.owner, Generation)
            generations.append((prefill.owner, spans))
        self._batch.join(generations)

    # --- through the network ----------------------------------------------------------------------

    def _draft(self, running: int) -> Drafts | None:
        if self._speculator is None:
            return None
        most = self._max_step_tokens - 1  # less than a row wants only where a step has room for one alone
        return self._speculator.propose(self._batch, rows=running, most=most, head=self._decoder.logits)

    def _run_network(self, decoding: int, chunks: Sequence[Chunk], drafts: Drafts | None) -> Tensor:
        """Returns the hidden states of all tokens of the first `decoding` rows, [T, M]."""
        if not decoding and not chunks:
            return torch.empty(0, self._shape.hidden_dim, dtype=self._shape.dtype, device=self._shape.device)
        lengths = None if drafts is None else drafts.lengths
        self._batch.fit(0 if lengths is None else int(lengths.max()))
        rows = self._batch.rows(decoding, lengths)
        pieces = [SpanChunk(span=_span(c.prefill), start=c.start, end=c.end) for c in chunks]
        last_ids = np.array([it.last_id for it in self._batch.sequences[:decoding]], dtype=np.int32)
        ids = [last_ids if drafts is None else drafts.behind(last_ids)]
        ids += [chunk.prefill.ids[chunk.start : chunk.end] for chunk in chunks]
        prefixes = [torch.arange(chunk.start, chunk.end, device=self._shape.device) for chunk in chunks]
        positions = torch.cat([rows.positions, *prefixes])
        layout = StepLayout(decoding=rows, chunks=pieces)
        hidden = self._decoder.hidden(self._tensor(np.concatenate(ids)), positions, layout)
        decoded = hidden[: len(rows.positions)]
        self._batch.keep_hidden(decoded, rows)
        at, joining = len(decoded), list[tuple[Prefill, list[Span]]]()
        for chunk, piece in zip(chunks, pieces, strict=True):
            end = at + chunk.end - chunk.start
            piece.span.hidden[chunk.start : chunk.end] = hidden[at:end]
            at = end
            chunk.prefill.computed = chunk.end
            if chunk.prefill.complete:
                self._cache.insert(chunk.prefill.ids, piece.span.part)
                if isinstance(chunk.prefill.owner, Generation):
                    joining.append((chunk.prefill, [piece.span]))
        self._decode_from_now_on(joining)
        self.stats += EngineStats(decoded=len(decoded), prefilled=len(positions) - len(decoded))
        return decoded

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._shape.device)

    # --- out --------------------------------------------------------------------------------------

    def _sample(self) -> list[Outcome]:
        decoding = self._batch.sequences
        if not decoding:
            return []
        ids, logprobs = sample_pieces(
            scores=self._decoder.head(self._batch.hidden()),
            finish=self._decoder.finish,
            temperatures=np.array([float(sequence.request.temperature) for sequence in decoding]),
            uniforms=np.array([sequence.uniforms.at(sequence.length) for sequence in decoding]),
            filters=Filters.of(sequence.request for sequence in decoding),
        )
        drawn = zip(ids.cpu().numpy(), logprobs.cpu().numpy(), strict=True)
        return self._append([[(int(token), float(logprob))] for token, logprob in drawn])

    def _verify(self, drafts: Drafts, decoded: Tensor) -> list[Outcome]:
        assert self._speculator is not None
        hidden = torch.cat([decoded, self._batch.hidden(first=len(drafts.lengths))])
        drawn = self._speculator.verify(self._batch.sequences, drafts, self._decoder.logits(hidden))
        drafting = [self._batch.sequences[int(row)] for row in drafts.lengths.nonzero()[0]]
        before = sum(sequence.length for sequence in drafting)
        outcomes = self._append(drawn)
        gained = sum(sequence.length for sequence in drafting) - before
        rounds = len(drafting)
        self.stats += EngineStats(rounds=rounds, drafted=drafts.count, accepted=gained - rounds)
        return outcomes

    def _append(self, drawn: Sequence[Sequence[tuple[int, float]]]) -> list[Outcome]:
        """Gives each sequence its tokens, as far as its end; returns those that have ended."""
        decoding = self._batch.sequences
        before = sum(sequence.length for sequence in decoding)
        ends = [sequence.extend(tokens) for sequence, tokens in zip(decoding, drawn, strict=True)]
        self.stats += EngineStats(sampled=sum(sequence.length for sequence in decoding) - before)
        finished = [(row, end) for row, end in enumerate(ends) if end is not None]
        outcomes: list[Outcome] = [
            (decoding[row], decoding[row].completion(end, self.policy_version)) for row, end in finished
        ]
        for row, _ in reversed(finished):
            self._cache.insert(decoding[row].ids[:-1], partial(self._batch.take, row))
            self._leave(row)
        return outcomes

    def _leave(self, row: int) -> None:
        if self._speculator is not None:
            self._speculator.leave(row, len(self._batch.sequences) - 1)
        self._batch.leave(row)

    def _drop_abandoned(self) -> None:
        self._scheduler.drop_abandoned()
        for row in reversed(range(len(self._batch.sequences))):
            if self._batch.sequences[row].abandoned:
                self._leave(row)

    def _score(self) -> list[Outcome]:
        outcomes: list[Outcome] = []
        budget = self._max_step_tokens  # as many as go through the network
        for prefill in list(self._scheduler.prefilling):
            if not isinstance(scoring := prefill.owner, Scoring):
                continue
            end = min(prefill.computed + 1, scoring.scored + budget)
            while scoring.scored < end:
                before = scoring.scored
                self._score_chunk(scoring, _span(prefill), min(end, before + _SCORE_CHUNK))
                budget -= scoring.scored - before
            if not scoring.unscored:
                self._scheduler.leave(prefill)
                prefill.span = None
                outcomes.append((scoring, scoring.scores()))
        return outcomes

    def _score_chunk(self, scoring: Scoring, span: Span, end: int) -> None:
        start = scoring.scored
        targets = self._tensor(scoring.request.token_ids[start:end].astype(np.int64))
        scoring.append(
            score_logits(
                logits=self._decoder.logits(span.hidden[start - 1 : end - 1]),
                targets=targets,
                request=scoring.request,
                policy_version=self.policy_version,
            )
        )
        self.stats += EngineStats(scored=end - start)


def _span(prefill: Prefill) -> Span:
    assert prefill.span is not None, "an admitted prefill has room for its prefix"
    return prefill.span
