"""Reverse KL over a whole vocabulary: what chunks from hidden states take, against whole logits.

    python -m benchmarks.opd_memory [--tokens 4096] [--ids 49152] [--width 576] [--chunk 64]

Both forms compute the same loss, one value per token, and its gradient by the student's hidden states and
head, from the same random weights, each in a process of its own. `peak_mb` is how far the process's resident
memory rose above what the weights and hidden states take (VmHWM after it was reset, less VmRSS), gradients
included. glibc is told to give blocks above a megabyte back at once (MALLOC_MMAP_THRESHOLD_, unless it is
set): the holes it keeps otherwise are no part of what either form needs. Whole logits go through the same
function, which keeps one slope per token for the backward pass; `textbook` leaves the sum over the vocabulary
to autograd, as is common. Prints one JSON line per form and one with ratios and how far values and gradients
are apart.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import emit, facts, mistakes
from turnpoint.losses import LinearHead, chunked_distillation, reverse_kl


@dataclass(frozen=True)
class Size:
    """How large the problem is; `chunk` rows of logits at a time."""

    tokens: int
    ids: int
    width: int
    chunk: int

    def __post_init__(self) -> None:
        if min(self.tokens, self.ids, self.width, self.chunk) < 1:
            raise ValueError(f"sizes must be at least 1: {self}")


@dataclass(frozen=True)
class Side:
    """Hidden states of one model and its head."""

    hidden: Tensor
    head: nn.Linear


@dataclass(frozen=True)
class Found:
    """What a form took, and what it returned."""

    peak_bytes: int
    cpu_seconds: float
    values: Tensor
    gradients: list[Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, value in [("tokens", 4096), ("ids", 49152), ("width", 576), ("chunk", 64)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=["whole", "chunked"])
    given = parser.parse_args()
    with mistakes(parser):
        size = Size(tokens=given.tokens, ids=given.ids, width=given.width, chunk=given.chunk)
    found = {form: alone(form, size, given.threads) for form in given.forms}
    for form, it in found.items():
        peak = round(it.peak_bytes / 2**20, 1)
        emit(benchmark="opd_memory", form=form, peak_mb=peak, cpu_seconds=round(it.cpu_seconds, 1))
    for form, it in found.items():
        if form != "chunked" and "chunked" in found:
            emit(
                benchmark="opd_memory",
                against=form,
                **compared(found["chunked"], it),
                **vars(size),
                **facts(),
            )


def compared(ours: Found, other: Found) -> dict[str, float]:
    """Returns the ratio of peaks, and the largest differences relative to the largest entry."""
    pairs = zip([ours.values, *ours.gradients], [other.values, *other.gradients], strict=True)
    apart = [float((a - b).abs().max() / b.abs().max()) for a, b in pairs]
    names = ("values", "hidden_gradient", "head_gradient")
    return {
        "peak_ratio": round(ours.peak_bytes / other.peak_bytes, 4),
        **{f"{name}_apart": difference for name, difference in zip(names, apart, strict=True)},
    }


# --- one form, alone in a process ---------------------------------------------------------------


def alone(form: str, size: Size, threads: int) -> Found:
    """Returns what `form` does in a fresh process, so that no other allocation shows in its peak."""
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**20))  # read when the process starts
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (form, size, threads))


def measure(form: str, size: Size, threads: int) -> Found:
    """Runs loss and backward of `form` once, after a run on a few tokens that loads what is loaded once."""
    torch.set_num_threads(threads)
    FORMS[form](*sides(Size(tokens=8, ids=64, width=size.width, chunk=4)), 4).sum().backward()
    student, teacher = sides(size)
    weights = torch.linspace(0.5, 1.5, size.tokens)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from VmRSS
    before, start = status("VmRSS"), time.process_time()
    values = FORMS[form](student, teacher, size.chunk)
    (weights * values).sum().backward()
    cpu_seconds, peak = time.process_time() - start, status("VmHWM")
    gradients = [student.hidden.grad, student.head.weight.grad]
    return Found(
        peak_bytes=peak - before,
        cpu_seconds=cpu_seconds,
        values=values.detach(),
        gradients=[gradient for gradient in gradients if gradient is not None],
    )


def sides(size: Size) -> tuple[Side, Side]:
    """Returns a student and a teacher that agree on most: laws a nat or so apart."""
    draws = torch.Generator().manual_seed(0)
    hidden = torch.randn(size.tokens, size.width, generator=draws)
    student = nn.Linear(size.width, size.ids, bias=False)
    teacher = nn.Linear(size.width, size.ids, bias=False)
    with torch.no_grad():
        student.weight.normal_(std=2.0 * size.width**-0.5, generator=draws)
        teacher.weight.normal_(std=0.5 * size.width**-0.5, generator=draws).add_(student.weight)
    return Side(hidden.clone().requires_grad_(), student), Side(hidden, teacher)


def status(name: str) -> int:
    """Returns a line of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def chunked(student: Side, teacher: Side, chunk: int) -> Tensor:
    return chunked_distillation(
        reverse_kl,
        student_head=LinearHead(student.head.weight),
        student_hidden=student.hidden,
        teacher_head=LinearHead(teacher.head.weight),
        teacher_hidden=teacher.hidden,
        chunk=chunk,
    )


def whole(student: Side, teacher: Side, chunk: int) -> Tensor:
    with torch.no_grad():
        teacher_logits = teacher.head(teacher.hidden)
    return reverse_kl(student_logits=student.head(student.hidden), teacher_logits=teacher_logits)


def textbook(student: Side, teacher: Side, chunk: int) -> Tensor:
    with torch.no_grad():
        log_q = teacher.head(teacher.hidden).log_softmax(-1)
    log_p = student.head(student.hidden).log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


FORMS: dict[str, Callable[[Side, Side, int], Any]] = {
    "whole": whole,
    "textbook": textbook,
    "chunked": chunked,
}

if __name__ == "__main__":
    main()
