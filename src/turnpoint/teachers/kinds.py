"""What a sampled token is: content, an end of turn as the template writes it, or another special token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from turnpoint.types import TokenIds

KINDS = ("content", "template", "special")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenKinds:
    """Which of the ids that a policy samples are no text."""

    ends: frozenset[int]  # with which the template ends a turn
    special: frozenset[int]  # others that no text is encoded to

    def masks(self, token_ids: TokenIds) -> dict[str, npt.NDArray[np.bool_]]:
        """Returns which of [n] tokens are of each of `KINDS`; every token is of one."""
        template = np.isin(token_ids, list(self.ends))
        special = np.isin(token_ids, list(self.special)) & ~template
        return {"content": ~(template | special), "template": template, "special": special}


ALL_CONTENT = TokenKinds(ends=frozenset(), special=frozenset())
