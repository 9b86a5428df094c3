"""Where a step's time goes: the parts add up, and are what the marks say."""

from __future__ import annotations

import torch

from tests.tiny import tiny_decoder
from turnpoint.models.attention import CausalLayout
from turnpoint.speed.phases import (
    ATTENTION,
    HEAD,
    LINEAR,
    NETWORK,
    Event,
    events_of,
    marked,
    phases_of,
    profiled,
)


def event(name: str, start: float, end: float, outermost: bool = True) -> Event:
    return Event(name=name, start=start, end=end, outermost=outermost)


def test_the_parts_of_two_steps_by_hand() -> None:
    """Steps from 100 to 200 and from 200 to 300 microseconds; what lies before and after is none of them."""
    events = [
        event("aten::copy_", 10, 90),
        *[
            it
            for at in (100, 200)
            for it in (
                event(NETWORK, at, at + 50),
                event(LINEAR, at + 5, at + 25, False),
                event("aten::mm", at + 6, at + 24, False),
                event(ATTENTION, at + 30, at + 40, False),
                event(HEAD, at + 55, at + 70),
                event("aten::softmax", at + 75, at + 85),
            )
        ],
        event(NETWORK, 300, 350),
        event(HEAD, 355, 370),
    ]
    phases = phases_of(events)
    assert phases is not None
    assert phases.steps == 2
    assert {name: round(1e6 * value, 6) for name, value in phases.parts.items()} == {
        "attention": 10,
        "linear layers": 20,
        "rest of the network": 20,
        "head": 15,
        "sampling": 10,
        "between operations": 25,
    }
    assert round(1e6 * phases.step, 6) == 100


def test_one_pass_is_no_step() -> None:
    assert phases_of([event(NETWORK, 0, 1), event(HEAD, 2, 3)]) is None


def test_a_model_marks_its_parts_only_while_asked() -> None:
    decoder = tiny_decoder()
    ids = torch.arange(4)

    def forward() -> torch.Tensor:
        return decoder.logits(decoder.hidden(ids, ids, CausalLayout()))

    plain = forward()
    with profiled(decoder) as profiler:
        marked_logits = forward()
    names = [event.name for event in events_of(profiler)]
    assert torch.equal(plain, marked_logits)
    assert [names.count(name) for name in (NETWORK, LINEAR, ATTENTION, HEAD)] == [1, 14, 2, 1]
    with marked(decoder):
        pass
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as after:
        forward()
    assert not [event for event in events_of(after) if event.name.startswith("turnpoint/")]
