"""Fork anywhere: the control without which no other rule means anything."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from turnpoint.branching.common import Selection
from turnpoint.protocols import Engine, Examination, Root
from turnpoint.types import Account

NAME = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomRule:
    """Draws a uniform score per token, a function of `seed` and the root's id alone."""

    selection: Selection
    seed: int
    needs_siblings: bool = False

    async def examine(self, root: Root, engine: Engine) -> Examination:
        """Returns the points; they cost nothing."""
        name = hashlib.blake2b(root.id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        draws = np.random.Generator(np.random.Philox(key=[self.seed, int.from_bytes(name, "little")]))
        scores = draws.random(len(root.completion.token_ids))
        return self.selection.examination(root, scores, rule=NAME, account=Account())
