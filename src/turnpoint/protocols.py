"""All seams of turnpoint: what a part must do to be exchanged for another. What waits is async.

An engine, an environment, a verifier, a rule or a loss written elsewhere needs no base class, only these
methods. Engines take and give tokens, one request each, and batch by themselves; what they cannot serve
they declare in `Capabilities`, and a recipe that needs it is refused at start. Seams are checkable at
run time, by the names of their methods only, for the type checker that runs under the tests.

Branching has no verb of its own: a branch is a `generate` whose prompt is a path, made cheap by the
prefix cache. Old log-probabilities, hindsight, a reference, a teacher and the start-up check are all
`score`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from turnpoint.types import (
    Account,
    BranchPoint,
    FinishReason,
    Floats,
    Group,
    Insight,
    Message,
    SegmentCredit,
    Task,
    TeacherTargets,
    TokenIds,
    Verdict,
)

if TYPE_CHECKING:
    from torch import Tensor

    from turnpoint.metrics import Metrics


# --- text and tokens ----------------------------------------------------------------------------


@runtime_checkable
class Renderer(Protocol):
    """Turns messages into the ids a model was trained to see; the only place that knows templates."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end the policy's turn, from all sources (tokenizer, generation config, recipe)."""
        ...

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Strings that end the policy's turn; they may span token borders."""
        ...

    def prompt(self, messages: Sequence[Message], *, hindsight: str | None = None) -> TokenIds:
        """Returns the [n] ids up to where the policy speaks.

        `hindsight` goes into the last user turn before the first assistant turn.
        """
        ...

    def turn(self, message: Message) -> TokenIds:
        """Returns the [n] ids that close a finished policy turn, add `message` and open the next one."""
        ...

    def text(self, token_ids: TokenIds) -> str:
        """Returns what people and verifiers read; never encoded again for training."""
        ...


# --- the engine ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One completion to sample from softmax(logits / temperature), cut to its `top_k` and `top_p`.

    Draws are a function of (`seed`, `id`, position in the sequence) alone, so a completion does not
    depend on its batch mates beyond rounding. `temperature=0` takes the likeliest token.
    """

    id: str
    prompt_ids: TokenIds  # [n], n >= 1
    max_tokens: int
    temperature: float = 1.0
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    seed: int = 0
    continued: int = 0  # of the last prompt ids, the policy's own: text and search for stops begin there
    top_k: int = 0  # only the k likeliest tokens; 0: all
    top_p: float = 1.0  # only the likeliest of these that have this mass together


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """What an engine sampled; the stop token is part of it, a stop string cuts only the text."""

    token_ids: TokenIds  # [n]
    logprobs: Floats  # [n] nats, of the law sampled from; 0 at temperature 0
    policy_version: int
    finish: FinishReason
    text: str  # without stop token and stop string; with what was continued
    cached_tokens: int = 0  # of the prompt, read from the prefix cache


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Asks for log p(token_ids[i] | token_ids[:i]) for i >= start, at `temperature`."""

    id: str
    token_ids: TokenIds  # [n]
    start: int  # >= 1
    temperature: float = 1.0
    entropy: bool = False  # also the entropy of the full next-token law
    top_k: int = 0  # also the k likeliest tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """Answers a `ScoreRequest`; m = n - start. `None`: not asked."""

    logprobs: Floats  # [m] nats
    policy_version: int
    entropy: Floats | None = None  # [m] nats
    top_ids: npt.NDArray[np.int32] | None = None  # [m, k]
    top_logprobs: npt.NDArray[np.float32] | None = None  # [m, k] nats
    cached_tokens: int = 0  # of those given, read from the prefix cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can serve; a rule that needs more is refused at start."""

    name: str
    context_length: int  # prompt and completion together, tokens
    entropy: bool
    max_top_k: int
    score_temperature: bool  # can score at a temperature other than 1
    prefix_cache: bool


