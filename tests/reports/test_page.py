"""What a page carries: exact tokens, coarse floats, any text, and only what there is room for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from tests.records import branched_group
from tests.reports.pages import blobs, overview, sizes, tokens
from tests.reports.samples import make_group
from tests.tiny import byte_tokenizer, tiny_tokenizer
from turnpoint.credit import GroupAdvantage
from turnpoint.errors import RunFolderError
from turnpoint.reports.page.blobs import NO_VALUE, decode, encode, largest
from turnpoint.reports.page.build import Built, PageBuilder
from turnpoint.reports.page.parts import token_parts
from turnpoint.reports.page.room import Room
from turnpoint.reports.page.vocabulary import Vocabulary, token_texts
from turnpoint.types import BranchOrigin, Group, token_array

HEAD: dict[str, Any] = {"name": "x", "facts": [], "findings": [], "evaluations": [], "curves": None}
NASTY = (
    "</script><script>alert(1)</script><!-- \ud800 \x00 \u202e \u05d0\u05d1 \u2028 \x1b[31m &amp; \U0001f600"
)


def build(out: Path, *groups: Group, room: int = 10**7) -> Built:
    builder = PageBuilder(GroupAdvantage(), room=room)
    for group in groups:
        builder.add(group, step=int(group.id.partition("/")[0]))
    return builder.write(out / "page.html", HEAD, tokenizer=tiny_tokenizer())


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40))
def test_codes_keep_signs_zeros_and_magnitudes(values: list[float]) -> None:
    exact = np.array(values)
    scale = largest(exact)
    shown = decode(encode(exact, scale), scale)
    assert np.abs(shown - exact).max() <= 0.01 * scale  # half a step at the coarse end: (1 - (126.5/127)^2)
    assert (shown * exact >= 0).all()
    near = np.abs(exact) <= 0.01 * scale
    assert np.abs(shown - exact)[near].max(initial=0.0) <= 0.001 * scale


def test_what_is_no_number_has_a_code_of_its_own() -> None:
    odd = np.array([np.nan, np.inf, -np.inf, 0.0])
    assert encode(odd, largest(odd)).tolist() == [NO_VALUE] * 3 + [127]
    assert np.isnan(decode(encode(odd, 0.0), 0.0)).tolist() == [True, True, True, False]


def test_numbers_follow_the_first_coming() -> None:
    vocabulary = Vocabulary()
    assert vocabulary.numbers(token_array([9, 4, 9, 200_000])).tolist() == [0, 1, 0, 2]
    assert vocabulary.numbers(token_array([4, 5])).tolist() == [1, 3]
    assert vocabulary.record(None) == {"ids": [9, 4, 200_000, 5], "texts": None, "parts": {}}


def test_texts_of_tokens_join_to_the_text() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("a b\n<|end|>", add_special_tokens=False)
    assert token_texts(tokenizer, ids) == ["a", " ", "b", "\n", "<|end|>"]


def test_parts_of_characters_keep_their_bytes() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("a \u4e03\ufffd", add_special_tokens=False)
    texts = token_texts(tokenizer, ids)
    assert texts == ["a", " \ufffd", *["\ufffd"] * 5]
    assert [token_parts(tokenizer, ids, texts).get(place) for place in range(len(ids))] == [
        *(None, "20e4", "b8", "83"),
        *("ef", "bf", "bd"),
    ]


def test_parts_that_a_fallback_to_bytes_writes() -> None:
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate([*pieces, "a", "\ufffd"])}, []))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])  # type: ignore[assignment]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
    assert token_parts(fast, [0xE4, 256, 257, 65], ["\ufffd", "a", "\ufffd", "A"]) == {0: "e4"}


def test_a_group_comes_back_token_for_token(tmp_path: Path) -> None:
    group = branched_group()
    build(tmp_path, group)
    prompt, members = tokens(tmp_path / "page.html", 0)
    assert prompt == group.tree.segments[0].token_ids.tolist()
    credits = {credit.segment: credit for credit in GroupAdvantage().credit(group)}
    for index, (member, found) in enumerate(zip(group.members, members, strict=True)):
        whole = group.tree.path_ids(member.leaf).tolist()
        assert found["ids"] == whole[len(whole) - len(found["ids"]) :]
        own = list(group.generated(index))
        expected = np.concatenate([-(it.logprobs if it.logprobs is not None else 0) for it in own])
        shown = found["surprisal"][~np.isnan(found["surprisal"])]
        assert np.abs(shown - expected).max() <= 0.01 * expected.max()
        deserved = credits[own[0].id].advantages
        assert deserved is not None
        assert found["advantage"][0] == pytest.approx(float(deserved[0]), abs=0.02)
    told = json.loads(blobs(tmp_path / "page.html")["texts-0"])["members"]
    origins = [it.origin for it in group.members]
    assert [it["origin"] and it["origin"][:2] for it in told] == [
        [it.root, it.position] if isinstance(it, BranchOrigin) else None for it in origins
    ]


def test_any_text_survives_and_breaks_nothing(tmp_path: Path) -> None:
    build(tmp_path, make_group([1, 0], texts=[NASTY, ""], question=NASTY, name=NASTY))
    page = (tmp_path / "page.html").read_bytes()
    assert b"alert(1)" not in page
    assert page.count(b"</script>") == 3 + 1  # overview, texts, tokens, and the page's own
    told = json.loads(blobs(tmp_path / "page.html")["texts-0"])
    assert told["members"][0]["text"] == NASTY
    assert told["messages"] == [["user", NASTY]]


def test_the_page_asks_the_network_for_nothing(tmp_path: Path) -> None:
    build(tmp_path, make_group([1, 0]))
    page = (tmp_path / "page.html").read_text(encoding="ascii")
    addresses = set(re.findall(r"https?://[^\s\"'`]+", page)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    assert "default-src 'none'" in page
    assert "innerHTML" not in page


def test_rows_say_what_the_table_shows(tmp_path: Path) -> None:
    build(tmp_path, make_group([1, 0, "broken"]))
    (row,) = overview(tmp_path / "page.html")["groups"]
    assert (row["mean"], row["spread"], row["rewards"], row["forks"]) == (0.5, 0.5, [1.0, 0.0, None], 0)


def test_a_long_text_is_cut_in_its_middle_and_says_so(tmp_path: Path) -> None:
    build(tmp_path, make_group([1, 0], texts=["a" * 6000 + "b" * 5000 + "c" * 2000, ""]))
    text = json.loads(blobs(tmp_path / "page.html")["texts-0"])["members"][0]["text"]
    assert text == "a" * 6000 + " [... 5,000 characters left out ...] " + "c" * 2000


def test_a_full_room_lets_the_flattest_of_the_fullest_step_go() -> None:
    room = Room(100)
    for row, (step, spread) in enumerate([(1, 0.1), (1, 0.5), (1, 0.3), (2, 0.0), (2, 0.2)]):
        room.put(step=step, spread=spread, row=row, texts="x" * 5, tokens="y" * 35)
    assert [row for row, _ in room.kept("tokens")] == [1, 4]  # one of each step: the largest spread
    assert [row for row, _ in room.kept("texts")] == [0, 1, 2, 3, 4]
    assert room.size == 95
    tight = Room(10)
    for row in range(4):
        tight.put(step=row, spread=0.0, row=row, texts="x" * 4, tokens="y" * 9)
    assert list(tight.kept("tokens")) == []
    assert len(list(tight.kept("texts"))) == 2


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    pairs = [([1, 0], "1/0"), ([0, 0], "1/1"), ([1, 1, 0], "2/0"), ([1, 1], "2/1")]
    groups = [make_group(rewards, lengths=[3000] * len(rewards)) for rewards, _ in pairs]
    named = [
        Group(id=name, task=group.task, tree=group.tree, members=group.members)
        for group, (_, name) in zip(groups, pairs, strict=True)
    ]
    whole = build(tmp_path, *named)
    assert whole.notes == ()
    held = sizes(tmp_path / "page.html")
    room = sum(held.values()) - held["overview"] - held["tokens-0"] // 2
    cut = build(tmp_path, *named, room=room)
    kept = [name for name in blobs(tmp_path / "page.html") if name.startswith("tokens")]
    assert len(kept) == 3
    assert "tokens-0" in kept
    assert f"the tokens of {len(kept)} of 4 groups" in cut.notes[0]
    assert overview(tmp_path / "page.html")["notes"] == list(cut.notes)
    assert len(overview(tmp_path / "page.html")["groups"]) == 4


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"page\.html: cannot write the page"):
        build(tmp_path / "missing", make_group([1, 0]))
