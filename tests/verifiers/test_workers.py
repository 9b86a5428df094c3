"""Hanging, growing, dying and printing functions; every call is answered, every process ends."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from turnpoint.errors import VerifierError
from turnpoint.verifiers.workers import Status, WorkerPool, WorkerSettings

FACTORY = "tests.verifiers.faults:run"


def make_pool(
    *, workers: int = 1, timeout: float = 0.5, calls: int = 1000, memory: int = 2 << 30
) -> WorkerPool:
    settings = WorkerSettings(factory=FACTORY, timeout=timeout, calls_per_worker=calls, memory_bytes=memory)
    return WorkerPool(settings, workers=workers)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with make_pool(workers=2) as shared:
        yield shared


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


@pytest.mark.parametrize("value", [None, 1.5, "\ud800 \x00 \u2028\n", [1, {"a": [True]}], "x" * 1_000_000])
def test_values_pass_unharmed(pool: WorkerPool, value: object) -> None:
    reply = pool.call("echo", value)  # type: ignore[arg-type]
    assert (reply.status, reply.value) == (Status.DONE, value)


def test_nan_passes(pool: WorkerPool) -> None:
    value = pool.call("nan").value
    assert isinstance(value, float)
    assert math.isnan(value)


def test_a_worker_is_fresh_and_light(pool: WorkerPool) -> None:
    assert pool.call("modules").value == []
    assert pool.call("pid").value != os.getpid()


def test_an_exception_is_a_reason_on_one_line_and_costs_no_worker(pool: WorkerPool) -> None:
    before = sorted(pool.pids())
    reply = pool.call("raise")
    assert (reply.status, reply.reason) == (Status.RAISED, "ValueError: two lines")
    assert sorted(pool.pids()) == before


@pytest.mark.parametrize("name", ["unserialisable", "huge"])
def test_a_value_that_cannot_be_sent_is_a_reason(pool: WorkerPool, name: str) -> None:
    assert pool.call(name).status is Status.RAISED
    assert pool.call("echo", 1).value == 1


def test_printing_and_reading_do_not_touch_the_protocol(pool: WorkerPool) -> None:
    assert pool.call("print").value == ""


def test_what_a_worker_prints_is_not_kept_for_ever() -> None:
    with make_pool(timeout=5.0) as pool:
        for _ in range(4):
            pool.call("chatter")
        worker = pool._owners[0]._worker  # type: ignore[reportPrivateUsage]
        assert worker is not None
        assert os.fstat(worker.stderr.fileno()).st_size <= 2 * 3_000_001


@pytest.mark.parametrize("name", ["hang", "hold"])
def test_a_hanging_function_is_killed_and_replaced(name: str) -> None:
    with make_pool() as pool:
        pid = pool.call("pid").value
        reply = pool.call(name)
        assert (reply.status, reply.reason) == (Status.TIMED_OUT, "timed out after 0.5 s")
        assert isinstance(pid, int)
        assert not is_running(pid)
        assert pool.call("pid").value != pid


def test_what_a_killed_function_started_is_killed_too(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with make_pool(timeout=2.0) as pool:
        pool.wait_until_ready()
        assert pool.call("child", str(note)).status is Status.TIMED_OUT
        assert wait_until_gone(int(note.read_text()))


def test_three_hanging_calls_do_not_drain_the_pool() -> None:
    """Two workers, half a second each: the good hundred finish after about a second, none is lost."""
    with make_pool(workers=2) as pool, ThreadPoolExecutor(103) as threads:
        hanging = [threads.submit(pool.call, "hang") for _ in range(3)]
        good = [threads.submit(pool.call, "echo", index) for index in range(100)]
        assert [future.result(timeout=60).value for future in good] == list(range(100))
        assert [future.result().status for future in hanging] == [Status.TIMED_OUT] * 3


def test_a_growing_function_meets_its_limit_and_the_next_call_is_served() -> None:
    with make_pool(timeout=20.0, memory=1 << 30) as pool:
        pid = pool.call("pid").value
        reply = pool.call("grow")
        assert (reply.status, reply.reason) == (Status.OUT_OF_MEMORY, "needs more memory than allowed")
        assert pool.call("pid").value != pid


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("exit", "worker exited with status 7"),
        ("sys_exit", "worker exited with status 0"),
        ("die", "worker killed by SIGKILL"),
    ],
)
def test_a_dying_worker_answers_its_call_with_the_reason(name: str, reason: str) -> None:
    with make_pool(timeout=10.0) as pool:
        reply = pool.call(name)
        assert (reply.status, reply.reason) == (Status.DIED, reason)
        assert pool.call("echo", 1).value == 1


def test_kill_9_from_outside_while_idle_costs_no_call() -> None:
    with make_pool(timeout=10.0) as pool:
        pool.wait_until_ready()
        (pid,) = pool.pids()
        os.kill(pid, signal.SIGKILL)
        # A zombie whose other threads have not ended cannot be waited for, and its pipes are still open.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert pool.call("echo", 1).value == 1


def test_kill_9_from_outside_during_a_call(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with make_pool(timeout=30.0) as pool, ThreadPoolExecutor(1) as threads:
        future = threads.submit(pool.call, "note_and_hang", str(note))
        while not (note.exists() and note.read_text()):
            time.sleep(0.01)
        os.kill(int(note.read_text()), signal.SIGKILL)
        assert future.result(timeout=10.0).reason == "worker killed by SIGKILL"
        assert pool.call("echo", 1).value == 1


def test_workers_are_recycled() -> None:
    with make_pool(calls=3) as pool:
        pids = [pool.call("pid").value for _ in range(7)]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]


def test_eight_threads_share_two_workers(pool: WorkerPool) -> None:
    with ThreadPoolExecutor(8) as threads:
        futures = [threads.submit(pool.call, "echo", index) for index in range(200)]
    assert [future.result().value for future in futures] == list(range(200))


def test_the_event_loop_goes_on_while_calls_hang(pool: WorkerPool) -> None:
    async def scenario() -> int:
        calls = [asyncio.create_task(pool.call_async("hang")) for _ in range(2)]
        beats = 0
        while not all(call.done() for call in calls):
            await asyncio.sleep(0.01)
            beats += 1
        assert [call.result().status for call in calls] == [Status.TIMED_OUT] * 2
        return beats

    assert asyncio.run(scenario()) > 5


def test_a_cancelled_request_that_has_not_started_is_dropped() -> None:
    async def scenario(pool: WorkerPool) -> None:
        first = asyncio.create_task(pool.call_async("sleep", 0.3))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(pool.call_async("exit"))
        await asyncio.sleep(0.05)
        second.cancel()
        await first

    with make_pool(timeout=5.0) as pool:
        pid = pool.call("pid").value
        asyncio.run(scenario(pool))
        assert pool.call("pid").value == pid


def test_a_pool_that_cannot_start_says_why() -> None:
    settings = WorkerSettings(factory="tests.verifiers.faults:broken", timeout=1.0)
    with WorkerPool(settings, workers=1) as pool:
        with pytest.raises(VerifierError, match=r"RuntimeError: no licence \(the licence server said no\)"):
            pool.call("echo", 1)
        with pytest.raises(VerifierError):
            pool.wait_until_ready()


def test_a_pool_recovers_when_workers_can_start_again(tmp_path: Path) -> None:
    present = tmp_path / "present"
    settings = WorkerSettings(
        factory="tests.verifiers.faults:needs_a_file", arguments=[str(present)], timeout=5.0
    )
    with WorkerPool(settings, workers=1) as pool:
        with pytest.raises(VerifierError, match="exited with status 3"):
            pool.call("echo", 1)
        present.touch()
        assert pool.call("echo", 1).value == 1


def test_closing_ends_all_processes_and_answers_everyone() -> None:
    pool = make_pool(timeout=60.0)
    pool.wait_until_ready()
    pids = pool.pids()
    outcomes: list[str] = []

    def call() -> None:
        try:
            outcomes.append(pool.call("hang").status)
        except VerifierError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    pool.close()
    pool.close()
    for thread in threads:
        thread.join(timeout=10.0)
    assert sorted(outcomes) == ["died", "the worker pool was closed", "the worker pool was closed"]
    assert all(wait_until_gone(pid) for pid in pids)
    with pytest.raises(VerifierError, match="is closed"):
        pool.call("echo", 1)


@pytest.mark.parametrize("deed", ["echo", "hang", pytest.param("hold", marks=pytest.mark.slow)])
def test_workers_end_when_their_parent_is_killed(tmp_path: Path, deed: str) -> None:
    script = f"""
import sys, threading
from turnpoint.verifiers.workers import WorkerPool, WorkerSettings
pool = WorkerPool(WorkerSettings(factory={FACTORY!r}, timeout=2.0), workers=1)
pool.wait_until_ready()
print(*pool.pids(), flush=True)
threading.Thread(target=pool.call, args=({deed!r},), daemon=True).start()
threading.Event().wait()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(0.1)
    assert is_running(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_until_gone(pid, seconds=120)


def test_a_program_that_forgets_to_close_still_ends() -> None:
    script = f"""
from turnpoint.verifiers.workers import WorkerPool, WorkerSettings
pool = WorkerPool(WorkerSettings(factory={FACTORY!r}, timeout=60.0), workers=2)
print(pool.call("echo", 1).value, *pool.pids())
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=60.0,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    value, *pids = done.stdout.split()
    assert (value, done.stderr) == ("1", "")
    assert all(wait_until_gone(int(pid)) for pid in pids)
