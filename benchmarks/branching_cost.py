"""What a group that forks saves in tokens and in time, by the depth at which it forks.

    python -m benchmarks.branching_cost [--model FOLDER] [--prompts 32] [--tokens 512] [--rounds 3]

Groups of 16 on the same model and problems, answers of one forced length: GRPO samples all from the prompt,
HDL (arXiv 2609.36864) 2 roots and 4 + 3 continuations of each. Every round gives the same new problems to
each variant, one after the other, with an engine whose cache is empty, as after an update.

    uniform, early, late   examined as by hindsight, forked at places drawn from all, the first or last third
    hindsight, entropy     forked where these rules say
    */replay               the same places again and nothing paid for them: what remains is generation alone

Seconds are of the whole rollout by the clock, processor seconds of all threads, reflections and scores
included. Prints one JSON line per run and one per variant with medians over rounds; what is saved is against
GRPO of the same round, tokens are those generated, reflections included; `examination` is the share of the
time that its replay does not take. The base pass is read from decoding, which at temperature 1 is exact.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from benchmarks.common import emit, facts
from turnpoint.branching.candidates import Candidates
from turnpoint.branching.common import Selection
from turnpoint.branching.entropy import EntropyRule
from turnpoint.branching.hindsight import HindsightRule, Source
from turnpoint.branching.reflector import Reflector
from turnpoint.engine import TorchEngine
from turnpoint.models.loading import LoadedModel, load_model
from turnpoint.models.renderer import ChatRenderer
from turnpoint.protocols import BranchRule, Engine, Examination, Root
from turnpoint.rollout.branched import Branching
from turnpoint.rollout.rollouter import Rollouter
from turnpoint.types import (
    Account,
    BranchOrigin,
    BranchPoint,
    Group,
    Insight,
    Message,
    Task,
    TokenKind,
    Verdict,
)

ROOTS, CONTINUATIONS = 2, (4, 3)
SAMPLES = ROOTS * (1 + sum(CONTINUATIONS))
THIRDS = {"uniform": (0.0, 1.0), "early": (0.0, 1 / 3), "late": (2 / 3, 1.0)}  # of a root
GENERATED = (TokenKind.ROOT, TokenKind.SUFFIX, TokenKind.REFLECTION)
GAP = 16


# --- rules ----------------------------------------------------------------------------------------


@dataclass
class Noted:
    """Examines as `rule` does, moves its points where `move` says, and notes where each root forks."""

    rule: BranchRule
    move: Callable[[Root], tuple[BranchPoint, ...]] | None
    points: dict[str, tuple[BranchPoint, ...]] = field(default_factory=dict[str, tuple[BranchPoint, ...]])
    needs_siblings: bool = False

    async def examine(self, root: Root, engine: Engine) -> Examination:
        """Returns what `rule` found, at the places asked for."""
        found = await self.rule.examine(root, engine)
        points = self.points[root.id] = found.points if self.move is None else self.move(root)
        return replace(found, points=points)


@dataclass
class Replay:
    """Forks where another rule did, for nothing."""

    points: dict[str, tuple[BranchPoint, ...]]
    needs_siblings: bool = False

    async def examine(self, root: Root, engine: Engine) -> Examination:
        """Returns the points noted for this root."""
        points = self.points[root.id]
        insight = Insight(rule="replay", asked=len(CONTINUATIONS), found=len(points))
        return Examination(points=points, insight=insight, account=Account())


def drawn(low: float, high: float) -> Callable[[Root], tuple[BranchPoint, ...]]:
    """Returns what draws points from that part of a root, a gap apart where it is long enough."""

    def move(root: Root) -> tuple[BranchPoint, ...]:
        rng = random.Random(root.id)
        length = len(root.completion.token_ids)
        first, last = max(1, int(low * length)), int(high * length) - 1
        gap = min(GAP, (last - first) // 2)
        one = rng.randint(first, last)
        other = rng.choice([at for at in range(first, last + 1) if abs(at - one) >= gap])
        return tuple(BranchPoint(position=at, score=0.0, rule="drawn") for at in (one, other))

    return move


# --- what is asked and who answers ----------------------------------------------------------------


class SumVerifier:
    """Compares the last number with the sum; its record names the answer, as for mathematics in the paper."""

    async def verify(self, task: Task, completion: str) -> Verdict:
        """Returns the verdict."""
        numbers = re.findall(r"\d+", completion)
        if numbers and numbers[-1] == task.answer:
            return Verdict.scored(1.0, feedback="Correct.")
        said = numbers[-1][:20] if numbers else "nothing"
        return Verdict.scored(0.0, feedback=f"Wrong. You answered {said}; the right answer is {task.answer}.")

    async def self_check(self, task: Task) -> Verdict:
        """Returns that there is nothing to check."""
        return Verdict.scored(1.0)


def problems(number: int, count: int) -> list[Task]:
    """Returns the problems of one round."""
    rng = random.Random(number)
    tasks: list[Task] = []
    for index in range(count):
        first, second, boxes = rng.randint(12, 98), rng.randint(12, 98), rng.randint(3, 9)
        question = (
            f"A bakery sells {first} loaves in the morning, {second} loaves in the afternoon and {boxes} "
            f"boxes with 12 loaves each in the evening. How many loaves does it sell on that day? Think step "
            f"by step and end with the number."
        )
        message = Message(role="user", content=question)
        answer = str(first + second + 12 * boxes)
        tasks.append(Task(id=f"{number}/{index}", messages=(message,), answer=answer))
    return tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A loaded model and the sizes of a run."""

    model: LoadedModel
    options: argparse.Namespace

    @property
    def renderer(self) -> ChatRenderer:
        """Of roots: nothing ends them."""
        return ChatRenderer(self.model.tokenizer, stop_ids=frozenset())

    def rule(self, name: str) -> Noted:
        """Returns the rule of a variant."""
        candidates = Candidates(self.renderer.text, stop_ids=self.model.stop_ids)
        selection = Selection(
            count=len(CONTINUATIONS), candidates=candidates, min_gap=GAP, skip_first=1, skip_last=0
        )
        if name == "entropy":
            return Noted(EntropyRule(selection=selection), None)
        hindsight = HindsightRule(
            selection=selection,
            renderer=self.renderer,
            source=Source.REFLECTION,
            reflector=Reflector(
                renderer=ChatRenderer(self.model.tokenizer, stop_ids=self.model.stop_ids),
                max_tokens=self.options.reflection_tokens,
                temperature=1.0,
                seed=0,
            ),
            gate=None,
            feedback_characters=2000,
            base_from_decode=True,
        )
        return Noted(hindsight, None if name == "hindsight" else drawn(*THIRDS[name]))

    async def collect(self, rule: BranchRule | None, *, number: int) -> list[Group]:
        """Returns the groups of round `number` from a fresh engine."""
        engine = TorchEngine(
            self.model.decoder, decode=self.renderer.text, context_length=self.model.context_length
        )
        rollouter = Rollouter(
            engine,
            self.renderer,
            SumVerifier(),
            samples_per_prompt=SAMPLES,
            temperature=1.0,
            max_new_tokens=self.options.tokens,
            seed=0,
            branching=None
            if rule is None
            else Branching(rule=rule, roots=ROOTS, continuations=CONTINUATIONS),
        )
        try:
            return await rollouter.collect(problems(number, self.options.prompts), step=number)
        finally:
            await engine.close()


