"""A pool of worker processes that are killed when they hang and replaced when they die.

One daemon thread of this process owns one worker process: it takes a request from the shared queue, sends
it, waits until the wall-clock limit, and kills and replaces the process when no answer came. So a worker has
one request at a time, no caller ever holds a process, and `call` is safe from any thread and any event loop.

Workers are fresh interpreters, never forks of this process, which may hold an accelerator and locks. They
start before the first call, have a memory limit, are replaced after a number of calls, and end with their
parent, also when that is killed. This contains accidents; it is no sandbox against hostile code. POSIX only.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import enum
import fcntl
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import IO, TypeAlias

from turnpoint.errors import VerifierError
from turnpoint.types import Json

_START_SECONDS = 60.0  # to import what the function needs
_START_ATTEMPTS = 3
_STDERR_LINES = 5
_STDERR_KEPT = 1 << 20  # bytes of output a worker may leave behind between two calls
_CHUNK = 1 << 16  # bytes

_ABANDONED_SECONDS = 0.05  # between two looks whether the caller is still there

_Request: TypeAlias = "tuple[bytes, Future[Reply], threading.Event]"


class Status(enum.StrEnum):
    """How a call ended."""

    DONE = "done"
    RAISED = "raised"  # the function raised
    OUT_OF_MEMORY = "out_of_memory"  # the function met the memory limit
    TIMED_OUT = "timed_out"  # killed at the wall-clock limit
    DIED = "died"  # the process ended by itself or by someone else's hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back from a call; `value` only when DONE, `reason` otherwise."""

    status: Status
    value: Json = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What every worker of a pool is."""

    factory: str  # "module:function"; called once per worker with `arguments`, returns what serves calls
    arguments: Sequence[Json] = ()
    timeout: float  # seconds of wall clock per call, waiting for a free worker not included
    memory_bytes: int = 2 << 30  # of address space
    calls_per_worker: int = 1000  # then replaced
    command: Sequence[str] = ()  # another server of `_child`'s protocol, started without our environment


class WorkerPool:
    """Calls a function in `workers` processes at a time.

    >>> settings = WorkerSettings(factory="turnpoint.verifiers.workers:echo", timeout=5.0)
    >>> with WorkerPool(settings, workers=1) as pool:
    ...     pool.call([1, 2]).value
    [1, 2]
    """

    def __init__(self, settings: WorkerSettings, *, workers: int) -> None:
        self._settings = settings
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._owners = [_Owner(settings, self._requests) for _ in range(workers)]
        self._closing = threading.Lock()
        self._closed = False
        atexit.register(self.close)

    def call(self, *arguments: Json) -> Reply:
        """Returns what the function gave for `arguments`; blocks until a worker was free and has answered.

        Raises VerifierError when workers cannot be started, with their last lines, or the pool is closed.
        """
        return self._submit(arguments, threading.Event()).result()

    async def call_async(self, *arguments: Json) -> Reply:
        """As `call`, without blocking the event loop; cancelling drops the request or kills its worker."""
        abandoned = threading.Event()
        try:
            return await asyncio.wrap_future(self._submit(arguments, abandoned))
        except asyncio.CancelledError:
            abandoned.set()
            raise

    def wait_until_ready(self) -> None:
        """Blocks until one worker has its function; raises VerifierError when none can be started."""
        self._enqueue(b"", threading.Event()).result()

    def _submit(self, arguments: Sequence[Json], abandoned: threading.Event) -> Future[Reply]:
        # ASCII: lone surrogates and NUL pass unharmed.
        return self._enqueue(json.dumps(arguments).encode("ascii") + b"\n", abandoned)

    def _enqueue(self, line: bytes, abandoned: threading.Event) -> Future[Reply]:
        future: Future[Reply] = Future()
        with self._closing:
            if self._closed:
                raise VerifierError(f"{self._settings.factory}: the worker pool is closed")
            self._requests.put((line, future, abandoned))
        return future

    def pids(self) -> list[int]:
        """Returns the process ids of the workers that run now."""
        return [owner.pid for owner in self._owners if owner.pid is not None]

    def close(self) -> None:
        """Kills all workers and answers what waits with VerifierError; safe to call twice."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        with contextlib.suppress(queue.Empty):
            while True:
                _refuse(self._requests.get_nowait(), "the worker pool was closed")
        for _ in self._owners:
            self._requests.put(None)
        for owner in self._owners:
            owner.close()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def echo() -> Callable[[Json], Json]:
    """Returns the identity: the smallest factory."""

    def identity(value: Json) -> Json:
        return value

    return identity


