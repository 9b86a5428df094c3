"""What both wire formats share: scores, ids, models, and how what is not as documented is told.

Reading raises ValueError for what is not as the server's documentation says. Log-probabilities are those of
softmax(logits): neither server scales those of given tokens by a temperature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from turnpoint._lines import described
from turnpoint.teachers.transport import Question
from turnpoint.types import Floats

_M = TypeVar("_M", bound=BaseModel)
_ABOVE_ZERO = 1e-3  # nats by which rounding may leave a log-probability above 0

MODELS = Question(path="/v1/models")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scored:
    """Log-probabilities of given tokens, nats; `version` is what the server calls its weights, or empty."""

    logprobs: Floats  # [n - start]
    version: str


class _Model(BaseModel):
    id: str
    max_model_len: int | None = None


class _Models(BaseModel):
    data: Annotated[list[_Model], Field(min_length=1)]


class _Encoded(BaseModel):
    tokens: list[int]


def served_models(answer: Any) -> dict[str, int | None]:
    """Reads the answer to `MODELS`: context lengths by name, None where it is an adapter's."""
    return {model.id: model.max_model_len for model in read(_Models, answer).data}


def encoded_ids(answer: Any) -> list[int]:
    """Reads ids, which both servers give alike."""
    return read(_Encoded, answer).tokens


def read(model: type[_M], answer: Any) -> _M:
    """Returns `answer` as `model`; raises ValueError in one line."""
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        raise ValueError(described(error)) from error


def checked(value: float | None, position: int) -> float:
    """Returns a log-probability; raises ValueError for what is none. -inf is one."""
    if value is None or math.isnan(value):
        raise ValueError(
            f"token {position} has no log-probability: NaN or null, which SGLang also writes for -inf"
        )
    if value > _ABOVE_ZERO:
        raise ValueError(
            f"token {position} has a log-probability of {value:.4g}, above 0: the server gives logits"
        )
    return min(value, 0.0)
