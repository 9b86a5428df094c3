"""Rows to tasks: public datasets, files and generators become `turnpoint.types.Task` records.

Reading is forgiving about rows and strict about datasets: a row that cannot be used is counted with its
reason, a dataset of which nothing can be used is an error. What was read, kept and left out is a report.
"""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.tasks.dataset import Dataset as Dataset
    from turnpoint.tasks.dataset import InvalidRows as InvalidRows
    from turnpoint.tasks.dataset import ReadReport as ReadReport
    from turnpoint.tasks.dataset import holdout as holdout
    from turnpoint.tasks.dataset import split_examples as split_examples
    from turnpoint.tasks.fingerprint import Fingerprint as Fingerprint
    from turnpoint.tasks.lengths import LengthCheck as LengthCheck
    from turnpoint.tasks.lengths import check_lengths as check_lengths
    from turnpoint.tasks.load import load_tasks as load_tasks
    from turnpoint.tasks.order import BatchOrder as BatchOrder
    from turnpoint.tasks.order import TaskStream as TaskStream

__all__ = [
    "BatchOrder",
    "Dataset",
    "Fingerprint",
    "InvalidRows",
    "LengthCheck",
    "ReadReport",
    "TaskStream",
    "check_lengths",
    "holdout",
    "load_tasks",
    "split_examples",
]
__getattr__, __dir__ = lazy(
    __name__,
    {
        "BatchOrder": "order",
        "Dataset": "dataset",
        "Fingerprint": "fingerprint",
        "InvalidRows": "dataset",
        "LengthCheck": "lengths",
        "ReadReport": "dataset",
        "TaskStream": "order",
        "check_lengths": "lengths",
        "holdout": "dataset",
        "load_tasks": "load",
        "split_examples": "dataset",
    },
)
