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
        kept = [torch.ones(6_000_000) for _ in range(4)]
        del kept
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults(), keep_freed_memory(), faults() * 0 + faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")
def test_freed_tensors_are_not_paged_in_again() -> None:
    """In a process of its own: the setting stays until it ends."""
    run = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    before, kept, after = run.stdout.split()
    assert kept == "True"
    assert int(after) * 20 < int(before)
