"""Problems whose solutions have a form: arithmetic line by line, short functions, thoughts and actions.

A small model that has been taught them writes with little doubt, as a policy does in the middle of RL, and
with some: values, variants and rooms are drawn.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_NOUNS = ("prices", "scores", "weights", "heights", "counts", "ages", "times", "marks")
_TESTS = ("{x} % 2 == 0", "{x} % 2 == 1", "{x} > 10", "{x} < 0", "{x} != 0", "{x} % 3 == 0")
_VALUES = ("{x}", "{x} ** 2", "2 * {x}", "{x} + 1", "abs({x})")
_ROOMS = ("kitchen", "bedroom", "hall", "garden", "cellar", "attic", "garage", "library")
_THINGS = ("lamp", "key", "book", "cup", "rope", "map", "coin", "apple")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One problem with one way to solve it."""

    kind: str  # "arithmetic" | "code" | "agent"
    question: str
    answer: str


def arithmetic(rng: random.Random) -> Example:
    """Returns a chain of operations, worked out one a line."""
    value = rng.randint(2, 60)
    shown, lines = str(value), list[str]()
    for _ in range(rng.randint(4, 7)):
        sign = rng.choice([*_OPERATIONS])
        operand = rng.randint(2, 9) if sign == "*" else rng.randint(2, 60)
        after = _OPERATIONS[sign](value, operand)
        lines.append(f"{value} {sign} {operand} = {after}")
        shown, value = f"{shown}, then {sign} {operand}", after
    question = f"Begin with {shown}. Work it out one operation a line."
    return Example(
        kind="arithmetic", question=question, answer="\n".join([*lines, f"The answer is {value}."])
    )


def code(rng: random.Random) -> Example:
    """Returns a function over a list, as a loop or as one expression."""
    noun, verb = rng.choice(_NOUNS), rng.choice(["sum", "list", "count"])
    test, value = rng.choice(_TESTS), rng.choice(_VALUES)
    name = f"{verb}_{noun}"
    question = (
        f"Write a Python function {name} that takes {noun} and gives the {verb} of "
        f"{value.format(x='x')} for every x with {test.format(x='x')}."
    )
    x = rng.choice(["x", noun[:-1], "item"])
    test, value = test.format(x=x), value.format(x=x)
    if rng.random() < 0.5:
        inner = f"{value} for {x} in {noun} if {test}"
        whole = {"sum": f"sum({inner})", "list": f"[{inner}]", "count": f"len([{inner}])"}[verb]
        return Example(kind="code", question=question, answer=f"def {name}({noun}):\n    return {whole}")
    start, step = {
        "sum": ("0", f"result += {value}"),
        "list": ("[]", f"result.append({value})"),
        "count": ("0", "result += 1"),
    }[verb]
    loop = f"    for {x} in {noun}:\n        if {test}:\n            {step}"
    answer = f"def {name}({noun}):\n    result = {start}\n{loop}\n    return result"
    return Example(kind="code", question=question, answer=answer)


def agent(rng: random.Random) -> Example:
    """Returns a search through rooms, written as thoughts and actions."""
    thing, *rooms = rng.choice(_THINGS), *rng.sample(_ROOMS, 5)
    here, goal, *others = rooms
    visited = others[: rng.randint(1, 3)]
    lines: list[str] = []
    for room in visited:
        lines += [f"Thought: The {thing} may be in the {room}.", f"Action: go to {room}"]
        lines.append(f"Observation: You are in the {room}.")
    lines += [f"Thought: Here is the {thing}.", f"Action: take {thing}"]
    lines += [f"Thought: I bring the {thing} to the {goal}.", f"Action: go to {goal}", f"Action: put {thing}"]
    question = (
        f"You are in the {here}. Bring the {thing} to the {goal}; there are also {', '.join(sorted(others))}."
    )
    return Example(kind="agent", question=question, answer="\n".join([*lines, "Thought: Done."]))


KINDS: Mapping[str, Callable[[random.Random], Example]] = {
    "arithmetic": arithmetic,
    "code": code,
    "agent": agent,
}


def examples(count: int, *, seed: int) -> list[Example]:
    """Returns `count` examples, the kinds in turn."""
    rng, kinds = random.Random(seed), [*KINDS.values()]
    return [kinds[index % len(kinds)](rng) for index in range(count)]
