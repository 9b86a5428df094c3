"""reasoning-gym's own scorers as the judge of its problems."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
from collections.abc import Callable
from typing import Any, cast

from turnpoint.errors import RecipeError, VerifierError
from turnpoint.types import Json, Task, Verdict
from turnpoint.verifiers.math.extract import after_thinking, answer_after_phrase, last_box
from turnpoint.verifiers.workers import Reply, Status, WorkerPool, WorkerSettings

_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGymVerifier:
    r"""Rewards a completion with the score that the generator `name` gives it; partial scores are kept.

    The answer is the last `<answer>...</answer>` after `</think>`, else the last `\boxed{...}`, else what
    follows "Answer:", else the whole text. `Task.metadata["entry"]` holds the row's own metadata. A scorer
    that raises or takes over `timeout` seconds gives an invalid verdict. Raises RecipeError without the
    package (extra `quickstart`) or for an unknown generator.
    """

    def __init__(self, name: str, *, timeout: float = 5.0, workers: int = 2) -> None:
        if importlib.util.find_spec("reasoning_gym") is None:
            raise RecipeError("reasoning_gym is not installed; pip install 'turnpoint[quickstart]'")
        self._pool = WorkerPool(
            WorkerSettings(
                factory="turnpoint.verifiers.reasoning_gym:scorer", arguments=[name], timeout=timeout
            ),
            workers=workers,
        )
        try:
            self._pool.wait_until_ready()
        except VerifierError as error:
            self._pool.close()
            raise RecipeError(f"reasoning_gym generator {name!r}: {error}") from error

    def grade(self, *, task: Task, completion: str) -> Verdict:
        """Returns the scorer's verdict; safe from any thread. Raises VerifierError without workers."""
        answer = gym_answer(completion)
        return _conclude(task, answer, self._pool.call(answer, _entry(task)))

    async def verify(self, task: Task, completion: str) -> Verdict:
        """Returns the scorer's verdict, as `grade` does."""
        answer = gym_answer(completion)
        return _conclude(task, answer, await self._pool.call_async(answer, _entry(task)))

    async def self_check(self, task: Task) -> Verdict:
        """Returns valid when the row's answer scores 1 and a senseless one less; else invalid, with why."""
        right = await self.verify(task, f"<answer>{task.answer}</answer>")
        if right.valid and right.reward != 1.0:
            return Verdict.invalid(f"the reference answer {task.answer!r} scores {right.reward}")
        wrong = await self.verify(task, "<answer>?</answer>")
        if right.valid and wrong.valid and wrong.reward == 1.0:
            return Verdict.invalid("the answer '?' scores 1")
        return right if not right.valid or wrong.valid else wrong

    def close(self) -> None:
        """Ends the workers."""
        self._pool.close()

    def __enter__(self) -> ReasoningGymVerifier:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def gym_answer(completion: str) -> str:
    """Returns the answer in `completion` as a scorer expects it: without thoughts, tags and wrapping."""
    text = after_thinking(completion)
    tags = _TAG.findall(text)
    if tags:
        return tags[-1].strip()
    return last_box(text) or answer_after_phrase(text) or text.strip()


def scorer(name: str) -> Callable[[str, dict[str, Any]], float]:
    """Returns the function that a worker serves; raises ValueError with the nearest names."""
    factory: Any = importlib.import_module("reasoning_gym.factory")
    importlib.import_module("reasoning_gym")  # registers all generators
    if name not in factory.DATASETS:
        near = difflib.get_close_matches(name, list[str](factory.DATASETS), n=3)
        raise ValueError(f"no such generator; near it: {', '.join(near) or 'none'}")
    score = factory.get_score_answer_fn(name)
    return lambda answer, entry: float(score(answer, entry))


def _entry(task: Task) -> Json:
    return {"question": task.question, "answer": task.answer, "metadata": task.metadata["entry"]}


def _conclude(task: Task, answer: str, reply: Reply) -> Verdict:
    if reply.status is not Status.DONE:
        return Verdict.invalid(f"reasoning_gym's scorer {reply.reason}")
    score = cast(float, reply.value)
    known = f"The answer given is {answer[:200]}. The reference answer is {task.answer[:200]}."
    return Verdict.scored(score, reason="reasoning_gym", feedback="Correct." if score == 1.0 else known)
