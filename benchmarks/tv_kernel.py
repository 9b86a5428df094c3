"""The fused draft loss from hidden states: its memory, and its time against the products it cannot avoid.

    python -m benchmarks.tv_kernel [--tokens 352] [--ids 151936] [--width 2048] [--depth 3] [--forms fused]

Loss (end-to-end total variation) and gradient by the draft's hidden states, bfloat16 weights, one anchor per
token. Of each form, alone in a process, `beyond_mb` is how far resident memory rose above what weights and
hidden states take (VmHWM after it was reset, less VmRSS), less the gradient that it returns; glibc is told
to give blocks above a megabyte back at once (MALLOC_MMAP_THRESHOLD_, unless it is set). What is taken beside
the gradient does not grow with tokens once there are several chunks. Forms: `fused`; `whole`, the library's
losses over logits that are all there; `textbook`, softmax and minimum of all rows left to autograd.

Then, in this process, fused and its products alone take turns for `--rounds`: 2 depth + 1 products with the
head, chunk by chunk, in the shapes that the fused form has. `over_products` is the median over rounds of the
ratio of processor times. Prints one JSON line per form and one for the time. `--exact` prints instead how far
fused is from all rows in float64, for float32 and the vocabulary, width and tokens given (take small ones).
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
from torch import Tensor

from benchmarks.common import emit, facts, median_ratio, mistakes
from benchmarks.opd_memory import status
from turnpoint.drafting import draft_loss, end_to_end_tv_loss, fused_linear_tv, row_statistics
from turnpoint.drafting.fused import default_chunk
from turnpoint.losses import LinearHead

LOSS = "end_to_end_tv"


@dataclass(frozen=True)
class Size:
    """How large the problem is."""

    tokens: int
    ids: int
    width: int
    depth: int

    def __post_init__(self) -> None:
        if min(self.tokens, self.ids, self.width, self.depth) < 1:
            raise ValueError(f"sizes must be at least 1: {self}")


@dataclass(frozen=True)
class Inputs:
    """What a form is given."""

    head: LinearHead
    target_hidden: Tensor  # [T, D]
    draft_hidden: Tensor  # [depth, T, D], a leaf
    next_ids: Tensor  # [T]
    mask: Tensor  # [T, depth]

    @property
    def places(self) -> Tensor:
        """The target's row of each depth, [T, depth]; any where masked."""
        tokens, depth = self.mask.shape
        return (torch.arange(tokens).unsqueeze(1) + torch.arange(depth)).clamp(max=tokens - 1)


@dataclass(frozen=True)
class Found:
    """What a form took, and what it returned."""

    beyond_bytes: int
    cpu_seconds: float
    loss: float
    gradient: Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, value in [("tokens", 352), ("ids", 151936), ("width", 2048), ("depth", 3)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forms", nargs="*", choices=list(FORMS), default=["fused"])
    parser.add_argument("--exact", action="store_true")
    given = parser.parse_args()
    with mistakes(parser):
        size = Size(tokens=given.tokens, ids=given.ids, width=given.width, depth=given.depth)
    torch.set_num_threads(given.threads)
    if given.exact:
        emit(benchmark="tv_kernel", **exactness(size), **vars(size), **facts())
        return
    for form in given.forms:
        found = alone(form, size, given.threads)
        emit(
            benchmark="tv_kernel",
            form=form,
            beyond_mb=round(found.beyond_bytes / 2**20, 1),
            cpu_seconds=round(found.cpu_seconds, 1),
            loss=found.loss,
            **vars(size),
            **facts(),
        )
    if given.rounds:
        emit(benchmark="tv_kernel", **turns(size, given.rounds), **vars(size), **facts())


def inputs(size: Size, dtype: torch.dtype = torch.bfloat16) -> Inputs:
    """Returns a target and a draft that agree on most: logits two nats wide, and one nat apart."""
    draws = torch.Generator().manual_seed(0)
    weight = torch.empty(size.ids, size.width, dtype=dtype)
    weight.normal_(std=2.0 * size.width**-0.5, generator=draws)
    target = torch.randn(size.tokens, size.width, generator=draws).to(dtype)
    noise = torch.randn(size.depth, size.tokens, size.width, generator=draws, dtype=torch.float32)
    room = torch.arange(size.tokens).unsqueeze(1) + torch.arange(size.depth) < size.tokens
    rows = (torch.arange(size.depth).unsqueeze(1) + torch.arange(size.tokens)).clamp(max=size.tokens - 1)
    return Inputs(
        head=LinearHead(weight),
        target_hidden=target,
        draft_hidden=(target[rows] + noise.mul_(0.5).to(dtype)).requires_grad_(),
        next_ids=torch.randint(size.ids, (size.tokens,), generator=draws),
        mask=room,
    )


# --- memory: one form, alone in a process -------------------------------------------------------


def alone(form: str, size: Size, threads: int) -> Found:
    """Returns what `form` does in a fresh process, so that no other allocation shows in its peak."""
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**20))  # read when the process starts
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (form, size, threads))


