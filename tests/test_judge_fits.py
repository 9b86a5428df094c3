"""Which verifier goes with which problems, where those are programs."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from turnpoint.config.asking import HumanEvalTasks, JsonlTasks, TasksConfig, VerifierConfig
from turnpoint.config.judge_fits import judge_fits

HUMANEVAL = HumanEvalTasks(kind="humaneval")


def rows(form: str) -> TasksConfig:
    return JsonlTasks.model_validate({"kind": "jsonl", "path": "x.jsonl", "format": form})


def fit(kind: str, tasks: TasksConfig) -> None:
    verifier: VerifierConfig = TypeAdapter(VerifierConfig).validate_python({"kind": kind})
    judge_fits(verifier, tasks, taught_only=False, needed_by={})


@pytest.mark.parametrize("tasks", [HUMANEVAL, rows("mbpp"), rows("deepcoder")])
def test_programs_are_judged_by_code_and_not_by_math(tasks: TasksConfig) -> None:
    fit("code", tasks)
    with pytest.raises(ValueError, match=r"math judges none; take verifier\.kind=code"):
        fit("math", tasks)


def test_code_needs_rows_with_tests() -> None:
    fit("code", rows("auto"))
    with pytest.raises(ValueError, match="code needs tests"):
        fit("code", rows("gsm8k"))
