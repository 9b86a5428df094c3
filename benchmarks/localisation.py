"""How often each rule's best branch point is the first wrong step of a failed attempt, on the organism.

    python -m benchmarks.localisation [--problems 512] [--model FOLDER]

The organism (docs/organism.md) is cold-started also to read a record and to reflect. Every failed attempt,
sampled at temperature 1, has one first wrong word, which is known; a rule has found it when its best point is
at most 3 tokens away. Rules that need no outcome: random, entropy, surprisal. Hindsight by what it is told:

    record       what the judge says, alone
    other        and the reflection on another problem's failed attempt: the null, since a prompt that merely
                 makes the policy more careful changes its mind at the same places
    own          and what the policy writes about this attempt, at temperature 1: the method
    oracle       and what it should have written

Confident errors are those of a misconception, noise all others. Prints one JSON line per rule and kind of
error (shares with Wilson's 95 % intervals), how well reflections name the wrong step, and paired differences.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import emit, facts, mistakes
from benchmarks.organism.bed import REFLECTIVE, make_organism
from benchmarks.organism.hindsight import named_step, oracle_reflection, record, with_reflection
from benchmarks.organism.language import Problem, apply, first_wrong_step, first_wrong_word, parse_problem
from benchmarks.organism.settings import OrganismSettings
from turnpoint.branching.candidates import Candidates
from turnpoint.branching.common import Selection
from turnpoint.branching.entropy import EntropyRule
from turnpoint.branching.hindsight import HindsightRule, Source
from turnpoint.branching.random import RandomRule
from turnpoint.branching.reflector import Reflector
from turnpoint.branching.surprisal import SurprisalRule
from turnpoint.engine import TorchEngine
from turnpoint.models.loading import LoadedModel, load_model
from turnpoint.models.renderer import ChatRenderer
from turnpoint.protocols import BranchRule, Engine, GenerateRequest, Root
from turnpoint.rollout.concurrency import all_of
from turnpoint.rollout.intervals import mean_interval, wilson_interval
from turnpoint.tasks import load_tasks
from turnpoint.types import Task, Verdict

NEAR = 3  # tokens
KINDS = ("confident", "noise", "all")
GAP = 8  # tokens between the two points of a root


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A failed attempt, and what is true of it."""

    root: Root
    problem: Problem
    wrong_word: int  # its tokens are its words
    wrong_step: int
    confident: bool

    @property
    def kind(self) -> str:
        """What kind of error it is."""
        return "confident" if self.confident else "noise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Where a rule would fork an attempt."""

    points: tuple[int, ...]  # best first
    reflection: str = ""

    def hits(self, attempt: Attempt, count: int) -> bool:
        """Says whether one of the best `count` points is near the first wrong word."""
        return any(abs(point - attempt.wrong_word) <= NEAR for point in self.points[:count])


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A model that reflects, and what it is asked."""

    model: LoadedModel
    settings: OrganismSettings
    engine: Engine

    @property
    def renderer(self) -> ChatRenderer:
        """Of everything that it reads."""
        return ChatRenderer(self.model.tokenizer, stop_ids=self.model.stop_ids)

    @property
    def selection(self) -> Selection:
        """Two points of a root, anywhere but at its first token and its end."""
        candidates = Candidates(self.renderer.text, stop_ids=self.model.stop_ids)
        return Selection(count=2, candidates=candidates, min_gap=GAP, skip_first=1, skip_last=0)

    def hindsight(self, source: Source, direction: str = "absolute") -> HindsightRule:
        """Returns the rule, without a gate."""
        return HindsightRule(
            selection=self.selection,
            renderer=self.renderer,
            source=source,
            reflector=Reflector(renderer=self.renderer, max_tokens=64, temperature=1.0, seed=0),
            gate=None,
            feedback_characters=2000,
            direction=direction,
        )

    async def attempt(self, task: Task) -> Attempt | None:
        """Returns one attempt at `task`; None unless it failed by a wrong step that can be pointed at."""
        problem = parse_problem(task.question)
        prompt_ids = self.renderer.prompt(task.messages)
        completion = await self.engine.generate(
            GenerateRequest(
                id=task.id,
                prompt_ids=prompt_ids,
                max_tokens=7 * len(problem.operations) + 8,
                stop_ids=self.model.stop_ids,
            )
        )
        text = completion.text
        feedback = record(problem, text)
        word, step = first_wrong_word(problem, text), first_wrong_step(problem, text)
        if feedback.endswith("RIGHT") or word is None or step is None or word >= len(text.split()):
            return None
        return Attempt(
            root=Root(
                id=task.id,
                task=task,
                prompt_ids=prompt_ids,
                completion=completion,
                verdict=Verdict.scored(0.0, feedback=feedback),
            ),
            problem=problem,
            wrong_word=word,
            wrong_step=step,
            confident=is_misconceived(text.split(), word, self.settings),
        )


def is_misconceived(words: Sequence[str], at: int, settings: OrganismSettings) -> bool:
    """Says whether the wrong word is the result that a misconception gives."""
    if at < 3 or not words[at].isdigit():
        return False
    digit, operation = words[at - 3], words[at - 2]
    shifts = {it.operation: it.shift for it in settings.misconceptions}
    if operation not in shifts or not digit.isdigit():
        return False
    return int(words[at]) == (apply(operation, int(digit)) + shifts[operation]) % 10


async def examine(
    bench: Bench, rule: BranchRule, attempts: Sequence[Attempt], reflections: Iterable[str] = ()
) -> list[Found]:
    """Returns where `rule` would fork each attempt, told the record and, if given, one of `reflections`."""
    told = [*reflections] or [""] * len(attempts)
    roots = [
        replace(it.root, verdict=replace(it.root.verdict, feedback=with_reflection(_record(it), reflection)))
        for it, reflection in zip(attempts, told, strict=True)
    ]
    found = await all_of(rule.examine(root, bench.engine) for root in roots)
    return [
        Found(points=tuple(point.position for point in it.points), reflection=it.insight.reflection)
        for it in found
    ]


def _record(attempt: Attempt) -> str:
    return attempt.root.verdict.feedback


async def localise(bench: Bench, attempts: Sequence[Attempt]) -> dict[str, list[Found]]:
    """Returns what each rule finds, by rule."""
    plain: Mapping[str, BranchRule] = {
        "random": RandomRule(selection=bench.selection, seed=0),
        "entropy": EntropyRule(selection=bench.selection),
        "surprisal": SurprisalRule(selection=bench.selection),
    }
    found = {name: await examine(bench, rule, attempts) for name, rule in plain.items()}
    own = await examine(bench, bench.hindsight(Source.REFLECTION), attempts)
    written = [it.reflection for it in own]
    oracle = [oracle_reflection(it.problem, it.root.completion.text, bench.settings) for it in attempts]
    told = bench.hindsight(Source.FEEDBACK)
    signed = bench.hindsight(Source.FEEDBACK, "signed")
    return found | {
        "record": await examine(bench, told, attempts),
        "other": await examine(bench, told, attempts, [*written[1:], written[0]]),
        "own": own,
        "oracle": await examine(bench, told, attempts, oracle),
        "other, signed": await examine(bench, signed, attempts, [*written[1:], written[0]]),
        "own, signed": await examine(bench, signed, attempts, written),
        "oracle, signed": await examine(bench, signed, attempts, oracle),
    }


# --- figures --------------------------------------------------------------------------------------


def report(attempts: Sequence[Attempt], found: Mapping[str, Sequence[Found]]) -> Iterable[dict[str, Any]]:
    """Yields the records to print."""
    for kind in KINDS:
        chosen = [index for index, it in enumerate(attempts) if kind in (it.kind, "all")]
        if not chosen:
            continue
        hits = {
            name: [points[index].hits(attempts[index], 1) for index in chosen]
            for name, points in found.items()
        }
        for name, points in found.items():
            yield {
                "rule": name,
                "errors": kind,
                "attempts": len(chosen),
                "top_1": _share(hits[name]),
                "interval_95": _interval(hits[name]),
                "top_2": _share([points[index].hits(attempts[index], 2) for index in chosen]),
            }
        own = [(named_step(found["own"][index].reflection), attempts[index]) for index in chosen]
        named = [step == it.wrong_step for step, it in own]
        yield {
            "errors": kind,
            "reflections_name_the_wrong_step": _share(named),
            "and_then_own": _share([hit for hit, right in zip(hits["own"], named, strict=True) if right]),
            "otherwise_own": _share(
                [hit for hit, right in zip(hits["own"], named, strict=True) if not right]
            ),
        }
        for left, right in (("own", "entropy"), ("own", "other"), ("oracle", "own")):
            pairs = zip(hits[left], hits[right], strict=True)
            yield {"errors": kind, "difference": f"{left} - {right}", **_difference(pairs)}


def _difference(pairs: Iterable[tuple[bool, bool]]) -> dict[str, Any]:
    gains = [float(left) - float(right) for left, right in pairs]
    ends = mean_interval(gains)
    return {
        "points": round(statistics.fmean(gains), 4),
        "interval_95": None if ends is None else [round(end, 4) for end in ends],
    }


def _share(hits: Sequence[bool]) -> float | None:
    return round(statistics.fmean(hits), 4) if hits else None


def _interval(hits: Sequence[bool]) -> list[float]:
    return [round(end, 4) for end in wilson_interval(statistics.fmean(hits), len(hits))]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--problems", type=int, default=512, help="held-out ones, one attempt each")
    parser.add_argument("--model", type=Path, help="an organism that was trained further")
    options = parser.parse_args()
    if not 1 <= options.problems <= REFLECTIVE.held_out_problems:
        parser.error(f"--problems {options.problems}: there are 1 to {REFLECTIVE.held_out_problems}")
    torch.set_num_threads(1)
    organism = make_organism(REFLECTIVE)
    with mistakes(parser):
        model = load_model(str(options.model or organism.model), device="cpu", dtype="float32")
    renderer = ChatRenderer(model.tokenizer, stop_ids=model.stop_ids)
    engine = TorchEngine(model.decoder, decode=renderer.text, context_length=model.context_length)
    bench = Bench(model=model, settings=REFLECTIVE, engine=engine)
    tasks = load_tasks(organism.recipe.tasks).tasks[-options.problems :]
    for row in asyncio.run(run(bench, tasks)):
        emit(benchmark="localisation", **row)
    emit(benchmark="localisation", problems=options.problems, **facts())


async def run(bench: Bench, tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Returns the records to print on one attempt at each of `tasks`."""
    tried = await all_of(bench.attempt(task) for task in tasks)
    attempts = [it for it in tried if it is not None]
    return [*report(attempts, await localise(bench, attempts))]


if __name__ == "__main__":
    main()
