"""Attention over rows and chunks equals the written-out reference, with softcap, sinks and narrow values."""

from __future__ import annotations

import pytest
import torch

from turnpoint.engine.layout import DecodeRows, SpanChunk, StepLayout
from turnpoint.engine.rows import Rows
from turnpoint.engine.span import CacheShape, LayerShape, empty_span
from turnpoint.models.attention import AttentionCall, CausalLayout

HEADS, KV_HEADS, DIM, VALUE_DIM = 6, 2, 4, 3
SHAPE = CacheShape(
    layers=(LayerShape(heads=KV_HEADS, key_dim=DIM, value_dim=VALUE_DIM),),
    hidden_dim=5,
    dtype=torch.float32,
    device=torch.device("cpu"),
)


def random_call(length: int, *, window: int | None, softcap: float | None, sinks: bool) -> AttentionCall:
    generator = torch.Generator().manual_seed(length)

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator)

    return AttentionCall(
        layer=0,
        query=random(HEADS, length, DIM),
        key=random(KV_HEADS, length, DIM),
        value=random(KV_HEADS, length, VALUE_DIM),
        scaling=0.37,
        window=window,
        softcap=softcap,
        sinks=torch.linspace(-1, 1, HEADS) if sinks else None,
    )


def part(call: AttentionCall, start: int, end: int) -> AttentionCall:
    return joined([call], [(start, end)])


def joined(calls: list[AttentionCall], ranges: list[tuple[int, int]]) -> AttentionCall:
    pieces = list(zip(calls, ranges, strict=True))
    return AttentionCall(
        layer=0,
        query=torch.cat([call.query[:, start:end] for call, (start, end) in pieces], dim=1),
        key=torch.cat([call.key[:, start:end] for call, (start, end) in pieces], dim=1),
        value=torch.cat([call.value[:, start:end] for call, (start, end) in pieces], dim=1),
        scaling=calls[0].scaling,
        window=calls[0].window,
        softcap=calls[0].softcap,
        sinks=calls[0].sinks,
    )


def decoding(rows: Rows, positions: list[int], shared: list[int]) -> DecodeRows:
    return DecodeRows(
        own=rows,
        positions=torch.tensor(positions, dtype=torch.long),
        shared=torch.tensor(shared, dtype=torch.long),
        trunks=[],
        row=torch.arange(len(positions)),
    )


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 4])
def test_a_mixed_step_equals_each_sequence_alone(
    window: int | None, softcap: float | None, sinks: bool
) -> None:
    lengths = [9, 3, 40]  # two decode, the third prefills its tokens 7 to 40 after the first 7
    calls = [random_call(length, window=window, softcap=softcap, sinks=sinks) for length in lengths]
    rows = Rows(SHAPE)
    rows.fit(2, 9)
    for row in range(2):
        rows.keys[0][row, :, : lengths[row] - 1] = calls[row].key[:, :-1]
        rows.values[0][row, :, : lengths[row] - 1] = calls[row].value[:, :-1]
    span = empty_span(SHAPE, 40)
    first = SpanChunk(span=span, start=0, end=7)
    nobody = decoding(rows, [], [])
    early = StepLayout(decoding=nobody, chunks=[first]).attend(part(calls[2], 0, 7))
    step = StepLayout(
        decoding=decoding(rows, [8, 2], [0, 0]), chunks=[SpanChunk(span=span, start=7, end=40)]
    ).attend(joined(calls, [(8, 9), (2, 3), (7, 40)]))
    reference = [CausalLayout().attend(call) for call in calls]
    torch.testing.assert_close(early, reference[2][:, :7])
    expected = torch.cat([reference[0][:, 8:], reference[1][:, 2:], reference[2][:, 7:]], dim=1)
    torch.testing.assert_close(step, expected)
