"""A given text becomes the ids that sampling would have ended with, its end included."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.tokenizers import (
    BOS_AND_TRIM,
    CHATML,
    DROPS_THOUGHTS,
    HEADERS_ONLY,
    STRICT,
    bpe_tokenizer,
)
from tests.tiny import tiny_tokenizer
from turnpoint.engine.stops import StopScanner, cut_at_stop
from turnpoint.errors import ModelError
from turnpoint.models.demonstration import Demonstration, UnusableSolution
from turnpoint.models.renderer import ChatRenderer, FewShotRenderer
from turnpoint.models.template import encode
from turnpoint.types import Message, token_array

USER = Message(role="user", content="What is three plus four?")
REPLY = "the reply is seven"
IM_END, EOS = 3, 1


def chat(tokenizer: Any, *, stop_ids: frozenset[int] = frozenset({IM_END, EOS}), **how: Any) -> ChatRenderer:
    return ChatRenderer(tokenizer, stop_ids=stop_ids, **how)


def few_shot(tokenizer: Any, **how: Any) -> FewShotRenderer:
    shape: dict[str, Any] = {"template": "Q: {question}\nA: {answer}", "separator": "\n\n"} | how
    return FewShotRenderer(
        tokenizer, examples=[("1 + 1", "2"), ("2 + 2", "4")], stop_ids=frozenset({EOS}), **shape
    )


def trained(tokenizer: Any, demonstration: Demonstration) -> str:
    return tokenizer.decode(demonstration.token_ids.tolist(), skip_special_tokens=False)


# --- chat ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [CHATML, BOS_AND_TRIM])
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_prompt_and_solution_and_rest_are_the_whole_conversation(template: str, system: str | None) -> None:
    tokenizer = bpe_tokenizer(template, adds="bos")
    renderer = chat(tokenizer, system=system, suffix=" Think.")
    demonstration = renderer.demonstrate([USER], REPLY)
    turns = [{"role": "user", "content": USER.content + " Think."}, {"role": "assistant", "content": REPLY}]
    if system is not None:
        turns.insert(0, {"role": "system", "content": system})
    whole = tokenizer.apply_chat_template(turns, return_dict=False)
    said = [*demonstration.prompt_ids, *demonstration.token_ids]
    assert demonstration.in_context
    assert demonstration.prompt_ids.tolist() == renderer.prompt([USER]).tolist()
    assert said == whole[: len(said)]
    assert encode(tokenizer, "\n")[0] in whole[len(said) :] or len(said) == len(whole)  # only a line break
    assert trained(tokenizer, demonstration) == f"{REPLY}<|im_end|>"


@pytest.mark.parametrize("template", [CHATML, BOS_AND_TRIM, DROPS_THOUGHTS, STRICT, HEADERS_ONLY])
def test_the_stop_token_is_trained_and_is_the_only_one(template: str) -> None:
    """B11: where the end is no target, stopping is unlearnt."""
    ids = chat(bpe_tokenizer(template)).demonstrate([USER], REPLY).token_ids.tolist()
    assert ids[-1] == (EOS if template == HEADERS_ONLY else IM_END)
    assert not {IM_END, EOS} & set(ids[:-1])


@pytest.mark.parametrize("thinking", [True, False])
def test_tokens_that_the_template_adds_are_never_trained(thinking: bool) -> None:
    """B14: the finished reply gets an empty thought that generation does not begin with."""
    tokenizer = bpe_tokenizer(DROPS_THOUGHTS)
    demonstration = chat(tokenizer, thinking=thinking).demonstrate([USER], REPLY)
    assert trained(tokenizer, demonstration) == f"{REPLY}<|im_end|>"
    assert demonstration.in_context is (not thinking)  # without thinking, the prompt ends with the thought
    shown = tokenizer.decode(demonstration.prompt_ids.tolist(), skip_special_tokens=False)
    assert shown.endswith("assistant\n" if thinking else "</think>\n\n")


def test_a_thought_that_the_template_would_drop_is_kept() -> None:
    """B4: the text is what the policy should write, not what is left of it in a later turn."""
    tokenizer = bpe_tokenizer(DROPS_THOUGHTS)
    text = "<think>three plus four</think>seven"
    demonstration = chat(tokenizer, thinking=True).demonstrate([USER], text)
    assert trained(tokenizer, demonstration) == f"{text}<|im_end|>"
    assert not demonstration.in_context


def test_blanks_of_the_template_around_the_reply_are_its_habit() -> None:
    tokenizer = bpe_tokenizer(STRICT)
    demonstration = chat(tokenizer).demonstrate([USER], REPLY)
    assert demonstration.in_context
    assert trained(tokenizer, demonstration) == f" {REPLY} <|im_end|>"


def test_a_reply_that_is_rendered_unlike_generation_is_encoded_alone() -> None:
    tokenizer = tiny_tokenizer()  # a prompt without thinking ends with an empty thought, a reply has none
    demonstration = chat(tokenizer).demonstrate([USER], "seven")
    assert not demonstration.in_context
    assert demonstration.token_ids.tolist() == [*encode(tokenizer, "seven"), tokenizer.eos_token_id]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("seven<|end|>or eight", "stop token"),
        ("sieben, fünf", "does not know"),
    ],
)
def test_what_no_policy_could_sample_whole_is_unusable(text: str, reason: str) -> None:
    with pytest.raises(UnusableSolution, match=reason):
        chat(tiny_tokenizer()).demonstrate([USER], text)


def test_a_text_without_a_token_is_unusable() -> None:
    tokenizer = tiny_tokenizer()
    with pytest.raises(UnusableSolution, match="no token"):
        chat(tokenizer).demonstrate([USER], "")


def test_a_model_that_cannot_end_a_reply_is_refused() -> None:
    with pytest.raises(ModelError, match="ends a reply"):
        chat(bpe_tokenizer(HEADERS_ONLY), stop_ids=frozenset({77})).demonstrate([USER], REPLY)


# --- few-shot -----------------------------------------------------------------------------------


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "closing": {"template": "Q: {question}\nA: {answer}\n"},
    "own mark": {"separator": "###\n"},
    "another stop string": {"stop_strings": ("END", "\n\n")},
    "no blank": {"template": "{question}={answer}", "separator": "\n"},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", [tiny_tokenizer, bpe_tokenizer])
def test_sampling_would_stop_exactly_at_the_end(shape: str, make: Any) -> None:
    """The engine's own scanner stops at the last token and not before, and cuts the text to the solution."""
    tokenizer = make()
    renderer = few_shot(tokenizer, **SHAPES[shape])
    demonstration = renderer.demonstrate([USER], REPLY)
    scanner = StopScanner(renderer.text, renderer.stop_strings)
    ids = demonstration.token_ids
    stopped = [scanner.push(ids[: count + 1]) for count in range(len(ids))]
    assert stopped == [False] * (len(ids) - 1) + [True]
    assert cut_at_stop(renderer.text(ids), renderer.stop_strings).strip() == REPLY


