"""What the engine refuses, and why: one line naming the request and the numbers."""

from __future__ import annotations

import math

import numpy as np

from turnpoint.errors import EngineError
from turnpoint.protocols import Capabilities, GenerateRequest, ScoreRequest
from turnpoint.types import TokenIds

# Below it logits / temperature may overflow, and the step that fails takes all requests in flight with it.
_LEAST_TEMPERATURE = 1e-6


def check_generate(request: GenerateRequest, *, capabilities: Capabilities, vocab_size: int) -> None:
    """Raises EngineError when `request` cannot be served."""
    _check_ids(request.id, request.prompt_ids, vocab_size)
    context = capabilities.context_length
    if len(request.prompt_ids) >= context:
        raise EngineError(
            f"request {request.id!r}: a prompt of {len(request.prompt_ids)} tokens leaves no room to "
            f"generate in a context of {context}; shorten the prompt"
        )
    if request.max_tokens < 1:
        raise EngineError(f"request {request.id!r}: max_tokens is {request.max_tokens}; ask for 1 or more")
    if request.temperature != 0 and not _LEAST_TEMPERATURE <= request.temperature < math.inf:
        raise EngineError(
            f"request {request.id!r}: temperature is {request.temperature}; it must be 0 (the likeliest "
            f"token) or finite and at least {_LEAST_TEMPERATURE:g}"
        )
    if request.top_k < 0 or not 0 < request.top_p <= 1:
        raise EngineError(
            f"request {request.id!r}: top_k is {request.top_k} and top_p {request.top_p}; top_k must be 0 "
            f"(all) or more, top_p above 0 and at most 1 (all)"
        )
    if not 0 <= request.continued <= len(request.prompt_ids):
        raise EngineError(
            f"request {request.id!r}: continued is {request.continued}; the prompt has "
            f"{len(request.prompt_ids)} tokens"
        )
    if "" in request.stop_strings:
        raise EngineError(f"request {request.id!r}: an empty stop string would stop at once; remove it")


def check_score(request: ScoreRequest, *, capabilities: Capabilities, vocab_size: int) -> None:
    """Raises EngineError when `request` cannot be served."""
    _check_ids(request.id, request.token_ids, vocab_size)
    length, context = len(request.token_ids), capabilities.context_length
    if length > context:
        raise EngineError(f"request {request.id!r}: {length} tokens exceed the context of {context}")
    if not 1 <= request.start < length:
        raise EngineError(
            f"request {request.id!r}: start is {request.start}; with {length} tokens it must lie in "
            f"1..{length - 1}, because the first token has no context"
        )
    if not _LEAST_TEMPERATURE <= request.temperature < math.inf:
        raise EngineError(
            f"request {request.id!r}: temperature is {request.temperature}; scoring needs one that is "
            f"finite and at least {_LEAST_TEMPERATURE:g}"
        )
    if not 0 <= request.top_k <= capabilities.max_top_k:
        raise EngineError(
            f"request {request.id!r}: top_k is {request.top_k}; it must lie in 0..{capabilities.max_top_k}"
        )


def _check_ids(request_id: str, ids: TokenIds, vocab_size: int) -> None:
    if len(ids) == 0:
        raise EngineError(f"request {request_id!r}: no tokens; a sequence starts with at least one")
    outside = (ids < 0) | (ids >= vocab_size)
    if outside.any():
        at = int(np.argmax(outside))
        raise EngineError(
            f"request {request_id!r}: token {int(ids[at])} at position {at} is outside the vocabulary of "
            f"{vocab_size}"
        )
