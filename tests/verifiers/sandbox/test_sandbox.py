"""Programs under full isolation, as the user of the suite and, when that is root, as an ordinary user."""

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.verifiers.sandbox.attacks import ATTACKS
from turnpoint.errors import RecipeError, VerifierError
from turnpoint.verifiers.sandbox import (
    AssertInput,
    CallInput,
    FunctionEntry,
    Isolation,
    Limits,
    Outcome,
    Program,
    Run,
    Sandbox,
    StdinInput,
)

_LIMITS = Limits(wall=1.0, cpu=1.0, processes=8, memory_bytes=256 << 20, total=10.0)
_ORDINARY = "/usr/bin/python3"  # the suite's own interpreter may lie under a home that only root enters


def _as_ordinary_user(folder: Path) -> str:
    if os.getuid() != 0:
        pytest.skip("the suite runs as an ordinary user already")
    if shutil.which("setpriv") is None or not Path(_ORDINARY).exists():
        pytest.skip(f"needs setpriv and {_ORDINARY} to become an ordinary user")
    script = folder / "python"
    script.write_text(
        f'#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups {_ORDINARY} "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


@pytest.fixture(scope="module", params=["own user", "ordinary user"])
def sandbox(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    python = sys.executable
    if request.param == "ordinary user":
        python = _as_ordinary_user(tmp_path_factory.mktemp("user"))
    with Sandbox(limits=_LIMITS, workers=1, python=python) as made:
        yield made


def _script(sandbox: Sandbox, source: str, stdin: str = "") -> Run:
    return sandbox.run_now(Program(source), [StdinInput(stdin)])[0]


def _children(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gains_nothing_and_leaves_nothing(sandbox: Sandbox, name: str) -> None:
    zygotes = sandbox.pids()
    run = _script(sandbox, ATTACKS[name])
    assert "BREACH" not in run.stdout
    assert len(run.stdout) <= _LIMITS.output_bytes
    assert _script(sandbox, "print(input())", "well").stdout == "well\n"
    assert sandbox.pids() == zygotes
    assert _children(zygotes[0]) == ""


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        ("print(input())", Outcome.DONE),
        ("exit()", Outcome.DONE),
        ("import os; os._exit(0)", Outcome.DONE),
        ("import sys; sys.exit(3)", Outcome.EXITED),
        ("import os; os._exit(3)", Outcome.EXITED),
        ("1/0", Outcome.RAISED),
        ("input(); input()", Outcome.RAISED),  # reads more than there is
        ("this is no Python", Outcome.NOT_RUN),
        ("\0", Outcome.NOT_RUN),
        ("import time; time.sleep(9)", Outcome.TIMEOUT),
        ("x = bytearray(4 << 30)", Outcome.MEMORY),
        ("while True: print('a' * 1000)", Outcome.OUTPUT),
        ("import os; os.kill(os.getpid(), 11)", Outcome.KILLED),
        ("import os; os.write(3, b'{')", Outcome.UNREADABLE),
    ],
)
def test_how_a_script_ended(sandbox: Sandbox, source: str, outcome: Outcome) -> None:
    assert _script(sandbox, source, "one line").outcome is outcome


def test_processor_time_is_limited() -> None:
    with Sandbox(limits=Limits(wall=9.0, cpu=1.0), workers=1) as patient:
        assert _script(patient, "while True: pass").outcome is Outcome.CPU


def test_nothing_of_the_trainer_is_in_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "zebra")
    source = """
import gc, os, sys
gc.unfreeze()
frame, seen = sys._getframe(), [dict(os.environ), *gc.get_objects()]
while frame:
    seen.append(frame.f_locals)
    frame = frame.f_back
found = [x for x in seen if type(x) in (dict, tuple) and ''.join(reversed('arbez')) in repr(x)]
print(bool(found), len(seen) > 1000)
"""
    with Sandbox(limits=Limits(wall=9.0), workers=1) as own:
        assert _script(own, source).stdout == "False True\n"


def test_what_programs_like_works(sandbox: Sandbox) -> None:
    source = """
import sys, threading, colorsys, sqlite3
sys.setrecursionlimit(1 << 20)
threading.stack_size(1 << 26)
def main():
    def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
    print(depth(50000), sum(map(int, sys.stdin.buffer.read().split())), end='')
threading.Thread(target=main).start()
"""
    run = _script(sandbox, source, "1 2\n3")
    assert (run.outcome, run.stdout, run.error) == (Outcome.DONE, "50000 6", "")


def test_numpy_is_there() -> None:
    with Sandbox(limits=_LIMITS, workers=1) as own:
        run = _script(own, "import numpy as np; print(np.arange(3) @ np.arange(3), np.fft.fft([1, 0]).real)")
    assert run.stdout == "5 [1. 1.]\n"


