"""What becomes of memory that training frees."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_MOST = 2**31 - 1  # that an int holds


def keep_freed_memory() -> bool:
    """Asks glibc to keep what is freed for the next allocation; returns whether it will.

    By default it gives large tensors back to the system, which fills every page with zeros when the next
    step takes it again: a tenth of a small model's step on a CPU. The process then stays as large as it once
    was; another C library is left as it is. Safe to call again.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's alone
    return mallopt is not None and all(
        mallopt(option, _MOST) == 1 for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD)
    )
