"""The page of a real run in a real browser: pointer, keys, address, no request, no complaint."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turnpoint as tp
from tests.browser.chromium import BROWSER, DRIVER, MISSING, Browser, chromium
from tests.browser.synthetic import write_run
from tests.recipe import write_tiny_recipe
from tests.reports.samples import make_group
from tests.tiny import byte_tokenizer, save_tiny_model, tiny_tokenizer
from turnpoint.commands.report import report
from turnpoint.credit import GroupAdvantage
from turnpoint.reports.page.build import PageBuilder
from turnpoint.reports.page.vocabulary import token_texts
from turnpoint.reports.teacher_words import Said
from turnpoint.reports.text import NEWLINE, visible
from turnpoint.rollout import read_groups
from turnpoint.types import Author, TreeBuilder

pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason=MISSING)

NOTHING: dict[str, Any] = {"name": "x", "facts": [], "findings": [], "evaluations": [], "curves": None}
FORKS = [
    "rollout.samples_per_prompt=8",
    "rollout.branching={roots: 2, continuations: [2, 1], min_gap: 2}",
    "rollout.branching.rule.source={kind: reflection, max_tokens: 8, gate: null}",
    "sampling.max_new_tokens=24",
    "evaluation={tasks: 4, samples: 1}",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Generator[Browser]:
    with chromium(tmp_path_factory.mktemp("browser") / "profile") as one:
        one.resize(1600, 1000)
        yield one


@pytest.fixture(scope="module")
def recipe_with_room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forks")
    model = save_tiny_model(folder / "tiny")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return write_tiny_recipe(folder / "recipe.yaml", model=model)


@pytest.fixture(scope="module")
def page(recipe_with_room: Path) -> Path:
    return report(tp.train(tp.load_recipe(recipe_with_room, FORKS)).folder)


def count(browser: Browser, selector: str) -> int:
    return browser.run("return document.querySelectorAll(arguments[0]).length", selector)


def text(browser: Browser, selector: str) -> str:
    return browser.run("return document.querySelector(arguments[0]).textContent", selector)


def shown(browser: Browser) -> str:
    """The id of the open group, as soon as the page shows what the address names."""
    title = "document.querySelector('#group h2')?.firstChild.textContent"
    named = "new URLSearchParams(location.hash.slice(1)).get('group')"
    browser.until(f"return {title} === `group ${{{named}}}` && document.querySelectorAll('#group .t').length")
    return browser.run(f"return {named}")


def quiet(browser: Browser, page: Path) -> bool:
    """Whether nothing but the page itself was asked for, and the console is empty."""
    asked = {url.partition("#")[0] for url in browser.requests()}
    assert asked <= {page.resolve().as_uri()}, asked
    assert browser.complaints() == []
    return True


def test_a_click_opens_the_tree(browser: Browser, page: Path) -> None:
    browser.open(page)
    rows = count(browser, "#rows tr[data-row]")
    assert rows == 4
    browser.click("#rows tr[data-row]:nth-child(3)")
    row = text(browser, "#rows tr[aria-selected=true] td.id")
    browser.until(
        "return document.querySelector('#group h2')?.textContent.startsWith(arguments[0])", f"group {row}"
    )
    assert count(browser, "#group .rollout") == 8
    assert count(browser, "#group > .rollout") >= 2
    assert count(browser, "#group > .rollout .fork .rollout.branch") == 8 - count(
        browser, "#group > .rollout"
    )
    assert "fork 1" in text(browser, "#group .mark")
    assert "forks by" in text(browser, "#group .insight")
    assert count(browser, "#curves .chart") > 6
    assert count(browser, "#curves .chart[data-name='seconds/score']") == 1
    assert quiet(browser, page)


def test_a_fork_stands_where_it_is(browser: Browser, page: Path) -> None:
    browser.open(page)
    shown(browser)
    lengths, places = browser.run("""
        const trunk = document.querySelector("#group > .rollout:has(.fork) > .trunk");
        const kept = [...trunk.children], lengths = [];
        let before = 0;
        for (const child of kept) {
          if (child.classList.contains("fork")) lengths.push(before);
          else before += child.querySelectorAll(".t").length;
        }
        const marks = [...trunk.querySelectorAll(":scope > .fork > .mark .quiet")];
        return [lengths, marks.map((mark) => Number(/at token (\\d+)/.exec(mark.textContent)[1]) - 1)];
    """)
    assert lengths == places


def test_tokens_and_figures_are_those_of_the_run(browser: Browser, page: Path) -> None:
    browser.open(page, "#step=2&group=2/1")
    shown(browser)
    (group,) = [it for it in read_groups(page.parent / "rollouts.jsonl") if it.id == "2/1"]
    owned = [next(group.generated(index)) for index in range(len(group.members))]
    for index, own in enumerate(owned):
        mine = f"#member-{index} > .trunk > .tokens .t"
        texts = token_texts(tiny_tokenizer(), own.token_ids.tolist())
        script = "return [...document.querySelectorAll(arguments[0])].map((it) => it.textContent)"
        assert browser.run(script, mine) == [visible(text).replace(NEWLINE, f"{NEWLINE}\n") for text in texts]
    browser.point_at("#member-0 .t")
    told = re.search("logprob(-?[0-9.]+)", text(browser, "#inspector"))
    assert told is not None
    assert owned[0].logprobs is not None
    assert float(told[1]) == pytest.approx(float(owned[0].logprobs[0]), rel=0.03, abs=0.01)


def test_shades_and_the_token_under_the_pointer(browser: Browser, page: Path) -> None:
    browser.open(page)
    shown(browser)
    depth = "it.style.getPropertyValue('--a')"
    shades = f"return [...document.querySelectorAll('#group .t')].map((it) => {depth}).join()"
    looks = {browser.run(shades)}
    for name in ("entropy", "surprisal", "advantage", "none"):
        browser.click(f"[data-shade={name}]")
        assert f"shade={name}" in browser.run("return location.hash")
        looks.add(browser.run(shades))
    assert len(looks) == 5
    browser.point_at("#group .t")
    told = browser.until("return document.getElementById('inspector').textContent")
    assert all(word in told for word in ("logprob", "hindsight", "advantage", "root 1, token 1"))


def test_an_address_restores_the_view(browser: Browser, page: Path) -> None:
    browser.open(page, "#step=1&group=1/2&shade=entropy&x=tokens&sort=id")
    assert shown(browser) == "1/2"
    assert text(browser, "#legend button[aria-pressed=true]") == "entropy"
    assert text(browser, "#curves [aria-pressed=true]") == "generated tokens"
    ids = browser.run("return [...document.querySelectorAll('#rows td.id')].map((it) => it.textContent)")
    assert ids == ["1/0", "1/1", "1/2", "1/3"]
    browser.press("j")
    assert shown(browser) == "1/3"
    browser.run("history.back()")
    browser.until("return location.hash.includes('1/2')")
    assert shown(browser) == "1/2"


def test_keys_reach_everything(browser: Browser, page: Path) -> None:
    browser.open(page, "#step=1&sort=id")
    for key, expected in (("j", "1/0"), ("j", "1/1"), ("k", "1/0")):
        browser.press(key)
        assert shown(browser) == expected
    browser.press("s")
    assert text(browser, "#legend button[aria-pressed=true]") == "entropy"
    browser.press("Right", "Right")
    assert "token 2" in text(browser, "#inspector")
    browser.press("n")
    browser.until("return document.querySelector('#rows td.id').textContent === '2/0'")
    browser.press("/")
    browser.press("2", "+")
    assert "q=2" in browser.run("return location.hash")
    browser.press("Escape", "?")
    browser.until("return document.getElementById('help').open")
    browser.press("Escape")
    browser.until("return !document.getElementById('help').open")
    browser.press("f")
    assert quiet(browser, page)


def test_the_filter_finds_what_was_said(browser: Browser, tmp_path: Path) -> None:
    said = {"1/0": "a Needle here", "1/1": "hay", "2/0": "hay", "2/1": "needle <hay>", "2/2": "stack"}
    builder = PageBuilder(GroupAdvantage())
    for name, words in said.items():
        group = make_group([1, 0], texts=[words, ""], question=f"question {name}")
        builder.add(dataclasses.replace(group, id=name), step=int(name[0]))
    page = tmp_path / "search.html"
    builder.write(page, NOTHING, tokenizer=None)
    browser.open(page, "#step=2&group=2/0")
    assert search(browser, "needle") == ["2/1"]
    told = "1 group of this step matches, 1 group of other steps."
    assert text(browser, "#matches").startswith(told)
    assert search(browser, "needle question") == ["2/1"]  # words of both
    assert search(browser, "stack") == ["2/2"]
    assert text(browser, "#matches") == "1 group of this step matches."
    assert search(browser, "nothing of it") == []
    assert text(browser, "#matches") == "0 groups of this step match."
    assert search(browser, "needle") == ["2/1"]
    browser.click("#matches button")
    browser.until("return document.querySelector('#rows td.id')?.textContent === '1/0'")
    browser.open(page, "#step=2&q=needle")
    browser.until(
        "return document.getElementById('matches')?.textContent.includes('1 group of other steps.')"
    )
    assert ids(browser) == ["2/1"]
    assert search(browser, "") == ["2/0", "2/1", "2/2"]
    assert quiet(browser, page)


def ids(browser: Browser) -> list[str]:
    return browser.run("return [...document.querySelectorAll('#rows td.id')].map((it) => it.textContent)")


def search(browser: Browser, words: str) -> list[str]:
    """Types `words` into the filter; returns what is shown when the search has ended."""
    browser.run(
        "const it = document.getElementById('search'); it.value = arguments[0];"
        "it.dispatchEvent(new Event('input'))",
        words,
    )
    browser.until(
        "return !arguments[0] || !document.getElementById('matches').textContent.includes('to search')", words
    )
    return ids(browser)


def test_tokens_of_one_character_are_one_span(browser: Browser, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    written = "a \u4e03 \U0001f600b"
    token_ids = tokenizer.encode(written, add_special_tokens=False)
    logprobs = [-0.1] * len(token_ids)
    logprobs[2] = -5.0
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=token_ids)
    broken = tokenizer.encode("\u4e03", add_special_tokens=False)[:2]
    leaf = tree.append(
        parent=prompt,
        author=Author.POLICY,
        token_ids=[*token_ids, *broken],
        logprobs=[*logprobs, -0.1, -0.1],
        policy_version=0,
    )
    group = make_group([1])
    member = dataclasses.replace(group.members[0], leaf=leaf, segments=(leaf,))
    builder = PageBuilder(GroupAdvantage())
    builder.add(dataclasses.replace(group, tree=tree.freeze(), members=(member,)), step=0)
    page = tmp_path / "characters.html"
    builder.write(page, NOTHING, tokenizer=tokenizer)
    browser.open(page, "#shade=surprisal")
    browser.until("return document.querySelectorAll('#group .t').length")
    spans = "[...document.querySelectorAll('#group .t')]"
    shown = browser.run(f"return {spans}.map((it) => it.textContent)")
    assert shown == ["a", " \u4e03", " ", "\U0001f600", "b", "\ufffd", "\ufffd"]
    shades = browser.run(f"return {spans}.map((it) => Number(it.style.getPropertyValue('--a')))")
    assert shades[1] == max(shades) == pytest.approx(0.75, abs=0.01)  # of its likeliest surprise
    assert sum(shade > 0.1 for shade in shades) == 1
    assert browser.run(f"return {spans}[1].title").startswith("3 tokens: id ")
    browser.point_at("#group .t:nth-child(2)")
    told = text(browser, "#inspector")
    assert all(word in told for word in ("3 tokens", "\\x20\\xe4", "\\xb8", "\\x83", "token 4", "logprob-5"))
    browser.click("#group details summary")
    assert text(browser, "#group details pre") == written
    assert quiet(browser, page)


def test_what_a_teacher_likes_is_green_and_what_it_does_not_is_red(browser: Browser, tmp_path: Path) -> None:
    group, page = make_group([1, 0], lengths=[3, 2]), tmp_path / "teacher.html"
    likes = {group.members[0].leaf: np.array([-0.5, -0.25, -4.5], np.float32)}  # sampled at -0.5 each
    for said in (Said(teacher="<big>", logprobs=likes), None):
        builder = PageBuilder(GroupAdvantage())
        builder.add(group, step=0, said=said)
        builder.write(page, NOTHING, tokenizer=None)
        browser.open(page, "#shade=teacher")
        browser.until("return document.querySelectorAll('#group .t').length")
        assert count(browser, "[data-shade=teacher]") == (said is not None)
        if said is None:
            assert "teacher" not in text(browser, "#group")
            continue
        tokens = "[...document.querySelectorAll('#group .t')]"
        colours = browser.run(f"return {tokens}.map((it) => getComputedStyle(it).backgroundColor)")
        none = "rgba(0, 0, 0, 0)"
        assert (colours[0], colours[3:]) == (none, [none, none])
        red, green, blue = (int(it) for it in re.findall(r"\d+", colours[1])[:3])
        assert green > max(red, blue)
        red, green, blue = (int(it) for it in re.findall(r"\d+", colours[2])[:3])
        assert red > max(green, blue)
        assert "likelier to teacher <big> than to the policy" in text(browser, "#legend")
        assert "teacher -1.25" in text(browser, "#member-0 header")
        browser.point_at("#group .t:nth-child(3)")
        assert "teacher-4" in text(browser, "#inspector")
        browser.click("[data-shade=surprisal]")
        assert "likelier" not in text(browser, "#legend")
    assert quiet(browser, page)


def test_any_text_is_only_text(browser: Browser, tmp_path: Path) -> None:
    nasty = "</script><img src=x onerror=document.body.dataset.broken=1>\ud800\x00\u202e\u05d0\x1b[31m"
    builder = PageBuilder(GroupAdvantage())
    builder.add(make_group([1, 0], texts=[nasty, nasty], question=nasty, name=nasty), step=0)
    head = {"name": nasty, "facts": [["model", [nasty]]], "evaluations": [], "curves": None}
    finding = {"text": nasty, "warning": True, "step": None, "times": 1}
    page = tmp_path / "nasty.html"
    builder.write(page, {**head, "findings": [finding]}, tokenizer=None, notes=[nasty])
    browser.open(page)
    browser.until("return document.querySelectorAll('#group .rollout').length")
    assert count(browser, "img") == 0
    assert browser.run("return document.body.dataset.broken ?? null") is None
    assert "\\ud800\\x00\\u202e\u05d0\\x1b[31m" in text(browser, "#group .problem pre")
    assert quiet(browser, page)


@pytest.mark.parametrize("width", [1000, 1600])
def test_nothing_is_wider_than_the_window(browser: Browser, page: Path, width: int) -> None:
    browser.resize(width, 1000)
    browser.open(page)
    shown(browser)
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    browser.resize(1600, 1000)


@pytest.mark.slow
def test_ten_thousand_rollouts_open_at_once(browser: Browser, recipe: Path) -> None:
    run = write_run(recipe, name="big", steps=25, groups=50, members=8, length=100)
    page = report(run)
    assert page.stat().st_size < 40e6
    started = time.monotonic()
    browser.open(page)
    shown(browser)
    print(f"{page.stat().st_size / 1e6:.1f} MB drawn in {time.monotonic() - started:.2f} s")  # pytest -s
    started = time.monotonic()
    expected = [
        it.id
        for it in read_groups(run / "rollouts.jsonl")
        if any("word123" in member.text for member in it.members)
    ]
    found = search(browser, "word123")
    here = [name for name in expected if name.startswith("25/")]
    assert sorted(found) == sorted(here)
    assert f"{len(expected) - len(here)} groups of other steps." in text(browser, "#matches")
    print(f"searched in {time.monotonic() - started:.2f} s")
    assert count(browser, "#group .rollout") == 8
    assert quiet(browser, page)
