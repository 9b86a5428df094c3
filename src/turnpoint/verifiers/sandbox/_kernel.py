"""What the Linux kernel refuses a program: files by Landlock, system calls by seccomp, capabilities.

Own code, by ctypes, because what exists does not hold here: bubblewrap starts an interpreter per program
(17 ms and more), needs user namespaces that containers forbid, and does not bind a root's processes; sandlock
wants kernel 6.12 and caps no output; pyseccomp needs libseccomp on the host. x86_64 and aarch64. All of it
needs no privilege, and the same code runs as root. Imports nothing of turnpoint: runs where only the standard
library is.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable, Sequence

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # on every architecture
_LANDLOCK_READ_FILE, _LANDLOCK_READ_DIR = 1 << 2, 1 << 3
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP = 1, 4, 22
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_EPERM, _EACCES, _ENOSYS = 1, 13, 38

# System calls a computation needs: name -> number on x86_64, on aarch64 (-1: there is none).
_ALLOWED = {
    **{"read": (0, 63), "write": (1, 64), "close": (3, 57), "stat": (4, -1), "fstat": (5, 80)},
    **{"lstat": (6, -1), "poll": (7, -1), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226)},
    **{"munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135)},
    **{"rt_sigreturn": (15, 139), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65)},
    **{"writev": (20, 66), "access": (21, -1), "pipe": (22, -1), "select": (23, -1)},
    **{"sched_yield": (24, 124), "mremap": (25, 216), "msync": (26, 227), "mincore": (27, 232)},
    **{"madvise": (28, 233), "dup": (32, 23), "dup2": (33, -1), "pause": (34, -1), "nanosleep": (35, 101)},
    **{"getitimer": (36, 102), "alarm": (37, -1), "setitimer": (38, 103), "getpid": (39, 172)},
    **{"exit": (60, 93), "wait4": (61, 260), "uname": (63, 160), "getcwd": (79, 17), "readlink": (89, -1)},
    **{"gettimeofday": (96, 169), "getrlimit": (97, 163), "getrusage": (98, 165), "sysinfo": (99, 179)},
    **{"times": (100, 153), "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175)},
    **{"getegid": (108, 177), "getppid": (110, 173), "getpgrp": (111, -1), "getgroups": (115, 158)},
    **{"getpgid": (121, 155), "getsid": (124, 156), "rt_sigpending": (127, 136)},
    **{"rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132)},
    **{"statfs": (137, 43), "fstatfs": (138, 44), "sched_getparam": (143, 121)},
    **{"sched_getscheduler": (145, 120), "arch_prctl": (158, -1), "gettid": (186, 178), "time": (201, -1)},
    **{"futex": (202, 98), "sched_getaffinity": (204, 123), "epoll_create": (213, -1)},
    **{"getdents64": (217, 61), "set_tid_address": (218, 96), "restart_syscall": (219, 128)},
    **{"clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115)},
    **{"exit_group": (231, 94), "epoll_wait": (232, -1), "epoll_ctl": (233, 21), "waitid": (247, 95)},
    **{"newfstatat": (262, 79), "readlinkat": (267, 78), "faccessat": (269, 48), "pselect6": (270, 72)},
    **{"ppoll": (271, 73), "set_robust_list": (273, 99), "epoll_pwait": (281, 22), "eventfd2": (290, 19)},
    **{"epoll_create1": (291, 20), "dup3": (292, 24), "pipe2": (293, 59), "getcpu": (309, 168)},
    **{"getrandom": (318, 278), "membarrier": (324, 283), "statx": (332, 291), "rseq": (334, 293)},
    **{"close_range": (436, 436), "faccessat2": (439, 439)},
}
# Allowed by what their arguments say.
_KILL, _TGKILL = (62, 129), (234, 131)  # to the process itself
_CLONE, _CLONE3 = (56, 220), (435, 435)  # a thread, not a process; clone3 hides its flags behind a pointer
_OPEN, _OPENAT = (2, -1), (257, 56)  # for reading
_FCNTL, _IOCTL = (72, 25), (16, 29)  # not F_SETOWN or FIOSETOWN, which send signals to others
_PRLIMIT = (302, 261)  # of the process itself
_CLONE_THREAD = 0x10000
_OPEN_WRITES = 0o3 | 0o100 | 0o1000 | 0o20000000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_TMPFILE
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC
_IOCTL_COMMANDS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # classic BPF
_ALLOW, _REFUSE, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data


def end_with_parent(parent: int) -> None:
    """Lets the kernel kill this process when its parent, or the thread that started it, ends."""
    _prctl(_PR_SET_PDEATHSIG, 9)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of what its descendants leave behind."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide() -> None:
    """Closes this process's /proc files to others of the same user."""
    _prctl(_PR_SET_DUMPABLE, 0)


