"""What is fed and what ends a turn, for tokenizers and templates with the habits of real ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.models.tokenizers import BOS_AND_TRIM, CHATML, DROPS_THOUGHTS, HEADERS_ONLY, bpe_tokenizer
from turnpoint.config import RunConfig, parse_recipe
from turnpoint.diagnosis import Check, Status
from turnpoint.diagnosis.prompts import (
    check_lengths,
    check_problems,
    check_stop,
    check_template,
    check_vocabulary,
)
from turnpoint.models.renderer import ChatRenderer, FewShotRenderer
from turnpoint.types import Message, Task

FEW_SHOT: dict[str, Any] = {"kind": "few_shot", "shots": 1}
TASKS = {"kind": "jsonl", "path": "rows.jsonl"}
NO_EOS = SimpleNamespace(eos_token_id=None)


def config_of(**sections: Any) -> RunConfig:
    return parse_recipe({"tasks": TASKS, **sections})


def templated(tokenizer: Any, *, question: str = "3 + 4 =", **prompt: Any) -> Check:
    """The check of a first prompt, rendered as a run would."""
    config = config_of(prompt=prompt or {"kind": "chat"})
    task = Task(id="0", messages=(Message(role="user", content=question),), answer="7")
    renderer = (
        FewShotRenderer(
            tokenizer,
            examples=[("1 + 1 =", "2")],
            template="Q: {question}\nA: {answer}",
            separator="\n\n",
            stop_ids=frozenset({1}),
        )
        if config.prompt.kind == "few_shot"
        else ChatRenderer(tokenizer, stop_ids=frozenset({1}), thinking=bool(prompt.get("thinking")))
    )
    return check_template(config, tokenizer=tokenizer, prompt=renderer.prompt(task.messages), task=task)


# --- what is fed --------------------------------------------------------------------------------


def test_a_doubled_bos_is_refused() -> None:
    found = templated(bpe_tokenizer("{{ bos_token }}" + BOS_AND_TRIM, adds="bos"))
    assert found.status is Status.FAILED
    assert "begins with <s> twice" in found.text


def test_one_bos_is_said_to_be_one() -> None:
    found = templated(bpe_tokenizer(BOS_AND_TRIM, adds="bos"))
    assert (found.status, "begins with <s> once" in found.text) == (Status.OK, True)


def test_a_template_without_the_bos_of_plain_text_is_a_warning() -> None:
    found = templated(bpe_tokenizer(CHATML, adds="bos"))
    assert found.status is Status.WARNING
    assert "lacks <s>" in found.text


def test_plain_text_begins_as_the_tokenizer_begins_it() -> None:
    found = templated(bpe_tokenizer(None, adds="bos"), **FEW_SHOT)
    assert (found.status, "begins with <s> once" in found.text) == (Status.OK, True)


def test_that_a_chat_template_is_not_used_is_said() -> None:
    assert "the model sees no roles" in templated(bpe_tokenizer(), **FEW_SHOT).text
    assert "roles" not in templated(bpe_tokenizer(None), **FEW_SHOT).text


def test_a_question_that_was_rendered_already_is_a_warning() -> None:
    found = templated(bpe_tokenizer(), question="<|im_start|>user\n3 + 4 =<|im_end|>")
    assert found.status is Status.WARNING
    assert "2 tokens <|im_start|>, <|im_end|>" in found.text


@pytest.mark.parametrize(("template", "status"), [(CHATML, Status.WARNING), (DROPS_THOUGHTS, Status.OK)])
def test_thinking_that_the_template_does_not_know_is_a_warning(template: str, status: Status) -> None:
    assert templated(bpe_tokenizer(template), kind="chat", thinking=True).status is status
    assert templated(bpe_tokenizer(template)).status is Status.OK


# --- what ends a turn ---------------------------------------------------------------------------


def test_each_stop_is_said_with_where_it_comes_from() -> None:
    tokenizer = bpe_tokenizer()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    found = check_stop(
        config_of(sampling={"stop": ["\n\n"]}),
        tokenizer=tokenizer,
        generation_config=SimpleNamespace(eos_token_id=[1, end]),
    )
    assert found.status is Status.OK
    assert "</s> (1): tokenizer, generation config" in found.text
    assert f"<|im_end|> ({end}): generation config, chat template" in found.text
    assert '"\u21b5\u21b5": sampling.stop' in found.text


def test_the_line_between_examples_ends_a_turn() -> None:
    found = check_stop(config_of(prompt=FEW_SHOT), tokenizer=bpe_tokenizer(None), generation_config=NO_EOS)
    assert '"\u21b5": prompt.separator' in found.text


def test_a_template_that_ends_a_reply_with_no_stop_is_a_warning() -> None:
    found = check_stop(config_of(), tokenizer=bpe_tokenizer(HEADERS_ONLY), generation_config=NO_EOS)
    assert found.status is Status.WARNING
    assert "ends a reply with nothing" in found.text
    assert "add sampling.stop" in found.text


def test_a_stop_string_can_stand_for_what_the_template_writes() -> None:
    tokenizer = bpe_tokenizer("{% for m in messages %}{{ m['content'] }}\nEND\n{% endfor %}")
    found = check_stop(config_of(), tokenizer=tokenizer, generation_config=NO_EOS)
    assert '"\u21b5END\u21b5"' in found.text
    assert found.status is Status.WARNING
    stopped = config_of(sampling={"stop": ["\nEND"]})
    assert check_stop(stopped, tokenizer=tokenizer, generation_config=NO_EOS).status is Status.OK


def test_nothing_that_ends_a_turn_is_refused() -> None:
    tokenizer = bpe_tokenizer(HEADERS_ONLY)
    tokenizer.eos_token = None
    found = check_stop(config_of(), tokenizer=tokenizer, generation_config=NO_EOS)
    assert found.status is Status.FAILED
    assert "sampling.stop" in found.text


# --- ids and lengths ----------------------------------------------------------------------------


def test_ids_without_a_token_are_counted_and_one_beyond_is_refused() -> None:
    tokenizer = bpe_tokenizer()
    known = len(tokenizer)
    sound = check_vocabulary(
        tokenizer=tokenizer, vocab_size=known, rows=known + 64, largest_sampled=known - 1
    )
    assert (sound.status, "64 padded rows" in sound.text) == (Status.OK, True)
    gaps = check_vocabulary(tokenizer=tokenizer, vocab_size=known + 3, rows=known + 3, largest_sampled=5)
    assert (gaps.status, gaps.text.startswith("3 ids below")) == (Status.WARNING, True)
    beyond = check_vocabulary(tokenizer=tokenizer, vocab_size=known, rows=known + 64, largest_sampled=known)
    assert beyond.status is Status.FAILED


def test_lengths_are_compared_with_the_context() -> None:
    def check(lengths: list[int], dropped: list[str]) -> Check:
        return check_lengths(lengths, dropped=dropped, context=100, max_new_tokens=40)

    assert check([10, 20, 60], []).text.endswith("longest + 40 new = 100 of 100")
    assert check([10, 20, 60], []).status is Status.OK
    assert check([10, 20], ["1 of 3 tasks dropped"]).status is Status.WARNING


def test_what_is_left_to_train_on_is_compared_with_a_step() -> None:
    assert check_problems(3, needed=3).status is Status.OK
    few = check_problems(2, needed=3)
    assert (few.name, few.status) == ("problems", Status.FAILED)
