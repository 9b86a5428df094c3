"""The table in README.md is what the benchmarks printed, and nothing else of the page changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.table import filled, table

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
FACTS: dict[str, Any] = {
    "date": "2026-11-30",
    "processor": "a processor",
    "cores": 2,
    "threads": 2,
    "load": 0.5,
    "versions": {"torch": "2.13.0", "trl": "1.16.0"},
}
SIZES = {"prompts": 8, "samples": 16, "prompt_tokens": 256, "new_tokens": 64}
LINES = [
    {"benchmark": "rollout", "arm": "turnpoint", "share_of_ceiling": 0.517, **SIZES, **FACTS},
    {"benchmark": "rollout", "arm": "ceiling", "arithmetic": 800.0, **SIZES, **FACTS},
    {"benchmark": "rollout", "arm": "turnpoint over generate", "times_faster": 2.83, **SIZES, **FACTS},
    {"benchmark": "step", "arm": "trl", "step": 1, "seconds": 9.0},  # a step alone compares nothing
    {"benchmark": "step", "times_faster": 3.16, **SIZES, **FACTS, "date": "2026-12-01", "load": 2.0},
    {"benchmark": "train_step", "dtype": "float32", "rollouts": 8, "ratio": 2.53, **FACTS},
    {"benchmark": "train_step", "head_bytes": {"8192": 1}, **FACTS},
    {"benchmark": "unknown", "ratio": 9.9},
]


def test_the_table_by_hand() -> None:
    assert table(LINES).splitlines() == [
        "2026-11-30 to 2026-12-01, 2 cores of a processor, load up to 2; torch 2.13.0, trl 1.16.0.",
        "",
        "| work | peer | turnpoint is faster by, or reaches |",
        "|---|---|---|",
        "| 8 prompts x 16 samples, prompt 256, 64 new tokens "
        "| what matrix products and memory allow | 52 % of it |",
        "| 8 prompts x 16 samples, prompt 256, 64 new tokens | transformers `generate` | 2.8 x |",
        "| a whole GRPO step: 8 prompts x 16 samples, up to 64 new tokens "
        "| TRL 1.16.0 `GRPOTrainer` | 3.2 x |",
        "| forward and backward of 8 rollouts of one prompt, float32 | padded rows, sdpa | 2.5 x |",
    ]


def test_it_goes_between_the_markers_of_the_readme() -> None:
    page = filled(README, "new\n")
    before, _, rest = README.partition("<!-- figures -->\n")
    old, _, after = rest.partition("<!-- /figures -->")
    assert "| work | peer |" in old
    assert page == f"{before}<!-- figures -->\nnew\n<!-- /figures -->{after}"


def test_nothing_to_compare_and_nowhere_to_write() -> None:
    with pytest.raises(ValueError, match="none of these lines"):
        table(LINES[1:2])
    with pytest.raises(ValueError, match="has no"):
        filled("a page", "new\n")
