"""Prompts must leave room for the completion: measured in tokens, before the first rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnpoint.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthCheck:
    """Which prompts fit.

    >>> check_lengths([10, 90], context=100, max_new_tokens=20).kept
    (0,)
    """

    kept: tuple[int, ...]  # indices of the prompts that fit
    dropped: int
    limit: int  # tokens a prompt may have
    longest: int  # tokens of the longest prompt, dropped or not

    @property
    def warning(self) -> str | None:
        """What people must hear about dropped prompts; None when all fit."""
        if not self.dropped:
            return None
        total = len(self.kept) + self.dropped
        return (
            f"{self.dropped:,} of {total:,} tasks dropped: their prompts are longer than the {self.limit} "
            f"tokens that fit beside the completion (longest: {self.longest})"
        )


def check_lengths(lengths: Sequence[int], *, context: int, max_new_tokens: int) -> LengthCheck:
    """Returns which prompts of `lengths` tokens fit `context` together with `max_new_tokens`.

    Lengths are of the ids that will be sent, rendered and with examples; nothing is ever cut to fit.
    Raises DataError when no prompt fits.
    """
    limit = context - max_new_tokens
    kept = tuple(index for index, length in enumerate(lengths) if length <= limit)
    if not kept:
        shortest = f"the shortest of {len(lengths):,} prompts has {min(lengths)}" if lengths else "no prompts"
        raise DataError(
            f"sampling.max_new_tokens = {max_new_tokens} leaves {limit} of the {context} tokens of context "
            f"for a prompt; {shortest}: lower max_new_tokens or shorten the prompts"
        )
    return LengthCheck(kept=kept, dropped=len(lengths) - len(kept), limit=limit, longest=max(lengths))
