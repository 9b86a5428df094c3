"""Attention of decoding rows: over trunks that rows share, and over each row's own tokens.

    out_b  =  sum_i p_i v_i  over the row's own keys  +  sum_t p_t o_t  over the trunks it reads,
    (p_i, p_t)  =  softmax(q_b k_i, ..., L_bt, ...),        L_bt  =  log sum_j exp(q_b k_j)  over trunk t

so a trunk is one more key, whose logit is the log-sum-exp of its logits and whose value is its output.
`queries` are scaled already. Plain matrix products beat the fused attention of torch on CPUs here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from turnpoint.engine.trunks import Reading
from turnpoint.models.attention import AttentionCall, visible

_HIDDEN = -1e30  # a logit without weight; finite, so that a trunk of which nothing is seen has an output


class TrunkReader:
    """Attends over the trunks of one depth in one step, the K tokens of each row at `positions` [B, K]."""

    def __init__(self, reading: Reading, positions: Tensor) -> None:
        self._reading = reading
        self._positions = positions
        self._masks: dict[int | None, Tensor | None] = {}
        self._indices: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def attend(self, call: AttentionCall, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Returns outputs [B * Hkv, G, Dv] and log-sum-exps [B * Hkv, G], -inf for rows that read none.

        `queries` [B * Hkv, G, D], where G counts the query heads of a key head for each of the K tokens.
        """
        heads, group = call.key.shape[0], queries.shape[1]
        count, readers = self._reading.rows.shape
        gather, back, absent = self._index(heads)
        keys = self._reading.block.keys[call.layer][:count].flatten(0, 1)
        values = self._reading.block.values[call.layer][:count].flatten(0, 1)
        gathered = queries.index_select(0, gather).view(count * heads, readers * group, -1)
        logits = _capped(call, torch.bmm(gathered, keys.transpose(-1, -2)).float())
        mask = self._mask(call.window)
        if mask is not None:
            columns = mask.shape[3]
            logits.view(count, heads, readers, columns, group // columns, -1).add_(mask)
        probs = torch.softmax(logits, dim=-1)
        # of the likeliest key: logit = log-sum-exp + log p
        sums = logits.amax(-1) - probs.amax(-1).log()
        output = torch.bmm(probs.to(values.dtype), values).view(count * heads * readers, group, -1)
        sums = sums.view(-1, group).index_select(0, back) + absent
        return output.index_select(0, back), sums

    def _index(self, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns which query stands where in the product, where each row's result is, and who has none."""
        if heads not in self._indices:
            reading, every = self._reading, torch.arange(heads, device=self._positions.device)
            readers = reading.rows.shape[1]
            gather = reading.rows.unsqueeze(1) * heads + every.view(-1, 1)  # [T, Hkv, R]
            trunk, at = reading.place // readers, reading.place % readers
            back = (trunk.unsqueeze(1) * heads + every) * readers + at.unsqueeze(1)  # [B, Hkv]
            absent = torch.zeros(back.shape, device=every.device)
            absent.masked_fill_(reading.absent.unsqueeze(1), -torch.inf)
            self._indices[heads] = gather.flatten(), back.flatten(), absent.view(-1, 1)
        return self._indices[heads]

    def _mask(self, window: int | None) -> Tensor | None:
        """Returns [T, 1, R, K, 1, C] to be added to logits, or None if every row sees everything."""
        if window not in self._masks:
            reading = self._reading
            every = torch.arange(reading.block.capacity, device=self._positions.device)
            absolute = reading.starts.view(-1, 1, 1) + every
            seen = visible(self._positions[reading.rows], absolute, window)  # [T, R, K, C]
            seen &= every < reading.seen[..., None, None]
            mask = torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, _HIDDEN)
            self._masks[window] = None if bool(seen.all()) else mask[:, None, :, :, None]
        return self._masks[window]


def own_attention(
    call: AttentionCall,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    trunks: Sequence[tuple[Tensor, Tensor]],
) -> Tensor:
    """Returns [N, G, Dv]: G queries [N, G, D] share each of N = B * Hkv key heads [N, C, D].

    They are one token's query heads, or several tokens' one after the other. `mask` [N, 1 or G, C] is added
    to the logits; `trunks` are what `TrunkReader.attend` returned.
    """
    logits = torch.bmm(queries, keys.transpose(-1, -2))
    if call.softcap is None and call.sinks is None and not trunks:
        return torch.bmm(torch.softmax(logits.add_(mask), dim=-1), values)
    columns = [_capped(call, logits.float()) + mask, *(sums.unsqueeze(-1) for _, sums in trunks)]
    if call.sinks is not None:
        kv_heads = call.key.shape[0]
        tokens = queries.shape[1] * kv_heads // len(call.sinks)
        sinks = call.sinks.float().view(kv_heads, 1, -1).expand(-1, tokens, -1).reshape(kv_heads, -1)
        columns.append(sinks.repeat(queries.shape[0] // kv_heads, 1).unsqueeze(-1))
    probs = torch.softmax(torch.cat(columns, dim=-1), dim=-1).to(values.dtype)
    own = keys.shape[1]
    output = torch.bmm(probs[..., :own], values)
    for number, (part, _) in enumerate(trunks, start=own):
        output.addcmul_(probs[..., number : number + 1], part)
    return output


def _capped(call: AttentionCall, logits: Tensor) -> Tensor:
    return logits if call.softcap is None else call.softcap * torch.tanh(logits / call.softcap)
