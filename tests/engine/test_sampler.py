"""The sampled law is softmax(logits / temperature), exactly, and no token of zero mass is ever drawn."""

import numpy as np
import pytest
import torch
from torch import Tensor

from turnpoint.engine.filters import Filters
from turnpoint.engine.sampler import draw, sample
from turnpoint.errors import EngineError

ALMOST_ONE = 1 - 2.0**-53


def whole(count: int) -> Filters:
    return Filters(top_k=np.zeros(count, dtype=np.int64), top_p=np.ones(count))


def _sample(logits: Tensor, temperatures: list[float], uniforms: list[float]) -> tuple[Tensor, Tensor]:
    return sample(
        logits=logits,
        temperatures=np.array(temperatures),
        uniforms=np.array(uniforms),
        filters=whole(len(logits)),
    )


@pytest.mark.parametrize("vocab", [1, 3, 255, 256, 257, 1000])
def test_draw_is_the_inverse_cdf(vocab: int) -> None:
    masses = torch.rand(1, vocab, generator=torch.Generator().manual_seed(vocab)) + 0.01
    edges = masses.double().cumsum(-1)[0] / masses.double().sum()
    centres = edges - masses.double()[0] / masses.double().sum() / 2
    drawn = draw(probs=masses.expand(vocab, -1), uniforms=centres)
    assert drawn.tolist() == list(range(vocab))


@pytest.mark.parametrize("uniform", [0.0, 2.0**-53, 0.5, ALMOST_ONE, 1.0])
@pytest.mark.parametrize("vocab", [5, 600])
def test_never_a_token_of_zero_mass(uniform: float, vocab: int) -> None:
    for support in ([0], [vocab - 1], [vocab // 2], [1, vocab - 2]):
        masses = torch.zeros(1, vocab)
        masses[0, support] = torch.tensor([0.3, 1e-30][: len(support)])
        drawn = draw(probs=masses, uniforms=torch.tensor([uniform], dtype=torch.float64))
        assert drawn.item() in support


def test_extreme_uniforms_give_the_first_and_the_last_possible_token() -> None:
    logits = torch.full((2, 700), -torch.inf)
    logits[:, [3, 400, 690]] = torch.tensor([0.0, 5.0, -2.0])
    ids, _ = _sample(logits, [1.0, 1.0], [0.0, ALMOST_ONE])
    assert ids.tolist() == [3, 690]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampled_law_is_the_exact_law(temperature: float) -> None:
    logits = torch.tensor([1.0, -0.5, 0.3, 2.0, -torch.inf, 0.0, -3.0])
    exact = torch.softmax(logits / temperature, -1).double().numpy()
    count = 20_000
    uniforms = np.random.default_rng(0).random(count)
    ids, logprobs = sample(
        logits=logits.expand(count, -1),
        temperatures=np.full(count, temperature),
        uniforms=uniforms,
        filters=whole(count),
    )
    counts = np.bincount(ids.numpy(), minlength=7)
    assert counts[4] == 0
    seen = exact > 0
    chi_square = ((counts[seen] - count * exact[seen]) ** 2 / (count * exact[seen])).sum()
    assert chi_square < 20.5  # 0.999 quantile, 5 degrees of freedom
    np.testing.assert_allclose(logprobs.numpy(), np.log(exact[ids.numpy()]), atol=1e-6)


def test_bfloat16_logits_are_a_law_of_float32() -> None:
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = torch.log_softmax(logits.double(), -1)
    middles = exact.exp().cumsum(-1) - exact.exp() / 2  # of each token's share
    ids, logprobs = sample(
        logits=logits.expand(1000, -1),
        temperatures=np.ones(1000),
        uniforms=middles.numpy(),
        filters=whole(1000),
    )
    assert ids.tolist() == list(range(1000))
    np.testing.assert_allclose(logprobs.numpy(), exact.numpy(), atol=1e-5)


def test_rows_of_different_temperature_do_not_mix() -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(0)) * 3
    temperatures, uniforms = [0.0, 1.0, 0.3, 5.0], [0.9, 0.7, 0.5, 0.2]
    together = _sample(logits, temperatures, uniforms)
    for row in range(4):
        alone = _sample(logits[row : row + 1], temperatures[row : row + 1], uniforms[row : row + 1])
        assert together[0][row] == alone[0][0]
        assert together[1][row] == alone[1][0]
    assert together[0][0] == logits[0].argmax()
    assert together[1][0] == 0


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_no_law_is_refused(bad: float, temperature: float) -> None:
    logits = torch.zeros(2, 10)
    logits[1, 3] = bad
    with pytest.raises(EngineError, match="1 of 2 rows are not finite"):
        _sample(logits, [temperature] * 2, [0.5, 0.5])