# --- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One variant in one round."""

    seconds: float
    processor_seconds: float
    tokens_by_kind: dict[str, int]
    depth: float  # mean over forks, of their root's length; 0 without forks

    @property
    def generated(self) -> int:
        """Tokens sampled, reflections included."""
        return sum(self.tokens_by_kind.get(kind, 0) for kind in GENERATED)


def measure(bench: Bench, rule: BranchRule | None, *, number: int) -> Run:
    """Runs one variant."""
    began, processor = time.perf_counter(), time.process_time()
    groups = asyncio.run(bench.collect(rule, number=number))
    seconds, processor_seconds = time.perf_counter() - began, time.process_time() - processor
    account = sum((group.account for group in groups), Account())
    depths = [
        member.origin.position / bench.options.tokens
        for group in groups
        for member in group.members
        if isinstance(member.origin, BranchOrigin)
    ]
    return Run(
        seconds=seconds,
        processor_seconds=processor_seconds,
        tokens_by_kind={str(kind): count for kind, count in account.tokens.items()},
        depth=statistics.fmean(depths) if depths else 0.0,
    )


def rounds(bench: Bench, setting: dict[str, Any]) -> dict[str, list[Run]]:
    """Returns the runs by variant, all of a round before the next one, and prints each when it is done."""
    runs: dict[str, list[Run]] = {}

    def note(name: str, rule: BranchRule | None, number: int) -> None:
        run = measure(bench, rule, number=number)
        runs.setdefault(name, []).append(run)
        emit(**setting, variant=name, round=number, **asdict(run))

    for number in range(bench.options.rounds):
        note("grpo", None, number)
        for name in bench.options.variants:
            rule = bench.rule(name)
            note(name, rule, number)
            note(f"{name}/replay", Replay(rule.points), number)
    return runs


def compare(runs: list[Run], grpo: list[Run], replay: list[Run]) -> dict[str, Any]:
    """Returns what a variant saved, medians over rounds."""

    def middle(value: Callable[[Run, Run, Run], float]) -> float:
        return round(statistics.median(map(value, runs, grpo, replay)), 3)

    tokens = middle(lambda run, peer, _: 1 - run.generated / peer.generated)
    clock = middle(lambda run, peer, _: 1 - run.seconds / peer.seconds)
    processor = middle(lambda run, peer, _: 1 - run.processor_seconds / peer.processor_seconds)
    return {
        "depth": middle(lambda run, _, __: run.depth),
        "tokens_saved": tokens,
        "seconds_saved": clock,
        "processor_seconds_saved": processor,
        "seconds_per_tokens_saved": round(clock / tokens, 2) if tokens else None,
        "processor_seconds_per_tokens_saved": round(processor / tokens, 2) if tokens else None,
        "examination": middle(lambda run, _, free: 1 - free.seconds / run.seconds),
        "examination_processor": middle(
            lambda run, _, free: 1 - free.processor_seconds / run.processor_seconds
        ),
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=512, help="of every answer")
    parser.add_argument("--reflection-tokens", type=int, default=192, help="at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--variants", nargs="+", default=[*THIRDS, "hindsight", "entropy"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    bench = Bench(model=load_model(options.model), options=options)
    small = argparse.Namespace(**{**vars(options), "prompts": 1, "tokens": 8})
    measure(replace(bench, options=small), None, number=-1)  # warms up
    sizes = {name: value for name, value in vars(options).items() if name not in ("variants", "threads")}
    setting = {"benchmark": "branching_cost", **sizes, "dtype": bench.model.dtype}
    runs = rounds(bench, setting)
    for name in options.variants:
        emit(**setting, variant=name, **compare(runs[name], runs["grpo"], runs[f"{name}/replay"]), **facts())


if __name__ == "__main__":
    main()