def measure(form: str, size: Size, threads: int) -> Found:
    """Runs loss and backward of `form` once, after a run on a few tokens that loads what is loaded once."""
    torch.set_num_threads(threads)
    learn(FORMS[form], inputs(Size(tokens=8, ids=64, width=size.width, depth=size.depth)))
    given = inputs(size)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from VmRSS
    before, start = status("VmRSS"), time.process_time()
    loss, gradient = learn(FORMS[form], given)
    cpu_seconds, peak = time.process_time() - start, status("VmHWM")
    return Found(
        beyond_bytes=peak - before - gradient.numel() * gradient.element_size(),
        cpu_seconds=cpu_seconds,
        loss=float(loss),
        gradient=gradient,
    )


def learn(form: Callable[[Inputs], Tensor], given: Inputs) -> tuple[Tensor, Tensor]:
    """Returns the loss of `form` and its gradient by the draft's hidden states."""
    loss = form(given)
    return loss.detach(), torch.autograd.grad(loss, given.draft_hidden)[0]


def fused(given: Inputs) -> Tensor:
    return fused_linear_tv(
        head=given.head,
        target_hidden=given.target_hidden,
        draft_hidden=given.draft_hidden,
        next_ids=given.next_ids,
        mask=given.mask,
        denominator=float(len(given.mask)),
        loss=LOSS,
    ).loss


def whole(given: Inputs) -> Tensor:
    rows = row_statistics(
        draft_loss(LOSS).needs,
        target_logits=given.head(given.target_hidden)[given.places],
        draft_logits=torch.stack([given.head(hidden) for hidden in given.draft_hidden], 1),
        token_ids=given.next_ids[given.places],
    )
    return draft_loss(LOSS)(rows, given.mask).sum() / len(given.mask)


def textbook(given: Inputs) -> Tensor:
    p = given.head(given.target_hidden).softmax(-1, dtype=torch.float32)
    laws = [given.head(hidden).softmax(-1, dtype=torch.float32) for hidden in given.draft_hidden]
    alphas = [torch.minimum(p[rows], q).sum(-1) for rows, q in zip(given.places.unbind(1), laws, strict=True)]
    return end_to_end_tv_loss(torch.stack(alphas, 1), mask=given.mask).mean()


FORMS: dict[str, Callable[[Inputs], Tensor]] = {"fused": fused, "whole": whole, "textbook": textbook}


# --- time: fused and its products take turns ----------------------------------------------------


def turns(size: Size, rounds: int) -> dict[str, Any]:
    """Returns the processor seconds of each round and the median of their ratio."""
    given = inputs(size)
    chunk = min(size.tokens, default_chunk(size.depth, given.head))
    slopes = torch.full((chunk, size.ids), 1e-6, dtype=given.head.weight.dtype)
    ours, theirs = list[float](), list[float]()
    for _ in range(rounds):
        ours.append(seconds(lambda: learn(fused, given)))
        theirs.append(seconds(lambda: products(given, chunk, slopes)))
    return {
        "over_products": round(median_ratio(ours, theirs), 3),
        "fused_cpu_seconds": [round(it, 2) for it in ours],
        "products_cpu_seconds": [round(it, 2) for it in theirs],
        "chunk": chunk,
    }


@torch.no_grad()
def products(given: Inputs, chunk: int, slopes: Tensor) -> None:
    """The products with the head that loss and gradient take, without what lies between them."""
    tokens, depth = given.mask.shape
    for start in range(0, tokens, chunk):
        stop = min(start + chunk, tokens)
        given.head(given.target_hidden[start : stop + depth - 1])
        for hidden in given.draft_hidden:
            given.head(hidden[start:stop])
            torch.matmul(slopes[: stop - start], given.head.weight)


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


# --- exactness ----------------------------------------------------------------------------------


def exactness(size: Size) -> dict[str, float]:
    """Returns how far float32 fused is from float64 whole: loss, and gradient by its largest entry."""
    given, double = inputs(size, torch.float32), inputs(size, torch.float32)
    exact = Inputs(
        head=LinearHead(double.head.weight.double()),
        target_hidden=double.target_hidden.double(),
        draft_hidden=double.draft_hidden.detach().double().requires_grad_(),
        next_ids=double.next_ids,
        mask=double.mask,
    )
    loss, gradient = learn(fused, given)
    expected, slope = learn(whole, exact)
    return {
        "loss_apart": abs(float(loss) - float(expected)),
        "gradient_apart": float((gradient - slope).abs().max() / slope.abs().max()),
    }


if __name__ == "__main__":
    main()
