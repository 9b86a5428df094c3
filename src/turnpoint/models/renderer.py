"""Messages become ids: by the model's own chat template, or as solved examples in plain text.

A sampled turn is never rendered again: a multi-turn episode grows by `turn`, whose ids are appended to
those the engine saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from turnpoint.errors import DataError, ModelError
from turnpoint.models.demonstration import Demonstration, chat_demonstration, plain_demonstration
from turnpoint.models.template import (
    check_next_turn,
    encode,
    end_of_turn,
    next_turn,
    render_ids,
    split_end_of_turn,
)
from turnpoint.types import Message, TokenIds, token_array


class ChatRenderer:
    """Renders by the tokenizer's chat template.

    `thinking` reaches templates that know `enable_thinking`. `system` replaces a task's own system message.
    `suffix` is added to the question as it is, without a blank between. Raises ModelError for a tokenizer
    without a template.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        stop_ids: frozenset[int],
        stop_strings: tuple[str, ...] = (),
        thinking: bool = False,
        system: str | None = None,
        suffix: str = "",
    ) -> None:
        if not tokenizer.chat_template:
            raise ModelError(
                "the tokenizer has no chat template; set prompt.kind: few_shot, or use an instruct model"
            )
        self.stop_ids = stop_ids
        self.stop_strings = stop_strings
        self._tokenizer = tokenizer
        self._thinking = thinking
        self._system = system
        self._suffix = suffix

    def prompt(self, messages: Sequence[Message], *, hindsight: str | None = None) -> TokenIds:
        """Returns the [n] ids up to where the policy speaks.

        `hindsight` goes, as a paragraph of its own, into the last user turn before the first assistant turn.
        Raises DataError when `messages` do not end with a user's, ModelError when the template refuses them.
        """
        turns = self._turns(messages, hindsight)
        return token_array(render_ids(self._tokenizer, turns, thinking=self._thinking))

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        """Returns the turns that the template makes ids of in `prompt`; raises as it does."""
        return self._turns(messages, None)

    def demonstrate(self, messages: Sequence[Message], text: str) -> Demonstration:
        """Returns the ids with which the policy would answer `messages` with `text` and stop.

        Raises as `prompt` does, UnusableSolution for a text that cannot be sampled whole, and ModelError when
        no token ends a turn.
        """
        return chat_demonstration(
            self._tokenizer,
            self._turns(messages, None),
            text,
            prompt_ids=self.prompt(messages),
            thinking=self._thinking,
            stop_ids=self.stop_ids,
            end=self._end,
        )

    def _turns(self, messages: Sequence[Message], hindsight: str | None) -> list[Message]:
        roles = [message.role for message in messages]
        if not roles or roles[-1] != "user":
            raise DataError(f"a prompt must end with a user message, got roles {roles}")
        turns = [*messages[:-1], _extended(messages[-1], self._suffix)]
        if hindsight is not None:
            first_reply = roles.index("assistant") if "assistant" in roles else len(roles)
            users = [index for index in range(first_reply) if roles[index] == "user"]
            if not users:
                raise DataError(f"hindsight needs a user message before the first reply, got roles {roles}")
            turns[users[-1]] = _extended(turns[users[-1]], f"\n\n{hindsight}")
        if self._system is not None:
            turns = [turn for turn in turns if turn.role != "system"]
            turns.insert(0, Message(role="system", content=self._system))
        return turns

    def turn(self, message: Message) -> TokenIds:
        """Returns the [n] ids that add `message` to a finished policy turn and open the next one.

        The policy's turn must have ended with a stop token, which stands for the template's end of turn: the
        ids begin behind it. Raises ModelError when the template allows no such continuation.
        """
        _ = self._continues
        text = next_turn(self._tokenizer, message, thinking=self._thinking)
        _, rest = split_end_of_turn(self._tokenizer, encode(self._tokenizer, text))
        return token_array(rest)

    def text(self, token_ids: TokenIds) -> str:
        """Returns what people and verifiers read: without special tokens, otherwise unchanged."""
        return _decoded(self._tokenizer, token_ids)

    @cached_property
    def _end(self) -> int:
        return _stop_token([end_of_turn(self._tokenizer), self._tokenizer.eos_token_id], self.stop_ids)

    @cached_property
    def _continues(self) -> bool:
        check_next_turn(self._tokenizer, thinking=self._thinking)
        return True


