"""What a run needs at its peak, against sizes added up by hand, and what is offered when it is too much."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tiny import tiny_decoder
from turnpoint.diagnosis import Status
from turnpoint.diagnosis.cost import LinearCost
from turnpoint.diagnosis.draft_memory import draft_needs
from turnpoint.diagnosis.memory import (
    DraftNeeds,
    Needs,
    TeacherNeeds,
    check_certain,
    check_memory,
    gigabytes,
    largest,
    way_out,
)
from turnpoint.diagnosis.rows import Shape
from turnpoint.engine.depth import FixedDepth
from turnpoint.engine.mtp import MtpDrafter
from turnpoint.engine.parallel import ParallelDrafter
from turnpoint.engine.span import CacheShape
from turnpoint.engine.speculation import Speculation
from turnpoint.models.mtp_fresh import fresh_heads, parallel_heads

MEBIBYTE = 1 << 20
SHAPE = Shape(prompts=4, samples=8, prompt_tokens=20, new_tokens=100)  # a group of 820 tokens
NEEDS = Needs(
    resident=100 * MEBIBYTE,
    trained=10 * MEBIBYTE,
    references=0,
    shape=SHAPE,
    evaluation_tokens=0,
    evaluation_rollouts=0,
    cache_tokens=65_536,
    max_running=128,
    micro_batch_tokens=4096,
    token_state=1024,
    vocab_size=1000,
    saved=LinearCost(fixed=0.0, per_token=float(MEBIBYTE // 64), per_score=0.0),
    head_chunk_tokens=128,
    head_gradient=MEBIBYTE,
    slack=1.0,
)


def test_the_parts_of_training() -> None:
    parts = NEEDS.parts
    assert parts["resident"] == 100 * MEBIBYTE
    assert parts["moments"] == 20 * MEBIBYTE
    assert parts["gradients"] == 10 * MEBIBYTE
    assert parts["cache"] == 4 * 820 * 1024
    assert parts["decoding"] == int(1.125 * 32 * 120 * 1024)
    tokens = 4 * 820 - 4 * 8  # the last token of a rollout is predicted and no input
    assert parts["micro-batch"] == tokens * MEBIBYTE // 64
    assert parts["output head"] == 4 * 4 * 128 * 1000 + MEBIBYTE
    assert NEEDS.total == sum(parts.values())


def test_where_sampling_takes_more_than_training_its_parts_are_the_peak() -> None:
    wide = replace(NEEDS, vocab_size=2_000_000, head_chunk_tokens=1)
    assert wide.parts["logits"] == 4 * 4 * 32 * 2_000_000
    assert "micro-batch" not in wide.parts
    assert "gradients" not in wide.parts


def test_the_cache_holds_what_there_is_and_no_more_than_it_may() -> None:
    assert replace(NEEDS, evaluation_tokens=1000).cached == 4 * 820 + 1000
    assert replace(NEEDS, cache_tokens=500).cached == 500


def test_an_evaluation_decodes_more_at_once_than_a_step() -> None:
    more = replace(NEEDS, evaluation_rollouts=100)
    assert more.parts["decoding"] == 4 * NEEDS.parts["decoding"]  # 128 rows instead of 32
    fewer = replace(more, max_running=8)
    assert fewer.parts["decoding"] == NEEDS.parts["decoding"] // 4


def test_a_reference_model_is_counted() -> None:
    assert replace(NEEDS, references=5 * MEBIBYTE).total == NEEDS.total + 5 * MEBIBYTE


def test_attention_scores_count_beside_tokens() -> None:
    quadratic = replace(NEEDS, saved=LinearCost(fixed=0.0, per_token=0.0, per_score=1000.0))
    short = replace(quadratic, shape=replace(SHAPE, samples=1, prompt_tokens=10, new_tokens=110))
    long = replace(quadratic, shape=replace(SHAPE, prompts=1, samples=1, prompt_tokens=40, new_tokens=440))
    assert long.parts["micro-batch"] > 3 * short.parts["micro-batch"]  # the same tokens, in one sequence


@pytest.mark.parametrize(
    ("share", "setting"),
    [(0.9, "training.micro_batch_tokens"), (0.8, "training.micro_batch_tokens")],
)
def test_the_offer_fits_and_is_nearly_the_largest_that_does(share: float, setting: str) -> None:
    capacity = int(share * NEEDS.total)
    name, _, value = way_out(NEEDS, capacity).removesuffix(" would fit").partition("=")
    assert name == setting
    assert replace(NEEDS, micro_batch_tokens=int(value)).total <= capacity
    assert replace(NEEDS, micro_batch_tokens=int(1.5 * int(value))).total > capacity


def test_where_the_cache_is_too_large_a_smaller_one_is_offered() -> None:
    cached = replace(NEEDS, evaluation_tokens=1_000_000, cache_tokens=1_000_000, token_state=10_000)
    capacity = cached.total - 5_000_000_000
    name, _, value = way_out(cached, capacity).removesuffix(" would fit").partition("=")
    assert name == "engine.cache_tokens"
    assert replace(cached, cache_tokens=int(value)).total <= capacity
    assert int(value) > 400_000


def test_where_two_settings_are_needed_both_are_named() -> None:
    both = replace(NEEDS, evaluation_tokens=100_000, cache_tokens=100_000, token_state=2000)
    capacity = replace(both, micro_batch_tokens=120, max_running=8, cache_tokens=1000).total
    offer = offered(both, capacity)
    assert {"cache_tokens", "micro_batch_tokens"} <= set(offer)
    assert offer["cache_tokens"] >= 1000
    assert replace(both, **offer).total <= capacity


def offered(needs: Needs, capacity: int) -> dict[str, int]:
    """The settings that are offered, by the names of their fields."""
    text = way_out(needs, capacity).removesuffix(" would fit").replace(" with ", " and ")
    pairs = [setting.split("=") for setting in text.split(" and ")]
    return {name.split(".")[1]: int(value) for name, value in pairs}


def test_what_does_not_change_what_is_learnt_shrinks_to_its_usual_size_first() -> None:
    huge = replace(
        NEEDS,
        shape=replace(SHAPE, prompts=400, samples=64),
        token_state=4096,
        cache_tokens=100_000_000,
        max_running=60_000,
        micro_batch_tokens=3_000_000,
        head_chunk_tokens=1_000_000,
    )
    capacity = 4 << 30
    assert huge.parts["cache"] > 2 * capacity
    offer = offered(huge, capacity)
    assert offer["cache_tokens"] == 65_536
    assert offer["head_chunk_tokens"] == 128
    assert offer["max_running"] == 128
    assert 100_000 < offer["micro_batch_tokens"] < 3_000_000  # the largest that fits, not the least there is
    assert 0.9 * capacity < replace(huge, **offer).total <= capacity


def test_logits_are_those_of_the_tokens_there_are() -> None:
    every = replace(NEEDS, head_chunk_tokens=1_000_000)
    assert every.parts["output head"] == 4 * 4 * (4 * 820 - 4 * 8) * 1000 + MEBIBYTE


def test_what_is_too_much_whatever_a_micro_batch_takes_is_known_before_anything_is_measured() -> None:
    assert check_certain(NEEDS, capacity=2 * NEEDS.total) is None
    assert check_certain(NEEDS, capacity=NEEDS.total - 1) is None  # the micro-batch may be smaller
    cached = replace(NEEDS, evaluation_tokens=1_000_000, cache_tokens=1_000_000, token_state=10_000)
    refused = check_certain(cached, capacity=5_000_000_000)
    assert refused is not None
    assert refused.status is Status.FAILED
    assert "by arithmetic alone" in refused.text
    assert "engine.cache_tokens=" in refused.text


def test_where_nothing_fits_that_is_said() -> None:
    found = check_memory(NEEDS, capacity=10 * MEBIBYTE)
    assert found.status is Status.FAILED
    assert "no smaller batch fits" in found.text


def test_status_by_how_full_it_gets() -> None:
    assert check_memory(NEEDS, capacity=2 * NEEDS.total).status is Status.OK
    assert check_memory(NEEDS, capacity=int(1.05 * NEEDS.total)).status is Status.WARNING
    assert check_memory(NEEDS, capacity=NEEDS.total - 1).status is Status.FAILED


def test_the_largest_value_that_fits_has_two_digits_where_it_can() -> None:
    assert largest(lambda value: value <= 2749, 16, 4096) == 2700
    assert largest(lambda value: value <= 2749, 2740, 4096) == 2749
    assert largest(lambda value: value <= 7, 1, 4096) == 7
    assert largest(lambda value: True, 1, 4096) == 4000
    assert largest(lambda value: value < 9, 16, 4096) is None


def test_sizes_are_readable() -> None:
    assert gigabytes(3 << 30) == "3 GiB"
    assert gigabytes(5 << 20) == "5 MiB"


def test_teachers_are_counted_whether_they_stay_or_come_for_their_turn() -> None:
    stays = TeacherNeeds(weights=500 * MEBIBYTE, cache=7 * MEBIBYTE)
    with_one = replace(NEEDS, teachers=(stays, stays))
    assert with_one.parts["teachers"] == 1000 * MEBIBYTE
    assert "teachers' caches" not in with_one.parts, "they are empty again when training is the peak"
    asked = replace(with_one, trained=0, saved=LinearCost(fixed=0.0, per_token=0.0, per_score=0.0))
    assert asked.parts["teachers' caches"] == 14 * MEBIBYTE
    visits = replace(asked, teachers=(replace(stays, visits=True), replace(stays, visits=True, cache=0)))
    assert visits.parts["the largest visiting teacher"] == 507 * MEBIBYTE
    assert "teachers" not in visits.parts


def test_a_loss_over_a_whole_law_is_counted_by_its_chunk() -> None:
    law = TeacherNeeds(weights=0, cache=0, law_of_token=24_000, law=3 * MEBIBYTE)
    one = replace(NEEDS, teachers=(law,))
    assert one.parts["teacher's law"] == 3 * MEBIBYTE + 128 * 24_000
    assert replace(one, head_chunk_tokens=16).parts["teacher's law"] == 3 * MEBIBYTE + 16 * 24_000
    assert "or take a smaller model or teacher" in way_out(one, MEBIBYTE)


def test_drafts_are_counted_with_heads_of_workers_their_keys_and_laws() -> None:
    wide = replace(NEEDS, vocab_size=2_000_000, head_chunk_tokens=1)
    drafts = replace(wide, drafts=DraftNeeds(depth=3, weights=5 * MEBIBYTE, token_state=64))
    more = {name: size - wide.parts.get(name, 0) for name, size in drafts.parts.items()}
    assert {name: size for name, size in more.items() if size} == {
        "draft heads": 5 * MEBIBYTE,
        "drafts": int(1.9 * int(1.125 * 32 * 120) * 64),
        "logits": (14 + 6 * 3 - 4) * 4 * 32 * 2_000_000,
    }
    assert replace(NEEDS, drafts=drafts.drafts).parts["drafts"] == int(1.125 * 32 * 120) * 64
    assert "leave out engine.draft" in way_out(drafts, MEBIBYTE)


def test_heads_say_what_drafts_take() -> None:
    """Of a token of a row: keys and values of one layer, and a state."""
    decoder = tiny_decoder()
    heads = fresh_heads(decoder)
    speculation = Speculation(drafter=MtpDrafter(heads), depth=FixedDepth(2))
    own = sum(it.numel() for it in heads.parameters()) * 4
    shape = CacheShape.of(decoder)
    state = 4 * shape.hidden_dim + shape.attended_bytes
    assert draft_needs(speculation, workers=1) == DraftNeeds(depth=2, weights=0, token_state=state)
    assert draft_needs(speculation, workers=3).weights == 3 * own
    assert draft_needs(replace(speculation, learning=heads), workers=3).weights == 4 * own
    flat = Speculation(drafter=ParallelDrafter(parallel_heads(decoder, depth=2)), depth=FixedDepth(2))
    assert draft_needs(flat, workers=2) == DraftNeeds(depth=2, weights=2 * 2 * (32 * 32 + 32) * 4)
    assert draft_needs(None, workers=2) == DraftNeeds()
