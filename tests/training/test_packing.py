from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.training.groups import (
    FLAT,
    A,
    P,
    Shape,
    make_credits,
    make_group,
    pack,
    with_teacher,
)
from turnpoint.training import pack_step
from turnpoint.types import SegmentCredit, float_array


def test_the_docstring_example() -> None:
    shape = Shape(((None, 0, P, 2), (0, 2, A, 2), (0, 2, A, 1)), ((1,), (2,)))
    group = make_group(shape)
    (prompt, first, second) = (it.token_ids.tolist() for it in group.tree.segments)
    (tree,) = pack([(group, make_credits(group, holes=False))]).trees
    assert tree.token_ids.tolist() == [*prompt, first[0]]
    assert tree.positions.tolist() == [0, 1, 2]
    assert tree.predictors.tolist() == [1, 2, 1]
    assert tree.targets.tolist() == [*first, *second]
    assert tree.sequence_ids.tolist() == [0, 0, 1]
    assert [(run.start, run.stop, run.ancestors) for run in tree.runs] == [(0, 2, ()), (2, 3, ((0, 2),))]


def test_weights_carry_the_factor_of_the_rollout() -> None:
    group = make_group(FLAT)
    credits = make_credits(group, holes=False)
    (tree,) = pack([(group, credits)], aggregation="sequence").trees
    lengths = np.repeat([5, 1, 12, 3], [5, 1, 12, 3])
    assert tree.weights.numpy() == pytest.approx(1 / lengths)
    assert pack([(group, credits)], aggregation="sequence").denominator == 4
    assert pack([(group, credits)], aggregation="constant").denominator == 4 * 16
    assert pack([(group, credits)], aggregation="token").denominator == 21


def test_counts_compare_the_tree_with_rows() -> None:
    group = make_group(FLAT, invalid=[3])
    step = pack([(group, make_credits(group, holes=False))])
    assert (step.trained_rollouts, step.left_out_rollouts, step.trained_tokens) == (3, 1, 18)
    assert step.packed_tokens == 6 + (4 + 0 + 11)
    assert step.row_tokens == 3 * 6 + (4 + 0 + 11)


def test_an_over_long_tree_repeats_its_trunk_as_context_only() -> None:
    group = make_group(FLAT)
    step = pack([(group, make_credits(group, holes=False))], max_tokens=17)
    assert [len(tree.token_ids) for tree in step.trees] == [6 + 11, 6 + 4 + 0, 6 + 2]
    assert sum(len(tree.targets) for tree in step.trees) == 21


def test_trees_share_micro_batches_while_they_fit() -> None:
    items = [(it := make_group(FLAT, seed=seed), make_credits(it, holes=False)) for seed in range(5)]
    size = pack(items[:1]).packed_tokens
    step = pack(items, max_tokens=2 * size)
    assert sorted(len(tree.token_ids) for tree in step.trees) == [size, 2 * size, 2 * size]


def test_only_prefix_tokens_that_something_needs_are_packed() -> None:
    """The root is weightless, so only what its fork continues is kept of it."""
    shape = Shape(((None, 0, P, 3), (0, 3, A, 20), (1, 4, A, 2)), ((1,), (2,)))
    group = make_group(shape)
    root, fork = make_credits(group, holes=False)
    step = pack([(group, [replace(root, weights=float_array(np.zeros(20))), fork])])
    assert step.packed_tokens == 3 + 4 + 1
    assert step.trained_tokens == 2


def test_a_step_without_anything_to_train_is_empty() -> None:
    group = make_group(FLAT, invalid=range(4))
    step = pack([(group, make_credits(group))])
    assert (step.trees, step.denominator, step.trained_tokens, step.left_out_rollouts) == ((), 0.0, 0, 4)


def test_credits_of_invalid_members_may_be_absent() -> None:
    group = make_group(FLAT, invalid=[0])
    assert pack([(group, make_credits(group, holes=False)[1:])]).trained_tokens == 16


def test_teachers_are_packed_per_token() -> None:
    group = make_group(FLAT)
    first, *others = make_credits(group, holes=False)
    taught = with_teacher(first, coef=0.25)
    assert taught.teacher is not None
    (tree,) = pack([(group, [replace(taught, advantages=None), *others])]).trees
    assert tree.teacher_coef.tolist() == [0.25] * 5 + [0.0] * 16
    assert tree.teacher_logprobs.tolist() == [*taught.teacher.logprobs.tolist(), *[0.0] * 16]
    assert tree.advantages[:5].tolist() == [0.0] * 5


def test_a_sampled_token_with_nothing_before_it_is_refused() -> None:
    group = make_group(Shape(((None, 0, A, 3),), ((0,),)))
    with pytest.raises(ValueError, match="segment 0: nothing comes before its first token"):
        pack([(group, make_credits(group, holes=False))])


def _flat_credits() -> list[SegmentCredit]:
    return make_credits(make_group(FLAT), holes=False)


@pytest.mark.parametrize(
    ("credits", "message"),
    [
        (_flat_credits()[1:], "no credit for segment 1 of a valid member"),
        ([*_flat_credits(), _flat_credits()[0]], "credit of segment 1 is given twice"),
        ([*_flat_credits(), replace(_flat_credits()[0], segment=0)], "only POLICY segments train"),
        ([*_flat_credits(), replace(_flat_credits()[0], segment=9)], "the tree has 5 segments"),
        ([replace(_flat_credits()[0], segment=2), *_flat_credits()[2:]], "5 weights for 1 tokens"),
        ([replace(it, advantages=None) for it in _flat_credits()], "neither advantages nor a teacher"),
    ],
)
def test_credits_that_do_not_fit_the_group_are_refused(credits: list[SegmentCredit], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack([(make_group(FLAT), credits)])


def test_an_unknown_aggregation_is_refused() -> None:
    group = make_group(FLAT)
    with pytest.raises(ValueError, match="unknown aggregation 'mean'"):
        pack_step([(group, _flat_credits())], max_tokens=99, aggregation="mean", max_new_tokens=1)
