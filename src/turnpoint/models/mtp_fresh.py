"""New draft heads for a backbone that came without any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from turnpoint.models.decoder import Decoder
from turnpoint.models.mtp import MtpHeads
from turnpoint.models.mtp_attention import PackedLayout
from turnpoint.models.mtp_host import host_of
from turnpoint.models.mtp_layout import ParallelLayout, mtp_layout
from turnpoint.models.mtp_parallel import ParallelHeads
from turnpoint.models.mtp_shift import shifted

_RIDGE = 1e-2  # of the mean diagonal


def fresh_heads(
    decoder: Decoder,
    *,
    layers: int = 1,
    attention: Literal["first_use", "same_depth"] = "first_use",
) -> MtpHeads:
    """Returns new recurrent draft heads for `decoder`, on its device and in its dtype.

    Each of `layers` is a copy of the last decoder layer, each norm one of the final norm; the projection
    passes the hidden state on and ignores the embedding, until `fit_projection` or training says better.
    Nothing is drawn at random: two calls return the same. Raises ModelError for a model whose last layer
    cannot be run on its own.
    """
    host = host_of(decoder)
    kind = "delta" if host.norms_are_deltas() else "weight"
    layout = replace(mtp_layout("turnpoint", layers=layers), attention=attention, norms=kind)
    return MtpHeads(host, layout)


def parallel_heads(decoder: Decoder, *, depth: int) -> ParallelHeads:
    """Returns new parallel draft heads for `decoder`: `depth` blocks that pass the hidden state on."""
    return ParallelHeads(host_of(decoder), ParallelLayout(depth=depth))


@torch.no_grad()
def fit_projection(
    heads: MtpHeads,
    decoder: Decoder,
    *,
    token_ids: Int[Tensor, " T"],
    positions: Int[Tensor, " T"],
    lengths: Sequence[int],
) -> None:
    """Sets the projections of new heads by least squares on a text, in place, so that they draft at once.

    A head's layer is a copy of the backbone's last. So the projection is fitted (ridge regression, in
    float64) to make of token t + 1's embedding and the state at t what the backbone's own last layer is
    given at t + 1; that of the next layer from what the one before hands on, and so on. The text, packed
    sequences of `lengths`, should be what the policy writes, some thousand tokens of it.
    """
    with heads.host.watching_last_layer() as given, heads.watching() as fed:
        final = decoder.hidden(token_ids, positions, PackedLayout(lengths))
    carried = fed(final)
    text: dict[str, Any] = {"token_ids": token_ids, "positions": positions, "lengths": lengths}
    steps = heads.unrolled(hidden=carried, **text)
    every = torch.ones_like(token_ids, dtype=torch.bool)
    for depth in range(1, heads.layout.layers + 1):
        inputs = heads.fused(
            depth=depth,
            hidden=carried,
            token_ids=shifted(token_ids, by=depth, lengths=lengths),
            positions=positions + (depth - 1),
        )
        known = shifted(every, by=depth, lengths=lengths)
        wanted = shifted(given[-1], by=depth, lengths=lengths)
        heads.fusion(depth).projection.weight.copy_(_least_squares(inputs[known], wanted[known]))
        carried = next(steps).carried


def _least_squares(inputs: Float[Tensor, "n F"], outputs: Float[Tensor, "n D"]) -> Float[Tensor, "D F"]:
    inputs, outputs = inputs.double(), outputs.double()
    gram = inputs.T @ inputs
    gram.diagonal().add_(_RIDGE * gram.diagonal().mean())
    return cast(Any, torch.linalg).solve(gram, inputs.T @ outputs).T
