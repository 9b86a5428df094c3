"""The organism's judge: the final answer alone, right or wrong."""

from __future__ import annotations

from typing import Any


def reward(completion: str, task: Any) -> bool:
    """Returns whether the completion ends with # and the right digit, whatever it wrote before."""
    return completion.split()[-2:] == ["#", task.answer]
