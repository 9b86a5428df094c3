"""Fork where the sampled token was least likely: -log p(y_i | x, y_<i).

What the released code of TreeRL (arXiv 2506.11902) ranks by, and calls entropy.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnpoint.branching.common import Selection, score_root
from turnpoint.protocols import Engine, Examination, Root

NAME = "surprisal"


@dataclass(frozen=True, slots=True, kw_only=True)
class SurprisalRule:
    """Scores a token by its surprisal, in nats at temperature 1."""

    selection: Selection
    needs_siblings: bool = False

    async def examine(self, root: Root, engine: Engine) -> Examination:
        """Returns the points; one prefill of the root pays for them."""
        scores, account = await score_root(root, engine, prompt_ids=root.prompt_ids, name="base")
        surprisal = -scores.logprobs
        return self.selection.examination(
            root, surprisal, rule=NAME, account=account, quantities={"surprisal": surprisal}
        )