@runtime_checkable
class Engine(Protocol):
    """Samples and scores. Cancelling the awaiting task frees what the request held.

    Raises EngineError naming the request; a request that cannot fit the context is refused.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can serve."""
        ...

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns one completion."""
        ...

    async def score(self, request: ScoreRequest) -> Scores:
        """Returns the log-probabilities of given tokens."""
        ...


@runtime_checkable
class WeightReceiver(Protocol):
    """Takes new weights. Raises WeightSyncError on missing, unknown or misshapen tensors."""

    def load_weights(self, state: Mapping[str, Tensor], version: int) -> str:
        """Replaces all trained weights, drops everything computed with the old ones, returns the checksum."""
        ...


# --- the world ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one action led to: Gymnasium's 5-tuple on strings."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]


@runtime_checkable
class Environment(Protocol):
    """An episode in text; a wrapper owns tokens, budgets and deadlines. Raises EnvironmentFailure."""

    async def reset(self, task: Task, seed: int) -> str:
        """Starts an episode and returns the first observation."""
        ...

    async def step(self, action: str) -> StepResult:
        """Applies one action."""
        ...

    async def close(self) -> None:
        """Frees what the episode held; safe to call twice."""
        ...


@runtime_checkable
class SnapshotEnvironment(Environment, Protocol):
    """An environment that can return to an earlier state without replaying."""

    async def snapshot(self) -> object:
        """Returns the state as it is."""
        ...

    async def restore(self, state: object) -> None:
        """Returns to a state that `snapshot` gave."""
        ...


@runtime_checkable
class Verifier(Protocol):
    """Judges completions. A judge that fails gives an invalid verdict; one that is broken raises."""

    async def verify(self, task: Task, completion: str) -> Verdict:
        """Returns the verdict on what the policy wrote."""
        ...

    async def self_check(self, task: Task) -> Verdict:
        """Returns valid when gold passes and a wrong answer fails; invalid with the reason otherwise."""
        ...


# --- the method ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A finished rollout from the prompt, as a branch rule sees it."""

    id: str  # unique within a run; draws that a rule makes depend on it
    task: Task
    prompt_ids: TokenIds  # [n]
    completion: Completion
    verdict: Verdict
    solved_by: tuple[str, ...] = ()  # texts of other roots of the group that earned their reward


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What a rule found out about a root, and what that cost."""

    points: tuple[BranchPoint, ...]  # best first
    insight: Insight
    account: Account


@runtime_checkable
class BranchRule(Protocol):
    """Says where a root should fork."""

    @property
    def needs_siblings(self) -> bool:
        """Whether `Root.solved_by` is asked for: roots then wait for each other."""
        ...

    async def examine(self, root: Root, engine: Engine) -> Examination:
        """Returns branch points, possibly fewer than asked, and what they rest on."""
        ...


@runtime_checkable
class Advantage(Protocol):
    """Says what the tokens of a group deserve; pure."""

    def credit(self, group: Group) -> list[SegmentCredit]:
        """Returns one credit per POLICY segment of the group."""
        ...


@runtime_checkable
class Teacher(Protocol):
    """Gives its own probability of every token that a rollout sampled. Raises EngineError when it cannot."""

    async def targets(self, group: Group, member: int) -> Mapping[int, TeacherTargets]:
        """Returns targets of each segment that `member` generated, by segment id; none: it has no word."""
        ...


@runtime_checkable
class Loss(Protocol):
    """Turns log-probabilities into a scalar; knows no algorithm.

    n = trained tokens. `denominator` is global over the optimiser step, so that summing the losses of
    its micro-batches gives the loss of the step.
    """

    def __call__(
        self,
        *,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        mask: Tensor,
        denominator: float,
        sequence_ids: Tensor,
        weights: Tensor | None,
    ) -> tuple[Tensor, Metrics]:
        """Returns the loss and its metrics."""
        ...


@runtime_checkable
class Drafter(Protocol):
    """Guesses how the rows of a batch go on; an engine verifies, so that it never changes the sampled law.

    It keeps what it computed of each row.
    """

    def propose(
        self,
        *,
        rows: Sequence[int],
        starts: Sequence[int],
        hidden: Sequence[Tensor],
        token_ids: Sequence[TokenIds],
        depths: Sequence[int],
        head: Callable[[Tensor], Tensor],
        draw: Callable[[Tensor], Tensor],
    ) -> None:
        """Lengthens a chain for each of `rows` to its depth, 1 or more, one token at a time.

        Of each row, `hidden` are the policy's last hidden states, [n, D], of its tokens from `starts` on, and
        `token_ids` [n] the tokens that follow them, the last of them the row's newest; a start of 0 is a new
        sequence, any other where the last call for that row ended. `draw(logits)` [m, V] must be called once
        per depth with the logits of the m rows that go so deep, in order, and returns their tokens. `head` is
        the policy's own, hidden states [m, D] to logits.
        """
        ...

    def move(self, row: int, to: int) -> None:
        """Takes what it knows of `row` for row `to`, whose sequence has ended."""
        ...

    def clear(self) -> None:
        """Forgets all rows, and everything that was computed with the weights as they were."""
        ...
