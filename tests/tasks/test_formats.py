"""Each row format on an invented row with the true columns, and what a row must not be."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from turnpoint.errors import DataError
from turnpoint.tasks.formats import FORMATS, last_boxed, recognise
from turnpoint.tasks.row_format import InvalidRow
from turnpoint.types import Message

GSM8K = {"question": "Al has 3 bags of 400 nuts.", "answer": "3*400 = <<3*400=1200>>1200\n#### 1,200"}
MATH = {
    "problem": "Halve 1.",
    "level": "Level 1",
    "type": "Algebra",
    "solution": r"It is $\boxed{\frac{1}{2}}$.",
}
MATH_500 = {
    "problem": "Add 1 and 1.",
    "solution": r"We get $\boxed{3}$.",
    "answer": "2",
    "subject": "Prealgebra",
    "level": 1,
    "unique_id": "test/prealgebra/1.json",
}
DEEPMATH = {
    "question": r"Find $\lim_{x\to0} (1-\cos x)/x^2$.",
    "final_answer": r"\dfrac{1}{2}",
    "difficulty": 5.0,
    "topic": "Mathematics -> Calculus -> Limits",
    "r1_solution_1": "<think>..",
    "r1_solution_2": "..",
    "r1_solution_3": "..",
}
DAPO = {
    "data_source": "math_dapo",
    "prompt": [{"role": "user", "content": "Solve: 30 + 4\nAnswer:"}],
    "ability": "MATH",
    "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "9a9b6eb4"},
}
PLAIN = {"question": "3 + 4 =", "answer": "7"}


@pytest.mark.parametrize(
    ("name", "row", "question", "answer"),
    [
        ("plain", PLAIN, "3 + 4 =", "7"),
        ("plain", {"prompt": "3 + 4 =", "answer": 7}, "3 + 4 =", "7"),
        ("gsm8k", GSM8K, "Al has 3 bags of 400 nuts.", "1200"),
        ("math", MATH, "Halve 1.", r"\frac{1}{2}"),
        ("math", MATH_500, "Add 1 and 1.", "2"),
        ("deepmath", DEEPMATH, DEEPMATH["question"], r"\dfrac{1}{2}"),
        ("dapo", DAPO, "Solve: 30 + 4\nAnswer:", "34"),
    ],
)
def test_each_format_is_recognised_and_read(
    name: str, row: dict[str, Any], question: str, answer: str
) -> None:
    form = recognise([row], "rows")
    problem = form.read(row)
    assert form.name == name
    assert problem.messages == (Message(role="user", content=question),)
    assert problem.answer == answer


def test_a_prompt_of_messages_keeps_all_turns() -> None:
    turns = [("system", "Be brief."), ("user", "1?"), ("assistant", "1."), ("user", " 2?\n")]
    prompt = [{"role": role, "content": content} for role, content in turns]
    problem = FORMATS["plain"].read({"prompt": prompt, "answer": "2"})
    assert [(message.role, message.content) for message in problem.messages] == turns


def test_the_first_row_with_an_answer_decides_between_plain_and_gsm8k() -> None:
    unanswered = {"question": "What?", "answer": None}
    assert recognise([unanswered, GSM8K, PLAIN], "rows").name == "gsm8k"
    assert recognise([unanswered, PLAIN, GSM8K], "rows").name == "plain"


@pytest.mark.parametrize(
    ("columns", "fits"),
    [
        (PLAIN | {"final_answer": "7"}, "plain and deepmath"),
        (PLAIN | {"problem": "3 + 4"}, "plain and math"),
        (DAPO | {"answer": "34"}, "plain and dapo"),
    ],
)
def test_an_ambiguous_row_names_the_formats(columns: dict[str, Any], fits: str) -> None:
    with pytest.raises(DataError, match=rf"rows: the columns .* fit {fits}; set tasks\.format"):
        recognise([columns], "rows")


def test_unknown_columns_are_listed_with_what_each_format_needs() -> None:
    with pytest.raises(DataError) as caught:
        recognise([{"input": "1"}, {"input": "2", "output": "3"}], "rows.jsonl")
    message = str(caught.value)
    assert "the columns input, output fit no row format" in message
    assert all(f"{form.name}: {form.needs}" in message for form in FORMATS.values())
    assert "\n" not in message


def test_two_prompts_in_a_row_fit_nothing() -> None:
    row = PLAIN | {"prompt": "What is 3 + 4?"}
    with pytest.raises(DataError, match="fit no row format"):
        recognise([row], "rows")
    with pytest.raises(InvalidRow, match="both question and prompt are there; keep one"):
        FORMATS["plain"].read(row)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (-7.0, "-7"),
        (0.25, "0.25"),
        (1e300, "1e+300"),
        (10**30, "1" + "0" * 30),
        (Decimal("1.50"), "1.50"),
        ("  two words \n", "two words"),
        ("\u221a2", "\u221a2"),
    ],
)
def test_answers_become_text(value: Any, text: str) -> None:
    assert FORMATS["plain"].read({"question": "?", "answer": value}).answer == text


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "answer is null"),
        ("", "answer is empty"),
        (" \n\t", "answer is empty"),
        (True, "answer is a bool, neither text nor a number"),
        (["7"], "answer is a list, neither text nor a number"),
        ({"value": 7}, "answer is a dict, neither text nor a number"),
        (float("nan"), "answer is no finite number"),
        (float("-inf"), "answer is no finite number"),
        ("\ud83d", "answer holds half a surrogate pair"),
    ],
)
def test_unusable_answers_have_a_reason(value: Any, reason: str) -> None:
    with pytest.raises(InvalidRow) as caught:
        FORMATS["plain"].read({"question": "?", "answer": value})
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (None, "prompt is null"),
        ("", "prompt is empty"),
        (3, "prompt is a int, neither text nor a list of messages"),
        ([], "prompt is empty"),
        (["hi"], "a message of prompt is a str, not a mapping with role and content"),
        ([{"role": "robot", "content": "hi"}], "a message of prompt has a role other than"),
        ([{"role": "user"}], "a message of prompt has content that is a NoneType, not text"),
        ([{"role": "user", "content": " "}], "a message of prompt is empty"),
        ([{"role": "assistant", "content": "hi"}], "the last message of prompt is not from the user"),
        ("half \udc00", "prompt holds half a surrogate pair"),
    ],
)
def test_unusable_prompts_have_a_reason(prompt: Any, reason: str) -> None:
    with pytest.raises(InvalidRow) as caught:
        FORMATS["plain"].read({"prompt": prompt, "answer": "7"})
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("plain", {"answer": "7"}, "no column question or prompt"),
        ("plain", {"question": "?"}, "no column answer"),
        ("gsm8k", PLAIN, "no #### in the answer"),
        ("gsm8k", {"question": "?", "answer": "seven ####  "}, "the answer after #### is empty"),
        ("math", {"problem": "?", "solution": "It is 3."}, r"no \boxed answer in the solution"),
        ("math", {"problem": "?", "solution": r"\boxed{ }"}, "the boxed answer is empty"),
        ("math", {"problem": "?"}, "no column solution"),
        ("deepmath", PLAIN, "no column final_answer"),
        ("dapo", {"prompt": "?", "reward_model": "7"}, "reward_model is a str, not a mapping"),
        ("dapo", {"prompt": "?", "reward_model": {}}, "no column ground_truth"),
    ],
)
def test_a_row_of_another_format_has_a_reason(name: str, row: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRow) as caught:
        FORMATS[name].read(row)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\boxed{4}}", "4"),
        (r"$\boxed{\left\{ 1, 2 \right\}}$", r"\left\{ 1, 2 \right\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\fbox{9}", "9"),
        (r"\boxed {x+1}", "x+1"),
        (r"$\boxed 5$ apples", "5"),
        (r"\boxed{never closed", None),
        (r"\boxedsomething{3}", None),
        ("no box", None),
        (r"\boxed", None),
    ],
)
def test_last_boxed(text: str, boxed: str | None) -> None:
    assert last_boxed(text) == boxed


@pytest.mark.parametrize(
    ("written", "answer"), [("1,234,567", "1234567"), ("-3,000.5", "-3000.5"), ("(1, 2)", "(1, 2)")]
)
def test_gsm8k_drops_only_commas_between_digits(written: str, answer: str) -> None:
    row = {"question": "?", "answer": f"think\n#### no\n#### {written}"}
    assert FORMATS["gsm8k"].read(row).answer == answer


def test_a_column_that_is_empty_in_every_row_is_named() -> None:
    rows = [{"question": "1 + 1", "answer": None}, {"question": "2 + 2", "answer": ""}]
    with pytest.raises(DataError, match=r"fit no row format \(answer: empty in every row\); rename"):
        recognise(rows, "sums.jsonl")
