"""SGLang's native server: `/generate` with `logprob_start_len` and no new tokens, `/tokenize`, `/detokenize`.

Positions come from logprob_start_len on, the first of them without a law, so that what lies before can be
read from its prefix cache. JSON has no -inf, and SGLang writes null for it as for NaN: both are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from turnpoint.teachers.transport import Question
from turnpoint.teachers.wire import Scored, checked, encoded_ids, read
from turnpoint.types import Message, float_array


class _Meta(BaseModel):
    input_token_logprobs: list[tuple[float | None, int, str | None]]
    weight_version: str | None = None


class _Generated(BaseModel):
    meta_info: _Meta


class _Text(BaseModel):
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangWire:
    """The format of a server that calls its model `model`; `prefix_cache`: whether scores are read there."""

    model: str
    prefix_cache: bool = True

    def score(self, ids: Sequence[int], start: int) -> Question:
        """Asks for log p(ids[i] | ids[:i]), i >= start."""
        body = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": start - 1,
        }
        return Question(path="/generate", body=body)

    def scored(self, answer: Any, ids: Sequence[int], start: int) -> Scored:
        """Reads the answer to `score`; raises ValueError for one that is not about `ids`."""
        meta = read(_Generated, answer).meta_info
        places, asked = meta.input_token_logprobs, ids[start - 1 :]
        if len(places) != len(asked):
            raise ValueError(f"it scored {len(places)} tokens of {len(asked)}")
        for position, (place, token) in enumerate(zip(places, asked, strict=True), start=start - 1):
            if place[1] != token:
                raise ValueError(f"token {position} is {token}, and it scored {place[1]}")
        found = [checked(place[0], position) for position, place in enumerate(places[1:], start=start)]
        return Scored(logprobs=float_array(found), version=meta.weight_version or "")

    def decode(self, ids: Sequence[int]) -> Question:
        """Asks for the text of `ids`, special tokens in it."""
        body = {"model": self.model, "tokens": list(ids), "skip_special_tokens": False}
        return Question(path="/detokenize", body=body)

    def decoded(self, answer: Any) -> str:
        """Reads the answer to `decode`."""
        return read(_Text, answer).text

    def encode(self, text: str, *, special: bool) -> Question:
        """Asks for the ids of `text`; `special`: with what the tokenizer puts around raw text."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": special}
        return Question(path="/tokenize", body=body)

    def render(self, messages: Sequence[Message], *, thinking: bool) -> None:
        """Asks nothing: SGLang renders a chat only to answer it."""
        return

    def encoded(self, answer: Any) -> list[int]:
        """Reads the answer to `encode`."""
        return encoded_ids(answer)
