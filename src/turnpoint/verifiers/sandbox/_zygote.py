"""The process that forks a confined child for every input, watches it and reports how it ended.

Started as `python -I -S` without the trainer's environment, never forked from it, and it runs no program
itself: it imports what programs like to import, so that a fork has it, and speaks the protocol of
`verifiers/_child.py` (one JSON array a line in, one reply a line out). One input at a time; a child that
hangs, floods or breeds is killed. It ends with its parent, and its children with it. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import importlib
import json
import math
import os
import resource
import select
import shutil
import signal
import site
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

from turnpoint.verifiers.sandbox import _kernel, _program

_NOWHERE = 1  # /dev/null, in this process
_CONFINED = b"+"  # begins a report: the program can add to it, not take it back
_WATCH_MS = 20  # between two looks at the number of threads
_CHUNK = 1 << 16  # bytes
_REPORT_SLACK = 4096  # bytes of a report beside its value
_PREIMPORTED = (
    *("array", "bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools"),
    *("hashlib", "heapq", "io", "itertools", "math", "operator", "queue", "random", "re", "statistics"),
    *("string", "struct", "textwrap", "typing", "unicodedata"),
)
_PROBE_LIMITS = {"cpu": 10, "memory_bytes": 1 << 30, "file_bytes": 1, "open_files": 64, "tasks": 0}
_WAYS_OUT = {
    "full": "; accept less with isolation `syscalls` (programs read your files) or `limits` (no isolation)",
    "syscalls": "; accept less with isolation `limits` (programs have your files, network and processes)",
    "limits": "",
}
_SYSTEM_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def main() -> None:
    """Serves requests until the parent closes its end or dies."""
    settings = json.loads(sys.argv[1])
    level, extra = settings["arguments"]
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    _kernel.end_with_parent(settings["parent"])
    _kernel.adopt_orphans()
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # and the children's: the first to go when memory runs out
    _kernel.hide()
    readable = _preimport(extra)
    try:
        jail = Jail(level, readable)
        jail.probe()
    except OSError as error:
        reason = f"{error.strerror}{_WAYS_OUT[level]}"
        _send(replies, {"status": "failed", "value": None, "reason": reason})
        sys.exit(1)
    _send(replies, {"status": "ready", "value": None, "reason": ""})
    gc.collect()
    gc.freeze()  # pages of what is there now stay shared with the children
    with os.fdopen(requests, "rb") as lines:
        for line in lines:
            program, inputs, limits = json.loads(line)
            _send(replies, {"status": "done", "value": jail.run(program, inputs, limits), "reason": ""})


def _preimport(extra: list[str]) -> list[str]:
    """Imports what programs use; returns the folders and files that a child may read."""
    for name in _PREIMPORTED:
        importlib.import_module(name)
    site.setquit()  # -S leaves exit() and quit() away, which programs call
    folders = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), *_SYSTEM_FOLDERS, *_DEVICES]
    root = sys.path.pop(0)  # where turnpoint lies
    for package in extra:
        sys.path.append(os.path.dirname(package))
        with contextlib.suppress(ImportError):
            importlib.import_module(os.path.basename(package))
            folders += [package, f"{package}.libs"]
        sys.path.pop()
    assert root not in sys.path
    return folders


def _send(descriptor: int, reply: dict[str, Any]) -> None:
    data = json.dumps(reply).encode("ascii") + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


@dataclass(slots=True)
class _Child:
    """A confined process and what it has said."""

    pid: int
    stdout: int
    report: int
    said: dict[int, bytearray] = field(default_factory=dict[int, bytearray])


class Jail:
    """Runs programs at a level of isolation."""

    def __init__(self, level: str, readable: list[str]) -> None:
        self._level = level
        self._files = _kernel.ReadOnlyFiles(readable) if level == "full" else None
        self._calls = None if level == "limits" else _kernel.SystemCalls()

    def probe(self) -> None:
        """Tries the isolation in a child; raises OSError with what of it does not hold on this host."""
        said, say = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self._confine(
                    {"cpu": 10, "memory_bytes": 1 << 30, "file_bytes": 1, "open_files": 64, "tasks": 0}
                )
                fault = _holes(self._level)
            except OSError as error:
                fault = error.strerror or str(error)
            os.write(say, fault.encode("utf-8", "replace")[:1000])
            os._exit(0)
        os.close(say)
        with os.fdopen(said, "rb") as answers:
            fault = answers.read().decode("utf-8", "replace")
        _, status = os.waitpid(pid, 0)
        if fault or status:
            raise OSError(errno.EPERM, fault or f"a confined process ended with status {status}")

    def run(
        self, program: dict[str, Any], inputs: list[dict[str, Any]], limits: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Returns one raw run per input; those for which no time is left are not run."""
        deadline = time.monotonic() + limits["total"]
        limits = {**limits, "tasks": _tasks_of_user() if self._level == "limits" else 0}
        runs: list[dict[str, Any]] = []
        for given in inputs:
            left = deadline - time.monotonic()
            if left <= 0:
                runs.append(
                    {"end": "not_run", "error": f"all inputs together took over {limits['total']:g} s"}
                )
                continue
            folder = tempfile.mkdtemp(prefix="turnpoint-") if self._level == "limits" else "/"
            try:
                runs.append(
                    self._run_one(program, given, {**limits, "wall": min(limits["wall"], left)}, folder)
                )
            finally:
                _end_children()
                if folder != "/":
                    shutil.rmtree(folder, ignore_errors=True)
        return runs

    def _run_one(
        self, program: dict[str, Any], given: dict[str, Any], limits: dict[str, Any], folder: str
    ) -> dict[str, Any]:
        stdin = _file_of(given["text"].encode("utf-8", "replace") if given["kind"] == "stdin" else b"")
        (stdout, stdout_end), (report, report_end), (nonce, nonce_end) = os.pipe(), os.pipe(), os.pipe()
        start, zygote = time.monotonic(), os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                os.chdir(folder)
                _kernel.end_with_parent(zygote)
                self._confine(limits)
                _take_descriptors([stdin, stdout_end, _NOWHERE, report_end, nonce])
                os.write(_program.REPORT, _CONFINED)
                _program.run(program, given)
            finally:
                os._exit(71)
        secret = os.urandom(16).hex()  # after the fork: no frame of the child holds it
        os.write(nonce_end, secret.encode("ascii"))
        for descriptor in (stdin, stdout_end, report_end, nonce, nonce_end):
            os.close(descriptor)
        child = _Child(pid, stdout, report)
        end, status, usage = _watch(child, limits, start + limits["wall"])
        said = child.said[report].decode("ascii", "replace")
        if not end and not said:
            raise OSError(errno.EIO, f"a child could not be confined: status {status}")
        return {
            "end": end,
            "status": status,
            "out_of_cpu": usage >= math.ceil(limits["cpu"]) - 0.05,
            "seconds": time.monotonic() - start,
            "stdout": child.said[stdout][: limits["output_bytes"]].decode("utf-8", "replace"),
            "report": said[1:],
            "finished": secret in said,
        }

    def _confine(self, limits: dict[str, Any]) -> None:
        """Takes from this process, for good, all that a program does not need."""
        os.setsid()
        seconds = math.ceil(limits["cpu"])
        _limit(resource.RLIMIT_CPU, seconds, seconds + 1)
        _limit(resource.RLIMIT_AS, _address_space() + limits["memory_bytes"])
        _limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
        _limit(resource.RLIMIT_NOFILE, limits["open_files"])
        _limit(resource.RLIMIT_CORE, 0)
        if limits["tasks"]:
            _limit(resource.RLIMIT_NPROC, limits["tasks"] + limits["processes"])
        _kernel.drop_privileges()
        if self._files is not None:
            self._files.restrict()
        if self._calls is not None:
            self._calls.restrict()


