"""A reward function in a module."""

from turnpoint.types import Task


def word_count(completion: str, task: Task) -> float:
    """Returns how many words the completion has."""
    return float(len(completion.split()))
