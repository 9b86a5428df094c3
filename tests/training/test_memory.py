from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, torch
from turnpoint.training.memory import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(2):
        kept = [torch.ones(12_000_000) for _ in range(4)]  # 48 MB: never from the heap
        del kept
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
before = faults()
kept = keep_freed_memory()
print(before, kept, [faults() for _ in range(4)][-1])  # by then the heap has grown
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")
def test_freed_tensors_are_not_paged_in_again() -> None:
    """In a process of its own: the setting stays until it ends."""
    run = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    before, kept, after = run.stdout.split()
    assert kept == "True"
    assert int(after) * 20 < int(before)
