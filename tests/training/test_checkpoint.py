from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.disk import file_size_limit
from tests.tiny import tiny_model
from tests.training.groups import FORKED, TURNS, make_item, pack
from turnpoint.errors import RunFolderError
from turnpoint.models.decoder import Decoder
from turnpoint.training import (
    Checkpoint,
    Trainer,
    latest_checkpoint,
    load_checkpoint,
    load_latest,
    save_checkpoint,
)
from turnpoint.training.checkpoint import prune_checkpoints


def make_trainer(dtype: torch.dtype = torch.float32) -> Trainer:
    model = tiny_model("gemma").to(dtype)
    decoder = Decoder(model, vocab_size=model.config.vocab_size)
    return Trainer(decoder, learning_rate=0.01, schedule="linear", warmup_steps=2, total_steps=9)


def train(trainer: Trainer, seeds: range) -> None:
    model = tiny_model("gemma").eval()
    for seed in seeds:
        trainer.forward_backward(pack([make_item((FORKED, TURNS)[seed % 2], model=model, seed=seed)]))
        trainer.optim_step()


def small(step: int = 3, **metadata: Any) -> Checkpoint:
    return Checkpoint(step=step, state={"master.w": torch.arange(3.0)}, metadata=metadata)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_goes_on_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    trainer = make_trainer(dtype)
    train(trainer, range(2))
    save_checkpoint(tmp_path, Checkpoint(step=2, state=trainer.state_dict(), metadata={"seed": 5}))
    train(trainer, range(2, 4))

    path = latest_checkpoint(tmp_path)
    assert path is not None
    loaded = load_checkpoint(path)
    assert (loaded.step, loaded.metadata) == (2, {"seed": 5})
    other = make_trainer(dtype)
    other.load_state_dict(loaded.state)
    train(other, range(2, 4))
    expected, actual = trainer.state_dict(), other.state_dict()
    assert expected.keys() == actual.keys()
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())
    published = other.publish()
    assert all(torch.equal(published[name], tensor) for name, tensor in trainer.publish().items())


def test_the_latest_complete_one_is_found(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "absent") is None
    for step in (9, 123, 45):
        save_checkpoint(tmp_path / "made", small(step))
    (tmp_path / "made" / "step-notes").mkdir()
    assert latest_checkpoint(tmp_path / "made") == tmp_path / "made" / "step-00000123"


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, small(note="old"))
    path = save_checkpoint(tmp_path, small(note="new"))
    assert load_checkpoint(path).metadata == {"note": "new"}
    assert [it.name for it in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_an_interrupted_save_leaves_the_earlier_one_and_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    earlier = save_checkpoint(tmp_path, small(1))

    def crash(*_: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, crash)
        patched.setattr(Path, call, crash, raising=False)
        with pytest.raises(RunFolderError, match="step-00000002 cannot be written: No space left"):
            save_checkpoint(tmp_path, small(2))
    assert [it.name for it in tmp_path.iterdir()] == [earlier.name]
    later = save_checkpoint(tmp_path, small(3))
    assert {it.name for it in tmp_path.iterdir()} == {earlier.name, later.name}


def test_what_json_cannot_hold_is_refused_before_anything_counts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        save_checkpoint(tmp_path, small(1, loss=float("nan")))
    assert latest_checkpoint(tmp_path) is None


@pytest.mark.parametrize("name", ["state.safetensors", "checkpoint.json"])
@pytest.mark.parametrize("damage", ["absent", "torn", "flipped", "empty", "other"])
def test_a_damaged_checkpoint_is_one_error(tmp_path: Path, name: str, damage: str) -> None:
    path = save_checkpoint(tmp_path, small())
    content = (path / name).read_bytes()
    (path / name).unlink()
    match damage:
        case "torn":
            (path / name).write_bytes(content[: len(content) // 2])
        case "flipped":  # the last bit of a weight, or the brace that ends the header
            (path / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "empty":
            (path / name).write_bytes(b"")
        case "other":
            (path / name).write_text('["another file"]')
        case _:
            pass
    with pytest.raises(RunFolderError, match="cannot be read: ") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)

    said: list[str] = []
    with pytest.raises(RunFolderError, match=r"none of the checkpoints in .* can be read"):
        load_latest(tmp_path, skipped=said.append)
    earlier = save_checkpoint(tmp_path, small(2))
    found = load_latest(tmp_path, skipped=said.append)
    assert found is not None
    assert (found[0], found[1].step) == (earlier, 2)
    assert said == [f"{caught.value}; skipped"] * 2


def test_a_checkpoint_of_before_is_told_from_a_broken_one(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, small())
    (path / "checkpoint.json").write_text('{"step": 3, "metadata": {}}')
    with pytest.raises(RunFolderError, match=r"checkpoint\.json lacks 'state'"):
        load_checkpoint(path)


@pytest.mark.parametrize("change", [{"step": "3"}, {"step": -1}, {"step": True}, {"metadata": []}])
def test_a_header_that_tells_nonsense_is_an_error(tmp_path: Path, change: dict[str, object]) -> None:
    header = save_checkpoint(tmp_path, small()) / "checkpoint.json"
    header.write_text(json.dumps({**json.loads(header.read_text()), **change}))
    with pytest.raises(RunFolderError, match=r"checkpoint\.json is not what was written"):
        load_checkpoint(header.parent)


def test_a_full_disk_leaves_the_earlier_ones_and_no_trace(tmp_path: Path) -> None:
    earlier = save_checkpoint(tmp_path, small(1))
    large = replace(small(2), state={"w": torch.ones(1 << 16)})
    with (
        file_size_limit(1 << 16),
        pytest.raises(RunFolderError, match="step-00000002 cannot be written: ") as caught,
    ):
        save_checkpoint(tmp_path, large)
    assert "\n" not in str(caught.value)
    assert [it.name for it in tmp_path.iterdir()] == [earlier.name]
    assert load_checkpoint(earlier).step == 1
    save_checkpoint(tmp_path, large)


def test_what_a_kill_left_is_ignored_and_removed(tmp_path: Path) -> None:
    earlier = save_checkpoint(tmp_path, small(1))
    for left in (".step-00000002-partial", ".step-00000001-replaced"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "state.safetensors").write_bytes(b"half")
    (tmp_path / ".step-00000003-partial").touch()  # a file, by whatever accident
    found = load_latest(tmp_path, skipped=pytest.fail)
    assert found is not None
    assert found[0] == latest_checkpoint(tmp_path) == earlier
    later = save_checkpoint(tmp_path, small(2))
    assert {it.name for it in tmp_path.iterdir()} == {earlier.name, later.name}


def test_the_latest_stay_when_others_are_removed(tmp_path: Path) -> None:
    for step in (1, 2, 12):
        save_checkpoint(tmp_path, small(step))
    prune_checkpoints(tmp_path, keep=5)
    assert len(list(tmp_path.iterdir())) == 3
    prune_checkpoints(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000012"]


def test_a_second_ctrl_c_while_saving_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, small(1))
    assert list(tmp_path.iterdir()) == []


def test_a_state_on_no_disk_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        save_checkpoint(tmp_path / "file", replace(small(), step=7))
