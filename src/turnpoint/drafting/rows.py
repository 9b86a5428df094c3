"""From packed texts to the rows that drafts are measured on: a pass of the policy, then the heads' chain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnpoint.drafting.texts import DraftHeads, PackedTexts
from turnpoint.models.decoder import Decoder
from turnpoint.models.mtp_attention import PackedLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRows:
    """N anchors with something to draft, as `fused_linear_tv` takes them: depth i of n has target row n + i.

    An anchor that counts at depth i has the next i anchors behind it, so that no others are needed.
    """

    anchors: Tensor  # [N], places in the packed row
    target_hidden: Tensor  # [N, D], of the token behind each anchor
    next_ids: Tensor  # [N], what the text goes on with there
    draft_hidden: Tensor  # [gamma, N, D]
    mask: Tensor  # [N, gamma]


def draft_rows(heads: DraftHeads, decoder: Decoder, packed: PackedTexts, *, depth: int) -> DraftRows:
    """Returns the rows of `packed`; gradients flow into the heads and nowhere else.

    Prompts are passed through but are no rows.
    """
    text = {"token_ids": packed.token_ids, "positions": packed.positions}
    with torch.no_grad(), heads.watching() as fed:
        final = decoder.hidden(**text, layout=PackedLayout(packed.lengths))
        states = fed(final)
    chain = heads.chain(hidden=states, **text, lengths=packed.lengths, depth=depth, valid=packed.valid)
    anchors = chain.counts[0].nonzero()[:, 0]
    return DraftRows(
        anchors=anchors,
        target_hidden=final[anchors + 1],
        next_ids=packed.token_ids[anchors + 2],
        draft_hidden=chain.hidden[:, anchors],
        mask=chain.counts[:, anchors].T,
    )
