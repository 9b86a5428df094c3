"""The face is lazy: naming a verifier loads no algebra and no tensors."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import turnpoint.verifiers


def test_importing_and_naming_loads_nothing_heavy() -> None:
    script = """
import sys
from turnpoint.verifiers import FunctionVerifier, MathVerifier, ReasoningGymVerifier
heavy = {"torch", "transformers", "sympy", "math_verify", "reasoning_gym", "turnpoint.config"}
print(sorted(heavy & set(sys.modules)))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'ProofVerifier'"):
        turnpoint.verifiers.ProofVerifier  # type: ignore[attr-defined]  # noqa: B018
