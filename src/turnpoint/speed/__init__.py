"""What a machine reaches with a model at given lengths, beside what it could reach at best.

Each file has one idea; `measure` runs them. `turnpoint bench` is the command.
"""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.speed.figures import Figure as Figure
    from turnpoint.speed.figures import Report as Report
    from turnpoint.speed.measuring import Subject as Subject
    from turnpoint.speed.measuring import measure as measure

__all__ = ["Figure", "Report", "Subject", "measure"]
__getattr__, __dir__ = lazy(
    __name__,
    {"Figure": "figures", "Report": "figures", "Subject": "measuring", "measure": "measuring"},
)
