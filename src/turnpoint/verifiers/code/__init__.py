"""Programs judged by tests: which tests are run, what counts as equal, what the policy is told."""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.verifiers.code.verifier import CodeVerifier as CodeVerifier

__all__ = ["CodeVerifier"]
__getattr__, __dir__ = lazy(__name__, {"CodeVerifier": "verifier"})
