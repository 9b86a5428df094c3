from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from turnpoint.errors import TrainingError
from turnpoint.training.optimizer import MasterAdamW, schedule_factor


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False)).to(dtype)


def loss(net: nn.Module, seed: int = 0) -> Tensor:
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
    return net(rows.to(next(net.parameters()).dtype)).float().square().sum()


def values(net: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in net.named_parameters()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("max_grad_norm", [0.01, 1e9])
def test_steps_are_those_of_torch_with_decay_on_matrices_only(max_grad_norm: float) -> None:
    ours, theirs = model(), model()
    optimizer = MasterAdamW(ours, learning_rate=0.01, weight_decay=0.1, max_grad_norm=max_grad_norm)
    matrices = [it for it in theirs.parameters() if it.ndim == 2]
    vectors = [it for it in theirs.parameters() if it.ndim == 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95))
    for seed in range(4):
        loss(ours, seed).backward()
        metrics = optimizer.step()
        reference.zero_grad()
        loss(theirs, seed).backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm)
        reference.step()
        assert metrics["grad_norm"].value == pytest.approx(float(norm), rel=1e-6)
        assert metrics["learning_rate"].value == 0.01
    for name, weight in ours.named_parameters():
        torch.testing.assert_close(weight, dict(theirs.named_parameters())[name], rtol=1e-6, atol=1e-7)


def test_masters_move_where_bfloat16_copies_do_not() -> None:
    """1e-6 on a weight of 1.0 is far below bfloat16's resolution: only masters add it up."""
    assert after_steps(10, learning_rate=1e-6) == (1.0, pytest.approx(1 - 1e-5, abs=2e-7))
    weight, master = after_steps(1, learning_rate=0.01)
    assert master == pytest.approx(0.99, abs=1e-6)
    assert weight == pytest.approx(0.99, abs=0.002)  # the copy follows as soon as it can


