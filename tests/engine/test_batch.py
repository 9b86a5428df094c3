"""A batch whose rows share trunks attends as every sequence does alone, at any depth of sharing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.engine.serve import ask
from turnpoint.engine import batch
from turnpoint.engine.batch import Batch
from turnpoint.engine.layout import StepLayout
from turnpoint.engine.sequence import Generation
from turnpoint.engine.span import CacheShape, LayerShape, Span
from turnpoint.models.attention import AttentionCall, CausalLayout

HEADS, KV_HEADS, DIM, VALUE_DIM = 6, 2, 4, 3

# prompt; two rollouts of it; two forks of the second: rows at depth 0 to 3, and a stranger
PROMPT, LEFT, RIGHT, DEEP = range(8, 20), range(200, 220), range(300, 330), range(400, 440)
PATHS: list[list[int]] = [
    [*PROMPT, *LEFT, 70],
    [*PROMPT, *LEFT, 71],
    [*PROMPT, *RIGHT, *DEEP, 72],
    [*PROMPT, *RIGHT, *DEEP, 73],
    [*PROMPT, *RIGHT, 74, 75],
    [*PROMPT, *RIGHT[:20], 76],  # reads a part of a trunk
    *([*PROMPT, last] for last in range(77, 83)),
    [90, 91, 92],
]


class World:
    """Keys, values and queries as functions of the tokens up to a position, as in a model."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        layer = LayerShape(heads=KV_HEADS, key_dim=DIM, value_dim=VALUE_DIM)
        self.shape = CacheShape(layers=(layer,), hidden_dim=5, dtype=dtype, device=torch.device("cpu"))

    def _random(self, ids: Sequence[int], what: int, *sizes: int) -> torch.Tensor:
        columns: list[torch.Tensor] = []
        for end in range(1, len(ids) + 1):
            seed = hash((*ids[:end], what)) % 2**31
            columns.append(torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)))
        return torch.stack(columns, dim=-2 if len(sizes) > 1 else 0).to(self.dtype)

    def span(self, ids: Sequence[int]) -> Span:
        keys = self._random(ids, 0, KV_HEADS, DIM)
        values = self._random(ids, 1, KV_HEADS, VALUE_DIM)
        return Span(keys=[keys], values=[values], hidden=self._random(ids, 2, 5))

    def call(
        self, ids: Sequence[int], window: int | None, softcap: float | None, sinks: bool
    ) -> AttentionCall:
        span = self.span(ids)
        return AttentionCall(
            layer=0,
            query=self._random(ids, 3, HEADS, DIM),
            key=span.keys[0],
            value=span.values[0],
            scaling=0.37,
            window=window,
            softcap=softcap,
            sinks=torch.linspace(-1, 1, HEADS) if sinks else None,
        )


def generation(ids: Sequence[int]) -> Generation:
    return Generation(ask(prompt_ids=ids, max_tokens=200), decode=lambda ids: "", context_length=512)


def join(world: World, rows: Batch, paths: Sequence[Sequence[int]], *, draws: bool = True) -> None:
    first = len(rows.sequences)
    rows.join([(generation(ids), [world.span(ids)]) for ids in paths])
    if draws:
        draw(rows, first)


def draw(rows: Batch, first: int = 0) -> None:
    for number, sequence in enumerate(rows.sequences[first:]):
        sequence.append(90 + number % 7, 0.0)


