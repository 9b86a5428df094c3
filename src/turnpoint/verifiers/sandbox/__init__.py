"""Untrusted Python run under limits and isolation: programs and inputs in, runs out, no verdicts."""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.verifiers.sandbox.records import AssertInput as AssertInput
    from turnpoint.verifiers.sandbox.records import CallInput as CallInput
    from turnpoint.verifiers.sandbox.records import FunctionEntry as FunctionEntry
    from turnpoint.verifiers.sandbox.records import Input as Input
    from turnpoint.verifiers.sandbox.records import Isolation as Isolation
    from turnpoint.verifiers.sandbox.records import Limits as Limits
    from turnpoint.verifiers.sandbox.records import Outcome as Outcome
    from turnpoint.verifiers.sandbox.records import Program as Program
    from turnpoint.verifiers.sandbox.records import Run as Run
    from turnpoint.verifiers.sandbox.records import ScriptEntry as ScriptEntry
    from turnpoint.verifiers.sandbox.records import StdinInput as StdinInput
    from turnpoint.verifiers.sandbox.sandbox import Sandbox as Sandbox

_RECORDS = (
    "AssertInput",
    "CallInput",
    "FunctionEntry",
    "Input",
    "Isolation",
    "Limits",
    "Outcome",
    "Program",
    "Run",
    "ScriptEntry",
    "StdinInput",
)
__all__ = [
    "AssertInput",
    "CallInput",
    "FunctionEntry",
    "Input",
    "Isolation",
    "Limits",
    "Outcome",
    "Program",
    "Run",
    "Sandbox",
    "ScriptEntry",
    "StdinInput",
]
__getattr__, __dir__ = lazy(__name__, {**dict.fromkeys(_RECORDS, "records"), "Sandbox": "sandbox"})
