"""What a run runs on: versions, machine, device; what changed of that since it began."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from turnpoint.types import Json

_PACKAGES = (
    "turnpoint",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "datasets",
    "numpy",
    "math-verify",
)
_DECISIVE = ("python", "packages", "machine", "device")  # what can change a bit


def describe_environment(*, device: str) -> dict[str, Json]:
    """Returns versions of what matters, the machine and the device; absent packages are left out."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {**versions_of(_PACKAGES)},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "device": device,
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns, in words, what can change a bit and is not as it was."""
    flat = [
        {key: record.get(key) for key in _DECISIVE if key != "packages"} | _packages(record)
        for record in (then, now)
    ]
    return [
        f"{key} {flat[0].get(key)} then, {flat[1].get(key)} now"
        for key in flat[0] | flat[1]
        if flat[0].get(key) != flat[1].get(key)
    ]


def _packages(record: Mapping[str, Any]) -> dict[str, Any]:
    known = record.get("packages")
    return cast(dict[str, Any], known) if isinstance(known, dict) else {}


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Returns the version of each package that is installed."""
    installed = (name for name in packages if list(importlib.metadata.distributions(name=name)))
    return {name: importlib.metadata.version(name) for name in installed}
