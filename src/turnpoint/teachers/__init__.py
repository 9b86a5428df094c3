"""What a teacher says about the tokens that the policy sampled."""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.teachers.discount import discounted_signal as discounted_signal
    from turnpoint.teachers.signal import sampled_token_signal as sampled_token_signal
    from turnpoint.teachers.signal import signal_metrics as signal_metrics

__all__ = [
    "discounted_signal",
    "sampled_token_signal",
    "signal_metrics",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "discounted_signal": "discount",
        "sampled_token_signal": "signal",
        "signal_metrics": "signal",
    },
)
