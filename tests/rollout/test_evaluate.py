"""Evaluation on an engine whose answers are written down."""

import asyncio
import json
from collections.abc import Sequence

import numpy as np
import pytest

from turnpoint.errors import EngineError
from turnpoint.protocols import Capabilities, Completion, GenerateRequest, ScoreRequest, Scores
from turnpoint.rollout.evaluate import Evaluation, Progress, evaluate
from turnpoint.types import FinishReason, Message, Task, TokenIds, Verdict, float_array, token_array

NEVER = "never finishes"


class ScriptedEngine:
    """Answers request ids from a table; a missing one fails. Waits until `together` requests are there."""

    def __init__(self, answers: dict[str, str], *, together: int = 1, stop: int = 6) -> None:
        self.answers = answers
        self.requests: list[GenerateRequest] = []
        self.cancelled = 0
        self._together = together
        self._stop = stop
        self._all_here = asyncio.Event()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name="scripted",
            context_length=64,
            entropy=False,
            max_top_k=0,
            score_temperature=False,
            prefix_cache=False,
        )

    async def generate(self, request: GenerateRequest) -> Completion:
        self.requests.append(request)
        if len(self.requests) >= self._together:
            self._all_here.set()
        try:
            await self._all_here.wait()
            if request.id not in self.answers:
                raise EngineError(f"request {request.id}: no answer")
            if self.answers[request.id] == NEVER:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        text = self.answers[request.id]
        length = len(text)
        return Completion(
            token_ids=token_array([3] * length),
            logprobs=float_array([0.0] * length),
            policy_version=0,
            finish=FinishReason.STOP if length < self._stop else FinishReason.LENGTH,
            text=text,
        )

    async def score(self, request: ScoreRequest) -> Scores:
        raise EngineError("not asked for")


class PlainRenderer:
    """One token per character."""

    stop_ids = frozenset({9})
    stop_strings = ("\n",)

    def prompt(self, messages: Sequence[Message], *, hindsight: str | None = None) -> TokenIds:
        return token_array(np.frombuffer(messages[-1].content.encode(), np.uint8).astype(np.int32))

    def turn(self, message: Message) -> TokenIds:
        return token_array([0])

    def text(self, token_ids: TokenIds) -> str:
        return bytes(token_ids.tolist()).decode()


class ByTable:
    """Rewards by the answer's text; a reason instead of a reward is an invalid verdict."""

    def __init__(self, rewards: dict[str, float | str]) -> None:
        self.rewards = rewards

    async def verify(self, task: Task, completion: str) -> Verdict:
        known = self.rewards.get(completion, float(completion == task.answer))
        return Verdict.invalid(known) if isinstance(known, str) else Verdict.scored(known)

    async def self_check(self, task: Task) -> Verdict:
        return Verdict.scored(1.0)


def tasks_of(*answers: str) -> list[Task]:
    return [
        Task(id=str(index), messages=(Message(role="user", content=f"{index} ?"),), answer=answer)
        for index, answer in enumerate(answers)
    ]


def run(
    engine: ScriptedEngine,
    tasks: Sequence[Task],
    *,
    samples: int = 0,
    rewards: dict[str, float | str] | None = None,
    progress: Progress | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
) -> Evaluation:
    return asyncio.run(
        evaluate(
            tasks,
            engine=engine,
            renderer=PlainRenderer(),
            verifier=ByTable(rewards or {}),
            samples=samples,
            temperature=0.7,
            max_new_tokens=6,
            seed=11,
            top_k=top_k,
            top_p=top_p,
            progress=progress,
        )
    )


def script(*rows: Sequence[str]) -> dict[str, str]:
    """Answers of problem 0, 1, ...: the greedy one first."""
    names = ["greedy", *map(str, range(20))]
    return {
        f"evaluate/{index}/{name}": text
        for index, row in enumerate(rows)
        for name, text in zip(names, row, strict=False)
    }


def test_greedy_and_sampled_scores() -> None:
    engine = ScriptedEngine(script(["7", "7", "0"], ["5", "4", "4"]))
    result = run(engine, tasks_of("7", "4"), samples=2)
    assert result.greedy.accuracy == 0.5
    assert result.sampled is not None
    assert result.sampled.accuracy == 0.75  # (1/2 + 2/2) / 2
    assert result.sampled.attempts == 4
    assert [outcome.task_id for outcome in result.outcomes] == ["0", "1"]


def test_the_law_of_each_request() -> None:
    engine = ScriptedEngine(script(["7", "7"]))
    found = run(engine, tasks_of("7"), samples=1, top_k=5, top_p=0.9)
    assert found.law == "temperature 0.7, top_k 5, top_p 0.9"
    greedy, sampled = engine.requests
    assert (greedy.temperature, sampled.temperature) == (0.0, 0.7)
    assert (greedy.top_k, greedy.top_p, sampled.top_k, sampled.top_p) == (0, 1.0, 5, 0.9)
    for request in engine.requests:
        assert request.prompt_ids.tolist() == list(b"0 ?")
        assert (request.max_tokens, request.seed) == (6, 11)
        assert (request.stop_ids, request.stop_strings) == (frozenset({9}), ("\n",))
    assert len({request.id for request in engine.requests}) == 2


