"""The rollout policy looks back at what it did: one more completion, from a prompt of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass

from turnpoint.protocols import Completion, Engine, GenerateRequest, Renderer, Root
from turnpoint.types import Account, Message, TokenKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflector:
    """Asks the policy without thinking; `renderer` is a chat renderer of its own, with thinking off."""

    renderer: Renderer
    max_tokens: int
    temperature: float
    seed: int

    async def write(self, root: Root, engine: Engine, message: Message) -> tuple[Completion | None, Account]:
        """Returns the answer to `message` and its cost; None when it would not fit into the context."""
        started = time.perf_counter()
        prompt_ids = self.renderer.prompt([message])
        if len(prompt_ids) + self.max_tokens > engine.capabilities.context_length:
            return None, Account()
        answer = await engine.generate(
            GenerateRequest(
                id=f"{root.id}/reflection",
                prompt_ids=prompt_ids,
                max_tokens=self.max_tokens,
                temperature=self.temperature,
                stop_ids=self.renderer.stop_ids,
                stop_strings=self.renderer.stop_strings,
                seed=self.seed,
            )
        )
        tokens = {
            TokenKind.PROMPT: len(prompt_ids) - answer.cached_tokens,
            TokenKind.CACHED: answer.cached_tokens,
            TokenKind.REFLECTION: len(answer.token_ids),
        }
        return answer, Account(tokens=tokens, seconds={"reflect": time.perf_counter() - started})
