"""What a run needs at its peak, part by part, and what would fit if that is too much.

    rollouts  weights + masters + moments + cached and decoding tokens + logits of one token each
    training  weights + masters + moments + gradients + cached and decoding tokens + one micro-batch

The engine keeps its tokens until new weights arrive, so they are there while training works.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from turnpoint.diagnosis.checks import Check, failed, ok, warning
from turnpoint.diagnosis.cost import LinearCost
from turnpoint.diagnosis.rows import Shape, rows_of_step
from turnpoint.reports.text import number

_TIGHT = 0.9  # of the capacity, from which it is said
_GROWTH = 1.9  # decoding rows while they are moved to a larger block: the new and the old one
_SAMPLER_COPIES = 4  # float32 [rows, V] arrays that exist while tokens are drawn


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
    overhead: int  # of a backward pass, whatever its micro-batch
    slack: float  # what an allocator makes of the bytes that are saved

    @property
    def cached(self) -> int:
        """Tokens in the prefix cache once a step's rollouts, and an evaluation before them, are done."""
        shape = self.shape
        step = shape.prompts * (shape.prompt_tokens + shape.samples * shape.new_tokens)
        return min(self.cache_tokens, step + self.evaluation_tokens)

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by part at the peak, in order."""
        moments = 2 * self.trained
        fixed = {"resident": self.resident, "reference": self.references, "moments": moments}
        cache = self.cached * self.token_state
        rows, running = self._rows()
        rollouts = {
            "cache": cache,
            "decoding": int(_GROWTH * rows),
            "logits": _SAMPLER_COPIES * 4 * running * self.vocab_size,
        }
        row, _ = rows_of_step(self.shape, max_tokens=self.micro_batch_tokens)
        training = {
            "gradients": self.trained,
            "cache": cache,
            "decoding": rows,
            "micro-batch": int(self.slack * self.saved.of(row)) + self.overhead,
        }
        phase = max(rollouts, training, key=lambda parts: sum(parts.values()))
        return {name: size for name, size in {**fixed, **phase}.items() if size}

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return sum(self.parts.values())

    def _rows(self) -> tuple[int, int]:
        """Returns the bytes of the rows that decode, and how many there are."""
        shape = self.shape
        running = min(self.max_running, max(shape.prompts * shape.samples, self.evaluation_rollouts))
        rows = 1 << (running - 1).bit_length()  # the engine makes room by powers of two
        return int(1.125 * rows * (shape.prompt_tokens + shape.new_tokens) * self.token_state), running


def check_memory(needs: Needs, *, capacity: int) -> Check:
    """Whether the peak fits; if not, the largest single setting that would."""
    parts = ", ".join(f"{name} {gigabytes(size)}" for name, size in needs.parts.items())
    text = f"about {gigabytes(needs.total)} of {gigabytes(capacity)} at the peak: {parts}"
    if needs.total > capacity:
        return failed("memory", f"{text}; {way_out(needs, capacity)}")
    if needs.total > _TIGHT * capacity:
        return warning("memory", f"{text}; this is tight")
    return ok("memory", text)


def way_out(needs: Needs, capacity: int) -> str:
    """Returns what would fit into `capacity`: the largest value of one setting, or of two together."""
    path = needs.shape.prompt_tokens + needs.shape.new_tokens  # no micro-batch is smaller than a rollout
    settings: list[tuple[str, int, Callable[[int], Needs]]] = [
        (
            "training.micro_batch_tokens",
            min(path, needs.micro_batch_tokens),
            lambda value: replace(needs, micro_batch_tokens=value),
        ),
        ("engine.cache_tokens", 1, lambda value: replace(needs, cache_tokens=value)),
        ("engine.max_running", 1, lambda value: replace(needs, max_running=value)),
    ]
    present = [needs.micro_batch_tokens, needs.cache_tokens, needs.max_running]
    for (name, least, with_value), now in zip(settings, present, strict=True):
        best = largest(lambda value, change=with_value: change(value).total <= capacity, least, now)
        if best is not None:
            return f"{name}={best} would fit"
    smallest = replace(needs, micro_batch_tokens=min(path, needs.micro_batch_tokens), max_running=1)
    best = largest(
        lambda value: replace(smallest, cache_tokens=value).total <= capacity, 1, needs.cache_tokens
    )
    if best is not None:
        return (
            f"training.micro_batch_tokens={smallest.micro_batch_tokens} with engine.max_running=1 and "
            f"engine.cache_tokens={best} would fit"
        )
    return (
        "no smaller batch fits; shorten sampling.max_new_tokens, train an adapter (model.adapter.rank=16) or "
        "take a smaller model"
    )


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