class FewShotRenderer:
    """Renders solved `examples`, (question, answer), and the question as plain text, without any template.

    `template` holds {question} and ends with {answer}. A completion stops at the first line of `separator`,
    which stands between examples. Blanks before {answer} are left for the policy to sample: tokenizers
    join them to the word that follows, and so did the examples.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        examples: Sequence[tuple[str, str]],
        template: str,
        separator: str,
        stop_ids: frozenset[int],
        stop_strings: tuple[str, ...] = (),
    ) -> None:
        self.stop_ids = stop_ids
        self.stop_strings = tuple(dict.fromkeys([*stop_strings, *separator.splitlines(keepends=True)[:1]]))
        self._tokenizer = tokenizer
        self._separator = separator
        self._opening, _, closing = template.partition("{answer}")
        self._after_answer = closing + separator
        self._examples = "".join(
            f"{self._ask(question)}{answer}{self._after_answer}" for question, answer in examples
        )

    def prompt(self, messages: Sequence[Message], *, hindsight: str | None = None) -> TokenIds:
        """Returns the [n] ids up to where the answer stands; `hindsight` is a paragraph of the question.

        Raises DataError unless `messages` is one user message.
        """
        return token_array(_raw_ids(self._tokenizer, self._text_before(messages, hindsight)))

    def shown(self, messages: Sequence[Message]) -> str:
        """Returns the text that `prompt` makes ids of; raises as it does."""
        return self._text_before(messages, None)

    def demonstrate(self, messages: Sequence[Message], text: str) -> Demonstration:
        """Returns the ids with which the policy would answer `messages` with `text` and stop.

        The blanks that the examples have before their answers come first; the first line of the separator, or
        whatever token completes it, comes last. Raises as `prompt` does, UnusableSolution for a text that
        cannot be sampled whole, and ModelError when nothing ends a completion.
        """
        before = self._text_before(messages, None)
        written = self._opening[len(self._opening.rstrip(" \t")) :] + text
        rest = self._after_answer if self.stop_strings else ""
        return plain_demonstration(
            self._tokenizer,
            prompt_ids=token_array(_raw_ids(self._tokenizer, before)),
            whole_ids=_raw_ids(self._tokenizer, before + written + rest),
            written=written,
            rest=rest,
            stop_ids=self.stop_ids,
            stop_strings=self.stop_strings,
            end=None if self.stop_strings else self._end,
            read=self.text,
        )

    def _text_before(self, messages: Sequence[Message], hindsight: str | None) -> str:
        roles = [message.role for message in messages]
        if roles != ["user"]:
            raise DataError(
                f"a few-shot prompt is one user message, got roles {roles}; use prompt.kind: chat"
            )
        question = messages[0].content + ("" if hindsight is None else f"\n\n{hindsight}")
        return self._examples + self._ask(question).rstrip(" \t")

    def turn(self, message: Message) -> TokenIds:
        """Returns the [n] ids of the rest of the separator and of `message` as the next question.

        The policy's turn must have ended with the stop string, the first line of the separator.
        """
        rest = "".join(self._separator.splitlines(keepends=True)[1:])
        return token_array(encode(self._tokenizer, rest + self._ask(message.content).rstrip(" \t")))

    def text(self, token_ids: TokenIds) -> str:
        """Returns what people and verifiers read: without special tokens, otherwise unchanged."""
        return _decoded(self._tokenizer, token_ids)

    @cached_property
    def _end(self) -> int:
        return _stop_token([self._tokenizer.eos_token_id], self.stop_ids)

    def _ask(self, question: str) -> str:
        return self._opening.replace("{question}", question)


def _stop_token(candidates: Sequence[int | None], stop_ids: frozenset[int]) -> int:
    """Returns the first of `candidates` at which sampling stops."""
    for token in candidates:
        if token in stop_ids:
            return token
    raise ModelError(
        "neither the chat template nor the tokenizer names a token that ends a reply, so none can be learnt; "
        "set eos_token in the model's tokenizer files"
    )


def _extended(message: Message, text: str) -> Message:
    return Message(role=message.role, content=message.content + text)


def _raw_ids(tokenizer: Any, text: str) -> list[int]:
    """Returns the ids of `text` with what the tokenizer puts before raw text, but nothing after it."""
    ids = list(tokenizer(text, verbose=False)["input_ids"])
    plain = encode(tokenizer, text)
    starts = range(len(ids) - len(plain) + 1)
    start = next(start for start in starts if ids[start : start + len(plain)] == plain)
    return ids[: start + len(plain)]


def _decoded(tokenizer: Any, token_ids: TokenIds) -> str:
    return tokenizer.decode(token_ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)