def _holes(level: str) -> str:
    """Tries what a confined process must not do, and what it must; returns the first surprise."""
    import colorsys  # noqa: F401  # pyright: ignore[reportUnusedImport] - not imported before: read from disk now

    if level == "limits":
        return ""
    import socket

    for name, attempt in {
        "make a socket": lambda: socket.socket().close(),
        "start a process": lambda: os.fork() or os._exit(0),
        "write a file": lambda: os.open("/tmp/turnpoint-probe", os.O_WRONLY | os.O_CREAT),
        **({"list /": lambda: os.listdir("/")} if level == "full" else {}),
    }.items():
        try:
            attempt()
        except OSError:
            continue
        return f"a confined process could {name}"
    return ""


def _take_descriptors(wanted: list[int]) -> None:
    """Makes `wanted` the descriptors 0, 1, ... of this process and closes all others."""
    above = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, len(wanted)) for descriptor in wanted]
    for target, descriptor in enumerate(above):
        os.dup2(descriptor, target)
    os.closerange(len(wanted), 1024)


def _file_of(data: bytes) -> int:
    """Returns a descriptor that reads `data`, without a name and without a writable end."""
    memory = os.memfd_create("stdin")
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(memory, view) :]
        return os.open(f"/proc/self/fd/{memory}", os.O_RDONLY)
    finally:
        os.close(memory)


