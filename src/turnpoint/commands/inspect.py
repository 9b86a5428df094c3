"""`turnpoint inspect`: the whole group of one problem as a step would sample it, without training."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from turnpoint.assemble import Problems, open_verifier
from turnpoint.branches import make_branches
from turnpoint.commands.common import read_policy, read_problems, recipe_of, restore
from turnpoint.commands.session import Session
from turnpoint.config import load_recipe
from turnpoint.distill import Opened, open_teachers
from turnpoint.errors import DataError
from turnpoint.objective import make_advantage
from turnpoint.reports.group_lines import group_lines
from turnpoint.reports.page.build import PageBuilder, check_place
from turnpoint.reports.page.head import recipe_head
from turnpoint.reports.teacher_words import Said
from turnpoint.reports.terminal import Terminal
from turnpoint.teachers.teaching import Word
from turnpoint.types import Group


def inspect(
    source: str | Path, overrides: Sequence[str] = (), *, task: int = 0, out: str | Path | None = None
) -> Group:
    """Samples, judges, examines and forks the group of problem `task`, shows it, and returns it.

    A teacher of the recipe is asked about it, too.

    `source` is a recipe, or a run folder, whose latest checkpoint then samples. `out`: where the group goes
    as a page too. Raises UserError when there is no such recipe or problem, or no place to write.
    """
    if out is not None:
        check_place(Path(out))
    terminal = Terminal()
    config = load_recipe(recipe_of(Path(source)), overrides)
    problems = read_problems(config, terminal)
    tasks = problems.train.tasks
    if task >= len(tasks):
        raise DataError(f"--task {task}: there are {len(tasks)} problems to train on, counted from 0")
    with open_verifier(config) as verifier:
        policy = read_policy(config, problems, terminal, tokens=0)  # one group is not worth a start
        if Path(source).is_dir():
            terminal.line(f"weights of {restore(config, policy, Path(source), terminal)}")
        session = Session(config=config, policy=policy, verifier=verifier, terminal=terminal)
        branches = make_branches(config, policy)
        rollouter = session.rollouter(
            config.rollout.samples_per_prompt, branches.branching if branches else None
        )
        with terminal.phase("sampling, judging, forking"):
            group = asyncio.run(rollouter.group(tasks[task], group_id=f"0/{task}"))
        said = _said(session, problems, group)
    advantage = make_advantage(config)
    terminal.texts(group_lines(group, advantage.credit(group), tokenizer=policy.model.tokenizer, said=said))
    if out is not None:
        builder = PageBuilder(advantage)
        builder.add(group, step=0, said=said)
        built = builder.write(Path(out), recipe_head(config), tokenizer=policy.model.tokenizer)
        terminal.line(f"{built.path}: the same as a page for a browser")
    return group


def _said(session: Session, problems: Problems, group: Group) -> Said | None:
    """Returns what the group's teacher says, if the recipe has one."""
    config, terminal = session.config, session.terminal
    if config.distill is None:
        return None
    how = config.distill

    async def ask() -> tuple[Opened, Word]:
        with terminal.phase("opening teachers"):
            opened = await open_teachers(
                config,
                how,
                session.policy,
                [group.task],
                examples=problems.examples,
                longest=len(group.tree.segments[0]) + config.sampling.max_new_tokens,
            )
        with terminal.phase("asking teachers"):
            (word,) = await opened.teaching.words([group])
        return opened, word

    opened, word = asyncio.run(ask())
    return Said.of(opened.teaching.routing.of(group.task), word)
