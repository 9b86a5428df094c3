"""Options of the objective as a recipe writes them: each changes what is learned, or says why not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import turnpoint as tp
from tests.tiny import save_tiny_model
from turnpoint.errors import TrainingError
from turnpoint.reports.run_records import StepRecord, read_metrics
from turnpoint.tasks.order import BatchOrder
from turnpoint.training.checkpoint import latest_checkpoint, load_checkpoint


def run(recipe: Path, *overrides: str) -> Path:
    return tp.train(tp.load_recipe(recipe, ["evaluation=null", *overrides])).folder


def weights(folder: Path) -> torch.Tensor:
    path = latest_checkpoint(folder / "checkpoints")
    assert path is not None
    state = load_checkpoint(path).state
    return torch.cat([state[name].flatten() for name in sorted(state) if name.startswith("master")])


def steps(folder: Path) -> list[StepRecord]:
    return read_metrics(folder / "metrics.jsonl")


TWO_UPDATES = ("training.mini_batches=2", "optimizer.learning_rate=0.05")

OPTIONS = [
    ((), ("loss.aggregation=constant",)),
    ((), ("advantage.scale=std",)),
    ((), ("advantage.overlong.buffer_tokens=4",)),
    ((), ("advantage.overlong.kind=mask",)),
    ((), ("training.epochs=2",)),
    ((), ("training.mini_batches=2",)),
    (("training.epochs=2",), ("kl.coef=0.5", "training.epochs=2")),
    (("training.epochs=2", "kl.coef=0.5"), ("kl.coef=0.5", "kl.divergence=forward", "training.epochs=2")),
    (TWO_UPDATES, ("loss.kind=gspo", *TWO_UPDATES)),
    (("loss.kind=gspo", "training.epochs=4"), ("loss.kind=gspo", "loss.clip_high=0.5", "training.epochs=4")),
    (TWO_UPDATES, ("loss.kind=cispo", *TWO_UPDATES)),
    (("training.epochs=6", *TWO_UPDATES), ("loss.dual_clip=1.3", "training.epochs=6", *TWO_UPDATES)),
    (("correction.cap=1.0",), ("correction.cap=1.0", "correction.level=sequence")),
]


@pytest.mark.parametrize(("without", "with_it"), OPTIONS, ids=lambda options: " ".join(options) or "default")
def test_no_option_is_inert(recipe: Path, without: tuple[str, ...], with_it: tuple[str, ...]) -> None:
    first, second = weights(run(recipe, *without)), weights(run(recipe, *with_it))
    assert bool(first.isfinite().all() & second.isfinite().all())
    assert not torch.equal(first, second)


def test_the_same_recipe_gives_the_same_weights(recipe: Path) -> None:
    """What the test above compares with: nothing but the option can have changed the weights."""
    assert torch.equal(weights(run(recipe, *TWO_UPDATES)), weights(run(recipe, *TWO_UPDATES)))


def test_several_updates_per_batch_leave_the_sampler_behind(recipe: Path) -> None:
    first, *_ = steps(run(recipe, "training.epochs=2", "training.mini_batches=2"))
    assert first.metrics["mismatch"] < 1e-5, "only the first update is compared with the engine"
    assert first.metrics["ratio_deviation"] > 0.01
    assert first.metrics["approx_kl"] > 0
    assert any("4 updates per batch" in finding.text for finding in first.findings)


def test_a_first_update_without_signal_leaves_the_check_to_the_next(recipe: Path) -> None:
    """It moves no weight: engine and trainer are compared where the first tokens train."""
    first, *_ = BatchOrder(num_tasks=16, batch_size=4, seed=0).batch(0)
    with (recipe.parent / "rewards.py").open("a") as file:
        file.write(f"\ndef most(completion, task):\n    return task.answer != '{sum(divmod(first, 4))}' and ")
        file.write("vowels(completion, task)\n")
    settings = (f"verifier.path={recipe.parent / 'rewards.py'}:most", "training.mini_batches=4")
    step, *_ = steps(run(recipe, *settings, "training.steps=1"))
    assert step.metrics["signal"] == 0.75
    assert 0 < step.metrics["mismatch"] < 1e-5
    with pytest.raises(TrainingError, match="engine and trainer disagree"):
        run(recipe, *settings, "training.mismatch_tolerance=1e-12")


def test_the_schedule_counts_updates(recipe: Path) -> None:
    settings = ("optimizer.schedule=linear", "training.steps=3", "training.mini_batches=2")
    rates = [step.metrics["learning_rate"] for step in steps(run(recipe, *settings))]
    whole = [0.01 * (1 - update / 6) for update in range(6)]
    assert rates == pytest.approx([sum(whole[i : i + 2]) / 2 for i in (0, 2, 4)])


def test_a_split_into_mini_batches_gives_each_update_its_own_denominator(recipe: Path) -> None:
    """The updates of a step are each a whole loss: the reported one is their mean."""
    first, *_ = steps(run(recipe, "training.mini_batches=2", "optimizer.learning_rate=1e-6"))
    whole, *_ = steps(run(recipe, "optimizer.learning_rate=1e-6"))
    assert abs(first.metrics["loss"]) < 3 * abs(whole.metrics["loss"]) + 0.1
    assert first.metrics["trained_tokens"] == whole.metrics["trained_tokens"]


def test_kl_starts_at_zero_and_grows(recipe: Path) -> None:
    first, second = steps(run(recipe, "kl.coef=0.01"))
    assert first.metrics["kl"] == pytest.approx(0, abs=1e-9)
    assert second.metrics["kl"] > 0


def test_another_model_as_reference(recipe: Path, tmp_path: Path) -> None:
    other = save_tiny_model(tmp_path / "other", seed=7)
    first, *_ = steps(run(recipe, "kl.coef=0.01", "kl.reference.kind=model", f"kl.reference.path={other}"))
    assert first.metrics["kl"] > 1e-3


@pytest.mark.parametrize("kind", ["start", "base"])
def test_an_adapter_is_pulled_towards_its_base(recipe: Path, kind: str) -> None:
    settings = ("model.adapter.rank=2", "kl.coef=0.01", f"kl.reference.kind={kind}")
    first, second = steps(run(recipe, *settings))
    assert first.metrics["kl"] == pytest.approx(0, abs=1e-9)
    assert second.metrics["kl"] > 0


def test_a_correction_says_what_it_cut(recipe: Path) -> None:
    first, *_ = steps(run(recipe, "correction.cap=2.0"))
    assert first.metrics["correction_mean"] == pytest.approx(1, abs=1e-4)
    assert first.metrics["correction_truncated"] == 0


def test_refilling_is_counted_and_falls_short_aloud(recipe: Path) -> None:
    flat = ["verifier.path=" + str(recipe.parent / "rewards.py:same")]
    with (recipe.parent / "rewards.py").open("a") as file:
        file.write("\ndef same(completion, task):\n    return 1.0\n")
    first, *_ = steps(run(recipe, "rollout.refill.rounds=2", *flat))
    assert first.metrics["refill/set_aside"] == 12
    assert first.metrics["refill/missing"] == 4
    assert any("4 groups short" in finding.text for finding in first.findings)
    assert "grad_norm" not in first.metrics
    with pytest.raises(TrainingError, match="only 0 of 4 groups have rewards that differ, after 2 rounds"):
        run(recipe, "rollout.refill.rounds=2", "rollout.refill.when_short=stop", *flat)


def test_equal_rewards_teach_what_length_costs(recipe: Path) -> None:
    """A step whose rewards are all equal trains on lengths, and is not said to train on nothing."""
    with (recipe.parent / "rewards.py").open("a") as file:
        file.write("\ndef same(completion, task):\n    return 1.0\n")
    flat = f"verifier.path={recipe.parent / 'rewards.py'}:same"
    long = ("sampling.max_new_tokens=40", "advantage.overlong.buffer_tokens=40")
    first, *_ = steps(run(recipe, flat, *long, "training.steps=1"))
    assert first.metrics["grad_norm"] > 0
    (said,) = (finding.text for finding in first.findings if finding.rule == "signal")
    assert said.startswith("no learning signal beyond what length costs: every group has equal rewards")


def test_equal_rewards_leave_the_pull_of_a_reference(recipe: Path, tiny_folder: Path) -> None:
    with (recipe.parent / "rewards.py").open("a") as file:
        file.write("\ndef same(completion, task):\n    return 1.0\n")
    flat = f"verifier.path={recipe.parent / 'rewards.py'}:same"
    pull = f"kl={{coef: 0.1, reference: {{kind: model, path: {tiny_folder}}}}}"
    first, *_ = steps(run(recipe, flat, pull, "training.steps=1"))
    (said,) = (finding.text for finding in first.findings if finding.rule == "signal")
    assert said.startswith("no learning signal beyond the pull of the reference: every group has equal")


def test_all_truncated_and_masked_trains_nothing_and_says_so(recipe: Path) -> None:
    """No NaN: the loss is 0 and what cannot be measured is absent."""
    first, *_ = steps(run(recipe, "advantage.overlong.kind=mask", "sampling.max_new_tokens=1"))
    assert first.metrics["truncated"] > 0.9
    assert first.metrics["loss"] == 0
    assert "entropy" not in first.metrics
    assert any("hit the limit of 1 tokens" in finding.text for finding in first.findings)
