"""Every folder's face is sorted, loads and is documented; what others build on keeps its signature."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import operator
import pkgutil
from typing import Any

import pytest

import turnpoint

FACES = ["turnpoint"] + [
    module.name for module in pkgutil.walk_packages(turnpoint.__path__, "turnpoint.") if module.ispkg
]

# Section 5 of docs/design.md: parameters by name, kind and default. `*` begins the keyword-only ones.
FIXED = {
    "turnpoint.branching": {
        "hindsight_scores": "*, base_logprobs, hindsight_logprobs",
        "select_branch_points": "scores, *, count, candidates=None, min_gap=1, skip_first=0, skip_last=0",
        "allocate_continuations": "total, num_points",
    },
    "turnpoint.credit": {
        "group_advantages": "rewards, *, baseline='mean', scale='none', valid=None",
        "combine_advantages": "task_advantages, signal, *, coef",
    },
    "turnpoint.losses": {
        "policy_gradient_loss": (
            "*, logprobs, old_logprobs, advantages, mask, denominator, objective='ppo_clip', "
            "sequence_ids=None, weights=None, clip_low=None, clip_high=None, dual_clip=None"
        ),
        "forward_kl": "*, student_logits, teacher_logits",
        "reverse_kl": "*, student_logits, teacher_logits",
        "jensen_shannon": "*, student_logits, teacher_logits, beta",
        "reverse_kl_topk_hybrid": "*, student_logits, teacher_logits, sampled_ids, k, weights=None",
    },
    "turnpoint.teachers": {
        "sampled_token_signal": "*, student_logprobs, teacher_logprobs, mask=None, clip=None",
    },
    "turnpoint.drafting": {
        "overlap": "*, target_logits, draft_logits",
        "tv_loss": "*, target_logits, draft_logits",
        "end_to_end_tv_loss": "alphas, *, mask=None",
        "pathwise_tv_loss": "*, alphas, accept_ratios, mask=None",
        "accept_length": "*, target_logprobs, draft_logprobs",
    },
    "turnpoint.engine": {
        "verify_chain": "*, target_probs, draft_probs, draft_ids, uniforms, mode='token'",
    },
    "turnpoint.verifiers": {
        "MathVerifier.grade": "self, *, gold, response",
        "CodeVerifier.grade": "self, *, tests, response",
    },
}


def public(face: str) -> list[str]:
    """The names that `face` offers; a face without any is a folder that is still empty."""
    return list(vars(importlib.import_module(face)).get("__all__", []))


PUBLIC = [(face, name) for face in FACES for name in public(face)]
FIXED_HERE = [
    (face, name)
    for face, names in FIXED.items()
    for name in names
    if (face, name.partition(".")[0]) in PUBLIC
]


def parameters(function: Any) -> str:
    """The parameters of `function` as `FIXED` writes them."""
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
    ]
    return str(inspect.Signature(bare))[1:-1]


def own_doc(thing: Any) -> str:
    """The docstring that someone wrote; dataclasses are given one that only repeats the signature."""
    doc = thing.__doc__ or ""
    generated = dataclasses.is_dataclass(thing) and doc.startswith(f"{getattr(thing, '__name__', '')}(")
    return "" if generated else doc


@pytest.mark.parametrize("face", FACES)
def test_faces_are_sorted_without_repetition(face: str) -> None:
    assert public(face) == sorted(set(public(face)))


@pytest.mark.parametrize(("face", "name"), PUBLIC)
def test_every_public_name_loads_and_is_documented(face: str, name: str) -> None:
    thing = getattr(importlib.import_module(face), name)
    if inspect.isclass(thing) or inspect.isroutine(thing):
        assert own_doc(thing), f"{face}.{name} has no docstring"
        assert thing.__module__.startswith(f"{face}."), f"{face} offers what {thing.__module__} defines"


@pytest.mark.parametrize(("face", "name"), FIXED_HERE)
def test_fixed_signatures(face: str, name: str) -> None:
    assert parameters(operator.attrgetter(name)(importlib.import_module(face))) == FIXED[face][name]


@pytest.mark.parametrize("face", [face for face in FACES if public(face)])
def test_an_unknown_name_is_an_attribute_error(face: str) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        importlib.import_module(face).no_such_name  # noqa: B018


@pytest.mark.parametrize("face", [face for face in FACES if public(face)])
def test_completion_finds_every_public_name(face: str) -> None:
    """Notebooks ask `dir`, which knows nothing of `__getattr__`."""
    assert {*public(face)} <= {*dir(importlib.import_module(face))}


def test_the_checks_see_faults() -> None:
    @dataclasses.dataclass
    class Bare:
        x: int

    def swapped(*, teacher_logits: int, student_logits: int = 0) -> None: ...

    assert own_doc(Bare) == ""
    assert own_doc(swapped) == ""
    assert own_doc(public) != ""
    assert parameters(swapped) == "*, teacher_logits, student_logits=0"
    assert parameters(swapped) != FIXED["turnpoint.losses"]["forward_kl"]