def _refuse(request: _Request | None, reason: str) -> None:
    if request is not None and request[1].set_running_or_notify_cancel():
        request[1].set_exception(VerifierError(reason))


class _Owner:
    """A thread and the one worker process it starts, feeds, kills and replaces."""

    def __init__(self, settings: WorkerSettings, requests: queue.SimpleQueue[_Request | None]) -> None:
        self._settings = settings
        self._requests = requests
        self._worker: _Worker | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="turnpoint-worker-owner", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        worker = self._worker
        return None if worker is None else worker.process.pid

    def close(self) -> None:
        self._stopping.set()
        worker = self._worker
        if worker is not None:
            worker.kill()  # a call in progress sees the end of the process
        self._thread.join()

    def _serve(self) -> None:
        with contextlib.suppress(VerifierError):  # the first call tries again and reports
            self._ready_worker()
        while (request := self._requests.get()) is not None:
            line, future, abandoned = request
            if not future.set_running_or_notify_cancel():
                continue
            try:
                worker = self._ready_worker()
                reply = worker.call(line, abandoned) if line else Reply(status=Status.DONE)
            except VerifierError as error:
                future.set_exception(error)
                continue
            if reply.status is not Status.DONE and reply.status is not Status.RAISED:
                self._discard()
            future.set_result(reply)
            if self._worker is None or self._worker.calls >= self._settings.calls_per_worker:
                self._discard()
                with contextlib.suppress(VerifierError):
                    self._ready_worker()
        self._discard()

    def _ready_worker(self) -> _Worker:
        if self._worker is not None and self._worker.process.poll() is None:
            return self._worker
        self._discard()
        reason = ""
        for _ in range(_START_ATTEMPTS):
            if self._stopping.is_set():
                raise VerifierError(f"{self._settings.factory}: the worker pool was closed")
            self._worker = _start(self._settings)
            reason, certain = self._worker.wait_until_ready()
            if not reason:
                return self._worker
            self._discard()
            if certain:  # the function cannot be made, and could not the next time
                break
        raise VerifierError(f"{self._settings.factory}: no worker could be started: {reason}")

    def _discard(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
            worker.free()


@dataclass(slots=True)
class _Worker:
    """A worker process and its pipes."""

    process: subprocess.Popen[bytes]
    requests: int  # descriptor, non-blocking
    replies: int  # descriptor, non-blocking
    stderr: IO[bytes]
    timeout: float
    calls: int = 0
    pending: bytearray = field(default_factory=bytearray)

    def wait_until_ready(self) -> tuple[str, bool]:
        """Returns "" once the function is there, else why it is not, and whether it said so itself."""
        deadline = time.monotonic() + _START_SECONDS
        line = self._receive(deadline, threading.Event())
        if line is None:
            slow = time.monotonic() >= deadline
            reason = f"not ready after {_START_SECONDS:g} s" if slow else self._end()
            return f"{reason}{self._last_lines()}", False
        reply = json.loads(line)
        return ("", True) if reply["status"] == "ready" else (f"{reply['reason']}{self._last_lines()}", True)

    def call(self, line: bytes, abandoned: threading.Event) -> Reply:
        self.calls += 1
        if os.fstat(self.stderr.fileno()).st_size > _STDERR_KEPT:
            os.ftruncate(self.stderr.fileno(), 0)
        deadline = time.monotonic() + self.timeout
        answer = self._receive(deadline, abandoned) if self._send(line, deadline) else None
        if answer is not None:
            reply = json.loads(answer)
            return Reply(status=Status(reply["status"]), value=reply["value"], reason=reply["reason"])
        if abandoned.is_set():
            return Reply(status=Status.DIED, reason="cancelled")
        if time.monotonic() >= deadline:
            return Reply(status=Status.TIMED_OUT, reason=f"timed out after {self.timeout:g} s")
        return Reply(status=Status.DIED, reason=f"{self._end()}{self._last_lines()}")

    def kill(self) -> None:
        """Kills the process and what it started, unless it has been waited for."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # it leads its own group

    def free(self) -> None:
        self.process.wait()
        os.close(self.requests)
        os.close(self.replies)
        self.stderr.close()

    def _send(self, data: bytes, deadline: float) -> bool:
        view = memoryview(data)
        while view:
            if not _wait(self.requests, select.POLLOUT, deadline):
                return False
            try:
                view = view[os.write(self.requests, view[:_CHUNK]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                return False
        return True

    def _receive(self, deadline: float, abandoned: threading.Event) -> bytes | None:
        """Returns the next line; None at the deadline, when nobody waits for it, or the process ended."""
        while b"\n" not in self.pending:
            soon = min(deadline, time.monotonic() + _ABANDONED_SECONDS)
            if not _wait(self.replies, select.POLLIN, soon):
                if abandoned.is_set() or time.monotonic() >= deadline:
                    return None
                continue
            data = os.read(self.replies, _CHUNK)
            if not data:
                return None
            self.pending += data
        line, _, self.pending = self.pending.partition(b"\n")
        return bytes(line)

    def _end(self) -> str:
        try:
            code = self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "worker closed its pipes"
        return f"worker killed by {_signal_name(-code)}" if code < 0 else f"worker exited with status {code}"

    def _last_lines(self) -> str:
        size = os.fstat(self.stderr.fileno()).st_size
        text = os.pread(self.stderr.fileno(), 4096, max(0, size - 4096)).decode("utf-8", "replace")
        lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()][-_STDERR_LINES:]
        return f" ({' | '.join(lines)})" if lines else ""


def _start(settings: WorkerSettings) -> _Worker:
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
    fcntl.fcntl(
        stderr, fcntl.F_SETFL, os.O_APPEND
    )  # or a worker would write on where it was after a truncation
    child = {
        "factory": settings.factory,
        "arguments": list(settings.arguments),
        "timeout": settings.timeout,
        "memory_bytes": settings.memory_bytes,
        "parent": os.getpid(),
    }
    command = settings.command or [sys.executable, "-P", "-m", "turnpoint.verifiers._child"]
    environment = {} if settings.command else {**os.environ, "PYTHONPATH": _search_path()}
    try:
        process = subprocess.Popen(
            [*command, json.dumps(child)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**environment, **_ONE_THREAD},
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
    except OSError as error:
        stderr.close()
        raise VerifierError(f"{settings.factory}: no worker could be started: {error}") from error
    pipes = [_detach(process.stdin), _detach(process.stdout)]
    process.stdin = process.stdout = None
    return _Worker(process, pipes[0], pipes[1], stderr, settings.timeout)


def _search_path() -> str:
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)


# Threads of numerical libraries in every worker would fight for the same cores and reserve address space.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _detach(pipe: IO[bytes] | None) -> int:
    assert pipe is not None
    descriptor = os.dup(pipe.fileno())
    pipe.close()
    os.set_blocking(descriptor, False)
    return descriptor


def _wait(descriptor: int, event: int, deadline: float) -> bool:
    """Returns whether `descriptor` is ready (or closed at its other end) before `deadline`."""
    poll = select.poll()  # select.select fails above 1024 descriptors
    poll.register(descriptor, event)
    left = deadline - time.monotonic()
    return left > 0 and bool(poll.poll(int(left * 1000) + 1))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
