from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from turnpoint.models.attention import AttentionCall, CausalLayout
from turnpoint.training.layout import Run, TreeLayout

RUNS = (  # two trees in one row; the second run forks inside the first, the third inside the second
    Run(start=0, stop=5, ancestors=()),
    Run(start=5, stop=9, ancestors=((0, 3),)),
    Run(start=9, stop=11, ancestors=((0, 3), (5, 6))),
    Run(start=11, stop=14, ancestors=()),
    Run(start=14, stop=18, ancestors=((11, 14),)),
)


def call(*, window: int | None = None, softcap: float | None = None, sinks: bool = False) -> AttentionCall:
    torch.manual_seed(0)
    return AttentionCall(
        layer=0,
        query=torch.randn(4, 18, 8, requires_grad=True),
        key=torch.randn(2, 18, 8, requires_grad=True),
        value=torch.randn(2, 18, 8, requires_grad=True),
        scaling=0.3,
        window=window,
        softcap=softcap,
        sinks=torch.randn(4) if sinks else None,
    )


def row_by_row(given: AttentionCall) -> Tensor:
    """Returns the output of each path as its own plain causal row, put back where its run lies."""
    outputs: list[Tensor] = []
    for run in RUNS:
        spans = (*run.ancestors, (run.start, run.stop))
        places = torch.tensor([place for start, stop in spans for place in range(start, stop)])
        row = AttentionCall(
            layer=0,
            query=given.query[:, places],
            key=given.key[:, places],
            value=given.value[:, places],
            scaling=given.scaling,
            window=given.window,
            softcap=given.softcap,
            sinks=given.sinks,
        )
        outputs.append(CausalLayout().attend(row)[:, run.depth :])
    return torch.cat(outputs, dim=1)


# along paths only; the second tree as one block; both trees as blocks
@pytest.mark.parametrize("dense_tokens", [0, 7, 256])
@pytest.mark.parametrize("window", [None, 1, 2, 4, 100])
@pytest.mark.parametrize(("softcap", "sinks"), [(None, False), (2.0, False), (None, True)])
def test_each_run_attends_as_its_path_alone(
    window: int | None, softcap: float | None, sinks: bool, dense_tokens: int
) -> None:
    given = call(window=window, softcap=softcap, sinks=sinks)
    inputs = (given.query, given.key, given.value)
    torch.manual_seed(1)
    upstream = torch.randn(4, 18, 8)
    expected = torch.autograd.grad(row_by_row(given), inputs, upstream)
    output = TreeLayout(RUNS, dense_tokens=dense_tokens).attend(given)
    torch.testing.assert_close(output, row_by_row(given))
    for ours, theirs in zip(torch.autograd.grad(output, inputs, upstream), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_one_layout_serves_layers_with_and_without_a_window() -> None:
    layout = TreeLayout(RUNS)
    for window in (None, 2, None, 3):
        torch.testing.assert_close(layout.attend(call(window=window)), row_by_row(call(window=window)))


@pytest.mark.parametrize(("dense_tokens", "poison"), [(0, torch.nan), (256, 1e4)])
def test_siblings_and_other_trees_are_never_seen(dense_tokens: int, poison: float) -> None:
    given = call()
    poisoned = call()
    with torch.no_grad():
        poisoned.key[:, 6:9] = poison  # the rest of the second run, which its fork does not continue
        poisoned.value[:, 6:9] = poison
    seen = [*range(5), *range(9, 18)]
    layout = TreeLayout(RUNS, dense_tokens=dense_tokens)
    assert torch.equal(layout.attend(poisoned)[:, seen], layout.attend(given)[:, seen])


def test_a_run_that_reaches_back_beyond_another_start_is_of_one_tree() -> None:
    """A fork that keeps nothing of its parent starts anew; what follows may still reach back before it."""
    runs = (
        Run(start=0, stop=3, ancestors=()),
        Run(start=3, stop=5, ancestors=()),
        Run(start=5, stop=7, ancestors=((0, 2),)),
    )
    torch.manual_seed(0)
    given = replace(call(), query=torch.randn(4, 7, 8), key=torch.randn(2, 7, 8), value=torch.randn(2, 7, 8))
    outputs = [TreeLayout(runs, dense_tokens=dense).attend(given) for dense in (0, 2, 256)]
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(outputs[0], outputs[2])
