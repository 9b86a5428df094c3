"""Prompts are what the template says, token by token; sampled turns are never rendered again."""

from typing import Any

import pytest

from tests.models.tokenizers import BOS_AND_TRIM, CHATML, DROPS_THOUGHTS, STRICT, bpe_tokenizer
from tests.tiny import tiny_tokenizer
from turnpoint.errors import DataError, ModelError
from turnpoint.models.renderer import ChatRenderer, FewShotRenderer
from turnpoint.protocols import Renderer
from turnpoint.types import Message, TokenIds, token_array

USER = Message(role="user", content="What is three plus four?")


def chat(tokenizer: Any, **how: Any) -> ChatRenderer:
    return ChatRenderer(tokenizer, stop_ids=frozenset({3}), **how)


def few_shot(tokenizer: Any, **how: Any) -> FewShotRenderer:
    shape: dict[str, Any] = {"template": "Q: {question}\nA: {answer}", "separator": "\n\n"} | how
    return FewShotRenderer(
        tokenizer, examples=[("1 + 1", "2"), ("2 + 2", "4")], stop_ids=frozenset({1}), **shape
    )


def shown(tokenizer: Any, ids: TokenIds) -> str:
    return tokenizer.decode(ids.tolist(), skip_special_tokens=False)


def test_both_are_renderers() -> None:
    renderers: list[Renderer] = [chat(bpe_tokenizer()), few_shot(bpe_tokenizer())]
    assert [renderer.stop_ids for renderer in renderers] == [{3}, {1}]


# --- chat prompts -------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [CHATML, BOS_AND_TRIM, DROPS_THOUGHTS, STRICT])
@pytest.mark.parametrize("adds", ["", "bos", "bos eos"])
def test_prompt_is_exactly_the_template(template: str, adds: str) -> None:
    tokenizer = bpe_tokenizer(template, adds=adds)
    expected = tokenizer.apply_chat_template(
        [{"role": "user", "content": USER.content}],
        add_generation_prompt=True,
        enable_thinking=False,
        return_dict=False,
    )
    assert chat(tokenizer).prompt([USER]).tolist() == expected
    assert expected.count(tokenizer.bos_token_id) == (1 if template == BOS_AND_TRIM else 0)


@pytest.mark.parametrize("thinking", [True, False])
def test_thinking_reaches_the_template(thinking: bool) -> None:
    tokenizer = tiny_tokenizer()
    text = shown(tokenizer, chat(tokenizer, thinking=thinking).prompt([USER]))
    assert text.endswith("<|assistant|>" if thinking else "<|assistant|><think></think>")


def test_system_replaces_the_tasks_own_and_comes_first() -> None:
    tokenizer = tiny_tokenizer()
    own = Message(role="system", content="Own.")
    head = "<|system|>Be short.<|end|><|user|>"
    for messages in ([USER], [own, USER]):
        assert shown(tokenizer, chat(tokenizer, system="Be short.").prompt(messages)).startswith(head)
    assert shown(tokenizer, chat(tokenizer).prompt([own, USER])).startswith("<|system|>Own.<|end|>")


def test_suffix_is_added_to_the_question_and_hindsight_behind_it() -> None:
    tokenizer = tiny_tokenizer()
    text = shown(tokenizer, chat(tokenizer, suffix=" Number only.").prompt([USER], hindsight="It was 7."))
    asked = "<|user|>What is three plus four? Number only.\n\nIt was 7.<|end|>"
    assert text == f"{asked}<|assistant|><think></think>"


def test_hindsight_goes_into_the_last_user_turn_before_the_first_reply() -> None:
    tokenizer = tiny_tokenizer()
    messages = [
        Message(role="user", content="a"),
        Message(role="user", content="b"),
        Message(role="assistant", content="c"),
        Message(role="user", content="d"),
    ]
    text = shown(tokenizer, chat(tokenizer, suffix="!").prompt(messages, hindsight="h"))
    assert text.startswith(
        "<|user|>a<|end|><|user|>b\n\nh<|end|><|assistant|>c<|end|><|user|>d!<|end|><|assistant|>"
    )


def test_empty_hindsight_is_not_no_hindsight() -> None:
    renderer = chat(tiny_tokenizer())
    assert len(renderer.prompt([USER], hindsight="")) == len(renderer.prompt([USER])) + 2


@pytest.mark.parametrize("roles", [[], ["user", "assistant"], ["system"]])
def test_a_prompt_must_end_with_a_user_message(roles: list[str]) -> None:
    with pytest.raises(DataError, match="must end with a user message"):
        chat(tiny_tokenizer()).prompt([Message(role=role, content="x") for role in roles])


def test_hindsight_without_a_user_turn_before_the_first_reply_is_refused() -> None:
    messages = [Message(role="assistant", content="x"), USER]
    with pytest.raises(DataError, match="hindsight needs a user message"):
        chat(tiny_tokenizer()).prompt(messages, hindsight="h")


def test_what_the_template_refuses_is_one_line() -> None:
    with pytest.raises(ModelError, match=r"refuses messages by system, user: no system role$"):
        chat(bpe_tokenizer(STRICT), system="Be short.").prompt([USER])


def test_a_tokenizer_without_template_points_to_few_shot() -> None:
    with pytest.raises(ModelError, match=r"prompt\.kind: few_shot"):
        chat(bpe_tokenizer(None))


