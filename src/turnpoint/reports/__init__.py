"""What a person sees of a run: its plan, its steps in figures and words, its folder."""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.reports.comparison import compare as compare
    from turnpoint.reports.findings import Finding as Finding
    from turnpoint.reports.findings import FindingLimits as FindingLimits
    from turnpoint.reports.plan import ModelFacts as ModelFacts
    from turnpoint.reports.plan import Plan as Plan
    from turnpoint.reports.plan import make_plan as make_plan
    from turnpoint.reports.run_log import RunFolder as RunFolder
    from turnpoint.reports.run_records import StepRecord as StepRecord
    from turnpoint.reports.run_records import read_metrics as read_metrics
    from turnpoint.reports.step import StepReport as StepReport
    from turnpoint.reports.step import make_step_report as make_step_report
    from turnpoint.reports.terminal import Terminal as Terminal

__all__ = [
    "Finding",
    "FindingLimits",
    "ModelFacts",
    "Plan",
    "RunFolder",
    "StepRecord",
    "StepReport",
    "Terminal",
    "compare",
    "make_plan",
    "make_step_report",
    "read_metrics",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Finding": "findings",
        "FindingLimits": "findings",
        "ModelFacts": "plan",
        "Plan": "plan",
        "RunFolder": "run_log",
        "StepRecord": "run_records",
        "StepReport": "step",
        "Terminal": "terminal",
        "compare": "comparison",
        "make_plan": "plan",
        "make_step_report": "step",
        "read_metrics": "run_records",
    },
)
