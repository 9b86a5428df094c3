"""Conversations as problems: each turn once, behind what was said before it, rendered as it stood there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import CHAT_TEMPLATE, tiny_tokenizer
from turnpoint.config.asking import JsonlTasks
from turnpoint.errors import DataError
from turnpoint.models.renderer import ChatRenderer
from turnpoint.tasks import Dataset, load_tasks
from turnpoint.tasks.solutions import read_solutions
from turnpoint.types import Message


def said(*turns: str) -> list[dict[str, str]]:
    """Returns messages by turns, the user first; one that begins with a bracket is the system's."""
    first = [{"role": "system", "content": turns[0][1:]}] if turns[0].startswith("[") else []
    rest = turns[len(first) :]
    return first + [
        {"role": "assistant" if index % 2 else "user", "content": text} for index, text in enumerate(rest)
    ]


def load(
    folder: Path, *rows: dict[str, Any], solution: str | None = None, limit: int | None = None
) -> Dataset:
    path = folder / "talks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = JsonlTasks(kind="jsonl", path=path, format="turns", limit=limit)
    return load_tasks(config, solution=solution)


LAST = "the last message of messages is not from the assistant"
ALONE = "a turn of the assistant in messages does not follow one of the user"
THREE = said("[Be brief.", "1 + 1?", "2", "And 2 + 2?", "4", "Sure?", "Yes.")


def test_each_turn_of_the_assistant_is_a_problem_behind_its_prefix(tmp_path: Path) -> None:
    found = load(tmp_path, {"messages": THREE, "teacher": "sums"}, {"messages": said("Hi", "Hello")})
    whole = [Message(**message) for message in THREE]
    assert [task.messages for task in found.tasks[:3]] == [tuple(whole[:end]) for end in (2, 4, 6)]
    assert [task.id for task in found.tasks] == ["0/0", "0/1", "0/2", "1/0"]
    assert {task.answer for task in found.tasks} == {""}
    assert [task.metadata["reply"] for task in found.tasks] == ["2", "4", "Yes.", "Hello"]
    assert found.tasks[2].metadata["teacher"] == "sums"
    assert "messages" not in found.tasks[0].metadata


def test_ids_are_the_conversations_own(tmp_path: Path) -> None:
    rows = [{"id": f"talk-{name}", "messages": said(name, "x", "y", "z")} for name in "ab"]
    assert [task.id for task in load(tmp_path, *rows).tasks] == [
        "talk-a/0",
        "talk-a/1",
        "talk-b/0",
        "talk-b/1",
    ]


def test_the_prompt_is_the_conversation_as_the_template_writes_it_up_to_there(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE.partition("{% if enable")[0] + "{% endif %}"
    renderer = ChatRenderer(tokenizer, stop_ids=frozenset({tokenizer.eos_token_id}))
    whole = tokenizer.apply_chat_template(THREE, return_dict=False)
    for task in load(tmp_path, {"messages": THREE}).tasks:
        prompt = renderer.prompt(task.messages).tolist()
        assert whole[: len(prompt)] == prompt
        reply = renderer.demonstrate(task.messages, str(task.metadata["reply"])).token_ids.tolist()
        assert whole[len(prompt) : len(prompt) + len(reply)] == reply, "it stood right behind"


def test_the_same_prefix_is_asked_once_and_imitated_as_often_as_it_was_answered(tmp_path: Path) -> None:
    rows = [{"messages": said("1 + 1?", answer, "Sure?", "Yes.")} for answer in ("2", "Two.")]
    found = load(tmp_path, *rows)
    assert [task.id for task in found.tasks] == ["0/0", "0/1", "1/1"]
    assert found.report.duplicates == 1
    solved, left_out = read_solutions(load(tmp_path, *rows, solution="reply"), "reply")
    assert [it.text for it in solved] == ["2", "Yes.", "Two.", "Yes."]
    assert not left_out


def test_a_limit_counts_turns(tmp_path: Path) -> None:
    assert len(load(tmp_path, {"messages": THREE}, limit=2).tasks) == 2


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": said("1 + 1?")}, LAST),
        (
            {"messages": said("1 + 1?", "2", "Sure?")},
            LAST,
        ),
        (
            {"messages": [{"role": "user", "content": "a"}] * 2},
            LAST,
        ),
        ({"messages": said("1 + 1?", "  ")}, "a message of messages is empty"),
        ({"messages": said("", "2")}, "a message of messages is empty"),
        ({"messages": THREE[2:]}, ALONE),
        ({"messages": [*THREE, THREE[-1]]}, ALONE),
        ({"messages": [*THREE[1:3], *THREE]}, "a system message of messages comes after another message"),
        ({"messages": [{"role": "tool", "content": "4"}]}, "a message of messages has a role other than"),
        ({"messages": "1 + 1? 2"}, "messages is a str, not a list of messages"),
        ({"messages": []}, "messages is empty"),
        ({"messages": None}, "no messages"),
        ({"prompt": "1 + 1?", "reply": "2"}, "no messages"),
        (
            {"messages": THREE, "prompt": "1 + 1?"},
            "the columns messages and prompt are both",
        ),
    ],
)
def test_a_conversation_that_cannot_be_cut_is_left_out_with_the_reason(
    tmp_path: Path, row: dict[str, Any], reason: str
) -> None:
    found = load(tmp_path, {"messages": THREE}, row)
    assert len(found.tasks) == 3
    (left_out,) = found.report.invalid
    assert left_out.reason.startswith(reason)
    assert left_out.first.startswith("line 2: ")
    with pytest.raises(DataError, match="none of 1 rows can be used"):
        load(tmp_path, row)