def test_every_input_meets_a_fresh_interpreter(sandbox: Sandbox) -> None:
    source = "import builtins, math\nmath.pi += 1\nbuiltins.seen = getattr(builtins, 'seen', 0) + 1\n"
    runs = sandbox.run_now(Program(source + "print(math.pi < 5, seen)"), [StdinInput("")] * 3)
    assert [run.stdout for run in runs] == ["True 1\n"] * 3


def test_a_function_returns_json(sandbox: Sandbox) -> None:
    program = Program(
        "class Solution:\n def f(self, a, b=2): return {'x': (a, b)}", FunctionEntry("f", "Solution")
    )
    runs = sandbox.run_now(program, [CallInput((1,)), CallInput(([None, "y"], 1.5)), CallInput(())])
    assert [run.value for run in runs] == [{"x": [1, 2]}, {"x": [[None, "y"], 1.5]}, None]
    assert runs[2].outcome is Outcome.RAISED


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        ("def f(a): return {1, 2}", Outcome.UNREADABLE),
        ("def f(a): return 'a' * (2 << 20)", Outcome.OUTPUT),
        ("def f(a): raise SystemExit(0)", Outcome.EXITED),
        ("def f(a): import os; os._exit(0)", Outcome.EXITED),
        ("def g(a): return a", Outcome.NOT_RUN),
        ("def f(a):\n x = []\n for _ in range(10**5): x = [x]\n return x", Outcome.UNREADABLE),
        ("def f(a): import os; os.write(3, b'[' * 10**6); os._exit(0)", Outcome.UNREADABLE),
    ],
)
def test_how_a_call_ended(sandbox: Sandbox, source: str, outcome: Outcome) -> None:
    run = sandbox.run_now(Program(source, FunctionEntry("f")), [CallInput((1,))])[0]
    assert (run.outcome, run.value) == (outcome, None)


@pytest.mark.parametrize(
    "source",
    [
        "import os; os._exit(0)",
        "raise SystemExit(0)",
        "import sys; sys.exit()",
        'import os; os.write(3, b\'{"outcome": "done"}\'); os._exit(0)',
        'import os\ndef f(): os.write(3, b\'{"outcome": "done", "secret": "0"}\'); os._exit(0)',
        "import sys, os\nf = sys._getframe()\nwhile f:\n"
        "  s = [v for v in f.f_locals.values() if type(v) is str and len(v) == 32]\n"
        '  if s: os.write(3, (\'{"outcome": "done", "secret":"\' + s[0] + \'"}\').encode()); os._exit(0)\n'
        "  f = f.f_back\ndef f(): return 1",
        "import builtins, json\nbuiltins.AssertionError = Exception\n"
        'json.dumps = lambda x: \'{"outcome": "done"}\'\n'
        "def f(): return 1",
    ],
)
def test_assertions_cannot_be_left_early(sandbox: Sandbox, source: str) -> None:
    run = sandbox.run_now(Program(source, FunctionEntry("f")), [AssertInput("assert f() == 2")])[0]
    assert run.outcome is not Outcome.DONE


def test_assertions_pass_and_fail(sandbox: Sandbox) -> None:
    program = Program("def f(): return 2", FunctionEntry("f"))
    runs = sandbox.run_now(program, [AssertInput("assert f() == 2"), AssertInput("assert f() == 3, 'no'")])
    assert [(run.outcome, run.error) for run in runs] == [
        (Outcome.DONE, ""),
        (Outcome.RAISED, "AssertionError: no"),
    ]


def test_an_input_that_does_not_fit_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="CallInput does not fit"):
        sandbox.run_now(Program("pass"), [CallInput(())])


def test_errors_are_one_printable_line(sandbox: Sandbox) -> None:
    run = _script(sandbox, "raise ValueError('\\x1b[31m\\n' + 'a' * 10**6)")
    assert len(run.error) == 300
    assert run.error.isprintable()


def test_all_inputs_together_are_bounded() -> None:
    with Sandbox(limits=Limits(wall=0.3, total=0.5), workers=1) as short:
        runs = short.run_now(Program("import time; time.sleep(9)"), [StdinInput("")] * 9)
    assert [run.outcome for run in runs[:2]] == [Outcome.TIMEOUT] * 2
    assert {run.outcome for run in runs[2:]} == {Outcome.NOT_RUN}


