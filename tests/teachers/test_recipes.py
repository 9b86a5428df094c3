"""What a recipe may say about several teachers, and what it is told otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from turnpoint.config import DistillConfig, parse_recipe
from turnpoint.errors import RecipeError

A: dict[str, Any] = {"path": "x"}
EVEN = {"a": 0.5, "b": 0.5}


def mixture(of: Any = EVEN, **keys: Any) -> dict[str, Any]:
    return {"kind": "mixture", "of": of, "mean": "geometric", **keys}


def parsed(teachers: dict[Any, Any], *, aggregation: str = "token", **keys: Any) -> DistillConfig:
    tree: dict[str, Any] = {"teachers": teachers, **keys}
    tasks = {"kind": "jsonl", "path": "x"}
    found = parse_recipe({"tasks": tasks, "distill": tree, "loss": {"aggregation": aggregation}}).distill
    assert found is not None
    return found


def test_which_teachers_a_problem_can_have() -> None:
    both = {"a": A, "b": A, "m": mixture()}
    assert parsed(both).chosen == ("m",)
    assert parsed(both, key="k").chosen == ("a", "b", "m")
    shared = {"a": {**A, "share": 0.25}, "b": A, "m": mixture(share=0.75)}
    assert parsed(shared, key="k").chosen == ("a", "m"), "a part without a share is none that problems name"
    assert parsed({"a": A}).chosen == ("a",)


@pytest.mark.parametrize(
    ("teachers", "message"),
    [
        (
            {"a": A, "m": mixture({"a": 0.5, "c": 0.5})},
            r"teachers\.m\.of: there is no teacher c; there are a",
        ),
        ({"a": A, "b": A, "m": mixture({"a": 0.5, "b": 0.6})}, r"0\.5 \+ 0\.6 = 1\.1; they must sum to 1"),
        ({"a": A, "b": A, "m": mixture({"a": 1.5, "b": -0.5})}, r"m\.of\.b = -0\.5: .*greater than 0"),
        ({"a": A, "m": mixture({"a": 1.0})}, r"m\.of = .*at least 2 items"),
        (
            {"a": A, "b": A, "m": mixture(), "n": mixture({"a": 0.5, "m": 0.5})},
            r"n\.of: m is a mixture itself; name its parts",
        ),
        ({"a": A, "m": mixture({"a": 0.5, "m": 0.5})}, r"m\.of: m is a mixture itself"),
        (
            {"a": A, "b": A, "m": {"kind": "mixture", "of": EVEN}},
            r"m\.mean: missing; it is one of geometric, arithmetic",
        ),
        (
            {"a": {**A, "coef": 2}, "b": A, "m": mixture()},
            r"a\.coef says nothing: .*; give the mixture a coef",
        ),
        ({"a": A, "b": A}, r"has 2, a, b: say by distill\.key"),
        ({"a": A, "b": A, "c": A, "m": mixture()}, r"has 2, c, m: say by distill\.key"),
        ({"e": {"kind": "ema", "decay": 1}}, r"decay = 1 never moves; kind = start is the policy as the run"),
        ({"e": {"kind": "ema", "decay": 0}}, r"decay = 0 is no average; take a number between 0 and 1"),
        (
            {"e": {"kind": "start", "decay": 0.5}},
            r"teachers\.e\.decay: unknown key of kind start; .*kind ema",
        ),
        ({"a": {**A, "share": 0.5}}, r"share divides problems among teachers, and one has them all"),
        ({2: A}, r"teachers\.2: 2 is no name of a teacher; write it as text, a number in quotes"),
        ({" ": A}, r"' ' is no name of a teacher"),
    ],
)
def test_teachers_that_do_not_go_together(teachers: dict[Any, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parsed(teachers)


@pytest.mark.parametrize(
    ("teachers", "message"),
    [
        ({"a": {**A, "share": 0.5}, "b": A}, "a has a share and b has none; give one to all"),
        ({"a": {**A, "share": 0.5}, "b": {**A, "share": 0.6}}, r"share: 0\.5 \+ 0\.6 = 1\.1; they must sum"),
        ({"a": {**A, "share": 1.0}, "b": A}, r"a\.share = 1\.0: .*less than 1"),
        ({"a": {**A, "share": 0}, "b": A}, r"a\.share = 0: .*greater than 0"),
    ],
)
def test_shares_of_some_or_of_more_than_there_is(teachers: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parsed(teachers, key="expert")


def test_shares_of_tokens_need_an_average_over_tokens() -> None:
    with pytest.raises(RecipeError, match="share divides problems among teachers, and one has them all"):
        parsed({"a": {**A, "share": 0.5}}, key="k")
    two = {"a": {**A, "share": 0.5}, "b": {**A, "share": 0.5}}
    assert parsed(two, key="k").chosen == ("a", "b")
    with pytest.raises(RecipeError, match=r"share weighs tokens, and with loss\.aggregation = sequence"):
        parsed(two, key="k", aggregation="sequence")


@pytest.mark.parametrize(
    "teachers",
    [
        {"s": {"kind": "start"}},
        {"s": {"kind": "start"}, "e": {"kind": "ema"}, "m": mixture({"s": 0.5, "e": 0.5})},
    ],
)
def test_the_policys_own_weights_alone_move_nothing(teachers: dict[str, Any]) -> None:
    parsed(teachers)
    with pytest.raises(RecipeError, match="the policy begins where they are and nothing ever moves it"):
        parsed(teachers, task=False)
    with pytest.raises(RecipeError, match=r"has 2, s, big: say by distill\.key"):
        parsed({"s": {"kind": "start"}, "big": A}, task=False)
    parsed({"s": {"kind": "start"}, "big": A}, task=False, key="k")


@pytest.mark.parametrize(
    ("teachers", "keys", "message"),
    [
        ({"a": A, "h": {"kind": "hindsight"}}, {"key": "k"}, r"h \(hindsight\) judges from another prompt"),
        (
            {"a": A, "b": A, "m": mixture()},
            {},
            r"m \(mixture\) would need the heads of all its parts at once",
        ),
        ({"a": A, "b": A}, {"key": "k", "resident": "one"}, "distill.resident = one lets go of them"),
    ],
)
def test_whole_laws_need_decoders_at_hand(
    teachers: dict[str, Any], keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=f"takes the whole law of teachers in this process.*{message}"):
        parsed(teachers, loss={"kind": "reverse_kl"}, **keys)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("k1", "is refused: differentiated, its expected gradient is 0"),
        ("k3", r"is refused: .*gradient is that of KL\(teacher \|\| student\)"),
        ("reverse_kl_topk", "is refused: a sum over the top k alone is no divergence"),
        ("reverse_kl_topk_renormalised", "is refused: laws renormalised on the top k are blind"),
        ("topk_advantage", "is refused: a divergence as an advantage does not depend on the sampled token"),
        ("js", "'js': it is one of sampled"),
    ],
)
def test_losses_that_do_not_distil_are_refused_with_the_reason(kind: str, reason: str) -> None:
    with pytest.raises(RecipeError, match=reason) as error:
        parsed({"a": A}, loss={"kind": kind})
    assert str(error.value).startswith(f"distill.loss.kind = {kind!r}")
    assert "it is one of sampled, reverse_kl, " in str(error.value)
    assert "\n" not in str(error.value)