def test_one_of_k_answers_is_right_as_often_as_draws_of_k_say() -> None:
    """By all pairs of the valid answers; the third problem has one valid answer and no pair."""
    rows = [["0", "7", "0", "0"], ["4", "4", "4", "0"], ["1", "1", "?", "?"]]
    found = run(
        ScriptedEngine(script(*rows)), tasks_of("7", "4", "1"), samples=3, rewards={"?": "cannot say"}
    )
    pairs, triples = found.passes
    assert (pairs.k, pairs.share, pairs.problems) == (2, pytest.approx((2 / 3 + 1) / 2), 2)
    assert (triples.k, triples.share) == (3, 1.0)
    assert found.to_json()["pass_at_k"] == {"2": pairs.share, "3": 1.0}
    assert run(ScriptedEngine(script(["7", "7"])), tasks_of("7"), samples=1).passes == []


def test_all_attempts_are_in_flight_together() -> None:
    answers = script(*[["7", "7", "7"]] * 5)
    result = run(ScriptedEngine(answers, together=15), tasks_of(*"77777"), samples=2)
    assert len(result.outcomes) == 5


def test_zero_samples_is_greedy_only() -> None:
    engine = ScriptedEngine(script(["7"]))
    assert run(engine, tasks_of("7")).sampled is None
    assert len(engine.requests) == 1


def test_invalid_attempts_are_counted_and_left_out() -> None:
    engine = ScriptedEngine(script(["x", "x", "7"], ["4", "x", "x"], ["y", "4", "0"]))
    rewards: dict[str, float | str] = {"x": "verifier timed out", "y": "NaN"}
    result = run(engine, tasks_of("7", "4", "4"), samples=2, rewards=rewards)
    assert result.greedy.accuracy == 1.0
    assert result.greedy.invalid == {"verifier timed out": 1, "NaN": 1}
    assert result.sampled is not None
    assert result.sampled.accuracy == 0.75  # problems 0 and 2; problem 1 has nothing valid
    assert result.sampled.num_invalid == 3


def test_nothing_valid_gives_no_figure() -> None:
    result = run(ScriptedEngine(script(["x"])), tasks_of("7"), rewards={"x": "broken"})
    assert result.greedy.accuracy is None
    assert result.greedy.accuracy_interval is None
    assert result.greedy.mean_reward is None


def test_partial_rewards_count_as_reward_and_not_as_accuracy() -> None:
    result = run(ScriptedEngine(script(["a"], ["b"])), tasks_of("7", "4"), rewards={"a": 0.5, "b": 1.5})
    assert result.greedy.accuracy == 0.5
    assert result.greedy.mean_reward == 1.0


def test_truncation_and_length_are_over_all_attempts() -> None:
    result = run(ScriptedEngine(script(["xxxxxx"], ["4"])), tasks_of("7", "4"), rewards={"xxxxxx": "broken"})
    assert result.greedy.truncated == 0.5
    assert result.greedy.mean_tokens == 3.5


def test_the_majority_answer_is_by_exact_text() -> None:
    result = run(ScriptedEngine(script(["1"], ["1"], ["1"], ["1"])), tasks_of("7", "7.0", "7", "4"))
    assert (result.majority_answer, result.majority_accuracy) == ("7", 0.5)


def test_progress_tells_every_attempt_and_its_tokens() -> None:
    seen: list[tuple[int, int]] = []
    engine = ScriptedEngine(script(["77", "7"], ["4", "444"]))
    run(engine, tasks_of("7", "4"), samples=1, progress=lambda done, tokens: seen.append((done, tokens)))
    assert sorted(seen) == [(1, 1), (1, 1), (1, 2), (1, 3)]


def test_a_failing_engine_raises_itself_and_leaves_nothing_running() -> None:
    engine = ScriptedEngine(script([NEVER, NEVER], [NEVER]), together=4)  # 1/0 has no answer
    with pytest.raises(EngineError, match=r"^request evaluate/1/0: no answer$"):
        run(engine, tasks_of("7", "4"), samples=1)
    assert engine.cancelled == 3


def test_a_cancelled_evaluation_cancels_its_requests() -> None:
    engine = ScriptedEngine(script([NEVER, NEVER]))

    async def scenario() -> None:
        job = asyncio.create_task(
            evaluate(
                tasks_of("7"),
                engine=engine,
                renderer=PlainRenderer(),
                verifier=ByTable({}),
                samples=1,
                temperature=1.0,
                max_new_tokens=6,
                seed=0,
            )
        )
        await asyncio.sleep(0.01)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job

    asyncio.run(scenario())
    assert engine.cancelled == 2


def test_no_tasks_is_an_error() -> None:
    with pytest.raises(ValueError, match="no tasks"):
        run(ScriptedEngine({}), [])


def test_the_record_is_json() -> None:
    engine = ScriptedEngine(script(["7", "\ud800\x00"]))
    result = run(engine, tasks_of("7"), samples=1)
    row = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert row["greedy"]["accuracy"] == 1.0
    assert row["sampled"]["accuracy_interval_95"][0] == 0.0
    assert row["majority"] == {"answer": "7", "accuracy": 1.0}
    assert row["outcomes"][0]["sampled"][0]["text"] == "\ud800\x00"
