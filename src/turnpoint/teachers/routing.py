"""Which teacher a problem has: one, named by a field of its row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnpoint.errors import DataError
from turnpoint.types import Json, Task

_SHOWN = 3  # names that are listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """`key` names the column that holds the teacher's name; None: there is one teacher, for all.

    Dots look into a column: entry.num_terms is num_terms of the column entry.
    """

    names: tuple[str, ...]
    key: str | None

    def of(self, task: Task) -> str:
        """Returns the name of the task's teacher, one of `names` once `check` has passed."""
        return self.names[0] if self.key is None else str(_field(task.metadata, self.key))

    def check(self, tasks: Sequence[Task]) -> None:
        """Raises DataError unless every task has a teacher that there is."""
        if self.key is None:
            return
        without = [task for task in tasks if _field(task.metadata, self.key) is None]
        if without:
            raise DataError(
                f"{len(without)} of {len(tasks)} problems have no column {self.key!r} (distill.key) to name "
                f"their teacher, the first is {without[0].id}; name one of {', '.join(self.names)} in each "
                f"row"
            )
        unknown = Counter(name for task in tasks if (name := self.of(task)) not in self.names)
        if unknown:
            shown = ", ".join(f"{name!r} ({count})" for name, count in unknown.most_common(_SHOWN))
            raise DataError(
                f"{unknown.total()} of {len(tasks)} problems name a teacher that distill.teachers does not "
                f"have: {shown}; it has {', '.join(self.names)}"
            )


def _field(columns: Mapping[str, Json], key: str) -> Json:
    """Returns what stands in a column, or inside of one; None where there is nothing."""
    if key in columns:
        return columns[key]
    column, _, inside = key.partition(".")
    inner = columns.get(column)
    return _field(inner, inside) if inside and isinstance(inner, Mapping) else None
