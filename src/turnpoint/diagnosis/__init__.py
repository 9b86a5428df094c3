"""Whether a recipe will work, found out on the live model before anything is spent.

Each file looks at one thing; `examine` runs them in order. `turnpoint doctor` is the command.
"""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.diagnosis.checks import Check as Check
    from turnpoint.diagnosis.checks import Diagnosis as Diagnosis
    from turnpoint.diagnosis.checks import Status as Status
    from turnpoint.diagnosis.examination import Subject as Subject
    from turnpoint.diagnosis.examination import examine as examine

__all__ = ["Check", "Diagnosis", "Status", "Subject", "examine"]
__getattr__, __dir__ = lazy(
    __name__,
    {
        "Check": "checks",
        "Diagnosis": "checks",
        "Status": "checks",
        "Subject": "examination",
        "examine": "examination",
    },
)
