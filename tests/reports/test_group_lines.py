"""A group on a terminal: marks where it forks, one line a continuation, nothing that moves the cursor."""

from __future__ import annotations

from tests.records import branched_group
from tests.reports.samples import make_group
from tests.tiny import tiny_tokenizer
from turnpoint.credit import GroupAdvantage
from turnpoint.reports.group_lines import group_lines
from turnpoint.types import BranchOrigin, Group


def lines(group: Group) -> list[str]:
    credits = GroupAdvantage().credit(group)
    return [line.plain for line in group_lines(group, credits, tokenizer=tiny_tokenizer())]


def test_forks_are_marked_before_their_tokens() -> None:
    group = branched_group()
    said = lines(group)
    forks = [it.origin for it in group.members if isinstance(it.origin, BranchOrigin)]
    (root,) = [line for line in said if line.startswith("    | ") and "<1>" in line]
    tokenizer = tiny_tokenizer()
    ids = [token for segment in group.generated(forks[0].root) for token in segment.token_ids.tolist()]
    first = min(fork.position for fork in forks)
    assert root.partition("<1>")[0] == "    | " + "".join(tokenizer.decode([it]) for it in ids[:first])
    assert sum("advantage" in line for line in said) == len(group.members)
    assert any("no reward" in line for line in said)


def test_hostile_text_stays_in_its_line() -> None:
    said = lines(make_group([1, 0], question="a\nb\x1b[2J\ud800"))
    assert said[1] == "  a\u21b5b\\x1b[2J\\ud800"
    assert all("\n" not in line for line in said)
