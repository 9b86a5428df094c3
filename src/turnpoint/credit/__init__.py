"""What every token of a group deserves, decided on typed records before anything is packed."""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.credit.combine import combine_advantages as combine_advantages
    from turnpoint.credit.group import GroupAdvantage as GroupAdvantage
    from turnpoint.credit.group import group_advantages as group_advantages
    from turnpoint.credit.overlong import MaskTruncated as MaskTruncated
    from turnpoint.credit.overlong import SoftPenalty as SoftPenalty
    from turnpoint.credit.overlong import overlong_penalty as overlong_penalty
    from turnpoint.credit.tree import SiblingAdvantage as SiblingAdvantage
    from turnpoint.credit.tree import SubtreeAdvantage as SubtreeAdvantage

__all__ = [
    "GroupAdvantage",
    "MaskTruncated",
    "SiblingAdvantage",
    "SoftPenalty",
    "SubtreeAdvantage",
    "combine_advantages",
    "group_advantages",
    "overlong_penalty",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "GroupAdvantage": "group",
        "MaskTruncated": "overlong",
        "SiblingAdvantage": "tree",
        "SoftPenalty": "overlong",
        "SubtreeAdvantage": "tree",
        "combine_advantages": "combine",
        "group_advantages": "group",
        "overlong_penalty": "overlong",
    },
)
