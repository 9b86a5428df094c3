"""A worker in a process of its own, which computes while this one and its siblings do something else.

For small models on CPUs one process per core with one thread each beats one process with all threads: most
operations of a decode step are too small to be worth dividing. Weights are shared, so that new ones are there
at once; requests and answers go through a pipe.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from typing import IO, Any, cast

from torch import nn

from turnpoint.engine.worker import Request, Stepped, Worker
from turnpoint.errors import EngineError
from turnpoint.models.decoder import Decoder
from turnpoint.models.shared import SharedWeights

_CLOSE_SECONDS = 5.0  # then it is killed
_LAST_LINES = 3


class ProcessWorker:
    """A `Worker` in another process, which starts now and is there when the first step needs it.

    It ends with this process, however that ends. Raises EngineError when it cannot be started, when `content`
    cannot be sent, and from every call once it has ended.
    """

    def __init__(self, name: str, *, content: bytes, descriptor: int, threads: int) -> None:
        self._name = name
        ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "turnpoint.engine._child",
                    str(theirs.fileno()),
                    str(descriptor),
                ],
                pass_fds=(theirs.fileno(), descriptor),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                env={**os.environ, "PYTHONPATH": _search_path(), "OMP_NUM_THREADS": str(threads)},
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        except OSError as error:
            raise EngineError(f"{name} could not be started: {error}") from error
        finally:
            theirs.close()
        self._connection = Connection(ours.detach())
        with contextlib.suppress(ConnectionError):  # it has ended, which the first call reports
            self._connection.send_bytes(content)
        self._started = False
        self._ended = weakref.finalize(self, _end_process, self._process, self._connection, self._stderr)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ready(self) -> None:
        """As `Worker.ready`."""
        self._call("ready")

    def step(self, arrived: Sequence[tuple[int, Request]], abandoned: Iterable[int]) -> Stepped:
        """As `Worker.step`."""
        return cast(Stepped, self._call("step", arrived, list(abandoned)))

    def renew(self, version: int) -> None:
        """As `Worker.renew`."""
        self._call("renew", version)

    def _call(self, *message: Any) -> Any:
        try:
            if not self._started:
                self._take()
                self._started = True
            self._connection.send(message)
            return self._take()
        except (EOFError, ConnectionError) as error:
            raise EngineError(self._end()) from error

    def _take(self) -> Any:
        value, error = self._connection.recv()
        if error is not None:
            raise error
        return value

    def _end(self) -> str:
        try:
            code = self._process.wait(timeout=_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            return f"{self._name} (process {self.pid}) closed its pipe"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        return f"{self._name} (process {self.pid}) {how}{self._last_lines()}; start the run again"

    def _last_lines(self) -> str:
        size = os.fstat(self._stderr.fileno()).st_size
        text = os.pread(self._stderr.fileno(), 4096, max(0, size - 4096)).decode("utf-8", "replace")
        lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()][-_LAST_LINES:]
        return f" ({' | '.join(lines)})" if lines else ""

    def close(self) -> None:
        """Ends the process; safe to call twice."""
        self._ended()


def _end_process(process: subprocess.Popen[bytes], connection: Connection, stderr: IO[bytes]) -> None:
    connection.close()  # which tells it to end
    try:
        process.wait(timeout=_CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    stderr.close()


def start_processes(
    count: int,
    decoder: Decoder,
    serve: Callable[[Decoder], Worker],
    *,
    threads: int,
    beside: nn.Module | None = None,
) -> list[ProcessWorker]:
    """Returns workers that are `serve(decoder)` each, with `threads` threads.

    They share its weights and those of `beside`. Raises EngineError when what they need
    cannot be sent to another process.
    """
    weights = SharedWeights(nn.ModuleList([decoder.model, *([beside] if beside is not None else [])]))
    try:
        content = weights.dump((decoder, serve))
    except Exception as error:  # whatever the parts of a model or a tokenizer raise
        raise EngineError(
            f"engine.workers = {count}: what samples cannot be sent to another process "
            f"({type(error).__name__}: {error}); engine.workers=1 needs none"
        ) from error
    return [
        ProcessWorker(
            f"engine worker {number} of {count}",
            content=content,
            descriptor=weights.descriptor,
            threads=threads,
        )
        for number in range(1, count + 1)
    ]


def _search_path() -> str:
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)
