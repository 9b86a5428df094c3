"""Fork where the policy was least sure: the entropy of its full next-token law at each token.

The baseline of arXiv 2609.36864 (4.4), at the same allocation as every other rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnpoint.branching.common import Selection, score_root
from turnpoint.protocols import Engine, Examination, Root

NAME = "entropy"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyRule:
    """Scores a token by the entropy, in nats at temperature 1, of the law that it was drawn from."""

    selection: Selection
    needs_siblings: bool = False

    async def examine(self, root: Root, engine: Engine) -> Examination:
        """Returns the points; one prefill of the root pays for them."""
        scores, account = await score_root(
            root, engine, prompt_ids=root.prompt_ids, name="base", entropy=True
        )
        assert scores.entropy is not None
        return self.selection.examination(
            root, scores.entropy, rule=NAME, account=account, quantities={"entropy": scores.entropy}
        )
