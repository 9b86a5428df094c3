"""What is stored grows with tokens that differ: a prompt is held once, however many go on from it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.engine.serve import ask, decode, prompt
from tests.tiny import tiny_decoder
from turnpoint.engine import batch as batch_module
from turnpoint.engine import runner as runner_module
from turnpoint.engine.batch import Batch
from turnpoint.engine.prefix_cache import PrefixCache
from turnpoint.engine.runner import Runner
from turnpoint.engine.sequence import Generation
from turnpoint.engine.span import CacheShape, Span, empty_span

PROMPT, OWN, GRAIN = 512, 16, 32  # tokens; rows grow by a grain


@dataclass
class Held:
    """What a runner holds."""

    most: int = 0  # tokens there was room for in rows, trunks and cache, at any time
    buffers: int = 0  # tokens of prefixes that were given room to be computed
    batches: list[Batch] = field(default_factory=list[Batch])
    caches: list[PrefixCache] = field(default_factory=list[PrefixCache])


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    """Watches every runner made from here on."""
    held = Held()
    fit = Batch.fit

    def watched_fit(batch: Batch, drafted: int = 0) -> None:
        fit(batch, drafted)
        held.most = max(held.most, batch.stored_tokens + held.caches[-1].tokens)

    def batch_of(shape: CacheShape) -> Batch:
        held.batches.append(Batch(shape))
        return held.batches[-1]

    def cache_of(capacity: int) -> PrefixCache:
        held.caches.append(PrefixCache(capacity))
        return held.caches[-1]

    def span_of(shape: CacheShape, length: int) -> Span:
        held.buffers += length
        return empty_span(shape, length)

    monkeypatch.setattr(batch_module, "CALL_BYTES", 1)  # a trunk pays for models larger than this one
    monkeypatch.setattr(Batch, "fit", watched_fit)
    monkeypatch.setattr(runner_module, "Batch", batch_of)
    monkeypatch.setattr(runner_module, "PrefixCache", cache_of)
    monkeypatch.setattr(runner_module, "empty_span", span_of)
    return held


def sample(runner: Runner, prompts: list[list[int]]) -> list[list[int]]:
    """Returns prompts with their completions of `OWN` tokens."""
    members = [
        Generation(ask(f"r{index}", ids, max_tokens=OWN), decode=decode, context_length=2048)
        for index, ids in enumerate(prompts)
    ]
    for member in members:
        runner.submit(member)
    while not runner.idle:
        runner.step()
    return [member.ids.tolist() for member in members]


def different(paths: list[list[int]]) -> int:
    """Returns how many tokens a store needs that holds what paths share once; the last is never an input."""
    return len({tuple(ids[:end]) for ids in paths for end in range(1, len(ids))})


def make_runner() -> Runner:
    return Runner(tiny_decoder(), max_running=128, max_step_tokens=2048, cache_tokens=65_536)


def peak(held: Held, members: int) -> int:
    held.most = held.buffers = 0
    paths = sample(make_runner(), [prompt(PROMPT).tolist()] * members)
    assert held.caches[-1].tokens == different(paths)
    assert held.buffers == PROMPT  # the others' comes from the cache, right into their rows
    return held.most


def test_members_of_a_group_add_their_own_tokens_and_nothing_else(held: Held) -> None:
    four, many = peak(held, 4), peak(held, 32)
    assert many - four <= (32 - 4) * (GRAIN + OWN)  # rows, and what the cache keeps of those that ended
    assert many < 3 * PROMPT + 32 * (GRAIN + OWN)


def test_forks_add_what_comes_after_the_fork(held: Held) -> None:
    runner = make_runner()
    roots = sample(runner, [prompt(PROMPT).tolist()] * 2)
    held.most = held.buffers = 0
    forks = sample(runner, [root[: PROMPT + 5] for root in roots for _ in range(8)])
    assert held.buffers == 0
    assert held.caches[-1].tokens == different([*roots, *forks])
    assert held.most < 3 * PROMPT + 16 * (GRAIN + OWN)