@pytest.mark.parametrize("make", [tiny_tokenizer, bpe_tokenizer])
def test_prompt_and_solution_are_encoded_as_the_examples_are(make: Any) -> None:
    tokenizer = make()
    renderer = few_shot(tokenizer)
    demonstration = renderer.demonstrate([USER], REPLY)
    whole = encode(tokenizer, f"Q: 1 + 1\nA: 2\n\nQ: 2 + 2\nA: 4\n\nQ: {USER.content}\nA: {REPLY}\n\n")
    said = [*demonstration.prompt_ids, *demonstration.token_ids]
    assert demonstration.in_context
    assert said == whole[: len(said)]
    assert tokenizer.decode(demonstration.token_ids.tolist()).startswith(" the")  # the blank is sampled


def test_where_prompt_and_solution_would_merge_the_solution_is_encoded_alone() -> None:
    tokenizer = bpe_tokenizer()  # knows " seven" as one token
    renderer = few_shot(tokenizer, template="{question} seve{answer}")
    demonstration = renderer.demonstrate([USER], "n and more")
    assert not demonstration.in_context
    assert demonstration.prompt_ids.tolist() == renderer.prompt([USER]).tolist()
    assert trained(tokenizer, demonstration).startswith("n and more\n")


def test_without_a_stop_string_the_turn_ends_with_the_end_token() -> None:
    tokenizer = bpe_tokenizer()
    demonstration = few_shot(tokenizer, separator="").demonstrate([USER], REPLY)
    assert trained(tokenizer, demonstration) == f" {REPLY}</s>"


def test_a_solution_that_sampling_would_cut_short_is_unusable() -> None:
    with pytest.raises(UnusableSolution, match=r"stop string '\\n'"):
        few_shot(tiny_tokenizer()).demonstrate([USER], "first line\nsecond line")


def test_demonstrations_are_records_of_ids() -> None:
    demonstration = few_shot(tiny_tokenizer()).demonstrate([USER], "7")
    assert demonstration.token_ids.dtype == token_array([1]).dtype
    assert not demonstration.prompt_ids.flags.writeable
