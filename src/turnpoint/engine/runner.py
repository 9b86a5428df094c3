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

from turnpoint.engine.layout import SpanChunk, StepLayout
from turnpoint.engine.prefix_cache import PrefixCache
from turnpoint.engine.rows import Rows
from turnpoint.engine.sampler import sample
from turnpoint.engine.scheduler import Chunk, Prefill, Scheduler
from turnpoint.engine.scorer import score_logits
from turnpoint.engine.sequence import Generation, Scoring
from turnpoint.engine.span import CacheShape, Span, empty_span
from turnpoint.engine.stats import EngineStats
from turnpoint.models.decoder import Decoder
from turnpoint.protocols import Completion, Scores

_SCORE_CHUNK = 256  # positions whose logits exist at the same time

Outcome: TypeAlias = "tuple[Generation, Completion] | tuple[Scoring, Scores]"


class Runner:
    """Owns what is computed: the rows that decode, the prefix cache, and the sequences in both.

    Sequence i of `decoding` lives in row i. Before a step all of its tokens but the newest are in the row;
    once the network ran, all of them; then every decoding sequence draws one more.
    """

    def __init__(
        self, decoder: Decoder, *, max_running: int, max_step_tokens: int, cache_tokens: int
    ) -> None:
        self.stats = EngineStats()
        self.policy_version = 0
        self._decoder = decoder
        self._scheduler = Scheduler(
            max_running=max_running, max_step_tokens=max_step_tokens, cache_tokens=cache_tokens
        )
        self._decoding: list[Generation] = []
        self._shape = CacheShape.of(decoder)
        self._rows = Rows(self._shape)
        self._cache = PrefixCache(cache_tokens)
        self._max_score_tokens = max_step_tokens  # per step

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return not self._decoding and self._scheduler.idle

    def submit(self, sequence: Generation | Scoring) -> None:
        """Takes a sequence in; it is served by the steps that follow."""
        self._scheduler.submit(sequence)

    def forget(self) -> None:
        """Drops all sequences and everything computed."""
        self._scheduler.clear()
        self._decoding = []
        self._rows.clear()
        self._cache.clear()

    @torch.inference_mode()
    def step(self) -> list[Outcome]:
        """Runs one step and returns what it finished."""
        began = time.perf_counter()
        self._drop_abandoned()
        running = len(self._decoding)  # those that join below have nothing for the network to do
        self._start(self._scheduler.admit(decoding=running, cached=self._cache.match))
        self._run_network(self._decoding[:running], self._scheduler.chunks(decoding=running))
        outcomes = [*self._sample(), *self._score()]
        self.stats += EngineStats(steps=1, seconds=time.perf_counter() - began)
        return outcomes

    # --- in ---------------------------------------------------------------------------------------

    def _start(self, admitted: Sequence[Prefill]) -> None:
        """Gives each what is cached of its prefix: in a row when that is all, else in a buffer of its own."""
        joining: list[tuple[Prefill, list[Span]]] = []
        for prefill in admitted:
            cached = self._cache.read(prefill.ids)
            self.stats += EngineStats(cached=prefill.computed)
            if isinstance(prefill.owner, Generation):
                prefill.owner.cached_tokens = prefill.computed
                if prefill.complete:
                    joining.append((prefill, cached))
                    continue
            prefill.span = empty_span(self._shape, len(prefill.ids))
            prefill.span.fill(cached)
        self._decode_from_now_on(joining)

    def _decode_from_now_on(self, joining: Sequence[tuple[Prefill, list[Span]]]) -> None:
        """Gives each sequence a row that holds its prefix."""
        first = len(self._decoding)
        for prefill, _ in joining:
            self._scheduler.prefilling.remove(prefill)
            assert isinstance(prefill.owner, Generation)
            self._decoding.append(prefill.owner)
        self._fit_rows()
        for row, (prefill, spans) in enumerate(joining, start=first):
            self._rows.view(row, 0, len(prefill.ids)).fill(spans)
            prefill.span = None  # those that waited for it still know it

    def _fit_rows(self) -> None:
        if self._decoding:
            self._rows.fit(len(self._decoding), max(sequence.length for sequence in self._decoding))

    # --- through the network ----------------------------------------------------------------------

    def _run_network(self, decoding: Sequence[Generation], chunks: Sequence[Chunk]) -> None:
        pieces = [SpanChunk(span=_span(c.prefill), start=c.start, end=c.end) for c in chunks]
        ids = [np.array([sequence.last_id for sequence in decoding], dtype=np.int32)]
        ids += [chunk.prefill.ids[chunk.start : chunk.end] for chunk in chunks]
        positions = [np.array([sequence.length - 1 for sequence in decoding], dtype=np.int64)]
        positions += [np.arange(chunk.start, chunk.end) for chunk in chunks]
        flat = self._tensor(np.concatenate(positions))
        if not len(flat):
            return
        self._fit_rows()
        rows = flat[: len(decoding)]
        layout = StepLayout(rows=self._rows, positions=rows, chunks=pieces)
        hidden = self._decoder.hidden(self._tensor(np.concatenate(ids)), flat, layout)
        self._rows.hidden[torch.arange(len(rows), device=rows.device), rows] = hidden[: len(rows)]
        at, joining = len(rows), list[tuple[Prefill, list[Span]]]()
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
        self.stats += EngineStats(decoded=len(rows), prefilled=len(flat) - len(rows))

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._shape.device)

    # --- out --------------------------------------------------------------------------------------

    def _sample(self) -> list[Outcome]:
        if not self._decoding:
            return []
        newest = self._tensor(np.array([sequence.length - 1 for sequence in self._decoding]))
        hidden = self._rows.hidden[torch.arange(len(newest), device=newest.device), newest]
        ids, logprobs = sample(
            logits=self._decoder.logits(hidden),
            temperatures=np.array([float(sequence.request.temperature) for sequence in self._decoding]),
            uniforms=np.array([sequence.uniforms.at(sequence.length) for sequence in self._decoding]),
        )
        self.stats += EngineStats(sampled=len(self._decoding))
        tokens, nats = ids.cpu().numpy(), logprobs.cpu().numpy()
        drawn = zip(self._decoding, tokens, nats, strict=True)
        ends = [sequence.append(int(token), float(logprob)) for sequence, token, logprob in drawn]
        finished = [(row, end) for row, end in enumerate(ends) if end is not None]
        outcomes: list[Outcome] = [
            (self._decoding[row], self._decoding[row].completion(end, self.policy_version))
            for row, end in finished
        ]
        for row, _ in reversed(finished):
            ids_computed = self._decoding[row].ids[:-1]
            self._cache.insert(ids_computed, partial(self._rows.view, row))
            self._free_row(row)
        return outcomes

    def _free_row(self, row: int) -> None:
        last = self._decoding.pop()
        if row < len(self._decoding):
            self._decoding[row] = last
            computed = last.length - 1
            self._rows.view(row, 0, computed).fill([self._rows.view(len(self._decoding), 0, computed)])

    def _drop_abandoned(self) -> None:
        self._scheduler.drop_abandoned()
        for row in reversed(range(len(self._decoding))):
            if self._decoding[row].abandoned:
                self._free_row(row)

    def _score(self) -> list[Outcome]:
        outcomes: list[Outcome] = []
        budget = self._max_score_tokens
        for prefill in list(self._scheduler.prefilling):
            if not isinstance(scoring := prefill.owner, Scoring):
                continue
            end = min(prefill.computed + 1, scoring.scored + budget)
            while scoring.scored < end:
                before = scoring.scored
                self._score_chunk(scoring, _span(prefill), min(end, before + _SCORE_CHUNK))
                budget -= scoring.scored - before
            if scoring.done:
                self._scheduler.prefilling.remove(prefill)
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
