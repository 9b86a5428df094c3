"""How much memory is in use, how much it gets to at its peak, and how much there is.

On CUDA the allocator keeps account. On a CPU Linux does: resident pages of this process now (VmRSS) and at
their highest (VmHWM, which can be set back), so what torch, the allocator and the libraries hold is all
counted. Other systems keep no peak that can be set back; there nothing is measured and nothing claimed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import torch

T = TypeVar("T")

_PROC = Path("/proc/self")
_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # bytes; cgroup v1 writes "no limit" as a number near 2**63


@runtime_checkable
class Room(Protocol):
    """The memory of one device, in bytes."""

    def used(self) -> int:
        """Returns what this process holds."""
        ...

    def capacity(self) -> int:
        """Returns what this process could hold: what it has and what is free."""
        ...

    def peak(self, work: Callable[[], T]) -> tuple[T, int]:
        """Runs `work`; returns what it returned and the most that this process held meanwhile."""
        ...


def room_of(device: torch.device) -> Room | None:
    """Returns the memory of `device`; None where its peak cannot be measured."""
    if device.type == "cuda":
        return CudaRoom(device)
    if device.type == "cpu" and (_PROC / "clear_refs").exists():
        return LinuxRoom()
    return None


class LinuxRoom:
    """Main memory, as Linux counts the pages of this process."""

    def used(self) -> int:
        """Returns the resident bytes."""
        return _status("VmRSS")

    def capacity(self) -> int:
        """Returns resident bytes plus what is available, on the machine and in the cgroup."""
        return self.used() + min([_available(), *cgroup_room(_CGROUPS, (_PROC / "cgroup").read_text())])

    def peak(self, work: Callable[[], T]) -> tuple[T, int]:
        """Runs `work`; returns what it returned and the highest resident bytes meanwhile."""
        (_PROC / "clear_refs").write_text("5")  # sets the high-water mark back to what is resident now
        return work(), _status("VmHWM")


class CudaRoom:
    """The memory of one GPU, as torch's allocator counts it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def used(self) -> int:
        """Returns the allocated bytes."""
        return torch.cuda.memory_allocated(self._device)

    def capacity(self) -> int:
        """Returns allocated bytes plus what is free, in torch's reserve and on the GPU."""
        free, _ = torch.cuda.mem_get_info(self._device)
        return free + torch.cuda.memory_reserved(self._device)

    def peak(self, work: Callable[[], T]) -> tuple[T, int]:
        """Runs `work`; returns what it returned and the most bytes that were allocated meanwhile."""
        torch.cuda.reset_peak_memory_stats(self._device)
        result = work()
        torch.cuda.synchronize(self._device)
        return result, torch.cuda.max_memory_allocated(self._device)


def _status(name: str) -> int:
    return _kilobytes(_PROC / "status", name)


def _available() -> int:
    return _kilobytes(Path("/proc/meminfo"), "MemAvailable")


def _kilobytes(path: Path, name: str) -> int:
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def cgroup_room(root: Path, memberships: str) -> list[int]:
    """Returns how many bytes each cgroup with a memory limit still allows; none where there is no limit.

    `memberships`: the text of /proc/self/cgroup. A cgroup's parents count too. Pages of files that the
    kernel can drop are not counted as taken.
    """
    rooms: list[int] = []
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, limit, usage = root, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit, usage = root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        inner = base / path.lstrip("/")
        folders = [inner, *inner.parents]  # in a container the path may be seen from outside: then only base
        rooms += [
            room
            for folder in folders
            if (folder == base or base in folder.parents)
            and (room := _cgroup_room(folder, limit, usage)) is not None
        ]
    return rooms


def _cgroup_room(folder: Path, limit: str, usage: str) -> int | None:
    try:
        allowed = (folder / limit).read_text().strip()
        if allowed == "max" or int(allowed) >= _UNLIMITED:
            return None
        taken = int((folder / usage).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except FileNotFoundError:
        return None
    droppable = int(statistics.get("total_inactive_file", statistics.get("inactive_file", "0")))
    return max(0, int(allowed) - taken + droppable)
