"""Memory as Linux counts it, and what a cgroup leaves of it."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from turnpoint.diagnosis.room import LinuxRoom, cgroup_room, room_of

linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux keeps these counts")
MEBIBYTE = 1 << 20


def touch(size: int) -> None:
    """Takes memory and gives it back, past the allocator, which a trainer tells to keep what is freed."""
    with mmap.mmap(-1, size) as block:
        for at in range(0, size, mmap.PAGESIZE):
            block[at] = 1


@linux
def test_a_peak_is_that_of_the_work_and_not_of_what_came_before() -> None:
    room = LinuxRoom()
    before = room.used()
    _, large = room.peak(lambda: touch(256 * MEBIBYTE))
    _, small = room.peak(lambda: touch(64 * MEBIBYTE))
    assert large - before > 200 * MEBIBYTE
    assert small < large - 128 * MEBIBYTE


@linux
def test_there_is_more_room_than_is_used() -> None:
    room = LinuxRoom()
    assert 0 < room.used() < room.capacity()


def test_a_device_that_keeps_no_count_has_no_room() -> None:
    assert room_of(torch.device("meta")) is None


def cgroup(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_a_cgroup_leaves_its_limit_less_what_is_taken_and_cannot_be_dropped(tmp_path: Path) -> None:
    files = {
        "memory.max": "1000\n",
        "memory.current": "700\n",
        "memory.stat": "anon 400\ninactive_file 250\n",
    }
    cgroup(tmp_path / "job", files)
    assert cgroup_room(tmp_path, "0::/job\n") == [550]


def test_the_limit_of_a_parent_counts_and_none_is_none(tmp_path: Path) -> None:
    cgroup(tmp_path, {"memory.max": "900", "memory.current": "100", "memory.stat": ""})
    cgroup(tmp_path / "job", {"memory.max": "max", "memory.current": "100", "memory.stat": ""})
    assert cgroup_room(tmp_path, "0::/job\n") == [800]
    assert cgroup_room(tmp_path / "nowhere", "0::/job\n") == []


def test_the_older_kind_of_cgroup(tmp_path: Path) -> None:
    memory = tmp_path / "memory" / "job"
    stat = "total_inactive_file 50\n"
    cgroup(memory, {"memory.limit_in_bytes": "500", "memory.usage_in_bytes": "200", "memory.stat": stat})
    assert cgroup_room(tmp_path, "9:name=systemd:/job\n4:memory:/job\n") == [350]
    (memory / "memory.limit_in_bytes").write_text(str(2**63 - 4096))
    assert cgroup_room(tmp_path, "4:memory:/job\n") == []


def test_a_path_seen_from_outside_the_container_still_finds_the_limit(tmp_path: Path) -> None:
    cgroup(tmp_path, {"memory.max": "900", "memory.current": "100", "memory.stat": ""})
    assert cgroup_room(tmp_path, "0::/docker/abc\n") == [800]