def attend(
    world: World,
    rows: Batch,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    count: int | None = None,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Runs a step and draws; returns what attention gives each row and what each gets alone."""
    count = len(rows.sequences) if count is None else count
    rows.fit()
    calls = [world.call(row.ids.tolist(), window, softcap, sinks) for row in rows.sequences[:count]]
    joined = AttentionCall(
        layer=0,
        query=torch.cat([call.query[:, -1:] for call in calls], dim=1),
        key=torch.cat([call.key[:, -1:] for call in calls], dim=1),
        value=torch.cat([call.value[:, -1:] for call in calls], dim=1),
        scaling=calls[0].scaling,
        window=window,
        softcap=softcap,
        sinks=calls[0].sinks,
    )
    output = StepLayout(decoding=rows.rows(count), chunks=[]).attend(joined)
    alone = [CausalLayout().attend(call)[:, -1] for call in calls]
    draw(rows)
    return list(zip(output.transpose(0, 1), alone, strict=True))


@pytest.fixture(autouse=True)
def _everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "CALL_BYTES", 1)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 1, 5, 25, 60])
def test_rows_at_any_depth_attend_as_if_alone(window: int | None, softcap: float | None, sinks: bool) -> None:
    world = World()
    rows = Batch(world.shape)
    join(world, rows, PATHS)
    assert rows.depths == [2, 2, 3, 3, 2, 2, *[1] * 6, 0]
    for _ in range(6):  # windows cross from the trunks into the rows' own tokens
        for shared, alone in attend(world, rows, window=window, softcap=softcap, sinks=sinks):
            torch.testing.assert_close(shared, alone)


def test_bfloat16_agrees_within_its_rounding() -> None:
    world = World(torch.bfloat16)
    rows = Batch(world.shape)
    join(world, rows, PATHS)
    for shared, alone in attend(world, rows):
        torch.testing.assert_close(shared, alone, atol=0.03, rtol=0.03)


def test_rows_come_and_go() -> None:
    world = World()
    rows = Batch(world.shape)
    join(world, rows, PATHS[:1])  # alone: it shares nothing yet
    assert rows.depths == [0]
    for _ in range(3):
        attend(world, rows)
    join(world, rows, PATHS[1:5])  # and now it does
    assert min(rows.depths) == 1
    for gone in (3, 0, 2, 0):
        for shared, alone in attend(world, rows):
            torch.testing.assert_close(shared, alone)
        rows.leave(gone)
    join(world, rows, PATHS)
    for shared, alone in attend(world, rows):
        torch.testing.assert_close(shared, alone)


def test_newcomers_wait_for_their_first_step() -> None:
    world = World()
    rows = Batch(world.shape)
    join(world, rows, PATHS[:4])
    attend(world, rows)
    join(world, rows, PATHS[4:], draws=False)
    for shared, alone in attend(world, rows, count=4):
        torch.testing.assert_close(shared, alone)
    for shared, alone in attend(world, rows):
        torch.testing.assert_close(shared, alone)


def test_a_row_gives_back_all_its_tokens_wherever_they_lie() -> None:
    world = World()
    rows = Batch(world.shape)
    join(world, rows, PATHS, draws=False)
    for row, ids in enumerate(PATHS):
        expected = world.span(ids)
        for start in range(len(ids)):
            taken = rows.take(row, start, len(ids))
            torch.testing.assert_close(taken.keys[0], expected.keys[0][:, start:])
            torch.testing.assert_close(taken.values[0], expected.values[0][:, start:])
            torch.testing.assert_close(taken.hidden, expected.hidden[start:])
    np.testing.assert_array_equal(rows.hidden()[0], world.span(PATHS[0]).hidden[-1])


def test_what_is_shared_is_stored_once() -> None:
    world = World()
    alone, together = Batch(world.shape), Batch(world.shape)
    ids = list(range(8, 108))
    join(world, alone, [ids])
    join(world, together, [ids] * 32)
    assert together.stored_tokens < 2 * alone.stored_tokens + 32 * 32  # a block of rows has a least size
    for _ in range(32):
        together.leave(0)
    assert together.depths == []


def test_a_trunk_nobody_reads_is_gone() -> None:
    world = World()
    rows = Batch(world.shape)
    join(world, rows, PATHS[:4])
    rows.leave(3)
    rows.leave(2)
    join(world, rows, PATHS[2:4])
    assert min(rows.depths) >= 1
    for shared, alone in attend(world, rows):
        torch.testing.assert_close(shared, alone)
