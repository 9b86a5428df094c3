"""What all rules share: how points are taken from scores, and how a root is scored under a context."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from turnpoint.branching.candidates import Candidates
from turnpoint.branching.selection import select_branch_points
from turnpoint.protocols import Engine, Examination, Root, ScoreRequest, Scores
from turnpoint.types import Account, BranchPoint, Floats, Insight, TokenIds, TokenKind, token_array

_NOTHING: Mapping[str, Floats] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """How many points a root gets, and where they may lie; the same for every rule."""

    count: int
    candidates: Candidates
    min_gap: int
    skip_first: int
    skip_last: int

    def examination(
        self,
        root: Root,
        scores: npt.ArrayLike,
        *,
        rule: str,
        account: Account,
        quantities: Mapping[str, Floats] = _NOTHING,
    ) -> Examination:
        """Returns what `scores` [n], one per token of the root, find, the best point first, and their cost.

        `quantities` are recorded beside, by name, [n] each.
        """
        values = np.asarray(scores, dtype=np.float64)
        chosen = select_branch_points(
            values.tolist(),
            count=self.count,
            candidates=self.candidates.mask(root.completion.token_ids).tolist(),
            min_gap=self.min_gap,
            skip_first=self.skip_first,
            skip_last=self.skip_last,
        )
        points = tuple(BranchPoint(position=at, score=float(values[at]), rule=rule) for at in chosen)
        insight = Insight(rule=rule, asked=self.count, found=len(points), quantities=quantities)
        return Examination(points=points, insight=insight, account=account)


async def score_root(
    root: Root, engine: Engine, *, prompt_ids: TokenIds, name: str, entropy: bool = False
) -> tuple[Scores, Account]:
    """Returns the log-probabilities of the root's tokens after `prompt_ids`, at temperature 1, and the cost.

    The recorded ids are scored, whatever their text. `name` tells the requests of a root apart. Raises
    EngineError, also when the context is too short.
    """
    started = time.perf_counter()
    ids = token_array(np.concatenate([prompt_ids, root.completion.token_ids]))
    scores = await engine.score(
        ScoreRequest(id=f"{root.id}/{name}", token_ids=ids, start=len(prompt_ids), entropy=entropy)
    )
    cached = min(scores.cached_tokens, len(prompt_ids))
    tokens = {
        TokenKind.SCORED: len(ids) - len(prompt_ids),
        TokenKind.PROMPT: len(prompt_ids) - cached,
        TokenKind.CACHED: cached,
    }
    return scores, Account(tokens=tokens, seconds={"score": time.perf_counter() - started})
