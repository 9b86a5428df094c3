"""Fork where the policy, knowing the outcome, changes its mind (HDL, arXiv 2609.36864).

    d_i = log p(y_i | x, h, y_<i) - log p(y_i | x, y_<i),    h = [f; r]

f is the verifier's record of the root, r what the policy itself writes about it. Both laws are the policy's
at temperature 1, over the recorded ids, under the root's own template; h stands in the last user turn
before the first reply, and nothing is ever sampled under it.

Decisions that the paper leaves open: which forms a score may take (`scores.directed_scores`), where h comes
from (`Source`), and what follows when a reflection contradicts the verifier or does not fit: entropy decides
for that root and the insight says why.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

import numpy as np
import torch

from turnpoint.branching import texts
from turnpoint.branching.common import Selection, score_root
from turnpoint.branching.entropy import EntropyRule
from turnpoint.branching.gate import Gate
from turnpoint.branching.reflector import Reflector
from turnpoint.branching.scores import directed_scores
from turnpoint.protocols import Engine, Examination, Renderer, Root
from turnpoint.types import Account, Floats, float_array

NAME = "hindsight"


class Source(enum.StrEnum):
    """Where hindsight comes from."""

    REFLECTION = "reflection"  # the record, and what the policy writes about it: the paper's
    FEEDBACK = "feedback"  # the record alone; generates nothing
    SIBLING = "sibling"  # another root that earned its reward, else the record; generates nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What the policy is told about a root."""

    hindsight: str
    reflection: str = ""
    agrees: bool | None = None
    account: Account
    doubt: str = ""  # why it should not decide


@dataclass(frozen=True, slots=True, kw_only=True)
class HindsightRule:
    """Scores a token by how much h changes its log-probability; one prefill under h, and a base pass.

    `renderer` is the root's. The base pass is a prefill (exact) or, with `base_from_decode`, what the engine
    reported while it sampled, which is that law only at temperature 1. `feedback_characters` bounds feedback.
    `reflector` writes for `Source.REFLECTION`; `gate` may set reflections aside.
    """

    selection: Selection
    renderer: Renderer
    source: Source
    reflector: Reflector | None
    gate: Gate | None
    feedback_characters: int
    direction: str = "absolute"
    weigh_alternatives: bool = False
    base_from_decode: bool = False

    @property
    def needs_siblings(self) -> bool:
        """Whether roots wait for each other."""
        return self.source is Source.SIBLING

    async def examine(self, root: Root, engine: Engine) -> Examination:
        """Returns the points that hindsight gives, or entropy where hindsight is in doubt."""
        told = await self._tell(root, engine)
        prompt_ids = self.renderer.prompt(root.task.messages, hindsight=told.hindsight)
        length = len(prompt_ids) + len(root.completion.token_ids)
        doubt = told.doubt
        if not doubt and length > engine.capabilities.context_length:
            doubt = f"hindsight and root are {length} tokens, more than the context"
        if doubt:
            found = await EntropyRule(selection=self.selection).examine(root, engine)
            return _with(found, told, set_aside=doubt)
        hindsight, cost = await score_root(root, engine, prompt_ids=prompt_ids, name="hindsight")
        base, entropy, base_cost = await self._base(root, engine)
        scores = directed_scores(
            base_logprobs=torch.from_numpy(base.copy()),
            hindsight_logprobs=torch.from_numpy(hindsight.logprobs.copy()),
            direction=self.direction,
            weigh_alternatives=self.weigh_alternatives,
        ).numpy()
        with np.errstate(invalid="ignore"):  # two impossible tokens have no difference
            change = float_array(hindsight.logprobs - base)
        found = self.selection.examination(
            root,
            scores,
            rule=NAME,
            account=cost + base_cost,
            quantities={"hindsight": change, **({} if entropy is None else {"entropy": entropy})},
        )
        return _with(found, told)

    async def _base(self, root: Root, engine: Engine) -> tuple[Floats, Floats | None, Account]:
        if self.base_from_decode:
            return root.completion.logprobs, None, Account()
        scores, cost = await score_root(root, engine, prompt_ids=root.prompt_ids, name="base", entropy=True)
        return scores.logprobs, scores.entropy, cost

    async def _tell(self, root: Root, engine: Engine) -> _Told:
        record = texts.record(root, most=self.feedback_characters)
        if self.source is Source.SIBLING and root.solved_by:
            return _Told(hindsight=texts.solved_hindsight(root.solved_by[0]), account=Account())
        if self.source is not Source.REFLECTION or self.reflector is None:
            return _Told(hindsight=texts.hindsight(record), account=Account())
        message = texts.reflection_request(root.task, root.completion.text, record)
        answer, account = await self.reflector.write(root, engine, message)
        if answer is None:
            return _Told(
                hindsight=texts.hindsight(record), account=account, doubt="the reflection has no room"
            )
        return self._weigh(root, record, answer.text.strip(), account)

    def _weigh(self, root: Root, record: str, reflection: str, account: Account) -> _Told:
        """Returns what is told with `reflection`, in doubt where it or the gate says so."""
        succeeded = root.verdict.passed
        said = texts.parse_outcome(reflection)
        doubt = ""
        if self.gate is not None and said is not succeeded:
            says = "no outcome" if said is None else "SUCCESS" if said else "FAILURE"
            doubt = f"the reflection says {says}, the verifier {root.verdict.reward:g}"
        elif self.gate is not None and self.gate.closed:
            doubt = (
                f"reflections agreed with the verifier in {self.gate.agreement:.0%} of recent roots, under "
                f"{self.gate.threshold:.0%}"
            )
        return _Told(
            hindsight=texts.hindsight(record, reflection),
            reflection=reflection,
            agrees=said is succeeded,
            account=account,
            doubt=doubt,
        )


def _with(found: Examination, told: _Told, *, set_aside: str = "") -> Examination:
    """Returns what was found together with what the policy was told, and what that cost."""
    insight = replace(
        found.insight,
        set_aside=set_aside,
        hindsight=told.hindsight,
        reflection=told.reflection,
        agrees=told.agrees,
    )
    return replace(found, insight=insight, account=told.account + found.account)
