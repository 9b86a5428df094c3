"""Where the time of a decode step goes, by torch's profiler.

While it runs, linear layers, the head, attention and the network as a whole mark when they begin and end.
A step is the time from one pass through the network to the next, so that the parts add up to it:

    attention, linear layers, head   what is computed between their marks
    rest of the network              norms, positions, activations, sums, and the calls in between
    sampling                         other tensor operations: drawing tokens, keeping states
    between operations               the engine's own Python, and waiting for this process's turn

On a GPU every mark waits for the device, which makes the parts true and the step longer.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from turnpoint.models.attention import IMPLEMENTATION, register
from turnpoint.models.decoder import Decoder
from turnpoint.speed.ceilings import synchronize
from turnpoint.speed.figures import Phases
from turnpoint.speed.products import matrix_modules

NETWORK, LINEAR, ATTENTION, HEAD = (
    f"turnpoint/{name}" for name in ("network", "linear layers", "attention", "head")
)
_MARKS = (NETWORK, LINEAR, ATTENTION, HEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that ran, microseconds."""

    name: str
    start: float
    end: float
    outermost: bool  # not within another event


def phases_of(events: Iterable[Event]) -> Phases | None:
    """Returns the parts of the steps that lie wholly between two passes; None when there are none."""
    known = list(events)
    begins = sorted(event.start for event in known if event.name == NETWORK)
    if len(begins) < 2:
        return None
    first, last, steps = begins[0], begins[-1], len(begins) - 1
    inside = [event for event in known if first <= event.start and event.end <= last]

    def total(*names: str) -> float:
        return sum(event.end - event.start for event in inside if event.name in names)

    network, linear, attention, head = (total(name) for name in _MARKS)
    other = sum(it.end - it.start for it in inside if it.outermost and it.name not in _MARKS)
    parts = {
        "attention": attention,
        "linear layers": linear,
        "rest of the network": network - linear - attention,
        "head": head,
        "sampling": other,
        "between operations": last - first - network - head - other,
    }
    return Phases(parts={name: value / steps / 1e6 for name, value in parts.items()}, steps=steps)


@contextmanager
def profiled(decoder: Decoder) -> Generator[Any]:
    """Yields a running torch profiler that sees all threads, with the marks in `decoder`."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it writes to standard error otherwise
    activities = [torch.profiler.ProfilerActivity.CPU]
    if decoder.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    private: Any = torch._C  # type: ignore[attr-defined]  # the only way to see the engine's thread
    every_thread = private._profiler._ExperimentalConfig(profile_all_threads=True)
    with (
        marked(decoder),
        torch.profiler.profile(activities=activities, experimental_config=every_thread) as profiler,
    ):
        yield profiler


def events_of(profiler: Any) -> list[Event]:
    """Returns what ran on the processor."""
    return [
        Event(
            name=event.name,
            start=event.time_range.start,
            end=event.time_range.end,
            outermost=event.cpu_parent is None,
        )
        for event in profiler.events()
        if event.device_type.name == "CPU"
    ]


def is_whole(trace: Path) -> bool:
    """Says whether a trace was written to its end."""
    try:
        return trace.read_bytes()[-100:].rstrip().endswith(b"}")
    except OSError:
        return False


@contextmanager
def marked(decoder: Decoder) -> Generator[None]:
    """Lets the parts of `decoder` mark when they begin and end, while the block runs."""
    with ExitStack() as stack:
        places = [(decoder.backbone, NETWORK), (decoder.head, HEAD)]
        places += [(module, LINEAR) for module in matrix_modules(decoder)]
        for module, name in places:
            for handle in _mark(module, name, decoder.device):
                stack.callback(handle.remove)
        stack.enter_context(_marked_attention(decoder.device))
        yield


def _mark(module: nn.Module, name: str, device: torch.device) -> list[Any]:
    open_marks: list[Any] = []

    def begin(*_: object) -> None:
        synchronize(device)
        mark = torch.profiler.record_function(name)
        mark.__enter__()
        open_marks.append(mark)

    def end(*_: object) -> None:
        synchronize(device)
        open_marks.pop().__exit__(None, None, None)

    return [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]


@contextmanager
def _marked_attention(device: torch.device) -> Generator[None]:
    from transformers import AttentionInterface

    interface = cast(Any, AttentionInterface)
    plain: Any = interface()[IMPLEMENTATION]

    def attention(*arguments: Any, **options: Any) -> Any:
        synchronize(device)
        with torch.profiler.record_function(ATTENTION):
            result: Any = plain(*arguments, **options)
            synchronize(device)
        return result

    interface.register(IMPLEMENTATION, attention)
    try:
        yield
    finally:
        register()
