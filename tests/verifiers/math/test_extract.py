"""Where the answer is found, and that megabytes of anything take linear time and give no answer."""

from __future__ import annotations

import pytest

from turnpoint.verifiers.math.extract import extract_answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"a \boxed{\frac{1}{2}} b \boxed{x_{1}} c", "x_{1}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\boxed{3}, 4}", "{3}, 4"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\fbox{9}", "9"),
        (r"\boxed 5", "5"),
        (r"<think>\boxed{5}</think> so it is \boxed{7}", "7"),
        (r"<think>\boxed{5}</think> Answer: 6", "6"),
        ("The answer is 2 2/3.", "2 2/3"),
        ("**Final Answer:** 42", "42"),
        ("final answer is: \\(x=5\\).", "\\(x=5\\)"),
        ("Answer:\n\n 17\n", "17"),
        ("24 * 2 = 48\n#### 1,234", "1,234"),
        ("The answer is 5 because 2+3=5 and not 7.", "5"),
        ("The answer is therefore $3$.", "3"),
        ("The answer is 3/4 of the total.", "3/4"),
        ("The answer is: **B**", "B"),
        ("Answer: 3. No, the answer is 4.", "4"),
        ("So she sold 48 + 24 = 72 clips in April and May.", "72"),
        ("So she has $18 left.", "$18"),
        ("It is 1,234.50 in all, I think", "1,234.50"),
        ("The result is then -3.5", "-3.5"),
        ("7", "7"),
        ("  yes.", "yes"),
        ("= 7", "7"),
        ("x^2+1", "x^2+1"),
    ],
)
def test_the_answer_is_found(response: str, answer: str) -> None:
    assert extract_answer(response) == answer


@pytest.mark.parametrize(
    "response",
    [
        "",
        "no numbers in here at all",
        r"\boxed{5",
        r"\boxed{}",
        r"First \boxed{3}, but then \boxed{4",
        r"<think>It is \boxed{5}",
        "<think>the answer is 5",
        r"<think>It is \boxed{5}</think>",
        "The answer is not 5",
        "The answer is 3 apples and 4 pears",
    ],
)
def test_there_is_no_answer(response: str) -> None:
    assert extract_answer(response) is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "response",
    [
        "x" * 1_000_000,
        r"\boxed{" * 150_000,
        "{" * 1_000_000,
        "answer is " * 100_000,
        "$" * 1_000_000,
        "-" * 1_000_000,
        " " * 1_000_000,
        "answer:" + " " * 1_000_000,
        "ab " * 300_000,
        "<think>" * 100_000,
    ],
    ids=lambda text: text[:8],
)
def test_a_megabyte_of_noise_has_no_answer(response: str) -> None:
    assert extract_answer(response) is None


def test_a_box_beside_a_megabyte_is_found() -> None:
    noise = "1 + {2} " * 125_000
    assert extract_answer(rf"\boxed{{5}} {noise}") == "5"
    assert extract_answer(rf"{noise} \boxed{{5}}") == "5"
