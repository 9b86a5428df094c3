"""An engine whose steps are computed by other processes: the same answers, and clear ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.serve import ask, asks, decode, generate, logprobs_of, make_engine, prompt, score
from tests.tiny import CONTEXT, tiny_decoder
from turnpoint.engine import TorchEngine, weights_checksum
from turnpoint.engine.process import ProcessWorker
from turnpoint.errors import EngineError
from turnpoint.models.shared import SharedWeights, load_shared
from turnpoint.types import TokenIds

pytestmark = pytest.mark.slow  # a process that loads torch takes seconds


def two_workers(decoder: Any) -> TorchEngine:
    return TorchEngine(decoder, decode=decode, context_length=CONTEXT, workers=2)


@pytest.fixture(scope="module")
def engine() -> Iterator[TorchEngine]:
    engine = two_workers(tiny_decoder())
    yield engine
    asyncio.run(engine.close())


def pids(engine: TorchEngine) -> list[int]:
    workers = [lane._worker for lane in engine._lanes]  # pyright: ignore[reportPrivateUsage]
    return [worker.pid for worker in workers if isinstance(worker, ProcessWorker)]


def gone(pid: int, seconds: float = 20.0) -> bool:
    """Says whether a process ends within `seconds`; one that nobody has waited for has ended, too."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_answers_are_those_of_one_process(engine: TorchEngine) -> None:
    requests = [
        *asks(8, prompt(9), max_tokens=12, seed=3),
        *(ask(f"other{i}", prompt(7, seed=2), stop_strings=("1",), max_tokens=40) for i in range(5)),
    ]
    ours, expected = generate(engine, *requests), generate(make_engine(), *requests)
    assert [it.token_ids.tolist() for it in ours] == [it.token_ids.tolist() for it in expected]
    assert [(it.text, it.finish) for it in ours] == [(it.text, it.finish) for it in expected]
    for mine, theirs in zip(ours, expected, strict=True):
        np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-5)
    assert len({it.token_ids.tobytes() for it in ours}) > 6


def test_both_have_worked_and_are_counted_together(engine: TorchEngine) -> None:
    before = engine.stats
    completions = generate(engine, *asks(8, prompt(5, seed=8), max_tokens=30))
    stats = engine.stats - before
    assert stats.sampled == sum(len(it.token_ids) for it in completions)
    assert stats.prefilled == 2 * 5  # one group was divided, so its prompt was read by each
    assert stats.processor > 0


def test_a_rollout_is_scored_where_it_was_sampled(engine: TorchEngine) -> None:
    [completion] = generate(engine, ask("one", prompt(9, seed=5), max_tokens=10))
    before = engine.stats
    ids = np.concatenate([prompt(9, seed=5), completion.token_ids])
    scores = score(engine, ids, 9)
    np.testing.assert_allclose(scores.logprobs, completion.logprobs, atol=1e-5)
    assert (engine.stats - before).prefilled == 0


def test_new_weights_are_there_at_once_and_the_trainer_keeps_its_own() -> None:
    decoder = tiny_decoder()
    engine = two_workers(decoder)
    weights = dict(decoder.model.named_parameters())
    ids = prompt(12, seed=6)
    for seed in (1, 2):
        other = dict(tiny_decoder(seed=seed).model.named_parameters())
        state = {name: other[name].detach().clone() for name in weights}
        assert engine.load_weights(state, seed) == weights_checksum(state)
        scores = score(engine, ids, 1)
        assert scores.policy_version == seed
        np.testing.assert_allclose(scores.logprobs, logprobs_of(tiny_decoder(seed=seed), ids, 1), atol=1e-5)
    with torch.no_grad():  # as an optimiser does, in place
        for weight in weights.values():
            weight.mul_(0.5)
    published = {name: weight.detach() for name, weight in weights.items()}
    engine.load_weights(published, 3)
    np.testing.assert_allclose(score(engine, ids, 1).logprobs, logprobs_of(decoder, ids, 1), atol=1e-5)
    asyncio.run(engine.close())


