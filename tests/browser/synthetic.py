"""A run folder of any size with rollouts that nobody sampled: what a page must bear."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.reports.samples import verdict_of
from turnpoint.config import load_recipe
from turnpoint.metrics import Mean, Sum
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.step import StepReport
from turnpoint.rollout import RolloutWriter
from turnpoint.types import (
    Account,
    Author,
    FinishReason,
    Group,
    Member,
    Message,
    Task,
    TokenKind,
    TreeBuilder,
)

_VOCABULARY = 64  # of the tiny model's tokenizer; common tokens come often, as in a language


def write_run(
    recipe: Path, *, name: str, steps: int, groups: int, members: int, length: int, seed: int = 0
) -> Path:
    """Writes `steps` x `groups` flat groups of `members` rollouts of about `length` tokens each."""
    draws = np.random.Generator(np.random.Philox(seed))
    config = load_recipe(recipe, [f"name={name}", f"training.steps={steps}"])
    folder = RunFolder.create(config.output_dir, name)
    folder.write_recipe(config)
    with RolloutWriter(folder.rollouts) as recorder:
        for step in range(1, steps + 1):
            for index in range(groups):
                recorder.write(_group(f"{step}/{index}", members, length, draws))
            metrics = {
                "reward": Mean(step, 2 * steps),
                "entropy": Mean(1, step),
                f"tokens/{TokenKind.ROOT}": Sum(groups * members * length),
            }
            folder.append_step(
                StepReport(step=step, groups=(), metrics=metrics, seconds={}, wall_seconds=2.0)
            )
    return folder.path


def _group(name: str, members: int, length: int, draws: np.random.Generator) -> Group:
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=_tokens(draws, 40))
    made: list[Member] = []
    for _ in range(members):
        n = int(draws.integers(length // 2, length * 3 // 2))
        leaf = tree.append(
            parent=prompt,
            author=Author.POLICY,
            token_ids=_tokens(draws, n),
            logprobs=-draws.exponential(0.5, n),
            policy_version=0,
        )
        words = " ".join(f"word{number}" for number in draws.integers(0, 500, n // 2))
        reward = float(draws.random() < 0.5)
        made.append(
            Member(
                leaf=leaf,
                segments=(leaf,),
                text=words,
                verdict=verdict_of(reward),
                finish=FinishReason.STOP,
            )
        )
    task = Task(id=f"t/{name}", messages=(Message(role="user", content=f"What is {name}?"),), answer="7")
    account = Account(tokens={TokenKind.ROOT: members * length})
    return Group(id=name, task=task, tree=tree.freeze(), members=tuple(made), account=account)


def _tokens(draws: np.random.Generator, n: int) -> list[int]:
    return np.minimum(draws.geometric(0.05, n), _VOCABULARY - 1).tolist()