def test_a_long_prompt_is_rendered_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = bpe_tokenizer()
    tokenizer.model_max_length = 4
    renderer = chat(tokenizer)
    assert len(renderer.prompt([USER])) > 4
    assert len(renderer.turn(USER)) > 4
    assert len(few_shot(tokenizer).prompt([USER])) > 4
    assert not caplog.records


# --- later turns --------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [CHATML, BOS_AND_TRIM])
def test_appending_turns_gives_what_rendering_the_whole_episode_would(template: str) -> None:
    tokenizer = bpe_tokenizer(template, adds="bos")
    renderer = chat(tokenizer)
    replies, asked = ["seven", "the questions was answers"], ["and four more?", "done\n\n?"]
    ids = renderer.prompt([USER]).tolist()
    conversation = [{"role": "user", "content": USER.content}]
    for reply, question in zip(replies, asked, strict=True):
        sampled = [*tokenizer(reply, add_special_tokens=False)["input_ids"], 3]
        ids += [*sampled, *renderer.turn(Message(role="user", content=question)).tolist()]
        conversation += [{"role": "assistant", "content": reply}, {"role": "user", "content": question}]
    assert ids == tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)


def test_the_sampled_stop_token_is_not_repeated() -> None:
    tokenizer = tiny_tokenizer()
    assert shown(tokenizer, chat(tokenizer, thinking=True).turn(USER)) == (
        f"<|user|>{USER.content}<|end|><|assistant|>"
    )


def test_a_template_that_rewrites_history_still_continues_a_sampled_turn() -> None:
    tokenizer = bpe_tokenizer(DROPS_THOUGHTS)
    assert shown(tokenizer, chat(tokenizer, thinking=True).turn(USER)) == (
        f"\n<|im_start|>user\n{USER.content}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_blank_before_the_end_of_turn_belongs_to_the_closed_turn() -> None:
    tokenizer = bpe_tokenizer(STRICT)
    assert shown(tokenizer, chat(tokenizer).turn(USER)) == f"[INST] {USER.content} [/INST]"


# --- few-shot -----------------------------------------------------------------------------------


def test_few_shot_is_the_examples_and_the_question_without_the_blank_before_the_answer() -> None:
    tokenizer = bpe_tokenizer()
    ids = few_shot(tokenizer).prompt([Message(role="user", content="3 + {answer}")])
    text = "Q: 1 + 1\nA: 2\n\nQ: 2 + 2\nA: 4\n\nQ: 3 + {answer}\nA:"
    assert ids.tolist() == tokenizer(text)["input_ids"]


def test_the_prompt_is_a_prefix_of_the_solved_example_token_by_token() -> None:
    tokenizer = bpe_tokenizer()
    prompt = few_shot(tokenizer).prompt([Message(role="user", content="three plus four")]).tolist()
    solved = tokenizer("Q: 1 + 1\nA: 2\n\nQ: 2 + 2\nA: 4\n\nQ: three plus four\nA: seven")["input_ids"]
    assert solved[: len(prompt)] == prompt


@pytest.mark.parametrize(("adds", "before"), [("", []), ("bos", [0]), ("bos eos", [0])])
def test_raw_text_keeps_the_tokenizers_bos_and_gets_no_eos(adds: str, before: list[int]) -> None:
    tokenizer = bpe_tokenizer(adds=adds)
    ids = few_shot(tokenizer).prompt([USER]).tolist()
    plain = few_shot(bpe_tokenizer()).prompt([USER]).tolist()
    assert ids == before + plain


@pytest.mark.parametrize(
    ("separator", "stops"),
    [("\n\n", ("END", "\n")), ("\n---\n", ("END", "\n")), (" ### ", ("END", " ### ")), ("", ("END",))],
)
def test_a_completion_stops_at_the_first_line_of_the_separator(
    separator: str, stops: tuple[str, ...]
) -> None:
    renderer = few_shot(bpe_tokenizer(), separator=separator, stop_strings=("END", "END"))
    assert renderer.stop_strings == stops


def test_few_shot_turns_go_on_behind_the_stop_string() -> None:
    tokenizer = bpe_tokenizer(adds="bos")
    assert shown(tokenizer, few_shot(tokenizer).turn(USER)) == f"\nQ: {USER.content}\nA:"


def test_few_shot_hindsight_is_a_paragraph_of_the_question() -> None:
    tokenizer = bpe_tokenizer()
    text = shown(tokenizer, few_shot(tokenizer).prompt([USER], hindsight="It was 7."))
    assert text.endswith(f"Q: {USER.content}\n\nIt was 7.\nA:")


def test_few_shot_takes_one_user_message() -> None:
    with pytest.raises(DataError, match="one user message"):
        few_shot(bpe_tokenizer()).prompt([Message(role="system", content="x"), USER])


# --- text ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a , b .  c\n\td", "don 't", "naïve 漢字 🙂 \u200b", ""])
def test_text_is_what_was_written_without_special_tokens(text: str) -> None:
    tokenizer = bpe_tokenizer() if not text.isascii() else tiny_tokenizer()
    ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    assert chat(tokenizer).text(token_array(ids)) == text
    assert few_shot(tokenizer).text(token_array(ids)) == text