def after_steps(count: int, *, learning_rate: float) -> tuple[float, float]:
    """Returns a bfloat16 weight that began at 1, and its master, after some steps downwards."""
    net = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    nn.init.ones_(net.weight)
    optimizer = MasterAdamW(net, learning_rate=learning_rate)
    for _ in range(count):
        net(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    return net.weight.item(), optimizer.state_dict()["master.weight"].item()


def test_bfloat16_gradients_add_up_in_float32() -> None:
    """256 + 1 is 256 in bfloat16: 64 small gradients after a large one would vanish."""
    net = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    optimizer = MasterAdamW(net, learning_rate=1e-3, max_grad_norm=1e9)
    for size in [256.0, *[1.0] * 64]:
        net(torch.full((1, 1), size, dtype=torch.bfloat16)).sum().backward()
    assert optimizer.step()["grad_norm"].value == 256 + 64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(dtype: torch.dtype, bad: float) -> None:
    net = model(dtype)
    optimizer = MasterAdamW(net, learning_rate=0.1)
    before = values(net)
    loss(net).backward()
    (loss(net) * bad).backward()
    with pytest.raises(TrainingError, match=r"12 of 12 elements of the gradient of 0\.weight are not finite"):
        optimizer.step()
    assert same(values(net), before)
    assert optimizer.steps == 0  # nor has the schedule moved
    loss(net).backward()  # what was dropped does not come back
    assert math.isfinite(optimizer.step()["grad_norm"].value or math.nan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_requires_no_gradient_has_no_master_and_never_moves(dtype: torch.dtype) -> None:
    net = model(dtype)
    net.requires_grad_(False).get_parameter("2.weight").requires_grad_(True)  # no vector is left
    before = values(net)
    optimizer = MasterAdamW(net, learning_rate=0.1, weight_decay=0.5)
    loss(net).backward()
    optimizer.step()
    names = {"steps", *(f"{kind}.2.weight" for kind in ("master", "step", "exp_avg", "exp_avg_sq"))}
    assert set(optimizer.state_dict()) == names
    moved = [name for name, value in values(net).items() if not torch.equal(value, before[name])]
    assert moved == ["2.weight"]


def test_a_step_that_changes_no_weight_is_an_error() -> None:
    net = model()
    optimizer = MasterAdamW(net, learning_rate=1e-12)
    loss(net).backward()
    with pytest.raises(TrainingError, match="the learning rate 1e-12 is lost in float32"):
        optimizer.step()


def test_without_gradients_only_the_schedule_moves() -> None:
    net = model()
    optimizer = MasterAdamW(net, learning_rate=0.1, weight_decay=0.5)
    loss(net).backward()
    optimizer.step()
    before, state = values(net), {name: it.clone() for name, it in optimizer.state_dict().items()}
    assert optimizer.step() == {}
    assert same(values(net), before)
    after = optimizer.state_dict()
    assert after.pop("steps") == state.pop("steps") + 1
    assert same(after, state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps", [0, 3])
def test_loading_a_state_continues_bit_for_bit(dtype: torch.dtype, steps: int) -> None:
    settings: dict[str, Any] = {
        "learning_rate": 0.01,
        "schedule": "cosine",
        "warmup_steps": 1,
        "total_steps": 9,
    }
    net = model(dtype)
    optimizer = MasterAdamW(net, **settings)
    for seed in range(steps):
        loss(net, seed).backward()
        optimizer.step()
    saved = {name: tensor.clone() for name, tensor in optimizer.state_dict().items()}
    other = model(dtype)
    loaded = MasterAdamW(other, **settings)
    loss(other, 99).backward()  # moments and weights of its own, to be replaced
    loaded.step()
    loaded.load_state_dict(saved)
    assert same(values(other), values(net))
    for seed in range(3):
        for some, its in ((net, optimizer), (other, loaded)):
            loss(some, 10 + seed).backward()
            its.step()
        assert same(values(other), values(net))
        assert same(loaded.state_dict(), optimizer.state_dict())


def test_the_state_of_another_model_is_refused() -> None:
    optimizer = MasterAdamW(model(), learning_rate=0.01)
    state = optimizer.state_dict()
    with pytest.raises(TrainingError, match=r"state of another model: master\.5\.weight"):
        optimizer.load_state_dict({**state, "master.5.weight": torch.zeros(1)})
    with pytest.raises(TrainingError, match=r"state of another model: 2\.weight has another shape"):
        optimizer.load_state_dict({**state, "master.2.weight": torch.zeros(1)})
    del state["master.0.bias"]
    with pytest.raises(TrainingError, match=r"master\.0\.bias"):
        optimizer.load_state_dict(state)


@pytest.mark.parametrize("moment", ["exp_avg", "exp_avg_sq", "step"])
def test_a_state_that_lacks_a_moment_is_refused(moment: str) -> None:
    net = model()
    optimizer = MasterAdamW(net, learning_rate=0.01)
    loss(net).backward()
    optimizer.step()
    state = optimizer.state_dict()
    del state[f"{moment}.0.weight"]
    with pytest.raises(TrainingError, match=rf"state of another model: {moment}\.0\.weight"):
        optimizer.load_state_dict(state)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1 / 3, 2 / 3, 1, 1, 1, 1, 1]),
        ("linear", [1 / 3, 2 / 3, 1, 3 / 4, 1 / 2, 1 / 4, 0]),
        ("cosine", [1 / 3, 2 / 3, 1, 0.853553, 0.5, 0.146447, 0]),
    ],
)
def test_schedules(schedule: str, expected: list[float]) -> None:
    factors = [schedule_factor(step, schedule=schedule, warmup_steps=2, total_steps=6) for step in range(7)]
    assert factors == pytest.approx(expected, abs=1e-6)


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    assert schedule_factor(0, schedule="linear", total_steps=4) == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "step"}, "unknown schedule 'step'"),
        ({"schedule": "linear"}, "needs total_steps beyond its warm-up, got None after 0"),
        ({"schedule": "cosine", "warmup_steps": 5, "total_steps": 5}, "got 5 after 5 steps"),
    ],
)
def test_schedules_that_cannot_run_are_refused_at_start(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MasterAdamW(model(), learning_rate=0.1, **settings)
