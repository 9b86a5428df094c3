"""What training draft heads leaves and says: its folder, a step as fields, what drafts are worth.

drafts/NAME/
    recipe.yaml     the resolved recipe
    draft.jsonl     one line per step
    summary.json    what held-out texts said before and after
    heads/          the heads, for engine.draft.heads
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnpoint.config import DraftConfig, dump_recipe
from turnpoint.drafting.measure import Measured
from turnpoint.drafting.train import DraftStepFigures
from turnpoint.errors import RunFolderError
from turnpoint.reports.text import number, percent, plural


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFolder:
    """The folder of one training; all writing raises RunFolderError in one line when the disk refuses."""

    path: Path

    @staticmethod
    def create(config: DraftConfig) -> DraftFolder:
        """Returns a fresh folder `output_dir/name`, `name-2`, ... with the recipe in it."""
        wished = config.output_dir / config.name
        path, count = wished, 1
        try:
            config.output_dir.mkdir(parents=True, exist_ok=True)
            while True:
                try:
                    path.mkdir()
                    break
                except FileExistsError:
                    count += 1
                    path = config.output_dir / f"{config.name}-{count}"
        except OSError as error:
            raise RunFolderError(f"{path}: {error.strerror or error}; set output_dir") from error
        folder = DraftFolder(path=path)
        folder.write("recipe.yaml", dump_recipe(config))
        return folder

    @property
    def heads(self) -> Path:
        """Where the heads go."""
        return self.path / "heads"

    def write(self, name: str, text: str, *, mode: str = "w") -> None:
        """Writes the file `name`, or with mode "a" behind what it holds."""
        try:
            with (self.path / name).open(mode, encoding="utf-8", newline="\n") as file:
                file.write(text)
        except OSError as error:
            raise RunFolderError(f"{self.path / name}: {error.strerror or error}") from error

    def append_step(self, figures: DraftStepFigures, *, seconds: float) -> None:
        """Adds a step to draft.jsonl."""
        row = {
            "step": figures.step,
            "loss_name": figures.loss_name,
            "loss": figures.loss,
            "acceptance": list(figures.acceptance),
            "tokens": figures.tokens,
            "anchors": figures.anchors,
            "grad_norm": figures.grad_norm,
            "learning_rate": figures.learning_rate,
            "seconds": seconds,
        }
        self.write("draft.jsonl", json.dumps(without_nan(row), allow_nan=False) + "\n", mode="a")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes summary.json."""
        self.write("summary.json", json.dumps(without_nan(dict(summary)), indent=2, allow_nan=False) + "\n")


def without_nan(value: Any) -> Any:
    """Returns `value` with null for numbers that JSON lacks."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: without_nan(inner) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list():
            return [without_nan(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def measured_json(measured: Measured) -> dict[str, Any]:
    """Returns what was measured as JSON values."""
    return {
        "acceptance": measured.acceptance,
        "target_only": measured.target_only,
        "rejection_ahead": measured.rejection_ahead,
        "accept_length_by_laws": measured.law_length,
        "accept_length": measured.text_lengths,
        "entropy": measured.entropy,
        "drift": measured.mean_drift,
        "overlap_by_temperature": {f"{factor:g}": shares for factor, shares in measured.sweep.items()},
        "problems_where_draws_accept_more": list(measured.problems_ahead),
        "texts": len(measured.texts),
        "tokens": sum(it.tokens for it in measured.texts),
    }


def draft_step_fields(figures: DraftStepFigures, *, steps: int, seconds: float) -> Iterator[str]:
    """Yields the fields of a step's line."""
    yield f"step {figures.step:>{len(str(steps))}}/{steps}"
    yield f"{figures.loss_name} {figures.loss:.3f}"
    yield f"accepted {' '.join(share(it) for it in figures.acceptance)}"
    yield f"tokens {number(figures.tokens)}"
    yield f"grad norm {number(figures.grad_norm):>7}"
    yield f"lr {figures.learning_rate:.2e}"
    yield f"{seconds:.2f} s"


def share(value: float) -> str:
    """Returns a share in percent, or a dash for none."""
    return percent(value) if math.isfinite(value) else "-"


def comparison_lines(before: Measured, after: Measured) -> Iterator[str]:
    """Yields the table of held-out drafts before and after, line by line."""
    yield "  depth   accepted before -> after   as the likeliest token   tokens per round"
    rows = zip(before.acceptance, after.acceptance, after.target_only, after.text_lengths, strict=True)
    for depth, (old, new, best, length) in enumerate(rows, start=1):
        yield f"  {depth:>5}   {share(old):>15} -> {share(new):<6}  {share(best):>22}   {length:>16.2f}"


def ahead_line(more: int, problems: int) -> str:
    """Says on how many problems `target_only` accepts less."""
    return (
        f"on {more} of {plural(problems, 'problem')} verifying the drawn token beats verifying the likeliest"
    )


def report_lines(measured: Measured, slope: float | None) -> Iterator[str]:
    """Yields the table of what heads would do on rollouts, line by line."""
    yield "  depth   accepted   as the likeliest token   rejection ahead   tokens per round"
    rows = zip(
        measured.acceptance,
        measured.target_only,
        measured.rejection_ahead,
        measured.text_lengths,
        strict=True,
    )
    for depth, (new, best, ahead, length) in enumerate(rows, start=1):
        yield f"  {depth:>5}   {share(new):>8}   {share(best):>22}   {share(ahead):>15}   {length:>16.2f}"
    yield f"  {ahead_line(*measured.problems_ahead)}"
    for factor, shares in measured.sweep.items():
        yield f"  drawn at {factor:g} of the policy's temperature: accepted {' '.join(map(share, shares))}"
    yield f"  entropy of the policy {measured.entropy:.3f} nats per token" + (
        ""
        if slope is None
        else f"; tokens per round change by {slope:+.2f} per nat of a rollout's mean entropy"
    )
