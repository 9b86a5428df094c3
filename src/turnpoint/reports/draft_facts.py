"""What `turnpoint draft --report` found on a run, kept in its folder and told again on its page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from turnpoint._lines import Count, Number, Record
from turnpoint.errors import RunFolderError
from turnpoint.reports.drafts import ahead_line, share


class DraftFacts(Record):
    """The figures of one report that a page shows; null where there is none."""

    heads: str
    checkpoint: str
    acceptance: list[Number | None]
    target_only: list[Number | None]
    accept_length: list[Number | None]
    entropy: Number | None
    entropy_slope: Number | None
    overlap_by_temperature: dict[str, list[Number | None]]
    problems_where_draws_accept_more: tuple[Count, Count]


def write_facts(path: Path, found: Mapping[str, Any]) -> None:
    """Writes a report's figures; raises RunFolderError in one line when the disk refuses."""
    try:
        path.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n", encoding="utf-8", newline="\n")
    except OSError as error:
        raise RunFolderError(f"{path}: {error.strerror or error}") from error


def read_facts(path: Path) -> list[str]:
    """Returns the sentences on drafts that a page shows, none without the file.

    Raises RunFolderError for a file that no report wrote.
    """
    if not path.exists():
        return []
    try:
        return [*_sentences(DraftFacts.model_validate_json(path.read_text(encoding="utf-8")))]
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({' '.join(str(error).split())[:120]}); write it anew with "
            f"turnpoint draft --report, or delete it"
        ) from error


def _sentences(facts: DraftFacts) -> Iterator[str]:
    depths = range(1, len(facts.acceptance) + 1)
    yield f"{facts.heads} at {facts.checkpoint}, to depth {', '.join(map(str, depths))}:"
    yield f"tokens a round {', '.join('-' if it is None else f'{it:.2f}' for it in facts.accept_length)}"
    yield f"accepted {_shares(facts.acceptance)}; as the likeliest token {_shares(facts.target_only)}"
    more, problems = facts.problems_where_draws_accept_more
    yield ahead_line(more, problems)
    for factor, shares in facts.overlap_by_temperature.items():
        yield f"drawn at {factor} of the policy's temperature: {_shares(shares)}"
    if facts.entropy is not None and facts.entropy_slope is not None:
        yield (
            f"entropy {facts.entropy:.3f} nats per token; tokens a round change by "
            f"{facts.entropy_slope:+.2f} per nat of a rollout's mean entropy"
        )


def _shares(values: Sequence[float | None]) -> str:
    return ", ".join("-" if value is None else share(value) for value in values)
