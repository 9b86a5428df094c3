"""One rollout: sampled after a prompt, or from a point within an earlier one, and judged when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from turnpoint.errors import VerifierError
from turnpoint.protocols import Completion, Engine, GenerateRequest, Renderer, Verifier
from turnpoint.types import Task, TokenIds, Verdict, token_array

Progress: TypeAlias = Callable[[int, int], None]  # (rollouts finished, tokens they generated)

NO_TOKENS = token_array(np.empty(0, dtype=np.int32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A completion and what was thought of it; of a continuation, the completion holds the new tokens."""

    completion: Completion
    verdict: Verdict
    prompt_tokens: int  # that the request began with, what it continues included
    generated_at: float  # seconds of the performance counter
    verify_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """Samples from the engine's policy and asks the verifier.

    Draws are a function of `seed` and the request's id alone. The renderer's stop ids and stop strings end a
    rollout. Nothing is retried: an engine or a verifier that breaks raises, while a verdict that is invalid
    is data.
    """

    engine: Engine
    renderer: Renderer
    verifier: Verifier
    temperature: float
    max_new_tokens: int
    seed: int

    async def rollout(
        self,
        task: Task,
        prompt_ids: TokenIds,
        *,
        request_id: str,
        progress: Progress,
        kept: TokenIds = NO_TOKENS,
    ) -> Rollout:
        """Returns a rollout that begins with the tokens `kept` of an earlier one, [k]; they count as its own.

        Raises EngineError, and VerifierError naming task and rollout when the verifier raised.
        """
        completion = await self.engine.generate(
            GenerateRequest(
                id=request_id,
                prompt_ids=token_array(np.concatenate([prompt_ids, kept])) if len(kept) else prompt_ids,
                max_tokens=self.max_new_tokens - len(kept),
                temperature=self.temperature,
                stop_ids=self.renderer.stop_ids,
                stop_strings=self.renderer.stop_strings,
                seed=self.seed,
                continued=len(kept),
            )
        )
        assert len(completion.token_ids), f"{request_id}: an engine samples at least one token"
        generated_at = time.perf_counter()
        verdict = await self._verify(task, completion, request_id)
        verify_seconds = time.perf_counter() - generated_at
        progress(1, len(completion.token_ids))
        return Rollout(
            completion=completion,
            verdict=verdict,
            prompt_tokens=len(prompt_ids) + len(kept),
            generated_at=generated_at,
            verify_seconds=verify_seconds,
        )

    async def _verify(self, task: Task, completion: Completion, request_id: str) -> Verdict:
        try:
            return await self.verifier.verify(task, completion.text)
        except Exception as error:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise VerifierError(
                f"task {task.id}, rollout {request_id}: the verifier raised {what}"
            ) from error
