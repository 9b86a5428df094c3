"""What a recipe says about a teacher behind a server, and what all teachers have."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from turnpoint.config.base import Name, Number, PositiveFloat, PositiveInt, Recipe

SERVER_FREE = ("url", "in_flight", "deadline", "tolerance")  # say where and how it is asked, not who teaches


class TeacherBase(Recipe):
    """What every teacher has."""

    coef: Annotated[PositiveFloat, Field(le=1e6)] | None = None
    """Advantage for each nat that the teacher gives a token more than the policy does; null: distill.coef."""
    share: Annotated[float, Number, Field(gt=0, lt=1)] | None = None
    """What part of a step's teaching is this teacher's, however long the answers of its problems are; for all
    teachers or for none; null: its share of the tokens."""


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        reachable = parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise ValueError(f"{url!r} is no address: {error}; write http://HOST:PORT") from error
    if parts.scheme not in ("http", "https") or not reachable or parts.query or parts.fragment:
        raise ValueError(f"{url!r} is no address of a server; write http://HOST:PORT")
    return url.rstrip("/")


Address: TypeAlias = Annotated[str, AfterValidator(_address)]


class ServerTeacher(TeacherBase):
    """A model behind an HTTP server, asked for the probability of every sampled token at temperature 1."""

    kind: Literal["server"]
    api: Literal["vllm", "sglang"]
    """Whose: `/v1/completions` with prompt_logprobs, or `/generate` with logprob_start_len."""
    url: Address
    """http://HOST:PORT."""
    model: Name | None = None
    """Its name there; null: the only one that the server has."""
    template: Literal["same", "any"] = "same"
    """As for a model; vLLM renders the problem itself."""
    tokenizer: Name | None = None
    """A folder or hub name whose chat template is compared in place of the server's: for SGLang, which
    renders no chat without answering."""
    in_flight: PositiveInt = 8
    """Requests at a time."""
    deadline: PositiveFloat = 300.0
    """Seconds for a request, during which it is sent again after growing waits while the server is away."""
    tolerance: PositiveFloat = 0.05
    """Mean |difference|, nats, of what it says of a fixed prompt, up to which it is taken for the same model.
    Checked at every step and when a run goes on; rounding of bfloat16 makes some."""


def check_server(name: str, server: ServerTeacher, *, temperature: float, chat: bool) -> None:
    """Raises ValueError when the rest of a recipe asks what the server cannot give."""
    key = f"distill.teachers.{name}"
    if temperature != 1:
        raise ValueError(
            f"{key}: sampling.temperature = {temperature:g}, and a server gives the probabilities of given "
            f"tokens at temperature 1 alone; with rollouts of another one the policy would be pulled to a "
            f"law that is not the teacher's. Take sampling.temperature=1, or a teacher of kind model"
        )
    asks_us = server.api == "sglang" and server.template == "same" and chat
    if asks_us and server.tokenizer is None:
        raise ValueError(
            f"{key}: SGLang renders no chat without answering, so whether its template is the policy's is "
            f"not known; give the folder of its model as tokenizer, or take template=any"
        )
    if server.tokenizer is not None and not asks_us:
        raise ValueError(
            f"{key}.tokenizer = {server.tokenizer} would not be looked at: it stands in for the chat "
            f"template of api=sglang with template=same; take it out"
        )
