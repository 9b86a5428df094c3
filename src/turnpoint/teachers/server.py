"""A model behind an HTTP server, for what a teacher is asked: laws of given tokens, texts and ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from turnpoint.errors import EngineError
from turnpoint.teachers.transport import Question, Reply, Transport
from turnpoint.teachers.wire import MODELS, Scored, served_models
from turnpoint.teachers.wire_sglang import SglangWire
from turnpoint.teachers.wire_vllm import VllmWire
from turnpoint.types import Message

Wire: TypeAlias = VllmWire | SglangWire

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Asks through `transport` in the words of `wire`. Raises EngineError naming who was asked."""

    transport: Transport
    wire: Wire

    async def score(self, ids: Sequence[int], start: int) -> tuple[Scored, bool]:
        """Returns log p(ids[i] | ids[:i]), i >= start, and whether the server answered at once."""
        question = self.wire.score(ids, start)
        reply = await self.transport.ask(question)
        scored = self._read(question, reply, lambda answer: self.wire.scored(answer, ids, start))
        return scored, reply.undisturbed

    async def text(self, ids: Sequence[int]) -> str:
        """Returns the text of `ids`, special tokens in it."""
        return await self._ask(self.wire.decode(ids), self.wire.decoded)

    async def ids(self, text: str, *, special: bool) -> list[int]:
        """Returns the ids of `text`, `special`: with what the tokenizer puts around raw text."""
        return await self._ask(self.wire.encode(text, special=special), self.wire.encoded)

    async def prompt(self, messages: Sequence[Message], *, thinking: bool) -> list[int] | None:
        """Returns the ids up to where the model speaks; None: this kind of server cannot tell."""
        question = self.wire.render(messages, thinking=thinking)
        return None if question is None else await self._ask(question, self.wire.encoded)

    async def _ask(self, question: Question, read: Callable[[Any], _T]) -> _T:
        return self._read(question, await self.transport.ask(question), read)

    def _read(self, question: Question, reply: Reply, read: Callable[[Any], _T]) -> _T:
        return read_answer(self.transport, question, reply, read)


async def find_model(transport: Transport, wanted: str | None) -> tuple[str, int]:
    """Returns the name and the context length, tokens, of the model called `wanted`, or of the only one.

    The server is asked once: it must be running. Raises EngineError naming those that it has.
    """
    reply = await transport.ask(MODELS, patient=False)
    models = read_answer(transport, MODELS, reply, served_models)
    names = ", ".join(models)
    if wanted is None and len(models) > 1:
        raise EngineError(f"{transport.who} serves {names}: say by the teacher's `model` which one teaches")
    name = next(iter(models)) if wanted is None else wanted
    if name not in models:
        raise EngineError(
            f"{transport.who} serves {names} and no {name!r}; name the model as the server does"
        )
    lengths = [length for length in (models[name], *models.values()) if length is not None]
    if not lengths:
        raise EngineError(f"{transport.who} does not tell its context length (max_model_len)")
    return name, lengths[0]  # an adapter has that of its base


def read_answer(transport: Transport, question: Question, reply: Reply, read: Callable[[Any], _T]) -> _T:
    """Returns what an answer says; raises EngineError for one that is not as documented."""
    try:
        return read(reply.value)
    except ValueError as error:
        raise EngineError(f"{transport.who} answers wrongly to {question.path}: {error}") from error
