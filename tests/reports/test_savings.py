"""The sentences on what branching, drafts and teachers did add up over steps, by hand."""

from __future__ import annotations

from turnpoint.reports.savings import savings


def test_a_run_without_any_of_them_says_nothing() -> None:
    assert savings([{"tokens/root": 100.0, "reward": 0.5}]) == []


def test_all_three_are_summed_over_steps() -> None:
    steps = [
        {
            "tokens/root": 100.0,
            "tokens/suffix": 40.0,
            "tokens/reflection": 7.0,
            "branching/kept": 60.0,
            "draft/drafted": 50.0,
            "draft/acceptance": 0.8,
            "draft/accept_length": 3.0,  # 40 accepted in 20 rounds
            "teacher/tokens": 70.0,
        },
        {
            "tokens/root": 50.0,
            "tokens/suffix": 10.0,
            "branching/kept": 40.0,
            "draft/drafted": 10.0,
            "draft/acceptance": 0.0,  # nothing was accepted: no rounds can be told
            "draft/accept_length": 1.0,
            "teacher/tokens": 130.0,
        },
    ]
    branching, drafts, teachers = (it.text for it in savings(steps))
    assert "took over 100 tokens of their roots, which is 33 % of what" in branching
    assert "reflections took 7 more" in branching
    assert "40 of 60 were accepted" in drafts
    assert "3.00 tokens in a pass" in drafts
    assert "on 200 tokens, 100 % of those sampled" in teachers
