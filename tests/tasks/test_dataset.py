"""Parts of a dataset: examples from the front, evaluation from the end, and what it is known by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from turnpoint.errors import DataError
from turnpoint.tasks.dataset import Dataset, ReadReport, holdout, split_examples
from turnpoint.types import Message, Task


def sums(count: int = 6) -> Dataset:
    tasks = tuple(
        Task(
            id=f"sums/{n}",
            messages=(Message(role="user", content=f"{n} + 1"),),
            answer=str(n + 1),
            metadata={"n": n, "deep": {"b": 1, "a": [2]}},
        )
        for n in range(count)
    )
    report = ReadReport(source="sums", format="plain", rows=count, kept=count)
    return Dataset(name="sums", tasks=tasks, report=report)


def test_examples_come_from_the_front_and_leave_the_dataset() -> None:
    examples, rest = split_examples(sums(), 2)
    assert examples == (("0 + 1", "1"), ("1 + 1", "2"))
    assert [task.id for task in rest.tasks] == ["sums/2", "sums/3", "sums/4", "sums/5"]


def test_a_problem_that_is_shown_leaves_with_all_its_solutions() -> None:
    twice = replace(sums(3), tasks=(*sums(3).tasks, *sums(3).tasks))
    examples, rest = split_examples(twice, 2)
    assert examples == (("0 + 1", "1"), ("1 + 1", "2"))
    assert [task.id for task in rest.tasks] == ["sums/2", "sums/2"]
    with pytest.raises(DataError, match="3 few-shot examples leave nothing of 3 tasks"):
        split_examples(twice, 3)


def test_held_out_tasks_come_from_the_end_and_no_task_is_in_both() -> None:
    train, held_out = holdout(sums(), 2)
    assert [task.id for task in held_out.tasks] == ["sums/4", "sums/5"]
    assert [task.id for task in train.tasks] == ["sums/0", "sums/1", "sums/2", "sums/3"]


@pytest.mark.parametrize("count", [6, 7])
def test_nothing_left_is_an_error_with_the_numbers(count: int) -> None:
    with pytest.raises(DataError, match=f"sums: {count} few-shot examples leave nothing of 6 tasks"):
        split_examples(sums(), count)
    with pytest.raises(DataError, match=f"holding out {count} tasks leaves nothing to train on of 6"):
        holdout(sums(), count)


def test_where_nothing_trains_all_may_be_held_out() -> None:
    rest, held_out = holdout(sums(), 6, trains=False)
    assert (len(rest.tasks), len(held_out.tasks)) == (0, 6)
    with pytest.raises(DataError, match="holding out 7 tasks takes more than all 6"):
        holdout(sums(), 7, trains=False)


def test_the_fingerprint_is_what_the_tasks_say_in_their_order() -> None:
    dataset = sums()
    first = dataset.tasks[0]
    known = dataset.fingerprint
    resorted = (replace(first, metadata={"deep": {"a": [2], "b": 1}, "n": 0}), *dataset.tasks[1:])
    assert known == sums().fingerprint
    assert known == replace(dataset, name="other").fingerprint
    assert known == replace(dataset, tasks=resorted).fingerprint
    for changed in (
        replace(first, id="other"),
        replace(first, answer="2"),
        replace(first, metadata={"n": 1}),
        replace(first, messages=(Message(role="system", content="0 + 1"),)),
        replace(first, messages=(Message(role="user", content="0 + 1 "),)),
    ):
        assert replace(dataset, tasks=(changed, *dataset.tasks[1:])).fingerprint != known
    assert dataset.select([1, 0, 2, 3, 4, 5]).fingerprint != known
    assert dataset.select(range(5)).fingerprint != known


def test_the_fingerprint_does_not_change_between_versions() -> None:
    # a resumed run compares it with a stored one: changing this value breaks every stored run
    assert sums(2).fingerprint == "8fa93ff3e2ec1dedee35f833bfb0d6349d2627920e25ef30007751725893b3ac"


def test_a_task_of_odd_text_has_a_fingerprint() -> None:
    odd = replace(sums(1).tasks[0], metadata={"text": "\ud800\x00\u2028"})
    assert len(replace(sums(1), tasks=(odd,)).fingerprint) == 64
