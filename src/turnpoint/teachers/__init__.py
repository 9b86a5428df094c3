"""What a teacher says about the tokens that the policy sampled."""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.teachers.signal import sampled_token_signal as sampled_token_signal

__all__ = ["sampled_token_signal"]

__getattr__, __dir__ = lazy(__name__, {"sampled_token_signal": "signal"})