def test_many_at_once_from_tasks_and_threads() -> None:
    async def tasks() -> list[str]:
        calls = [both.run(Program(f"print({index})"), [StdinInput("")]) for index in range(20)]
        return [runs[0].stdout for runs in await asyncio.gather(*calls)]

    with Sandbox(limits=_LIMITS, workers=2) as both:
        said: dict[int, str] = {}

        def call(index: int) -> None:
            said[index] = _script(both, f"print({index})").stdout

        threads = [threading.Thread(target=call, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        assert asyncio.run(tasks()) == [f"{index}\n" for index in range(20)]
        for thread in threads:
            thread.join()
    assert said == {index: f"{index}\n" for index in range(8)}


def test_a_cancelled_call_frees_its_processes() -> None:
    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slow.run(Program("while True: pass"), [StdinInput("")]), 0.3)

    with Sandbox(limits=Limits(wall=60.0, cpu=60.0), workers=1) as slow:
        asyncio.run(cancelled())
        assert _script(slow, "print(1)").stdout == "1\n"  # long before the program's own limit


def test_closing_answers_who_waits() -> None:
    box = Sandbox(limits=Limits(wall=60.0), workers=1)
    threading.Timer(0.2, box.close).start()
    with pytest.raises(VerifierError):
        _script(box, "import time; time.sleep(60)")


def test_a_killed_trainer_takes_all_with_it(tmp_path: Path) -> None:
    code = """
import threading, time
from turnpoint.verifiers.sandbox import *
box = Sandbox(limits=Limits(wall=60.0), workers=1)
threading.Thread(target=box.run_now, args=(Program("import time; time.sleep(60)"), [StdinInput("")])).start()
zygote = box.pids()[0]
while not (child := open(f"/proc/{zygote}/task/{zygote}/children").read()): time.sleep(0.01)
print(zygote, child, flush=True)
"""
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    pids = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(pids) == 2
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    trainer.stdout.close()
    deadline = time.monotonic() + 5
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_system_calls_alone_still_stop_writes_and_network() -> None:
    source = "open('/etc/hostname').read()\nprint('read')\n"
    with Sandbox(limits=_LIMITS, workers=1, isolation=Isolation.SYSCALLS) as box:
        assert "READ YOUR FILES" in box.describe()
        assert _script(box, source).stdout == "read\n"
        for name in ("writes /tmp", "socket", "fork bomb", "kills parent", "reads the parent's environment"):
            assert "BREACH" not in _script(box, ATTACKS[name]).stdout


@pytest.mark.parametrize("flags", ["os.O_WRONLY", "os.O_RDWR", "os.O_RDONLY | os.O_CREAT", "os.O_TRUNC"])
def test_system_calls_alone_refuse_to_open_for_writing(tmp_path: Path, flags: str) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    source = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for call, before in ((2, ()), (257, (-100,))) if os.uname().machine == "x86_64" else ((56, (-100,)),):
    libc.syscall(call, *before, {os.fsencode(file)!r}, {flags}, 0o600)
    print(ctypes.get_errno())
"""
    with Sandbox(limits=_LIMITS, workers=1, isolation=Isolation.SYSCALLS) as box:
        assert set(_script(box, source).stdout.split()) == {str(errno.EACCES)}
    assert file.read_text() == "kept"


def test_limits_alone_clean_up_behind_a_program() -> None:
    source = "import os, time\nopen('x', 'w').write('y')\nprint(os.getcwd(), flush=True)\n"
    with Sandbox(limits=_LIMITS, workers=1, isolation=Isolation.LIMITS) as box:
        run = _script(box, source + "if os.fork() == 0: os.setsid(); time.sleep(60)")
        assert run.outcome is Outcome.DONE
        assert not Path(run.stdout.strip()).exists()
        assert _children(box.pids()[0]) == ""


def test_a_host_without_the_isolation_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "python"  # an interpreter on a kernel without Landlock, as far as it can tell
    change = "import turnpoint.verifiers.sandbox._kernel as k; k._LANDLOCK_CREATE = 9999; from"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\na = sys.argv[1:]\n"
        f'a[-2] = a[-2].replace("from", {change!r}, 1)\n'
        f"os.execv({sys.executable!r}, [{sys.executable!r}, *a])\n"
    )
    script.chmod(0o755)
    with pytest.raises(
        RecipeError, match=r"isolation full: .*no Landlock.*accept less with isolation `syscalls`"
    ):
        Sandbox(limits=_LIMITS, workers=1, python=str(script))
    with Sandbox(limits=_LIMITS, workers=1, python=str(script), isolation=Isolation.SYSCALLS) as box:
        assert _script(box, "print(1)").stdout == "1\n"


def test_an_interpreter_that_cannot_be_run_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"isolation full: .*no worker could be started"):
        Sandbox(limits=_LIMITS, workers=1, python="/etc/hostname")


def test_limits_must_be_above_zero() -> None:
    with pytest.raises(ValueError, match="wall=0"):
        Limits(wall=0)
