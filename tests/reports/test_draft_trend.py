"""A change in tokens a round is taken apart by a line through the first steps, by hand."""

from __future__ import annotations

from turnpoint.reports.draft_trend import draft_trend


def history(entropies: list[float], lengths: list[float]) -> list[dict[str, float]]:
    pairs = zip(entropies, lengths, strict=True)
    return [{"entropy": entropy, "draft/accept_length": length} for entropy, length in pairs]


def test_what_goes_with_entropy_and_what_does_not() -> None:
    """Slope -2 in the first four steps; then entropy falls by 0.4 and tokens a round do not rise at all."""
    early = [0.5, 0.6, 0.4, 0.5]
    steps = history([*early, *[0.3] * 4, *[0.1] * 4], [*(4 - 2 * it for it in early), *[3.0] * 8])
    found = draft_trend(steps)
    assert found is not None
    assert "from 3.00 to 3.00" in found.text
    assert "+0.80 of it goes with entropy (0.50 to 0.10 nats, -2.00 per nat in the first 4 step" in found.text
    assert "-0.80 with drift" in found.text


def test_nothing_is_said_without_entropies_that_differ_or_with_few_steps() -> None:
    assert draft_trend(history([0.5] * 12, [3.0] * 12)) is None
    assert draft_trend(history([0.1, 0.5] * 4, [3.0] * 8)) is None
    assert draft_trend([{"entropy": 0.5}] * 20) is None
