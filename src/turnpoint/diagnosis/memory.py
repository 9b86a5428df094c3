"""What a run needs at its peak, part by part, and what would fit if that is too much.

    rollouts  weights + masters + moments + cached and decoding tokens + logits of a token or draft each
    teachers  weights + masters + moments + cached and decoding tokens, those of teachers too
    training  weights + masters + moments + gradients + cached and decoding tokens + one micro-batch

The engine keeps its tokens until new weights arrive, so they are there while training works.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from turnpoint.config import EngineConfig, TrainingConfig
from turnpoint.diagnosis.checks import Check, failed, ok, warning
from turnpoint.diagnosis.cost import LinearCost
from turnpoint.diagnosis.rows import Shape, rows_of_step
from turnpoint.reports.text import number

_TIGHT = 0.9  # of the capacity, from which it is said
_GROWTH = 1.9  # decoding rows while they are moved to a larger block: the new and the old one
_LITTLE = 0.05  # of the capacity: what frees less is no advice
_LOGIT_COPIES = 4  # float32 [chunk, V] arrays of a backward pass
NOTHING_SAVED = LinearCost(fixed=0.0, per_token=0.0, per_score=0.0)
_SETTINGS = {  # that change memory and speed, and never what is learnt; what is given up first comes first
    "cache_tokens": "engine.cache_tokens",
    "head_chunk_tokens": "training.head_chunk_tokens",
    "max_running": "engine.max_running",
    "micro_batch_tokens": "training.micro_batch_tokens",
}
_ENGINE, _TRAINING = EngineConfig(), TrainingConfig()
_USUAL = {
    "cache_tokens": _ENGINE.cache_tokens,
    "head_chunk_tokens": _TRAINING.head_chunk_tokens,
    "max_running": _ENGINE.max_running,
    "micro_batch_tokens": _TRAINING.micro_batch_tokens,
}
_SAMPLER_COPIES = 4  # float32 [rows, V] arrays that exist while tokens are drawn
_VERIFIER_COPIES = 14  # the same while drafts are verified,
_DRAFT_COPIES = 6  # and for each token of their depth
LAW_COPIES = 6  # float32 [chunk, V] arrays of a loss over two whole laws, beside those of the policy gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherNeeds:
    """What a teacher in this process takes beside the policy, in bytes."""

    weights: int  # packed ones and averages included
    cache: int  # of a step's rollouts, as it scores them
    visits: bool = False  # it is there only while it speaks
    law_of_token: int = 0  # of a token in a chunk of a loss over its whole law; 0: it gives no law
    law: int = 0  # of that loss beside its chunks: the gradient of the policy's head


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftNeeds:
    """What drafts take beside the policy; sizes in bytes."""

    depth: int = 0  # tokens of a draft; 0: nothing is drafted
    weights: int = 0  # of heads that are not resident yet
    token_state: int = 0  # what the drafter keeps of one token of a row

    @property
    def laws(self) -> int:
        """How many float32 laws [V] exist for each row while tokens are drawn."""
        return _VERIFIER_COPIES + _DRAFT_COPIES * self.depth if self.depth else _SAMPLER_COPIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What decides how much memory a run takes; sizes in bytes unless named otherwise."""

    resident: int  # held after loading: libraries, weights, masters
    trained: int  # float32 copies of all trained weights: gradients, and each of two moments
    references: int  # weights of a reference model
    shape: Shape  # of a step whose rollouts are all as long as allowed
    evaluation_tokens: int  # that an evaluation leaves in the cache
    evaluation_rollouts: int
    cache_tokens: int
    max_running: int
    micro_batch_tokens: int
    token_state: int  # keys, values and hidden state of one token
    vocab_size: int
    saved: LinearCost  # of one micro-batch
    head_chunk_tokens: int
    head_gradient: int  # of the output head: what a backward pass holds of it
    slack: float  # what an allocator makes of the bytes that are saved
    teachers: tuple[TeacherNeeds, ...] = ()
    drafts: DraftNeeds = DraftNeeds()

    @property
    def cached(self) -> int:
        """Tokens in the prefix cache once a step's rollouts, and an evaluation before them, are done."""
        return min(self.cache_tokens, self._step_tokens + self.evaluation_tokens)

    @property
    def _step_tokens(self) -> int:
        shape = self.shape
        return shape.prompts * (shape.prompt_tokens + shape.samples * shape.new_tokens)

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by part at the peak, in order."""
        moments = 2 * self.trained
        fixed = {
            "resident": self.resident,
            "reference": self.references,
            "teachers": sum(teacher.weights for teacher in self.teachers if not teacher.visits),
            "moments": moments,
            "draft heads": self.drafts.weights,
        }
        cache = self.cached * self.token_state
        tokens, running = self._rows()
        rows, drafts = tokens * self.token_state, tokens * self.drafts.token_state
        rollouts = {
            "cache": cache,
            "decoding": int(_GROWTH * rows),
            "drafts": int(_GROWTH * drafts),
            "logits": self.drafts.laws * 4 * running * self.vocab_size,
        }
        visitors = [teacher.weights + teacher.cache for teacher in self.teachers if teacher.visits]
        teaching = {
            "cache": cache,
            "decoding": rows,
            "drafts": drafts,
            "teachers' caches": sum(teacher.cache for teacher in self.teachers if not teacher.visits),
            "the largest visiting teacher": max(visitors, default=0),
        }
        row, _ = rows_of_step(self.shape, max_tokens=self.micro_batch_tokens)
        training = {
            "gradients": self.trained,
            "cache": cache,
            "decoding": rows,
            "drafts": drafts,
            "micro-batch": int(self.slack * self.saved.of(row)),
            "output head": self._logits(row.tokens) + self.head_gradient,
            "teacher's law": self._law(row.tokens),
        }
        phase = max(rollouts, teaching, training, key=lambda parts: sum(parts.values()))
        return {name: size for name, size in {**fixed, **phase}.items() if size}

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return sum(self.parts.values())

    def _logits(self, tokens: int) -> int:
        """Returns the bytes of the logits of one chunk of a row with that many tokens."""
        return _LOGIT_COPIES * 4 * min(self.head_chunk_tokens, tokens) * self.vocab_size

    def _law(self, tokens: int) -> int:
        """Returns what a loss over whole laws takes of a row with that many tokens."""
        chunk = min(self.head_chunk_tokens, tokens)
        return sum(teacher.law + chunk * teacher.law_of_token for teacher in self.teachers)

    def _rows(self) -> tuple[int, int]:
        """Returns for how many tokens the rows that decode have room, and how many rows there are."""
        shape = self.shape
        running = min(self.max_running, max(shape.prompts * shape.samples, self.evaluation_rollouts))
        rows = 1 << (running - 1).bit_length()  # the engine makes room by powers of two
        return int(1.125 * rows * (shape.prompt_tokens + shape.new_tokens)), running


def check_memory(needs: Needs, *, capacity: int) -> Check:
    """Whether the peak fits; if not, settings that would."""
    row, _ = rows_of_step(needs.shape, max_tokens=needs.micro_batch_tokens)
    text = (
        f"about {gigabytes(needs.total)} of {gigabytes(capacity)} at the peak: {_parts(needs)}"
        f"; a micro-batch of {number(row.tokens)} tokens, extrapolated from a small one"
    )
    if needs.total > capacity:
        return failed("memory", f"{text}; {way_out(needs, capacity)}")
    if needs.total > _TIGHT * capacity:
        return warning("memory", f"{text}; this is tight")
    return ok("memory", text)


def _parts(needs: Needs) -> str:
    return ", ".join(f"{name} {gigabytes(size)}" for name, size in needs.parts.items())


def check_certain(needs: Needs, *, capacity: int) -> Check | None:
    """Refuses what is too much by arithmetic alone, its micro-batch not counted; None where that fits."""
    counted = replace(needs, saved=NOTHING_SAVED)
    if counted.total <= capacity:
        return None
    return failed(
        "memory",
        f"at least {gigabytes(counted.total)} of {gigabytes(capacity)} at the peak, by arithmetic alone and "
        f"what a micro-batch saves not counted: {_parts(counted)}; {way_out(counted, capacity)}",
    )


def way_out(needs: Needs, capacity: int) -> str:
    """Returns settings that would fit into `capacity`; none of them changes what is learnt.

    They shrink to their usual values first, in the order of `_SETTINGS`, and below those only where that is
    not enough: then the micro-batch first, which costs least. The last of them is as large as fits.
    """
    changes = _changes(needs, capacity)
    if not changes:
        undrafted = ", leave out engine.draft" if needs.drafts.depth else ""
        return (
            f"no smaller batch fits; shorten sampling.max_new_tokens{undrafted}, train an adapter "
            f"(model.adapter.rank=16) or take a smaller model{' or teacher' if needs.teachers else ''}"
        )
    first, *others = [f"{_SETTINGS[name]}={changes[name]}" for name in _SETTINGS if name in changes]
    return f"{first}{' with ' if others else ''}{' and '.join(others)} would fit"


def _changes(needs: Needs, capacity: int) -> dict[str, int]:
    """Returns smaller settings that fit together; none when nothing does."""
    shape, changes = needs.shape, dict[str, int]()
    path = shape.prompt_tokens + shape.new_tokens  # no micro-batch is smaller than a rollout
    least = {
        "cache_tokens": shape.prompts * shape.prompt_tokens,  # rollouts share their prompt
        "head_chunk_tokens": 16,
        "max_running": 8,
        "micro_batch_tokens": path,
    }
    to_usual = [(name, max(_USUAL[name], least[name])) for name in _SETTINGS]
    for name, value in [*to_usual, *reversed(least.items())]:
        now: int = getattr(needs, name)
        if value < changes.get(name, now):
            changes[name] = value
            if _total(needs, changes) <= capacity:
                return _fewest(needs, changes, last=name, capacity=capacity)
    return {}


def _fewest(needs: Needs, changes: dict[str, int], *, last: str, capacity: int) -> dict[str, int]:
    """Returns `changes` that fit, without those that hardly matter, and with the last as large as fits."""

    def widened(some: dict[str, int]) -> dict[str, int]:
        def fits(value: int) -> bool:
            return _total(needs, {**some, last: value}) <= capacity

        return {**some, last: largest(fits, some[last], getattr(needs, last)) or some[last]}

    for name in [name for name in reversed(_SETTINGS) if name in changes and name != last]:
        wide, without = widened(changes), {other: changes[other] for other in changes if other != name}
        freed = _total(needs, {other: wide[other] for other in without}) - _total(needs, wide)
        if freed < _LITTLE * capacity and _total(needs, without) <= capacity:
            changes = without
    return widened(changes)


def _total(needs: Needs, changes: dict[str, int]) -> int:
    return replace(needs, **changes).total


def largest(fits: Callable[[int], bool], least: int, most: int) -> int | None:
    """Returns a largest value in [least, most] that fits, if `least` does; two digits if it has more.

    >>> largest(lambda value: value <= 2749, 16, 4096), largest(lambda value: value < 9, 16, 4096)
    (2700, None)
    """
    if not fits(least):
        return None
    low, high = least, most + 1  # low fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    digits = 10 ** max(0, len(str(low)) - 2)
    rounded = low // digits * digits
    return rounded if rounded >= least and fits(rounded) else low


def gigabytes(size: int) -> str:
    """Returns bytes as people read them.

    >>> gigabytes(3_221_225_472), gigabytes(5_242_880)
    ('3 GiB', '5 MiB')
    """
    return (
        f"{number(round(size / 2**30, 2))} GiB" if size >= 2**30 else f"{number(round(size / 2**20, 1))} MiB"
    )
