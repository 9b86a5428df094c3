"""Where rules find errors: what counts as found, and the whole measurement on a model that knows nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.localisation import Attempt, Bench, Found, is_misconceived, report, run
from benchmarks.organism.language import Problem, first_wrong_word
from benchmarks.organism.model import save_untrained
from benchmarks.organism.settings import Lesson, OrganismSettings

from tests.organism.settings import TINY
from turnpoint.engine import TorchEngine
from turnpoint.models.loading import load_model
from turnpoint.models.renderer import ChatRenderer
from turnpoint.protocols import Completion, Root
from turnpoint.types import FinishReason, Message, Task, Verdict, float_array, token_array

EXAMPLE = Problem(9, ("-5", "*7", "+8"))


def attempt(*, wrong_word: int, confident: bool) -> Attempt:
    completion = Completion(
        token_ids=token_array([1]),
        logprobs=float_array([0.0]),
        policy_version=0,
        finish=FinishReason.STOP,
        text="",
    )
    task = Task(id="0", messages=(Message(role="user", content=EXAMPLE.question),), answer="6")
    root = Root(
        id="0", task=task, prompt_ids=token_array([1]), completion=completion, verdict=Verdict.scored(0.0)
    )
    return Attempt(root=root, problem=EXAMPLE, wrong_word=wrong_word, wrong_step=1, confident=confident)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("A 9 -5 = 4 ; B 4 *7 = 2 ; C 2 +8 = 0 ; # 0", 10),  # the result
        ("so A 9 -5 is 4 , B 3 *7 gives 1 ; C 1 +8 = 9 ; # 9", 8),  # the digit taken over
        ("A 9 -5 = 4 ; B 4 *7 = 8 ; C 8 +8 = 6 ; # 5", 19),
        ("A 9 -5 = 4 ; B 4 *7 = 8 ; C 8 +8 = 6 ; # 6 6", 20),  # a word too many
        ("A 9 -5 = 4 ;", 6),  # it ends too early
        ("", 0),
        ("A 9 -5 = 4 ; B 4 *7 = 8 ; C 8 +8 = 6 ; # 6", None),
    ],
)
def test_the_first_wrong_word(text: str, at: int | None) -> None:
    assert first_wrong_word(EXAMPLE, text) == at


@pytest.mark.parametrize(
    ("step", "misconceived"),
    [
        ("A 4 *7 = 2", True),  # 8 + 4 = 12
        ("A 4 *7 = 3", False),  # wrong in another way
        ("A 4 +8 gives 1", True),  # 2 - 1
        ("A 4 +7 = 0", False),
        ("A 4 = 7 2", False),
    ],
)
def test_which_errors_are_misconceptions(step: str, misconceived: bool) -> None:
    words = step.split()
    assert is_misconceived(words, len(words) - 1, OrganismSettings()) is misconceived


def test_found_is_at_most_three_tokens_away() -> None:
    wrong = attempt(wrong_word=10, confident=True)
    assert [Found(points=(at,)).hits(wrong, 1) for at in (6, 7, 10, 13, 14)] == [
        False,
        True,
        True,
        True,
        False,
    ]
    assert not Found(points=(2, 11)).hits(wrong, 1)
    assert Found(points=(2, 11)).hits(wrong, 2)
    assert not Found(points=()).hits(wrong, 2)


def test_figures_by_hand() -> None:
    attempts = [attempt(wrong_word=10, confident=True), attempt(wrong_word=10, confident=False)]
    near, far = Found(points=(10, 30)), Found(points=(30, 10))
    own = [replace(near, reflection="right A wrong B *7"), replace(far, reflection="right A B wrong C +8")]
    rows = [
        *report(attempts, {"entropy": [far, far], "other": [far, near], "own": own, "oracle": [near, near]})
    ]
    shares = {(row["rule"], row["errors"]): (row["top_1"], row["top_2"]) for row in rows if "rule" in row}
    assert shares["entropy", "all"] == (0, 1)
    assert shares["own", "confident"] == (1, 1)
    assert shares["own", "noise"] == (0, 1)
    assert shares["own", "all"] == (0.5, 1)
    (labels,) = [row for row in rows if row["errors"] == "all" and "and_then_own" in row]
    assert labels["reflections_name_the_wrong_step"] == 0.5
    assert (labels["and_then_own"], labels["otherwise_own"]) == (1, 0)
    points = {row["difference"]: row["points"] for row in rows if row["errors"] == "all" and "points" in row}
    assert points == {"own - entropy": 0.5, "own - other": 0, "oracle - own": 0.5}


def test_it_runs_on_a_model_that_knows_nothing(tmp_path: Path) -> None:
    settings = replace(TINY, lessons=(Lesson(solutions=1, reflections=1),))
    save_untrained(tmp_path, settings)
    model = load_model(tmp_path, device="cpu", dtype="float32")
    renderer = ChatRenderer(model.tokenizer, stop_ids=model.stop_ids)
    engine = TorchEngine(model.decoder, decode=renderer.text, context_length=model.context_length)
    tasks = [
        Task(id=str(start), messages=(Message(role="user", content=f"{start} A +8 B -1"),), answer="0")
        for start in range(8)
    ]

    async def measured() -> list[dict[str, object]]:
        try:
            return await run(Bench(model=model, settings=settings, engine=engine), tasks)
        finally:
            await engine.close()

    rows = asyncio.run(measured())
    rules = {row["rule"] for row in rows if "rule" in row}
    assert {"random", "entropy", "surprisal", "record", "other", "own", "oracle"} <= rules