def _watch(child: _Child, limits: dict[str, Any], deadline: float) -> tuple[str, int, float]:
    """Reads what the child says until it ends or must.

    Returns why it was killed, or "", its wait status, and its seconds of processor time.
    """
    caps = {child.stdout: limits["output_bytes"], child.report: limits["output_bytes"] + _REPORT_SLACK}
    child.said = {descriptor: bytearray() for descriptor in caps}
    ended = os.pidfd_open(child.pid)
    poll = select.poll()
    for descriptor in (*caps, ended):
        poll.register(descriptor, select.POLLIN)
    end = ""
    alive = True
    while alive and not end:
        left = deadline - time.monotonic()
        if left <= 0:
            end = "timeout"
            break
        for descriptor, _ in poll.poll(min(_WATCH_MS, int(left * 1000) + 1)):
            if descriptor == ended:
                alive = False
            elif not _read(descriptor, child.said[descriptor], caps[descriptor]):
                poll.unregister(descriptor)
        if any(len(child.said[descriptor]) > cap for descriptor, cap in caps.items()):
            end = "output"
        elif _threads(child.pid) > limits["processes"]:
            end = "threads"
    os.kill(child.pid, signal.SIGKILL)  # not yet waited for: the number is still its own
    _, status, usage = os.wait4(child.pid, 0)
    for descriptor, cap in caps.items():
        os.set_blocking(descriptor, False)
        while not end and _read(descriptor, child.said[descriptor], cap):
            if len(child.said[descriptor]) > cap:
                end = "output"
        os.close(descriptor)
    os.close(ended)
    return end, status, usage.ru_utime + usage.ru_stime


def _read(descriptor: int, into: bytearray, cap: int) -> bool:
    """Reads some bytes, at most one above the cap; returns whether there were any."""
    try:
        data = os.read(descriptor, min(_CHUNK, cap + 1 - len(into)))
    except BlockingIOError:
        return False
    into += data
    return bool(data)


def _threads(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[17])
    except OSError:
        return 0


def _end_children() -> None:
    """Kills and reaps whatever a program left behind; under full isolation there is nothing."""
    for _ in range(1000):
        try:
            reaped, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not reaped:
            for pid in _children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        return [int(pid) for pid in children.read().split()]


def _tasks_of_user() -> int:
    """Counts the threads of this user, which RLIMIT_NPROC counts too."""
    tasks = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == os.getuid():
                tasks += len(os.listdir(f"/proc/{name}/task"))
    return tasks


def _address_space() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


def _limit(kind: int, soft: int, hard: int | None = None) -> None:
    _, highest = resource.getrlimit(kind)
    most = soft if hard is None else hard
    if highest != resource.RLIM_INFINITY:
        most, soft = min(most, highest), min(soft, highest)
    resource.setrlimit(kind, (soft, most))


if __name__ == "__main__":
    main()
