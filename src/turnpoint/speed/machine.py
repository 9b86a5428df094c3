"""What a figure belongs to: the processor, its cores and threads, versions, and what else was running."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch

from turnpoint.reports.environment import versions_of

_PACKAGES = ("turnpoint", "torch", "transformers")
_BUSY = 0.25  # of the cores in use by others, from which it is said


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts about this machine and process."""

    date: str
    processor: str
    device: str
    dtype: str
    cores: int  # that this process may use
    threads: int
    load: float  # processes that ran or wanted to, mean over a minute, before anything was measured
    versions: Mapping[str, str]

    @property
    def warnings(self) -> list[str]:
        """What makes the figures less than they could be."""
        found: list[str] = []
        if self.load > _BUSY * self.cores:
            found.append(
                f"the machine was busy before this began: load {self.load:g} on {self.cores} cores; "
                f"rates and shares are lower than on a quiet one"
            )
        if self.threads > self.cores:
            found.append(f"{self.threads} threads on {self.cores} cores wait for each other")
        return found


def machine_facts(*, device: torch.device, dtype: str) -> Machine:
    """Returns the facts as they are now."""
    return Machine(
        date=date.today().isoformat(),
        processor=torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name(),
        device=str(device),
        dtype=dtype,
        cores=usable_cores(),
        threads=torch.get_num_threads(),
        load=round(os.getloadavg()[0], 1),
        versions=versions_of(_PACKAGES),
    )


def usable_cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def processor_name() -> str:
    """Returns what the processor is called, as far as the system says."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
