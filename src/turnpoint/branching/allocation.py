"""How many continuations each branch point gets."""

from __future__ import annotations


def allocate_continuations(total: int, num_points: int) -> list[int]:
    """Returns how many of `total` continuations each of `num_points` gets, the best point first.

    Shares differ by one at most and the better points get the larger ones, which the paper leaves open
    (arXiv 2609.36864, 4.1: 3 and 4). One point takes all; points beyond `total` get 0; without a point
    there are no shares, and the caller samples from the prompt instead. Raises ValueError for negative
    numbers.

    >>> allocate_continuations(7, 2), allocate_continuations(7, 1), allocate_continuations(7, 0)
    ([4, 3], [7], [])
    """
    if total < 0 or num_points < 0:
        raise ValueError(f"cannot share {total} continuations among {num_points} points")
    if num_points == 0:
        return []
    share, larger = divmod(total, num_points)
    return [share + (index < larger) for index in range(num_points)]
