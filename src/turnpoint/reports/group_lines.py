"""A group as lines of a terminal: each root with its forks marked in the text, continuations below.

A number in angle brackets stands before the token at which the root forks. On a terminal, tokens that the
rule's quantity singles out (above half of its largest magnitude) are coloured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.text import Text

from turnpoint.reports.page.vocabulary import token_texts
from turnpoint.reports.teacher_words import Said
from turnpoint.reports.text import cut, number, plural, visible
from turnpoint.types import BranchOrigin, Floats, Group, Insight, Origin, SegmentCredit

_CELLS = 160  # of a continuation, a reflection, a feedback
_SINGLED_OUT = 0.5  # of the largest magnitude


def group_lines(
    group: Group, credits: Sequence[SegmentCredit], *, tokenizer: Any, said: Said | None = None
) -> list[Text]:
    """Returns the lines of `group`; `credits` are what its segments deserve, `said` is a teacher's word."""
    deserved = {credit.segment: credit.advantages for credit in credits}
    lines = [
        Text(f"group {group.id}, problem {visible(group.task.id)}", style="bold"),
        Text(f"  {cut(group.task.question, _CELLS)}"),
        Text(f"  answer {cut(group.task.answer, _CELLS)}"),
    ]
    roots = [at for at, member in enumerate(group.members) if not isinstance(member.origin, BranchOrigin)]
    for count, root in enumerate(roots, start=1):
        lines += _root(group, root, f"root {count}", deserved, said, tokenizer)
    return lines


def _root(
    group: Group,
    root: int,
    name: str,
    deserved: Mapping[int, Floats | None],
    said: Said | None,
    tokenizer: Any,
) -> Iterator[Text]:
    member = group.members[root]
    forks: defaultdict[int, list[int]] = defaultdict(list)
    for at, other in enumerate(group.members):
        if isinstance(other.origin, BranchOrigin) and other.origin.root == root:
            forks[other.origin.position].append(at)
    yield Text("")
    yield _headline(group, root, f"  {name}", deserved, said)
    if member.verdict.feedback:
        yield Text(f"    feedback: {cut(member.verdict.feedback, _CELLS)}", style="dim")
    if member.insight is not None:
        yield from _insight(member.insight)
    yield _marked(group, root, sorted(forks), tokenizer)
    for count, position in enumerate(sorted(forks), start=1):
        yield from _fork(group.members[forks[position][0]].origin, count)
        for at in forks[position]:
            yield _headline(group, at, "      ", deserved, said).append(
                f"  {cut(_own_text(group, at, tokenizer), 100)}"
            )


def _headline(
    group: Group, at: int, lead: str, deserved: Mapping[int, Floats | None], said: Said | None
) -> Text:
    member = group.members[at]
    reward = member.verdict.reward
    line = Text(lead, style="bold" if lead.strip() else "")
    earned = "no reward" if reward is None else f"reward {number(reward)}"
    line.append(f"  {earned:<15}", style="yellow" if reward is None else "green" if reward > 0 else "red")
    found = [values for it in member.segments if (values := deserved.get(it)) is not None]
    advantage = float(np.concatenate(found).mean()) if found else 0.0
    line.append(f"advantage {advantage:+.3f}  {member.finish:<6}  {plural(group.num_generated(at), 'token')}")
    if said is not None:
        mean = said.mean(group, at)
        line.append(f"  {said.teacher}: {'no word' if mean is None else f'{mean:+.3f} nats per token'}")
    return line


def _insight(insight: Insight) -> Iterator[Text]:
    agrees = {None: "", True: ", agrees with the verifier", False: ", contradicts the verifier"}
    if insight.reflection:
        reflection = cut(insight.reflection, _CELLS, "both")
        yield Text(f"    reflection{agrees[insight.agrees]}: {reflection}", style="dim")
    if insight.hindsight:
        yield Text(f"    told in hindsight: {cut(insight.hindsight, _CELLS, 'both')}", style="dim")
    if insight.set_aside:
        yield Text(f"    set aside: {cut(insight.set_aside, _CELLS)}", style="yellow")
    yield Text(f"    forks by {insight.rule}: {insight.found} of {plural(insight.asked, 'point')}")


def _fork(origin: Origin, count: int) -> Iterator[Text]:
    if isinstance(origin, BranchOrigin):
        why = f"{origin.rule} {number(origin.score)}"
        yield Text(f"    <{count}> at token {origin.position + 1}, {why}", style="cyan")


def _ids(group: Group, at: int) -> list[int]:
    return [token for segment in group.generated(at) for token in segment.token_ids.tolist()]


def _own_text(group: Group, at: int, tokenizer: Any) -> str:
    return "".join(token_texts(tokenizer, _ids(group, at)))


def _marked(group: Group, root: int, forks: Sequence[int], tokenizer: Any) -> Text:
    """The root's tokens, a number before each at which it forks, those singled out coloured."""
    insight = group.members[root].insight
    line = Text("    | ")
    ids = _ids(group, root)
    values = np.abs(_quantity(insight, len(ids)))
    top = values.max(initial=0.0)
    for place, text in enumerate(token_texts(tokenizer, ids)):
        if place in forks:
            line.append(f"<{forks.index(place) + 1}>", style="bold cyan")
        line.append(visible(text), style="magenta" if values[place] > _SINGLED_OUT * top else "")
    return line


def _quantity(insight: Insight | None, length: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What the rule went by, zeros where that is not known."""
    found = None if insight is None else insight.quantities.get(insight.rule)
    return np.zeros(length) if found is None else np.nan_to_num(found.astype(np.float64))
