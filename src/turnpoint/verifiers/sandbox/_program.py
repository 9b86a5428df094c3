"""What happens inside a confined process: one program meets one input.

Nothing here is trusted by who reads the report: the program shares this process and can forge all it says,
which is worth no more than printing or returning the same. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import types
from typing import Any

REPORT, SECRET = 3, 4  # descriptors

_ERROR_KEPT = 600  # characters


def run(request: dict[str, Any], given: dict[str, Any]) -> None:
    """Runs the program on `given`, writes the report, ends the process."""
    report = _report(request, given)
    with contextlib.suppress(Exception):  # the program may have closed it, or put anything in its place
        sys.stdout.flush()
    data = report.encode("ascii")
    while data:
        data = data[os.write(REPORT, data) :]
    os._exit(0)


def _report(request: dict[str, Any], given: dict[str, Any]) -> str:
    kind = given["kind"]
    script = kind == "stdin"
    dumps, secret = json.dumps, os.read  # the program may put others in their place
    stage = "not_run"
    try:
        code = compile(request["source"], "solution.py", "exec", dont_inherit=True)
        checks = (
            compile(given["source"], "checks.py", "exec", dont_inherit=True) if kind == "assert" else None
        )
        stage = "raised"
        module = _module("__main__" if script else "solution")
        exec(code, module.__dict__)
        if script:
            _join_threads()
            return dumps({"outcome": "done"})
        if checks is not None:
            exec(checks, module.__dict__)
            return dumps({"outcome": "done", "secret": secret(SECRET, 100).decode("ascii")})
        stage = "not_run"
        function = _find(module, str(request["function"]), request["class"])
        stage = "raised"
        value = function(*given["arguments"])
    except MemoryError:
        return dumps({"outcome": "memory", "error": "MemoryError"})
    except SystemExit as error:
        if script and (error.code is None or error.code == 0):
            return dumps({"outcome": "done"})
        return dumps({"outcome": "exited", "error": _describe(error)})
    except BaseException as error:  # noqa: BLE001 - the program may raise anything
        return dumps({"outcome": stage, "error": _describe(error)})
    try:
        return dumps({"outcome": "done", "value": value}, default=_plain)
    except Exception as error:  # noqa: BLE001 - the value may be an object that raises anything
        return dumps({"outcome": "unreadable", "error": _describe(error)})


def _module(name: str) -> types.ModuleType:
    """Makes the program's module; stdin and stdout are opened on the descriptors that are there now."""
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.argv = ["solution.py"]
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module


def _find(module: types.ModuleType, name: str, class_name: str | None) -> Any:
    if class_name is None:
        return getattr(module, name)
    return getattr(getattr(module, class_name)(), name)


def _join_threads() -> None:
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _describe(error: BaseException) -> str:
    """Returns the last line of the traceback, with the program's line number when there is one."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the program's exception may not want to be printed
        text = "an exception that cannot be printed"
    line, frame = None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == "solution.py":
            line = frame.tb_lineno
        frame = frame.tb_next
    return text[:_ERROR_KEPT] + (f" (line {line})" if line is not None else "")


def _plain(value: Any) -> Any:
    """Turns numpy's scalars and arrays into numbers and lists."""
    if type(value).__module__ == "numpy":
        return value.tolist()
    raise TypeError(f"a result of type {type(value).__name__} is no JSON")
