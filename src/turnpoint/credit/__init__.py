"""What every token of a group deserves, decided on typed records before anything is packed."""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.credit.combine import combine_advantages as combine_advantages
    from turnpoint.credit.group import GroupAdvantage as GroupAdvantage
    from turnpoint.credit.group import group_advantages as group_advantages

__all__ = ["GroupAdvantage", "combine_advantages", "group_advantages"]

__getattr__ = lazy(
    __name__, {"GroupAdvantage": "group", "combine_advantages": "combine", "group_advantages": "group"}
)
