"""What the sandbox costs, and what hostile programs leave behind.

    python -m benchmarks.sandbox [--hostile 1000]

Prints JSON lines: milliseconds a test when a program has many, and for a program's first (medians and 95th
percentiles; one worker, by the clock, so on a quiet machine), then the processes, files, descriptors and
memory that are there after many hostile programs in a row and were not before.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.common import emit, facts
from turnpoint.verifiers.sandbox import (
    CallInput,
    FunctionEntry,
    Input,
    Isolation,
    Limits,
    Program,
    Sandbox,
    StdinInput,
)

_SCRIPT = Program("n = int(input())\nprint(sum(i * i for i in range(n)))")
_FUNCTION = Program("def squares(n):\n    return sum(i * i for i in range(n))", FunctionEntry("squares"))
_TESTS = 15  # a program's, as in DeepCoder
_HOSTILE = (
    "import os\nwhile True: os.fork()",
    "import threading, time\nthreading.stack_size(32768)\n"
    "while True: threading.Thread(target=time.sleep, args=(9,)).start()",
    "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "while True: print('a' * 100000)",
    "import os\nos.closerange(0, 64)\nos.abort()",
    "import tempfile\nwhile True: tempfile.mkstemp()",
    "open('/dev/shm/filled', 'wb').write(bytes(1 << 28))",
    "import os\nos.kill(-1, 9)",
    "import ctypes\nctypes.string_at(0)",
    "import time\ntime.sleep(60)",
)


def milliseconds(call: Callable[[], object], times: int) -> list[float]:
    """Returns how long each of `times` calls took."""
    taken: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - start))
    return taken


def processor_seconds(pid: int) -> float:
    """Returns the processor time of a zygote and the children it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def measure_cost(sandbox: Sandbox, name: str, program: Program, inputs: Sequence[Input]) -> None:
    """Prints what a program's first test costs and what each of many does."""
    sandbox.run_now(program, inputs)
    first = milliseconds(lambda: sandbox.run_now(program, inputs[:1]), 100)
    before = processor_seconds(sandbox.pids()[0])
    many = [taken / len(inputs) for taken in milliseconds(lambda: sandbox.run_now(program, inputs), 20)]
    spent = 1000 * (processor_seconds(sandbox.pids()[0]) - before) / (20 * len(inputs))
    emit(
        benchmark="sandbox",
        program=name,
        isolation=sandbox.describe(),
        first_ms=round(statistics.median(first), 1),
        first_ms_p95=round(statistics.quantiles(first, n=20)[-1], 1),
        test_ms=round(statistics.median(many), 1),
        test_processor_ms=round(spent, 1),
        test_ms_p95=round(statistics.quantiles(many, n=20)[-1], 1),
        **facts(),
    )


def state_of(pid: int) -> dict[str, int]:
    """Counts processes of the machine, files in the usual places, the zygote's descriptors and memory."""
    folders = [Path(name) for name in ("/tmp", "/var/tmp", "/dev/shm")]
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return {
        "children": len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()),
        "files": sum(1 for folder in folders for _ in folder.iterdir()),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "trainer_descriptors": len(os.listdir("/proc/self/fd")),
        "zygote_mib": pages * os.sysconf("SC_PAGESIZE") >> 20,
    }


def measure_hostile(count: int) -> None:
    """Prints what `count` hostile programs in a row left, and how fast an honest one is after them."""
    limits = Limits(wall=0.5, cpu=1.0, memory_bytes=256 << 20, processes=16)
    with Sandbox(limits=limits, workers=1) as sandbox:
        sandbox.run_now(Program(_HOSTILE[2]), [StdinInput("")])
        pid = sandbox.pids()[0]
        before, start, outcomes = state_of(pid), time.perf_counter(), dict[str, int]()
        for index in range(count):
            run = sandbox.run_now(Program(_HOSTILE[index % len(_HOSTILE)]), [StdinInput("")])[0]
            outcomes[run.outcome.value] = outcomes.get(run.outcome.value, 0) + 1
        seconds = time.perf_counter() - start
        same_zygote = sandbox.pids() == [pid]
        after = state_of(sandbox.pids()[0])
        honest = milliseconds(lambda: sandbox.run_now(_SCRIPT, [StdinInput("10")]), 20)
    emit(
        benchmark="sandbox",
        hostile_programs=count,
        seconds=round(seconds),
        outcomes=outcomes,
        left_behind={name: after[name] - before[name] for name in before},
        same_zygote=same_zygote,
        honest_ms_after=round(statistics.median(honest), 1),
        **facts(),
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hostile", type=int, default=1000, help="hostile programs in a row")
    hostile: int = parser.parse_args().hostile
    for isolation in Isolation:
        with Sandbox(limits=Limits(), workers=1, isolation=isolation) as sandbox:
            measure_cost(sandbox, "script", _SCRIPT, [StdinInput("100")] * _TESTS)
            measure_cost(sandbox, "function", _FUNCTION, [CallInput((100,))] * _TESTS)
    measure_hostile(hostile)


if __name__ == "__main__":
    main()