def test_a_killed_worker_is_one_clear_line_and_closing_leaves_no_process() -> None:
    engine = two_workers(tiny_decoder())
    generate(engine, *asks(4, prompt(9)))
    first, second = pids(engine)
    os.kill(first, signal.SIGKILL)
    assert gone(first)

    async def main() -> list[Any]:
        requests = asks(8, prompt(9, seed=4), max_tokens=30)
        return await asyncio.gather(*map(engine.generate, requests), return_exceptions=True)

    answers = asyncio.run(main())
    lost = [it for it in answers if isinstance(it, EngineError)]
    assert 0 < len(lost) < 8
    assert f"engine worker 1 of 2 (process {first}) was killed by signal 9" in str(lost[0])
    asyncio.run(engine.close())
    asyncio.run(engine.close())
    assert gone(second)
    with pytest.raises(EngineError, match="the engine was closed"):
        generate(engine, ask())


def test_an_error_in_a_worker_fails_what_is_in_flight_and_nothing_after() -> None:
    engine = TorchEngine(tiny_decoder(), decode=refuses, context_length=CONTEXT, workers=2)
    with pytest.raises(EngineError, match="ValueError: no such id"):
        generate(engine, *asks(4, prompt(9)))
    assert len(score(engine, prompt(9)).logprobs) == 8  # which decodes no text
    asyncio.run(engine.close())


def refuses(ids: TokenIds) -> str:
    raise ValueError("no such id")


def test_cancelling_frees_the_row(engine: TorchEngine) -> None:
    before = engine.stats

    async def main() -> None:
        long = [asyncio.create_task(engine.generate(it)) for it in asks(4, prompt(3), max_tokens=300)]
        for _ in range(2000):
            await asyncio.sleep(0.01)
            if engine.stats.sampled > before.sampled:
                break
        for task in long:
            task.cancel()
        await asyncio.gather(*long, return_exceptions=True)

    asyncio.run(main())
    before = engine.stats
    generate(engine, *asks(4, prompt(3, seed=1), max_tokens=5))
    assert (engine.stats - before).sampled < 3 * 4 * 5  # the step that was interrupted counts later


def test_what_cannot_travel_is_one_clear_line() -> None:
    with pytest.raises(EngineError, match=r"engine.workers = 2: what samples cannot be sent .*workers=1"):
        TorchEngine(tiny_decoder(), decode=lambda ids: "", context_length=CONTEXT, workers=2)


def test_what_the_script_itself_defines_cannot_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refuses, "__module__", "__main__")
    with pytest.raises(
        EngineError, match=r"refuses is defined in the script itself, .* into a module of its own"
    ):
        TorchEngine(tiny_decoder(), decode=refuses, context_length=CONTEXT, workers=2)


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent("""
        import asyncio, os, signal
        from tests.engine.test_workers import pids, two_workers
        from tests.tiny import tiny_decoder

        engine = two_workers(tiny_decoder())
        asyncio.run(engine.ready())
        print(*pids(engine), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """)
    )
    found = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])},
        timeout=120,
    )
    started = [int(pid) for pid in found.stdout.split()]
    assert len(started) == 2, found.stderr
    assert all(gone(pid) for pid in started)


# --- shared weights -----------------------------------------------------------------------------


def test_weights_that_are_shared_are_the_same_memory_and_stay_tied() -> None:
    decoder = tiny_decoder()
    before = {name: weight.clone() for name, weight in decoder.model.named_parameters()}
    parameters = list(decoder.model.parameters())
    shared = SharedWeights(decoder.model)
    assert all(now is then for now, then in zip(decoder.model.parameters(), parameters, strict=True))
    twin = load_shared(shared.dump(decoder), shared.descriptor)
    for name, weight in twin.model.named_parameters():
        assert torch.equal(weight, before[name])
        assert weight.requires_grad
    with torch.no_grad():
        next(iter(decoder.model.parameters())).fill_(0.25)
    assert bool((next(iter(twin.model.parameters())) == 0.25).all())
    tied = decoder.model.get_output_embeddings().weight is decoder.model.get_input_embeddings().weight
    assert tied == (twin.head.weight is twin.model.get_input_embeddings().weight)
    assert len(shared.dump(decoder)) < sum(weight.nbytes for weight in parameters)


def test_weights_are_shared_by_a_file_without_a_name_where_memory_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(name: str) -> int:
        raise OSError("not implemented")

    monkeypatch.setattr(os, "memfd_create", refused)
    decoder = tiny_decoder()
    shared = SharedWeights(decoder.model)
    twin = load_shared(shared.dump(decoder), shared.descriptor)
    for ours, theirs in zip(decoder.model.parameters(), twin.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
