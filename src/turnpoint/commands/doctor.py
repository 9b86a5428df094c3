"""`turnpoint doctor`: says whether a recipe will work here, how much memory it takes and how long."""

from __future__ import annotations

import asyncio

from turnpoint.assemble import open_verifier
from turnpoint.commands.common import read_policy, read_problems
from turnpoint.config import RunConfig
from turnpoint.diagnosis.checks import Diagnosis
from turnpoint.diagnosis.examination import Subject, examine
from turnpoint.diagnosis.room import room_of
from turnpoint.reports.terminal import Terminal


def doctor(config: RunConfig, *, seconds: float = 20.0) -> Diagnosis:
    """Examines a recipe on the live model, shows what was found and returns it; trains and writes nothing.

    `seconds`: about how long rollouts may be sampled; more time shows more and longer ones. Raises UserError
    when problems or model cannot even be read.
    """
    terminal = Terminal()
    problems = read_problems(config, terminal)
    with open_verifier(config) as verifier:
        policy = read_policy(config, problems, terminal)
        subject = Subject(
            config=config,
            problems=problems,
            policy=policy,
            verifier=verifier,
            terminal=terminal,
            room=room_of(policy.model.decoder.device),
            seconds=seconds,
        )
        diagnosis = asyncio.run(examine(subject))
    terminal.diagnosis(diagnosis)
    return diagnosis
