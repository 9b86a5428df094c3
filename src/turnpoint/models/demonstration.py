"""A given text as the ids that a policy would have sampled: right behind the prompt, its end included.

Sampling ends with a stop token or a stop string, so what is imitated must end with one too: a model that
never sees its own end in training does not learn to stop. Tokens that a template adds by itself belong to
nobody and are never trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from turnpoint.models.template import conversation_ids, encode
from turnpoint.types import Message, TokenIds, token_array


class UnusableSolution(ValueError):
    """A text that no policy could have sampled whole; the message is the reason, the same for all such."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demonstration:
    """A prompt and what the policy should write behind it."""

    prompt_ids: TokenIds  # [p], those of `Renderer.prompt`
    token_ids: TokenIds  # [n], n >= 2: the text and what ends the policy's turn
    in_context: bool
    """Whether prompt and text rendered together have the same ids. If not, the text was encoded alone and
    stands behind the prompt as sampling would put it there: harmless."""


def chat_demonstration(
    tokenizer: Any,
    turns: Sequence[Message],
    text: str,
    *,
    prompt_ids: TokenIds,
    thinking: bool,
    stop_ids: frozenset[int],
    end: int,
) -> Demonstration:
    """Returns `text` as the reply to `turns`, as the chat template would render it.

    The template's ids are taken where they begin with `prompt_ids` and hold nothing but the text up to the
    first stop token, blanks around it allowed. Where the template renders a finished reply otherwise (trims a
    thought, inserts one, opens the turn differently than it does for generation), the text is encoded alone
    and `end` follows it. Raises UnusableSolution.
    """
    alone = _usable(tokenizer, encode(tokenizer, text), stop_ids)
    reply = Message(role="assistant", content=text)
    whole = conversation_ids(tokenizer, [*turns, reply], thinking=thinking)
    after = whole[len(prompt_ids) :]
    stop = next((index for index, token in enumerate(after) if token in stop_ids), None)
    if stop is not None and whole[: len(prompt_ids)] == prompt_ids.tolist():
        body = after[:stop]
        if body == alone or _decoded(tokenizer, body).strip() == text.strip():
            return Demonstration(
                prompt_ids=prompt_ids, token_ids=token_array(after[: stop + 1]), in_context=True
            )
    return Demonstration(prompt_ids=prompt_ids, token_ids=token_array([*alone, end]), in_context=False)


def plain_demonstration(
    tokenizer: Any,
    *,
    prompt_ids: TokenIds,
    whole_ids: Sequence[int],
    written: str,
    rest: str,
    stop_ids: frozenset[int],
    stop_strings: Sequence[str],
    end: int | None,
    read: Callable[[TokenIds], str],
) -> Demonstration:
    """Returns `written`, and of the `rest` behind it as much as it takes to meet a stop string.

    `whole_ids` are those of prompt, `written` and `rest` encoded as one text; where they do not begin with
    `prompt_ids`, `written` and `rest` are encoded without the prompt. `read` is `Renderer.text`: as in
    sampling, the turn ends with the token that completes the first stop string. Where there is no stop
    string, it ends with the token `end`. Raises UnusableSolution.
    """
    in_context = list(whole_ids[: len(prompt_ids)]) == prompt_ids.tolist()
    after = list(whole_ids[len(prompt_ids) :]) if in_context else encode(tokenizer, written + rest)
    if end is None:
        after = _until_stopped(after, written=written, stop_strings=stop_strings, read=read)
    ids = _usable(tokenizer, after, stop_ids)
    if end is not None:
        ids = [*ids, end]
    return Demonstration(prompt_ids=prompt_ids, token_ids=token_array(ids), in_context=in_context)


def _until_stopped(
    ids: list[int], *, written: str, stop_strings: Sequence[str], read: Callable[[TokenIds], str]
) -> list[int]:
    def stopped(count: int) -> bool:
        said = read(token_array(ids[:count]))
        return any(stop in said for stop in stop_strings)

    for stop in stop_strings:
        if stop in written:
            raise UnusableSolution(f"the solution holds the stop string {stop!r}, where sampling would end")
    count = len(ids)
    if not stopped(count):
        raise UnusableSolution("the tokenizer does not give back the stop string that ends the solution")
    while stopped(count - 1):
        count -= 1
    return ids[:count]


def _usable(tokenizer: Any, ids: list[int], stop_ids: frozenset[int]) -> list[int]:
    if not ids:
        raise UnusableSolution("the solution has no token")
    if not stop_ids.isdisjoint(ids):
        raise UnusableSolution("the solution holds a stop token, where sampling would end")
    if tokenizer.unk_token_id in ids:
        raise UnusableSolution("the solution holds characters that the tokenizer does not know")
    return ids


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
