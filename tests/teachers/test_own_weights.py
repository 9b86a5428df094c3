"""The policy's own weights as teachers: as they were at the start, and averaged while they move."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import turnpoint as tp
from tests.adapters import adapted, trained_tensors
from tests.runs import state_bytes
from tests.teachers.test_run import figures
from tests.tiny import save_tiny_model, tiny_decoder
from turnpoint.engine import runner
from turnpoint.errors import ModelError, RunFolderError
from turnpoint.models.attention import CausalLayout
from turnpoint.models.decoder import Decoder
from turnpoint.models.packed import packed
from turnpoint.models.twin import own_weights, twin
from turnpoint.training.average import Average, Averages
from turnpoint.training.checkpoint import Checkpoint, load_checkpoint, load_latest, save_checkpoint

ROW = (torch.arange(20, 44), torch.arange(24))


def law(decoder: Decoder) -> Tensor:
    with torch.no_grad():
        return decoder.logits(decoder.hidden(*ROW, CausalLayout()))


@torch.no_grad()
def shift(decoder: Decoder, by: float) -> None:
    for weight in trained_tensors(decoder).values():
        weight.add_(by)


def masters(decoder: Decoder) -> dict[str, Tensor]:
    return {f"master.{name}": it.detach().float().clone() for name, it in trained_tensors(decoder).items()}


# --- a second set of weights --------------------------------------------------------------------


@pytest.mark.parametrize("with_adapter", [False, True])
def test_a_twin_stays_what_the_policy_was_and_shares_what_is_frozen(with_adapter: bool) -> None:
    decoder = adapted()[0] if with_adapter else tiny_decoder()
    before, other = law(decoder), twin(decoder)
    torch.testing.assert_close(law(other), before, rtol=0, atol=0)
    shift(decoder, 0.1)
    assert not torch.allclose(law(decoder), before)
    torch.testing.assert_close(law(other), before, rtol=0, atol=0)
    theirs = dict(other.model.named_parameters())
    shared = {name for name, it in decoder.model.named_parameters() if it is theirs[name]}
    assert shared == {name for name, it in theirs.items() if not it.requires_grad}
    assert bool(shared) is with_adapter
    assert set(own_weights(other)) == set(trained_tensors(decoder))


# --- averages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_average_by_hand(dtype: torch.dtype) -> None:
    policy, _ = adapted(dtype=dtype)
    copy = twin(policy)
    average = Average(copy, decay=0.75)
    start = masters(policy)
    for step in (1, 2):
        shift(policy, 1.0)
        average.follow({name: it + step for name, it in start.items()})
    for name, tensor in average.state_dict().items():
        assert tensor.dtype == torch.float32
        # 0.25 after the first step, 0.75 * 0.25 + 0.25 * 2 after the second
        torch.testing.assert_close(tensor, start[f"master.{name}"] + 0.6875)
        torch.testing.assert_close(own_weights(copy)[name], tensor.to(dtype), rtol=0, atol=0)


def test_what_bfloat16_would_lose_adds_up() -> None:
    policy, _ = adapted(dtype=torch.bfloat16)
    average = Average(twin(policy), decay=0.99)
    moved = {name: it + 0.01 for name, it in masters(policy).items()}
    for _ in range(300):
        average.follow(moved)
    for name, tensor in average.state_dict().items():
        torch.testing.assert_close(tensor, moved[f"master.{name}"], rtol=0, atol=0.01 * 0.99**300 + 1e-6)


def test_averages_go_on_where_they_were(tmp_path: Path) -> None:
    policy, _ = adapted()
    both = Averages({name: Average(twin(policy), decay=decay) for name, decay in [("a", 0.5), ("b/c", 0.9)]})
    moved = {name: it + 1 for name, it in masters(policy).items()}
    both.follow(moved)
    saved = Checkpoint(step=1, state=moved, metadata={}, teachers=both.state_dict())
    read = load_checkpoint(save_checkpoint(tmp_path, saved))
    assert set(read.state) == set(moved), "no reader of a policy sees them"
    later = Averages({name: Average(twin(policy), decay=decay) for name, decay in [("a", 0.5), ("b/c", 0.9)]})
    later.load_state_dict(read.teachers)
    both.follow(moved)
    later.follow(moved)
    mine, theirs = both.state_dict(), later.state_dict()
    assert len(mine) == 2 * len(moved)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())
    other = Averages({"d": Average(twin(policy), decay=0.5)})
    with pytest.raises(RunFolderError, match=r"does not hold the average of .* start a new run"):
        other.load_state_dict(read.teachers)


# --- runs ---------------------------------------------------------------------------------------

BOTH = [
    "distill.teachers={old: {kind: start}, slow: {kind: ema, decay: 0.5}, "
    "both: {kind: mixture, of: {old: 0.25, slow: 0.75}, mean: arithmetic}}",
    "distill.coef=0.3",
    "evaluation=null",
]


@pytest.mark.parametrize("adapter", [[], ["model.adapter.rank=4"]], ids=["all weights", "adapter"])
def test_a_run_with_its_start_and_its_average_goes_on_bit_for_bit(
    recipe: Path, adapter: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*BOTH, *adapter, "training.save_every=2"]
    whole = tp.train(tp.load_recipe(recipe, [*options, "training.steps=3", "name=whole"])).folder
    said = capsys.readouterr().out
    part = tp.train(tp.load_recipe(recipe, [*options, "training.steps=2", "name=part"])).folder
    tp.resume(part, ["training.steps=3"])
    assert state_bytes(part) == state_bytes(whole)
    kl = figures(whole, "teacher/kl")
    assert abs(kl[0]) < 1e-5, "the policy begins where they are"
    assert kl[-1] > 1e-4
    beside = "of weights beside the policy's" if adapter else "of weights"
    assert f"{beside}, prefixes of at most" in " ".join(said.split())
    found = load_latest(whole / "checkpoints", skipped=lambda line: None)
    assert found is not None
    assert len(found[1].teachers) > 0
    assert all(name.startswith("slow/") for name in found[1].teachers), "the start is read from its files"


def test_a_start_whose_weights_changed_is_refused_and_no_layer_was_packed_for_it(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs: list[Decoder] = []

    def noted(decoder: Decoder) -> Decoder:
        packs.append(decoder)
        return packed(decoder)

    monkeypatch.setattr(runner, "packed", noted)
    folder = save_tiny_model(tmp_path / "own", seed=3)
    options = [
        f"model.path={folder}",
        "distill.teachers.old.kind=start",
        "training.steps=1",
        "evaluation=null",
    ]
    run = tp.train(tp.load_recipe(recipe, options)).folder
    assert len({id(decoder.model) for decoder in packs}) == 1, "a packed start would be all weights once more"
    save_tiny_model(folder, seed=4)
    with pytest.raises(ModelError, match=r"does not hold the weights that .* began with"):
        tp.resume(run, ["training.steps=2"])
