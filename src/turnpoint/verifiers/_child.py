"""What runs inside a worker process of `workers.WorkerPool`; started by it as `python -m`.

One JSON array of arguments per line comes in, one JSON reply per line goes out. The process limits its own
memory, keeps the protocol's descriptors away from user code, and ends itself when its parent is gone. This
is containment of accidents, not a sandbox: the function has the user's files and network.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import resource
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

_ORPHAN_CHECK_MS = 1000
_REPLY_LIMIT = 4_000_000  # bytes; a longer reply is a fault of the function
_CPU_SLACK = 2  # seconds


def main() -> None:
    """Serves requests until the parent closes its end, dies, or kills this process."""
    settings = json.loads(sys.argv[1])
    requests, replies = _take_protocol_descriptors()
    _limit(resource.RLIMIT_AS, settings["memory_bytes"])
    _limit(resource.RLIMIT_CORE, 0)
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    watch = threading.Thread(target=_read, args=(requests, settings["parent"], lines), daemon=True)
    watch.start()
    try:
        module, _, name = settings["factory"].partition(":")
        function = getattr(importlib.import_module(module), name)(*settings["arguments"])
    except Exception as error:  # noqa: BLE001 - user code may raise anything; the parent gets the reason
        _send(replies, {"status": "failed", "value": None, "reason": describe(error)})
        sys.exit(1)
    _send(replies, {"status": "ready", "value": None, "reason": ""})
    while True:
        arguments = json.loads(lines.get())
        _limit_cpu(settings["timeout"])
        _send(replies, _answer(function, arguments))


def describe(error: BaseException) -> str:
    """Returns an exception as one line of at most 300 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _answer(function: Callable[..., Any], arguments: list[Any]) -> dict[str, Any]:
    try:
        value = function(*arguments)
        if len(json.dumps(value)) > _REPLY_LIMIT:
            raise ValueError(f"the reply is longer than {_REPLY_LIMIT} bytes")
    except MemoryError:
        return {"status": "out_of_memory", "value": None, "reason": "needs more memory than allowed"}
    except Exception as error:  # noqa: BLE001 - user code may raise anything; the parent gets the reason
        return {"status": "raised", "value": None, "reason": describe(error)}
    return {"status": "done", "value": value, "reason": ""}


def _send(descriptor: int, reply: dict[str, Any]) -> None:
    data = json.dumps(reply).encode("ascii") + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def _take_protocol_descriptors() -> tuple[int, int]:
    """Moves the pipes off 0 and 1, so that a function that reads or prints cannot break the protocol."""
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies


def _read(requests: int, parent: int, lines: queue.SimpleQueue[bytes]) -> None:
    """Queues request lines; ends the process (and what it started) when the parent is gone.

    End of file says so at once. A process forked from the parent may hold the pipe open, hence the look at
    the parent's id.
    """
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    buffer = b""
    while os.getppid() == parent:
        if not poll.poll(_ORPHAN_CHECK_MS):
            continue
        data = os.read(requests, 1 << 16)
        if not data:
            break
        *whole, buffer = (buffer + data).split(b"\n")
        for line in whole:
            lines.put(line)
    os.killpg(0, signal.SIGKILL)


def _limit_cpu(timeout: float) -> None:
    """Lets the kernel end a call that outlives a killed parent while it holds the interpreter lock."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + 2 * timeout) + _CPU_SLACK)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(kind, (wanted, hard))
    except (ValueError, OSError) as error:  # macOS knows the names but refuses some of them
        print(f"limit {kind} could not be set: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
