"""What a chat template does, found by rendering it around marks; no template is known by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jinja2

from turnpoint.errors import ModelError
from turnpoint.types import Message

_QUESTION = Message(role="user", content="turnpointquestion")
_REPLY = Message(role="assistant", content="turnpointreply")
_EARLIER = (
    Message(role="user", content="turnpointearlierquestion"),
    Message(role="assistant", content="turnpointearlieranswer"),
)


def render_ids(tokenizer: Any, messages: Sequence[Message], *, thinking: bool) -> list[int]:
    """Returns the ids up to where the assistant speaks: exactly those of `apply_chat_template`."""
    return _apply(tokenizer, messages, thinking=thinking, add_generation_prompt=True, tokenize=True)


def conversation_ids(tokenizer: Any, messages: Sequence[Message], *, thinking: bool) -> list[int]:
    """Returns the ids of a finished conversation, exactly those of `apply_chat_template`."""
    return _apply(tokenizer, messages, thinking=thinking, add_generation_prompt=False, tokenize=True)


def encode(tokenizer: Any, text: str) -> list[int]:
    """Returns the ids of `text` alone; nothing is put before or after it."""
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def end_of_turn(tokenizer: Any) -> int | None:
    """Returns the id that the template puts after the assistant's last reply; None when it puts none."""
    messages = [_QUESTION, _REPLY]
    text = _apply(tokenizer, messages, thinking=False, add_generation_prompt=False, tokenize=False)
    closing, _ = split_end_of_turn(tokenizer, encode(tokenizer, text.partition(_REPLY.content)[2]))
    return closing[-1] if closing else None


def split_end_of_turn(tokenizer: Any, ids: Sequence[int]) -> tuple[list[int], list[int]]:
    """Cuts `ids` behind the special token that they begin with, blanks before it allowed."""
    special = tokenizer.added_tokens_decoder
    for index, token in enumerate(ids):
        if token in special:
            return list(ids[: index + 1]), list(ids[index + 1 :])
        if tokenizer.decode([token]).strip():
            break
    return [], list(ids)


def next_turn(tokenizer: Any, message: Message, *, thinking: bool) -> str:
    """Returns the text between an assistant's reply and its next one, when `message` comes in between."""
    return _after_reply(tokenizer, [_QUESTION, _REPLY, message], thinking=thinking)


def check_next_turn(tokenizer: Any, *, thinking: bool) -> None:
    """Raises ModelError unless what follows a reply is the same whatever came before it.

    It must be, for a sampled turn to be continued without rendering it again; and it must begin where a
    token begins.
    """
    text = _after_reply(tokenizer, [_QUESTION, _REPLY, _QUESTION], thinking=thinking)
    longer = _after_reply(tokenizer, [*_EARLIER, _QUESTION, _REPLY, _QUESTION], thinking=thinking)
    if text != longer or _QUESTION.content not in text:
        raise ModelError(
            "the chat template renders a later turn differently depending on earlier ones, so a sampled turn "
            "cannot be continued; use a single-turn task or another template"
        )
    ids = encode(tokenizer, text)
    if encode(tokenizer, _REPLY.content + text) != encode(tokenizer, _REPLY.content) + ids:
        raise ModelError(
            "the chat template puts no token border after a reply, so a sampled turn cannot be continued; "
            "use a single-turn task or another template"
        )


def _after_reply(tokenizer: Any, messages: Sequence[Message], *, thinking: bool) -> str:
    text = _apply(tokenizer, messages, thinking=thinking, add_generation_prompt=True, tokenize=False)
    _, reply, after = text.partition(_REPLY.content)
    if not reply:
        raise ModelError(
            "the chat template drops or changes an earlier reply, so a sampled turn cannot be continued; "
            "use a single-turn task or another template"
        )
    return after


def _apply(tokenizer: Any, messages: Sequence[Message], *, thinking: bool, **how: Any) -> Any:
    conversation = [{"role": message.role, "content": message.content} for message in messages]
    try:
        return tokenizer.apply_chat_template(
            conversation,
            return_dict=False,
            tokenizer_kwargs={"verbose": False},
            enable_thinking=thinking,
            **how,
        )
    except jinja2.TemplateError as error:
        roles = ", ".join(message.role for message in messages)
        raise ModelError(f"the chat template refuses messages by {roles}: {error}") from error
