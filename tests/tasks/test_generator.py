"""Problems from reasoning-gym keep what its scorer needs; wrong names and options are named."""

from __future__ import annotations

import json
import sys
from typing import Any, cast

import pytest

from turnpoint.config import ReasoningGymTasks
from turnpoint.errors import DataError
from turnpoint.tasks import load_tasks
from turnpoint.types import Task

pytest.importorskip("reasoning_gym")
from reasoning_gym import factory

SMALL = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def tasks(name: str, *, size: int = 5, seed: int = 0, **options: Any) -> tuple[Task, ...]:
    config = ReasoningGymTasks(kind="reasoning_gym", name=name, size=size, seed=seed, options=options)
    return load_tasks(config).tasks


def score(task: Task, answer: str) -> float:
    entry = {"question": task.question, "answer": task.answer, "metadata": task.metadata["entry"]}
    name = cast(Any, task.metadata["entry"])["source_dataset"]
    return cast(Any, factory).get_score_answer_fn(name)(answer, entry)


@pytest.mark.parametrize("name", ["chain_sum", "gcd", "countdown", "simple_equations", "knights_knaves"])
def test_the_generators_own_scorer_accepts_gold_and_refuses_another(name: str) -> None:
    for task in tasks(name):
        assert score(task, task.answer) == 1.0
        assert score(task, "no answer at all") < 1.0


def test_metadata_is_plain_json() -> None:
    for task in tasks("knights_knaves"):  # its names are numpy strings, its terms tuples
        assert json.loads(json.dumps(dict(task.metadata))) == task.metadata
        assert set(task.metadata) == {"entry"}


def test_seed_and_options_decide_the_problems() -> None:
    assert tasks("chain_sum", **SMALL) == tasks("chain_sum", **SMALL)
    assert tasks("chain_sum", **SMALL) != tasks("chain_sum", seed=1, **SMALL)
    assert tasks("chain_sum", **SMALL) != tasks("chain_sum")


def test_repeated_problems_are_dropped_so_that_no_split_shares_one() -> None:
    config = ReasoningGymTasks(kind="reasoning_gym", name="chain_sum", size=500, options=SMALL)
    dataset = load_tasks(config)
    assert dataset.report.duplicates == 500 - len(dataset.tasks) > 0
    assert len({task.question for task in dataset.tasks}) == len(dataset.tasks)
    assert dataset.tasks[0].id == "chain_sum/0"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "chain_sums",
            {},
            r"tasks.name = 'chain_sums': no reasoning-gym generator; did you mean chain_sum, ",
        ),
        ("!!", {}, r"no reasoning-gym generator; there are ab, "),
        ("chain_sum", {"terms": 2}, r"tasks.options.terms: chain_sum has no such option; it has min_terms, "),
        ("chain_sum", {"seed": 2}, r"tasks.options.seed: write it as tasks.seed"),
        ("chain_sum", {"min_terms": 9}, r"chain_sum refuses them: max_terms must be >= min_terms"),
        ("chain_sum", {"min_terms": "x"}, r"chain_sum refuses them: "),
        ("composite", {}, r"composite refuses them: Must specify at least one dataset"),
        ("rubiks_cube", {}, r"none of 5 rows can be used: answer is null \(5 rows, first: problem 0: "),
    ],
)
def test_what_cannot_be_generated_is_one_line(name: str, options: dict[str, Any], message: str) -> None:
    config = ReasoningGymTasks(kind="reasoning_gym", name=name, size=5, options=options)
    with pytest.raises(DataError, match=message) as caught:
        load_tasks(config)
    assert "\n" not in str(caught.value)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(DataError, match=r"install the extra: pip install 'turnpoint\[quickstart\]'"):
        tasks("chain_sum")
