"""Draws are a function of (seed, request, position, purpose) and nothing else."""

import numpy as np

from turnpoint.engine.uniforms import Uniforms


def test_any_order_gives_the_same_draws() -> None:
    forward = Uniforms(seed=3, request_id="a")
    backward = Uniforms(seed=3, request_id="a")
    positions = list(range(300))
    assert [forward.at(p) for p in positions] == [backward.at(p) for p in positions[::-1]][::-1]


def test_blocks_are_one_stream_of_the_generator() -> None:
    draws = Uniforms(seed=0, request_id="a")
    generator = np.random.Generator(np.random.Philox(key=draws._key, counter=0))  # pyright: ignore[reportPrivateUsage]
    assert [draws.at(p) for p in range(200)] == generator.random(200).tolist()


def test_seed_request_and_position_all_matter() -> None:
    def first(seed: int, request_id: str, position: int) -> float:
        return Uniforms(seed=seed, request_id=request_id).at(position)

    values = {first(s, r, p) for s in (0, 1, -1, 2**80) for r in ("a", "b", "") for p in (0, 1, 64)}
    # -1 and 2**80 are taken modulo 2**64, so 2**80 is 0
    assert len(values) == 3 * 3 * 3


def test_ids_of_any_text_have_draws() -> None:
    """Ids of evaluations hold task ids, and those are whatever a row says."""
    assert 0 <= Uniforms(seed=0, request_id="evaluate/\ud800/0").at(0) < 1


def test_draws_are_uniform_and_below_one() -> None:
    draws = np.array([Uniforms(seed=0, request_id=f"r{i}").at(p) for i in range(100) for p in range(50)])
    assert draws.min() >= 0
    assert draws.max() < 1
    counts, _ = np.histogram(draws, bins=20, range=(0, 1))
    chi_square = ((counts - 250) ** 2 / 250).sum()
    assert chi_square < 43.8  # 0.999 quantile, 19 degrees of freedom
