"""Looking ahead in packed sequences, by hand and by enumeration."""

from __future__ import annotations

import itertools

import pytest
import torch

from turnpoint.models.mtp_shift import chain_mask, shifted


def test_a_shift_by_hand() -> None:
    row = torch.tensor([1, 2, 3, 4, 7, 8, 9])
    assert shifted(row, by=0, lengths=[4, 3]).tolist() == row.tolist()
    assert shifted(row, by=1, lengths=[4, 3]).tolist() == [2, 3, 4, 0, 8, 9, 0]
    assert shifted(row, by=3, lengths=[4, 3]).tolist() == [4, 0, 0, 0, 0, 0, 0]
    assert shifted(row, by=9, lengths=[4, 3]).tolist() == [0] * 7
    assert shifted(row.unsqueeze(-1), by=2, lengths=[7])[:, 0].tolist() == [3, 4, 7, 8, 9, 0, 0]


def test_a_shift_never_looks_into_the_next_sequence_or_behind() -> None:
    poisoned = torch.tensor([1.0, 2.0, torch.nan, torch.nan])
    assert shifted(poisoned, by=1, lengths=[2, 2])[:2].tolist() == [2.0, 0.0]
    with pytest.raises(ValueError, match="a shift by -1"):
        shifted(poisoned, by=-1, lengths=[2, 2])


@pytest.mark.parametrize("lengths", [[3], [2, 1], [4, 1], [4, 0], [5, -1]])
def test_lengths_that_are_not_those_of_the_row_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=f"sequences of {sum(lengths)} tokens in all for a row of 4"):
        shifted(torch.zeros(4), by=1, lengths=lengths)


def test_a_mask_by_hand() -> None:
    """Prompt of two, then four sampled tokens: a round starts where its first token was sampled."""
    valid = torch.tensor([False, False, True, True, True, True])
    assert chain_mask(valid=valid, depth=3, lengths=[6]).int().tolist() == [
        [0, 1, 1, 1, 0, 0],  # tokens t + 1 and t + 2 were sampled
        [0, 1, 1, 0, 0, 0],
        [0, 1, 0, 0, 0, 0],
    ]
    assert chain_mask(valid=valid, depth=1, lengths=[3, 3]).int().tolist() == [[0, 0, 0, 1, 0, 0]]


def test_one_token_in_between_that_does_not_count_ends_the_chain() -> None:
    valid = torch.tensor([True, True, True, False, True, True, True, True])
    mask = chain_mask(valid=valid, depth=2, lengths=[8])
    assert mask.int().tolist() == [[1, 0, 0, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 0, 0, 0]]
    # a mask that asked for the drafted token alone would let anchor 2 draft token 4, anchor 1 token 4 too


def test_masks_are_the_definition() -> None:
    for bits in itertools.product([False, True], repeat=6):
        for lengths in ([6], [2, 4], [3, 1, 2]):
            mask = chain_mask(valid=torch.tensor(bits), depth=4, lengths=lengths)
            ends = [
                end
                for end, size in zip(itertools.accumulate(lengths), lengths, strict=True)
                for _ in range(size)
            ]
            for depth, anchor in itertools.product(range(1, 5), range(6)):
                reads = range(anchor + 1, anchor + depth + 2)
                assert mask[depth - 1, anchor] == all(it < ends[anchor] and bits[it] for it in reads)


def test_no_depth_and_no_text_to_draft() -> None:
    with pytest.raises(ValueError, match="a draft of depth 0"):
        chain_mask(valid=torch.ones(3, dtype=torch.bool), depth=0, lengths=[3])
    assert not chain_mask(valid=torch.ones(2, dtype=torch.bool), depth=3, lengths=[1, 1]).any()
