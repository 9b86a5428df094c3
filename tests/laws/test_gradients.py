"""Laws: a packed tree has the gradient of separate rows, however the step is ordered, cut or masked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.tiny import ARCHITECTURES, tiny_model
from tests.training.groups import (
    FLAT,
    FORKED,
    SHAPES,
    TURNS,
    A,
    Item,
    P,
    Shape,
    given,
    gradients,
    make_credits,
    make_group,
    make_item,
    pack,
    packed_gradients,
    plain_loss,
    relative_difference,
    renumbered,
    sampled_by,
    sliced,
    sliced_credit,
)
from turnpoint.metrics import Metrics
from turnpoint.types import Segment, TokenTree, float_array


def plain_model(architecture: str = "llama") -> Any:
    return tiny_model(architecture).eval()


def all_items(model: Any) -> list[Item]:
    return [make_item(shape, model=model, seed=seed) for seed, shape in enumerate(SHAPES.values())]


def loss_of(metrics: Metrics) -> float:
    value = metrics["loss"].value
    assert value is not None
    return value


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_packed_tree_has_the_gradient_of_plain_rows(architecture: str, shape: str) -> None:
    model = plain_model(architecture)
    items = [make_item(SHAPES[shape], model=model)]
    loss = plain_loss(model, items)
    loss.backward()
    metrics, packed = packed_gradients(pack(items), architecture)
    assert loss_of(metrics) == pytest.approx(loss.item(), rel=1e-5, abs=1e-6)
    assert relative_difference(packed, gradients(model)) < 1e-5


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_every_aggregation_is_that_of_plain_rows(aggregation: str) -> None:
    model = plain_model()
    items = [*all_items(model)[:2], make_item(TURNS, model=model, seed=5, invalid=[1])]
    plain_loss(model, items, aggregation=aggregation).backward()
    _, packed = packed_gradients(pack(items, aggregation=aggregation))
    assert relative_difference(packed, gradients(model)) < 1e-5


@pytest.mark.parametrize("budget", [1, 12, 20, 31, 45, 64])
def test_cutting_a_step_into_trees_changes_nothing(budget: int) -> None:
    items = all_items(plain_model())
    whole, cut = pack(items), pack(items, max_tokens=budget)
    assert len(whole.trees) == 1 < len(cut.trees)
    (metrics, expected), (cut_metrics, actual) = packed_gradients(whole), packed_gradients(cut)
    assert relative_difference(actual, expected) < 1e-5
    for name in ("loss", "entropy", "mismatch", "trained_tokens"):
        assert cut_metrics[name].value == pytest.approx(metrics[name].value, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("budget", [10_000, 70, 33])
def test_the_order_of_groups_changes_nothing(budget: int) -> None:
    items = all_items(plain_model())
    _, forward = packed_gradients(pack(items, max_tokens=budget))
    _, backward = packed_gradients(pack(items[::-1], max_tokens=budget))
    assert relative_difference(backward, forward) < 1e-5


@pytest.mark.parametrize("budget", [10_000, 25])
def test_the_order_of_siblings_changes_nothing(budget: int) -> None:
    group, credits = make_item(FORKED, model=plain_model())
    order = [0, 2, 6, 1, 7, 5, 3, 4]  # parents still come first
    segments = [group.tree.segments[index] for index in order]
    moved = renumbered((group, credits), segments=segments, members=group.members[::-1])
    _, expected = packed_gradients(pack([(group, credits)], max_tokens=budget))
    _, actual = packed_gradients(pack([moved], max_tokens=budget))
    assert relative_difference(actual, expected) < 1e-5


def test_eight_uneven_rollouts_as_one_two_four_or_eight_micro_batches() -> None:
    """Dividing by the tokens of a micro-batch would weigh short ones more."""
    model = plain_model()
    lengths = (1, 30, 2, 5, 40, 1, 9, 17)
    items = [
        make_item(Shape(((None, 0, P, 3), (0, 3, A, length)), ((1,),)), model=model, seed=seed)
        for seed, length in enumerate(lengths)
    ]
    items = [(group, make_credits(group, seed=3, holes=False)) for group, _ in items]
    trees: set[int] = set()
    _, expected = packed_gradients(pack(items))
    for budget in (70, 45, 1):
        step = pack(items, max_tokens=budget)
        trees.add(len(step.trees))
        assert relative_difference(packed_gradients(step)[1], expected) < 1e-5
    assert trees == {2, 3, 8}


def test_tokens_shared_by_branches_train_once_whatever_hangs_below_them() -> None:
    """A root with k branches is one rollout: its gradient must not grow with k."""
    model = plain_model()
    found: list[dict[str, Any]] = []
    for branches in (0, 1, 5):
        shape = Shape(
            segments=((None, 0, P, 4), (0, 4, A, 8), *[(1, 3 + at, A, 4) for at in range(branches)]),
            members=tuple((index,) for index in range(1, 2 + branches)),
        )
        group = sampled_by(model, make_group(shape), noise=0.0)
        credits = [
            replace(it, advantages=it.advantages if it.segment == 1 else float_array([0.0] * 4))
            for it in make_credits(group, holes=False)
        ]
        step = pack([(group, credits)], aggregation="constant", max_tokens=14)
        # undo the one thing that rightly depends on k: the number of rollouts averaged over
        scaled = packed_gradients(replace(step, denominator=step.denominator / (1 + branches)))[1]
        found.append(scaled)
    assert relative_difference(found[1], found[0]) < 1e-5
    assert relative_difference(found[2], found[0]) < 1e-5


def test_masking_tokens_is_deleting_them() -> None:
    model = plain_model()
    group, credits = make_item(FLAT, model=model)
    first = slice(0, 4)
    shorter = [it if it.author is P else sliced(it, first) for it in group.tree.segments]
    deleted = (
        replace(group, tree=TokenTree(segments=tuple(shorter))),
        [sliced_credit(it, first) for it in credits],
    )
    masked = [
        replace(it, weights=float_array(np.where(np.arange(len(it.weights)) < 4, it.weights, 0.0)))
        for it in credits
    ]
    for aggregation in ("token", "sequence", "constant"):
        metrics, expected = packed_gradients(pack([deleted], aggregation=aggregation))
        masked_metrics, actual = packed_gradients(pack([(group, masked)], aggregation=aggregation))
        assert relative_difference(actual, expected) == 0.0
        assert masked_metrics == metrics


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_an_invalid_or_weightless_rollout_is_as_if_never_sampled(aggregation: str) -> None:
    model = plain_model()
    group, credits = make_item(FORKED, model=model)
    leaves = {4, 6}  # segments of members 3 and 5: nothing hangs below them
    without = renumbered(
        (group, credits),
        segments=[it for it in group.tree.segments if it.id not in leaves],
        members=[it for it in group.members if it.leaf not in leaves],
    )
    invalid = replace(group, members=make_group(FORKED, invalid=[3, 5]).members)
    weightless = [
        replace(it, weights=float_array(it.weights * (it.segment not in leaves)), advantages=given(it))
        for it in credits
    ]
    _, expected = packed_gradients(pack([without], aggregation=aggregation))
    for item in ((invalid, credits), (group, weightless)):
        step = pack([item], aggregation=aggregation)
        assert step.left_out_rollouts == 2
        assert relative_difference(packed_gradients(step)[1], expected) == 0.0


def test_nan_where_nothing_trains_changes_nothing() -> None:
    group, credits = make_item(FORKED, model=plain_model())
    masks = {it.segment: it.weights != 0 for it in credits}
    poisoned_tree = [
        it
        if it.logprobs is None
        else replace(it, logprobs=float_array(np.where(masks[it.id], it.logprobs, np.nan)))
        for it in group.tree.segments
    ]
    poisoned = [
        replace(it, advantages=float_array(np.where(masks[it.segment], given(it), np.nan))) for it in credits
    ]
    metrics, expected = packed_gradients(pack([(group, credits)]))
    item = (replace(group, tree=TokenTree(segments=tuple(poisoned_tree))), poisoned)
    poisoned_metrics, actual = packed_gradients(pack([item]))
    assert relative_difference(actual, expected) == 0.0
    assert poisoned_metrics == metrics


@pytest.mark.parametrize("at", [1, 4, 5, 9])
@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_cutting_a_segment_in_two_changes_nothing(at: int, aggregation: str) -> None:
    group, credits = make_item(FORKED, model=plain_model())
    new = len(group.tree.segments)
    segments: list[Segment] = []
    for it in group.tree.segments:
        if it.id == 1:
            second = replace(sliced(it, slice(at, None)), id=new, parent=1, parent_length=at)
            segments += [sliced(it, slice(at)), second]
        elif it.parent == 1 and it.parent_length > at:
            segments.append(replace(it, parent=new, parent_length=it.parent_length - at))
        else:
            segments.append(it)
    root = replace(group.members[0], leaf=new, segments=(1, new))
    first, *others = credits
    halves = [sliced_credit(first, slice(at)), replace(sliced_credit(first, slice(at, None)), segment=new)]
    item = (group, [*halves, *others])
    cut, cut_credits = renumbered(item, segments=segments, members=[root, *group.members[1:]])
    for member, cut_member in zip(group.members, cut.members, strict=True):
        assert cut.tree.path_ids(cut_member.leaf).tolist() == group.tree.path_ids(member.leaf).tolist()
    metrics, expected = packed_gradients(pack([(group, credits)], aggregation=aggregation))
    cut_metrics, actual = packed_gradients(pack([(cut, cut_credits)], aggregation=aggregation))
    assert relative_difference(actual, expected) < 1e-5
    assert loss_of(cut_metrics) == pytest.approx(loss_of(metrics), rel=1e-5)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_a_rollout_without_signal_counts_in_the_denominator_and_is_not_packed(aggregation: str) -> None:
    model = plain_model()
    group, credits = make_item(FORKED, model=model)
    silent = {4, 6}  # segments of two leaves
    quiet = [
        replace(it, advantages=float_array(np.zeros(len(it.weights)))) if it.segment in silent else it
        for it in credits
    ]
    step = pack([(group, quiet)], aggregation=aggregation)
    loss = plain_loss(model, [(group, quiet)], aggregation=aggregation)
    loss.backward()
    metrics, packed = packed_gradients(step)
    assert loss_of(metrics) == pytest.approx(float(loss.detach()), rel=1e-4, abs=1e-6)
    assert relative_difference(packed, gradients(model)) < 1e-5
    full = pack([(group, credits)], aggregation=aggregation)
    assert (step.denominator, step.trained_tokens) == (full.denominator, full.trained_tokens)
    assert step.packed_tokens < full.packed_tokens


def test_a_step_without_any_signal_costs_nothing() -> None:
    group, credits = make_item(FORKED, model=plain_model())
    quiet = [replace(it, advantages=float_array(np.zeros(len(it.weights)))) for it in credits]
    step = pack([(group, quiet)])
    assert (step.trees, step.packed_tokens) == ((), 0)
    metrics, _ = packed_gradients(step)
    assert loss_of(metrics) == 0.0