def drop_privileges() -> None:
    """Gives up all capabilities, and that any program executed later could regain some."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    header = struct.pack("Ii", 0x20080522, 0)
    _check(_libc.capset(header, bytes(24)), "capset")


class ReadOnlyFiles:
    """A Landlock ruleset: `folders` and files can be read, nothing else opened, made, moved or removed."""

    def __init__(self, paths: Iterable[str]) -> None:
        abi = _libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
        if abi < 1:
            raise OSError(ctypes.get_errno(), "the kernel has no Landlock, or this container forbids it")
        bits = 13 if abi < 2 else 14 if abi < 3 else 15 if abi < 5 else 16
        attributes = struct.pack("QQQ", (1 << bits) - 1, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
        size = 8 if abi < 4 else 16 if abi < 6 else 24
        self._ruleset = _check(
            _libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(size), 0), "Landlock"
        )
        for path in paths:
            self._allow(path)

    def _allow(self, path: str) -> None:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # a folder that this host does not have
            return
        rights = _LANDLOCK_READ_FILE | (_LANDLOCK_READ_DIR if os.path.isdir(path) else 0)
        rule = struct.pack("=Qi", rights, descriptor)
        try:
            _check(_libc.syscall(_LANDLOCK_ADD, self._ruleset, 1, rule, 0), f"Landlock rule for {path}")
        finally:
            os.close(descriptor)

    def restrict(self) -> None:
        """Applies to this process for good; needs `drop_privileges` first."""
        _check(_libc.syscall(_LANDLOCK_RESTRICT, self._ruleset, 0), "Landlock")


class SystemCalls:
    """A seccomp filter: what a computation needs is allowed, all else fails with EPERM."""

    def __init__(self) -> None:
        machine = platform.machine()
        if machine not in _AUDIT_ARCH:
            raise OSError(_ENOSYS, f"there is no list of system calls for {machine}")
        self._column = 0 if machine == "x86_64" else 1
        self._start = [
            (_LOAD, 0, 0, _ARCH),
            (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
            (_RETURN, 0, 0, _KILL_PROCESS),
            (_LOAD, 0, 0, _NUMBER),
        ]
        rest = [
            *self._case(_CLONE, [*_argument(0), (_ANY_BIT, 0, 1, _CLONE_THREAD), *_end(_ALLOW, _EPERM)]),
            *self._case(_CLONE3, [(_RETURN, 0, 0, _REFUSE | _ENOSYS)]),
            *self._case(_OPEN, [*_argument(1), (_ANY_BIT, 1, 0, _OPEN_WRITES), *_end(_ALLOW, _EACCES)]),
            *self._case(_OPENAT, [*_argument(2), (_ANY_BIT, 1, 0, _OPEN_WRITES), *_end(_ALLOW, _EACCES)]),
            *self._case(_FCNTL, _one_of(1, _FCNTL_COMMANDS)),
            *self._case(_IOCTL, _one_of(1, _IOCTL_COMMANDS)),
            *self._case(_PRLIMIT, _one_of(0, (0,))),
        ]
        for numbers in _ALLOWED.values():
            rest += self._case(numbers, [(_RETURN, 0, 0, _ALLOW)])
        rest.append((_RETURN, 0, 0, _REFUSE | _EPERM))
        self._rest = _assemble(rest)

    def restrict(self) -> None:
        """Applies to this process for good; needs `drop_privileges` first."""
        signals = [case for call in (_KILL, _TGKILL) for case in self._case(call, _one_of(0, (os.getpid(),)))]
        code = _assemble([*self._start, *signals]) + self._rest
        buffer = ctypes.create_string_buffer(code, len(code))
        program = struct.pack("HP", len(code) // 8, ctypes.addressof(buffer))
        _check(_libc.prctl(_PR_SET_SECCOMP, 2, program, 0, 0), "seccomp")

    def _case(self, numbers: tuple[int, int], then: Sequence[_Instruction]) -> list[_Instruction]:
        number = numbers[self._column]
        return [] if number < 0 else [(_EQUAL, 0, len(then), number), *then]


_Instruction = tuple[int, int, int, int]


def _argument(index: int) -> list[_Instruction]:
    """Loads the low half of an argument; the kernel takes no more of those that are looked at."""
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * index)]


def _end(first: int, error: int) -> list[_Instruction]:
    return [(_RETURN, 0, 0, first), (_RETURN, 0, 0, _REFUSE | error)]


def _one_of(index: int, values: Sequence[int]) -> list[_Instruction]:
    tests: list[_Instruction] = [
        (_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)
    ]
    return [*_argument(index), *tests, (_RETURN, 0, 0, _REFUSE | _EPERM), (_RETURN, 0, 0, _ALLOW)]


def _assemble(instructions: Iterable[_Instruction]) -> bytes:
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def _check(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result
