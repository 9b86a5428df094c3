"""Fork where the policy, asked outright, says that another choice would have mattered.

The Reflection baseline of arXiv 2609.36864 (appendix B.2): the root as numbered steps, an allowed range, one
line per step named. What the policy does not name, names out of range, or names too close together is a
point less; all of it is counted.

Deviation: steps are lines (runs of tokens up to one whose text holds a line's end), since the paper does not
say how it numbers them; a root of one line has no steps.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from turnpoint.branching import texts
from turnpoint.branching.common import Selection
from turnpoint.branching.reflector import Reflector
from turnpoint.protocols import Engine, Examination, Renderer, Root
from turnpoint.types import Account, Insight, TokenIds, token_array

NAME = "reflection"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsRule:
    """Forks at the first token of each step that the policy names."""

    selection: Selection
    renderer: Renderer
    reflector: Reflector
    feedback_characters: int
    needs_siblings: bool = False

    async def examine(self, root: Root, engine: Engine) -> Examination:
        """Returns the points, scored by rank: 1, 1/2, 1/3; the answer is paid for, nothing is scored."""
        starts = self._starts(root.completion.token_ids)
        if len(starts) < 2:
            return self._nothing("the root has no steps", "", Account())
        bounds = [*starts, len(root.completion.token_ids)]
        steps = [
            self.renderer.text(root.completion.token_ids[start:stop])
            for start, stop in itertools.pairwise(bounds)
        ]
        record = texts.record(root, most=self.feedback_characters)
        low, high = 2, len(steps)  # a fork in the first step repeats nothing
        message = texts.steps_request(
            root.task, steps, record, count=self.selection.count, low=low, high=high
        )
        answer, account = await self.reflector.write(root, engine, message)
        if answer is None:
            return self._nothing("the question has no room", "", account)
        named = texts.parse_steps(answer.text, low=low, high=high)
        if not named:
            return self._nothing("the answer names no step", answer.text, account)
        scores = np.full(len(root.completion.token_ids), np.nan)
        for rank, number in enumerate(named, start=1):
            scores[starts[number - 1]] = 1 / rank
        found = self.selection.examination(root, scores, rule=NAME, account=account)
        return replace(found, insight=replace(found.insight, reflection=answer.text))

    def _starts(self, token_ids: TokenIds) -> list[int]:
        """Returns where lines that say something begin, among the tokens that may be forked and the first."""
        starts, fresh = [0], False
        mask = self.selection.candidates.mask(token_ids)
        for index, token in enumerate(token_ids.tolist()):
            if fresh and mask[index]:
                starts.append(index)
                fresh = False
            fresh = fresh or "\n" in self.renderer.text(token_array([token]))
        return starts

    def _nothing(self, why: str, answer: str, account: Account) -> Examination:
        insight = Insight(rule=NAME, asked=self.selection.count, found=0, set_aside=why, reflection=answer)
        return Examination(points=(), insight=insight, account=account)
