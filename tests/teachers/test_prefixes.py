"""Prefix-conditioned distillation: one turn behind another's prefix, scored and trained alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import turnpoint as tp
from tests.tiny import CHAT_TEMPLATE, save_tiny_model, tiny_tokenizer
from turnpoint.errors import DataError, ModelError, RecipeError
from turnpoint.rollout import read_groups
from turnpoint.types import Author

THOUGHT = tiny_tokenizer().convert_tokens_to_ids(["<think>", "</think>"])
TALKS = "tasks.format=turns"
ALONE = ["distill.task=false", "verifier={kind: none}", "evaluation=null", "rollout.samples_per_prompt=2"]


def write_talks(recipe: Path) -> list[dict[str, object]]:
    """Replaces the problems by three conversations of three turns."""
    talks: list[dict[str, object]] = []
    for start in range(3):
        turns = [text for step in range(3) for text in (f"{start} + {step}?", str(start + step))]
        roles = ["user", "assistant"] * 3
        messages = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=True)]
        talks.append({"messages": messages})
    path = recipe.parent / "sums.jsonl"
    path.write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    return talks


def test_only_the_new_turn_is_taught_behind_the_prefix_as_it_was(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talks = write_talks(recipe)
    teacher = save_tiny_model(tmp_path / "teacher", seed=1)
    options = [TALKS, *ALONE, f"distill.teachers.big.path={teacher}"]
    more = ["rollout.prompts_per_step=9", "training.steps=1"]
    run = tp.train(tp.load_recipe(recipe, [*options, *more])).folder
    groups = list(read_groups(run / "rollouts.jsonl"))
    assert {group.task.id for group in groups} == {f"{talk}/{turn}" for talk in range(3) for turn in range(3)}
    tokenizer, generated = tiny_tokenizer(), 0
    for group in groups:
        talk, turn = (int(part) for part in group.task.id.split("/"))
        whole = tokenizer.apply_chat_template(talks[talk]["messages"], return_dict=False)
        prompt = group.tree.segments[0]
        assert prompt.author is Author.PROMPT
        opened = len(prompt) - len(THOUGHT)  # the template opens a turn with an empty thought
        assert prompt.token_ids.tolist() == [*whole[:opened], *THOUGHT]
        assert sum(message.role == "assistant" for message in group.task.messages) == turn
        assert [segment.parent for segment in group.tree.segments[1:]] == [0, 0], "one turn each"
        generated += sum(group.num_generated(member) for member in range(2))
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["metrics"]
    assert line["teacher/tokens"]["value"] == generated
    assert line["teacher/kl"]["value"] > 0.1
    assert not {"reward", "solved", "signal"} & line.keys(), "nobody judged"
    (shown,) = (text for text in capsys.readouterr().out.splitlines() if text.startswith("step 1/1"))
    assert "reward" not in shown
    assert "length" in shown


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (CHAT_TEMPLATE.replace("in messages", "in messages[-1:]"), r"shown a problem as \d+ tokens, not as"),
        (
            "{% if messages|length > 2 %}{{ raise_exception('one turn alone') }}{% endif %}" + CHAT_TEMPLATE,
            r"teacher big .* cannot render a problem of the run: .*: one turn alone\. Take .* template=any",
        ),
        (
            "{% if messages|length > 1 %}{{ raise_exception('no answers') }}{% endif %}" + CHAT_TEMPLATE,
            "teacher big cannot be opened: .*: no answers",
        ),
    ],
)
def test_a_teacher_whose_template_knows_one_turn_alone_is_refused(
    recipe: Path, tmp_path: Path, template: str, message: str
) -> None:
    write_talks(recipe)
    teacher = save_tiny_model(tmp_path / "teacher", seed=1)
    (teacher / "chat_template.jinja").write_text(template)
    with pytest.raises(ModelError, match=message):
        tp.train(tp.load_recipe(recipe, [TALKS, *ALONE, f"distill.teachers.big.path={teacher}"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([TALKS], "format = turns has no gold answers for verifier.kind = math; take kind = none"),
        (["verifier={kind: none}"], "gives no rewards to learn from; let a teacher alone teach"),
        (
            [*ALONE, "evaluation={tasks: 2}"],
            "none, and evaluation cannot do without verdicts",
        ),
        (
            [*ALONE, "distill.teachers.big={kind: hindsight}"],
            "and distill.teachers of kind hindsight cannot do without",
        ),
    ],
)
def test_a_judge_that_does_not_fit_is_refused(recipe: Path, options: list[str], message: str) -> None:
    given = ["verifier={kind: math}", "distill.teachers.big.path=x", *options]
    with pytest.raises(RecipeError, match=message):
        tp.load_recipe(recipe, given)


def test_examples_in_plain_text_have_no_turns(recipe: Path, tiny_folder: Path) -> None:
    write_talks(recipe)
    options = [TALKS, *ALONE, f"distill.teachers.big.path={tiny_folder}", "prompt={kind: few_shot, shots: 1}"]
    with pytest.raises(DataError, match=r"use prompt\.kind: chat"):
        tp.train(tp.load_recipe(recipe, options))
