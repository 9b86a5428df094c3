"""Texts that draft heads learn from: token ids, and which of them the policy wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from turnpoint.models.mtp import MtpHeads
from turnpoint.models.mtp_parallel import ParallelHeads
from turnpoint.models.mtp_shift import chain_mask
from turnpoint.types import Author, Floats, Group, TokenIds

DraftHeads = MtpHeads | ParallelHeads


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftText:
    """One text."""

    token_ids: TokenIds  # [n]
    sampled: npt.NDArray[np.bool_]  # [n], written by the policy: what a draft may be asked for
    logprobs: Floats | None = None  # [n] nats, as recorded when sampled and 0 elsewhere; None: no record
    group: str = ""  # texts of one group, such as the rollouts of a problem, are held out together

    def __len__(self) -> int:
        return len(self.token_ids)


def group_texts(group: Group) -> list[DraftText]:
    """Returns each member of `group` from prompt to end; a token that several share counts in one of them."""
    texts: list[DraftText] = []
    for member in group.members:
        own, pieces = set(member.segments), group.tree.path(member.leaf)
        sampled = [np.full(it.length, it.segment.id in own) for it in pieces]
        logprobs = [
            it.segment.logprobs[: it.length]
            if it.segment.author is Author.POLICY and it.segment.logprobs is not None
            else np.zeros(it.length, dtype=np.float32)
            for it in pieces
        ]
        texts.append(
            DraftText(
                token_ids=group.tree.path_ids(member.leaf),
                sampled=np.concatenate(sampled),
                logprobs=np.concatenate(logprobs),
                group=group.id,
            )
        )
    return texts


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTexts:
    """Texts in one flat row of T tokens."""

    texts: Sequence[DraftText]
    token_ids: Tensor  # [T]
    positions: Tensor  # [T], from 0 in each text
    lengths: tuple[int, ...]
    valid: Tensor  # [T]

    def counts(self, depth: int) -> Tensor:
        """Returns which terms count, [depth, T]: see `chain_mask`."""
        return chain_mask(valid=self.valid, depth=depth, lengths=self.lengths)


def pack_texts(texts: Sequence[DraftText], *, device: torch.device | str = "cpu") -> PackedTexts:
    """Returns `texts` one behind the other."""
    ids = np.concatenate([it.token_ids for it in texts]).astype(np.int64)
    positions = np.concatenate([np.arange(len(it), dtype=np.int64) for it in texts])
    sampled = np.concatenate([it.sampled for it in texts])
    return PackedTexts(
        texts=texts,
        token_ids=torch.from_numpy(ids).to(device),
        positions=torch.from_numpy(positions).to(device),
        lengths=tuple(len(it) for it in texts),
        valid=torch.from_numpy(sampled).to(device),
    )


def drafts_of(text: DraftText) -> int:
    """Returns how many of the text's tokens could be the first draft of a round.

    >>> drafts_of(DraftText(token_ids=np.arange(4), sampled=np.array([False, True, True, True])))
    2
    """
    return int((text.sampled[1:-1] & text.sampled[2:]).sum())


def batches(lengths: Sequence[int], *, tokens: int) -> Iterator[list[int]]:
    """Yields runs of indices whose `lengths` add up to `tokens` at most; a longer one is alone.

    >>> list(batches([3, 3, 9, 1], tokens=6))
    [[0, 1], [2], [3]]
    """
    batch, total = list[int](), 0
    for index, length in enumerate(lengths):
        if batch and total + length > tokens:
            yield batch
            batch, total = [], 0
        batch.append(index)
        total += length
    if batch:
        yield batch


def endless(lengths: Sequence[int], *, tokens: int, seed: int) -> Iterator[list[int]]:
    """Yields `batches` of one pass after another, each pass in an order of its own that `seed` draws."""
    generator = np.random.default_rng(seed)
    while True:
        order: list[int] = generator.permutation(len(lengths)).tolist()
        for batch in batches([lengths[index] for index in order], tokens=tokens):
            yield [order[index] for index in batch]


def split_held_out(
    texts: Sequence[DraftText], *, share: float, seed: int
) -> tuple[list[DraftText], list[DraftText]]:
    """Returns texts to train on and texts held out: about `share` of the groups, at least one if any.

    Texts without a group are each their own.
    """
    names = [it.group or f"\0{index}" for index, it in enumerate(texts)]
    groups = list(dict.fromkeys(names))
    count = min(len(groups) - 1, max(1, round(share * len(groups)))) if share > 0 else 0
    drawn: list[int] = np.random.default_rng(seed).permutation(len(groups))[: max(count, 0)].tolist()
    held = {groups[index] for index in drawn}
    train = [it for it, name in zip(texts, names, strict=True) if name not in held]
    return train, [it for it, name in zip(texts, names, strict=True) if name in held]
