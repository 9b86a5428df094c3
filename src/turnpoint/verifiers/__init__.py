"""Judges of completions: mathematical equality, reasoning-gym's scorers, functions of yours.

Whatever may hang, grow or crash runs in worker processes that are killed and replaced; a verdict always
comes in bounded time, and a judge that failed gives an invalid verdict, never a reward of zero.
"""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.verifiers.code.verifier import CodeVerifier as CodeVerifier
    from turnpoint.verifiers.function import FunctionVerifier as FunctionVerifier
    from turnpoint.verifiers.math.verifier import MathVerifier as MathVerifier
    from turnpoint.verifiers.reasoning_gym import ReasoningGymVerifier as ReasoningGymVerifier
    from turnpoint.verifiers.unjudged import Unjudged as Unjudged

__all__ = ["CodeVerifier", "FunctionVerifier", "MathVerifier", "ReasoningGymVerifier", "Unjudged"]
__getattr__, __dir__ = lazy(
    __name__,
    {
        "CodeVerifier": "code.verifier",
        "FunctionVerifier": "function",
        "MathVerifier": "math.verifier",
        "ReasoningGymVerifier": "reasoning_gym",
        "Unjudged": "unjudged",
    },
)
