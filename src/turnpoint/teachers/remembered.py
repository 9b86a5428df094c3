"""The policy's laws under hindsight, computed once: by the branch rule, then read by the teacher.

HDL pays for a pass over each root under h to find where it forks. A hindsight teacher of the same root asks
for log p(y_i | x, h, y_<i) of the same ids: where ids, start and temperature are the same, the answer is
there. Nothing is assumed about how either came to its h; if they differ in one id, the teacher asks anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from turnpoint.protocols import (
    BranchRule,
    Capabilities,
    Completion,
    Engine,
    Examination,
    GenerateRequest,
    Root,
    ScoreRequest,
    Scores,
)

_Asked: TypeAlias = tuple[bytes, int, float]  # ids, start, temperature


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedScores:
    """An engine that answers from what it has been asked before, log-probabilities alone.

    Entropies and likeliest tokens are asked anew. Call `forget` before the weights change.
    """

    engine: Engine
    _known: dict[_Asked, Scores] = field(default_factory=dict[_Asked, Scores], init=False)

    @property
    def capabilities(self) -> Capabilities:
        """Those of the engine."""
        return self.engine.capabilities

    async def generate(self, request: GenerateRequest) -> Completion:
        """Asks the engine."""
        return await self.engine.generate(request)

    async def score(self, request: ScoreRequest) -> Scores:
        """Returns what is known, else what the engine says; raises EngineError as it does."""
        asked = (request.token_ids.tobytes(), request.start, request.temperature)
        known = self._known.get(asked)
        if known is not None and not request.entropy and not request.top_k:
            return known
        scores = await self.engine.score(request)
        self._known[asked] = replace(scores, entropy=None, top_ids=None, top_logprobs=None)
        return scores

    def forget(self) -> None:
        """Drops all that is known."""
        self._known.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedRule:
    """A branch rule whose scores are remembered: it asks `scores` in place of the engine that it is given."""

    rule: BranchRule
    scores: RememberedScores

    @property
    def needs_siblings(self) -> bool:
        """As the rule says."""
        return self.rule.needs_siblings

    async def examine(self, root: Root, engine: Engine) -> Examination:
        """Returns what the rule finds."""
        return await self.rule.examine(root, self.scores)
