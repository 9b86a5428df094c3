"""All that makes one organism different from another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Misconception:
    """A confident error: the result of `operation` is written `shift` too high in a share `slip` of cases."""

    operation: str  # sign and operand, for example "+8"
    shift: int  # 1 to 9; digits count modulo 10
    slip: float  # 0.95: the right digit is seen once in twenty times


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A part of the cold start: so many examples of each kind, each of a problem of its own and seen once."""

    solutions: int
    reflections: int = 0  # on attempts, by who has read the record
    hindsights: int = 0  # solutions by who has read a record and a reflection
    learning_rate: float = 3e-3  # falls to zero


@dataclass(frozen=True, slots=True, kw_only=True)
class OrganismSettings:
    """What the organism was taught, how, and what it is asked. Probabilities are per written step."""

    steps: tuple[int, int] = (5, 10)  # of a problem, fewest and most
    misconceptions: tuple[Misconception, ...] = (
        Misconception(operation="+8", shift=9, slip=0.92),
        Misconception(operation="-6", shift=2, slip=0.94),
        Misconception(operation="*7", shift=4, slip=0.90),
    )
    slip: float = 0.01  # sampling noise: any other digit, everywhere else
    fillers: float = 0.3  # a word that says nothing before the step
    synonyms: float = 0.5  # a word for the equals sign; a comma for the semicolon

    layers: int = 4
    width: int = 128
    heads: int = 2
    inner: int = 512  # of the feed-forward layers
    initial_scale: float = 0.06  # standard deviation; 0.02 as usual takes three times as many examples

    lessons: tuple[Lesson, ...] = (Lesson(solutions=16_000),)
    examples_per_step: int = 16
    warmup_steps: int = 100

    train_problems: int = 4096
    held_out_problems: int = 512
    seed: int = 0

    @property
    def looks_back(self) -> bool:
        """Whether it is taught to read a record and to reflect."""
        return any(it.reflections + it.hindsights > 0 for it in self.lessons)
