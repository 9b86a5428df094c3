"""Groups on disk: the same records come back, and what a crash leaves is known for what it is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.disk import file_size_limit
from tests.records import TASK, branched_group, flat_group
from turnpoint.errors import RunFolderError
from turnpoint.rollout import RolloutWriter, read_groups
from turnpoint.rollout.group_json import decode, encode
from turnpoint.rollout.recorder import step_of_group
from turnpoint.types import (
    Account,
    Author,
    BranchOrigin,
    FinishReason,
    Group,
    Member,
    Message,
    Task,
    TreeBuilder,
    Verdict,
)

SOLVED = flat_group([Verdict.scored(1.0), Verdict.scored(0.0)])


def write(path: Path, *groups: Group) -> None:
    with RolloutWriter(path) as writer:
        for group in groups:
            writer.write(group)


def with_text(text: str) -> Group:
    member = dataclasses.replace(SOLVED.members[0], text=text)
    return dataclasses.replace(SOLVED, members=(member, SOLVED.members[1]))


def changed(old: bytes, new: bytes, group: Group = SOLVED) -> bytes:
    line = encode(group)
    assert old in line
    return line.replace(old, new, 1).strip()


def branched(old: bytes, new: bytes) -> bytes:
    return changed(old, new, branched_group())


def test_groups_come_back_equal(tmp_path: Path) -> None:
    groups = [SOLVED, branched_group(), SOLVED]
    write(tmp_path / "rollouts.jsonl", *groups)
    assert list(read_groups(tmp_path / "rollouts.jsonl")) == groups


def test_nothing_of_a_group_is_lost() -> None:
    # guards the guard: equality must see a change in any field that the line carries
    record = json.loads(encode(branched_group()))
    assert list(record) == ["format", "id", "task", "members", "account", "segments"]
    names = {field.name for field in dataclasses.fields(Member)} - {"verdict"}
    names |= {field.name for field in dataclasses.fields(Verdict)}
    assert set(record["members"][0]) == names
    assert set(record["segments"][0]) == {
        f.name for f in dataclasses.fields(branched_group().tree.segments[0])
    }
    assert set(record["task"]) == {field.name for field in dataclasses.fields(Task)}
    assert record["members"][2]["origin"] == {
        "root": 0,
        "position": 1,
        "rule": "hindsight",
        "score": float("inf"),
    }


def test_logprobs_come_back_bit_for_bit(tmp_path: Path) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 5000, dtype=np.uint32)  # NaN payloads included
    logprobs = bits.view(np.float32)
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=[1])
    leaf = tree.append(
        parent=prompt,
        author=Author.POLICY,
        token_ids=np.arange(5000),
        logprobs=logprobs,
        policy_version=2**40,
    )
    member = dataclasses.replace(SOLVED.members[0], leaf=leaf, segments=(leaf,))
    write(tmp_path / "r", Group(id="0/0", task=TASK, tree=tree.freeze(), members=(member,)))
    (back,) = read_groups(tmp_path / "r")
    got = back.tree.segments[leaf].logprobs
    assert got is not None
    assert np.array_equal(got.view(np.uint32), bits)
    assert back.tree.segments[leaf].policy_version == 2**40


text = st.text(
    st.one_of(st.characters(), st.characters(categories=["Cs"], max_codepoint=0xDBFF)), max_size=20
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
finite = st.floats(allow_nan=False, allow_infinity=False)


@given(
    texts=st.lists(text, min_size=8, max_size=8),
    metadata=st.dictionaries(text, json_values, max_size=3),
    reward=st.none() | finite,
    numbers=st.dictionaries(text, st.floats(allow_nan=False), max_size=2),
    role=st.sampled_from(["system", "user", "assistant"]),
    position=st.integers(0, 1),
    score=st.floats(allow_nan=False),
)
def test_any_text_and_number_comes_back(
    texts: list[str],
    metadata: Any,
    reward: float | None,
    numbers: dict[str, float],
    role: str,
    position: int,
    score: float,
) -> None:
    task = Task(
        id=texts[0],
        messages=(Message(role=role, content=texts[2]),),
        answer=texts[3],
        metadata=metadata,
    )
    verdict = Verdict(
        reward=reward,
        valid=reward is not None,
        reason=texts[4] or "unknown",
        feedback=texts[5],
        parts=numbers,
    )
    second = dataclasses.replace(
        SOLVED.members[1],
        text=texts[6],
        verdict=verdict,
        origin=BranchOrigin(root=0, position=position, rule=texts[7], score=score),
    )
    members = (SOLVED.members[0], second)
    group = dataclasses.replace(SOLVED, task=task, members=members, account=Account(seconds=numbers))
    line = encode(group)
    assert line.count(b"\n") == 1
    assert decode(json.loads(line)) == group


@pytest.mark.parametrize(
    "odd",
    ["\ud83d", "\udc80 tail", "a\0b", "\x85\u2028\u2029\x0b\x0c\x1c", "\U0001f600\u202e", "x" * 1_000_000],
)
def test_odd_text_survives_the_file(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "rollouts.jsonl"
    write(path, with_text(odd), SOLVED)
    assert list(read_groups(path)) == [with_text(odd), SOLVED]
    lines = path.read_text(encoding="utf-8").split("\n")  # valid UTF-8, one line per group
    assert [json.loads(line)["members"][0]["text"] for line in lines[:-1]] == [odd, "7"]


def test_people_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    write(path, with_text("die Lösung ist 七"), branched_group())
    first, second = path.read_text(encoding="utf-8").splitlines()
    assert '"reward":1.0,"finish":"stop","text":"die Lösung ist 七"' in first
    assert '"token_ids":[5,6]' in first
    assert '"reward":null,"finish":"length","text":"","valid":false,"reason":"verifier timed out' in second


def test_appends_to_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    write(path, SOLVED)
    write(path, branched_group())
    assert list(read_groups(path)) == [SOLVED, branched_group()]


def test_a_group_is_in_the_file_before_write_returns(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    with RolloutWriter(path) as writer:
        assert list(read_groups(path)) == []
        writer.write(SOLVED)
        assert list(read_groups(path)) == [SOLVED]
        writer.write(branched_group())
        assert list(read_groups(path)) == [SOLVED, branched_group()]
    writer.close()


@pytest.mark.parametrize("keep", [1, 100, -2, -1])
def test_a_torn_last_line_is_skipped_and_said(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(encode(SOLVED) + encode(branched_group())[:keep])
    with pytest.warns(UserWarning, match="line 2, the last, is torn; skipped"):
        assert list(read_groups(path)) == [SOLVED]


@pytest.mark.parametrize("rest", [b"\0" * 100, encode(SOLVED)[:50] + b"\0" * 50])
def test_what_a_power_failure_leaves_is_torn(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(encode(SOLVED) + rest)
    with pytest.warns(UserWarning, match="line 2, the last, is torn; skipped"):
        assert list(read_groups(path)) == [SOLVED]


@pytest.mark.parametrize("rest", [b"\x89PNG", b"oops", b"[1, 2"])
def test_garbage_without_an_end_is_not_called_torn(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(encode(SOLVED) + rest)
    with pytest.raises(RunFolderError, match=r"rollouts\.jsonl, line 2 is no recorded group: not JSON"):
        list(read_groups(path))


@pytest.mark.parametrize("torn", [b"{", encode(with_text("x" * 200_000))[:-1]])
@pytest.mark.parametrize("before", [[], [SOLVED]])
def test_writer_removes_a_torn_line_and_says_so(tmp_path: Path, torn: bytes, before: list[Group]) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b"".join(map(encode, before)) + torn)
    with pytest.warns(UserWarning, match=f"torn; removed {len(torn)} bytes"):
        write(path, branched_group())
    assert list(read_groups(path)) == [*before, branched_group()]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"format":1,"id":"0/', "not JSON: Invalid control character at character 21"),
        (b"\xff\xfe", "not JSON: 'utf-8' codec can't decode byte 0xff in position 0"),
        (b"", "not JSON"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"[]", ". = []: should be an object"),
        (b'"text"', '. = "text": should be'),
        (b"{}", ".format is missing"),
        (b'{"format":2}', ".format = 2: this version of turnpoint reads 1"),
        (
            changed(b'"finish":"stop"', b'"finish":"bored"'),
            ".members[0].finish = \"bored\": should be 'stop'",
        ),
        (changed(b'"leaf"', b'"leave"'), ".members[0].leaf is missing"),
        (changed(b'"segments":[2]', b'"segments":[1]'), "exactly one owner"),
        (changed(b'"segments":[2]', b'"segments":[1,2]'), "exactly one owner"),
        (
            changed(b'"leaf":1', b'"leaf":2'),
            ".members[0].segments = [1]: not all on the path to its leaf 2",
        ),
        (changed(b'"logprobs":"', b'"logprobs":"!'), '.segments[1].logprobs = "!'),
        (changed(b'"metadata":{}', b'"metadata":0'), ".task.metadata = 0: should be an object"),
        (changed(b'"reward":1.0', b'"reward":NaN'), ".members[0].reward = NaN: should be a finite number"),
        (changed(b'"reward":1.0', b'"reward":1' + b"0" * 400), ".members[0].reward = 1000000"),
        (changed(b'"reward":1.0', b'"reward":null'), ".members[0]: a valid verdict needs a reward"),
        (changed(b'"valid":true', b'"valid":null'), ".members[0].valid = null: should be a valid boolean"),
        (changed(b'"parts":{}', b'"parts":[]'), ".members[0].parts = []: should be an object"),
        (changed(b'"token_ids":[0,1]', b'"token_ids":[0,-1]'), ".segments[1].token_ids[1] = -1: should be"),
        (
            changed(b'"token_ids":[0,1]', b'"token_ids":[0,2147483648]'),
            "token_ids[1] = 2147483648: should be",
        ),
        (changed(b'"parent":0', b'"parent":7'), "segment 1: parent 7 does not come before it"),
        (changed(b'"role":"user"', b'"role":"robot"'), '.task.messages[0].role = "robot": should be'),
        (
            changed(b'"messages":[', b'"messages":[],"was":['),
            ".task.messages = []: List should have at least 1",
        ),
        (
            branched(b'"position":1', b'"position":5'),
            ".members[2].origin.position = 5: beyond the 5 tokens",
        ),
        (branched(b'"score":Infinity', b'"score":"high"'), '.members[2].origin.score = "high": should be'),
    ],
)
def test_a_broken_line_in_the_middle_is_an_error_with_its_number(
    tmp_path: Path, line: bytes, what: str
) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(encode(SOLVED) + line + b"\n" + encode(SOLVED))
    groups = read_groups(path)
    assert next(groups) == SOLVED
    with pytest.raises(RunFolderError, match="line 2 is no recorded group") as caught:
        next(groups)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="cannot read rollouts: No such file"):
        list(read_groups(tmp_path / "none.jsonl"))
    with pytest.raises(RunFolderError, match="cannot write rollouts: No such file"):
        RolloutWriter(tmp_path / "none" / "rollouts.jsonl")
    with pytest.raises(RunFolderError, match="cannot write rollouts: Is a directory"):
        RolloutWriter(tmp_path)


def test_a_full_disk_loses_nothing_already_written(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    with RolloutWriter(path) as writer:
        writer.write(SOLVED)
        with (
            file_size_limit(path.stat().st_size + 100),
            pytest.raises(RunFolderError, match=r"rollouts\.jsonl: cannot write rollouts: File too large"),
        ):
            writer.write(branched_group())
        assert list(read_groups(path)) == [SOLVED]  # no torn line either
        writer.write(branched_group())
    assert list(read_groups(path)) == [SOLVED, branched_group()]


def test_metadata_that_is_no_json_is_refused_before_the_file_is_touched(tmp_path: Path) -> None:
    odd = dataclasses.replace(TASK)
    object.__setattr__(odd, "metadata", {"when": [{1, 2}]})  # past the type checker
    path = tmp_path / "rollouts.jsonl"
    with pytest.raises(TypeError, match="set cannot be recorded as JSON"):
        write(path, SOLVED, dataclasses.replace(SOLVED, task=odd))
    assert list(read_groups(path)) == [SOLVED]


def test_tuples_and_mappings_in_metadata_become_json(tmp_path: Path) -> None:
    task = dataclasses.replace(TASK, metadata={"range": range(3), "level": (1, 2)})
    write(tmp_path / "r", dataclasses.replace(SOLVED, task=task))
    (back,) = read_groups(tmp_path / "r")
    assert back.task.metadata == {"range": [0, 1, 2], "level": [1, 2]}


def test_finish_reasons_stay_themselves(tmp_path: Path) -> None:
    write(tmp_path / "r", branched_group())
    (back,) = read_groups(tmp_path / "r")
    assert [member.finish for member in back.members].count(FinishReason.LENGTH) == 1


@pytest.mark.parametrize("step", [0, 7, 120])
def test_the_step_of_a_line_is_that_of_its_group(step: int) -> None:
    assert step_of_group(encode(dataclasses.replace(SOLVED, id=f"{step}/31"))) == step


@pytest.mark.parametrize("line", [b"", b"{}", b'{"format":1,"id":"a/0"}', b'{"step": 3}', b"\xff\0"])
def test_a_line_that_is_no_group_has_no_step(line: bytes) -> None:
    with pytest.raises(ValueError, match="no recorded group"):
        step_of_group(line)
