"""vLLM's OpenAI-compatible server: `/v1/completions` with `prompt_logprobs`, `/tokenize`, `/detokenize`.

A request with prompt_logprobs does not read vLLM's prefix cache: rollouts of one prompt each pay for it.
They are raw log-probabilities unless the server was started with a --logprobs-mode of logits. vLLM generates
at least one token and writes -9999 for -inf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field

from turnpoint.teachers.transport import Question
from turnpoint.teachers.wire import Scored, checked, encoded_ids, read
from turnpoint.types import Message, float_array

_MINUS_INFINITY = -9999.0


class _Logprob(BaseModel):
    logprob: float | None


class _Choice(BaseModel):
    prompt_logprobs: list[dict[int, _Logprob] | None]


class _Completion(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1, max_length=1)]


class _Text(BaseModel):
    prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmWire:
    """The format of a server that calls its model `model`; `prefix_cache`: whether scores are read there."""

    model: str
    prefix_cache: bool = False

    def score(self, ids: Sequence[int], start: int) -> Question:
        """Asks for log p(ids[i] | ids[:i]), i >= start; vLLM gives all positions."""
        body = {"prompt": list(ids), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        return self._ask("/v1/completions", body)

    def scored(self, answer: Any, ids: Sequence[int], start: int) -> Scored:
        """Reads the answer to `score`; raises ValueError for one that is not about `ids`."""
        places = read(_Completion, answer).choices[0].prompt_logprobs
        if len(places) != len(ids):
            raise ValueError(f"it scored {len(places)} tokens of {len(ids)}")
        found: list[float] = []
        for position in range(start, len(ids)):
            place = places[position]
            if place is None:
                raise ValueError(f"token {position} has no log-probability, it is missing there")
            if ids[position] not in place:
                other = ", ".join(map(str, place))
                raise ValueError(f"token {position} is {ids[position]}, and it scored {other}")
            value = checked(place[ids[position]].logprob, position)
            found.append(-math.inf if value == _MINUS_INFINITY else value)
        return Scored(logprobs=float_array(found), version="")

    def decode(self, ids: Sequence[int]) -> Question:
        """Asks for the text of `ids`, special tokens in it."""
        return self._ask("/detokenize", {"tokens": list(ids)})

    def decoded(self, answer: Any) -> str:
        """Reads the answer to `decode`."""
        return read(_Text, answer).prompt

    def encode(self, text: str, *, special: bool) -> Question:
        """Asks for the ids of `text`; `special`: with what the tokenizer puts around raw text."""
        return self._ask("/tokenize", {"prompt": text, "add_special_tokens": special})

    def render(self, messages: Sequence[Message], *, thinking: bool) -> Question:
        """Asks for the ids up to where the model speaks."""
        turns = [{"role": message.role, "content": message.content} for message in messages]
        template = {"add_generation_prompt": True, "chat_template_kwargs": {"enable_thinking": thinking}}
        return self._ask("/tokenize", {"messages": turns, **template})

    def encoded(self, answer: Any) -> list[int]:
        """Reads the answer to `encode` and to `render`."""
        return encoded_ids(answer)

    def _ask(self, path: str, body: dict[str, Any]) -> Question:
        return Question(path=path, body={"model": self.model, **body})
