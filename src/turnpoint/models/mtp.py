"""Draft heads for multi-token prediction: a recurrent chain over the backbone's hidden states.

A draft of depth gamma at anchor t starts where the backbone has read token t and token t + 1 was sampled;
depth i reads token t + i and drafts token t + i + 1. In training the tokens are those of the text; in
decoding those from t + 2 on are the chain's own drafts. Embedding and output head are the backbone's:
shared, never copied, and like its hidden states never trained through the heads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from turnpoint.errors import ModelError
from turnpoint.models.attention import AttentionLayout
from turnpoint.models.mtp_attention import ChainLayout, PackedLayout
from turnpoint.models.mtp_host import Host
from turnpoint.models.mtp_layout import MAX_DEPTH, MtpLayout
from turnpoint.models.mtp_shift import chain_mask, check_depth, check_lengths, shifted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chain:
    """What teacher-forced heads say of T anchors at depths 1 .. gamma."""

    hidden: Float[
        Tensor, "gamma T D"
    ]  # for the output head; row i - 1 drafts t + i + 1: target is state t + i
    counts: Bool[Tensor, "gamma T"]  # whether the term belongs into a loss, see `chain_mask`


class DraftStep(NamedTuple):
    """What one depth makes of n rows."""

    hidden: Tensor  # [n, D] for the output head
    carried: Tensor  # [n, D] for the next depth


class Fusion(nn.Module):
    """The norms and the projection around a decoder layer; new, it passes the hidden state on."""

    def __init__(self, host: Host, layout: MtpLayout) -> None:
        super().__init__()
        weight = host.embedding_weight
        self.embedding_norm = host.new_norm()
        self.hidden_norm = host.new_norm()
        # made without values: nothing is drawn from a generator that others draw from
        blank = nn.Linear(2 * host.width, host.width, bias=False, dtype=weight.dtype, device="meta")
        self.projection: nn.Linear = blank.to_empty(device=weight.device)
        self.final_norm = host.new_norm()
        zero, one = torch.zeros(host.width, host.width), torch.eye(host.width)
        parts = [zero, one] if layout.order == "embedding_first" else [one, zero]
        with torch.no_grad():
            self.projection.weight.copy_(torch.cat(parts, dim=1))


class MtpHeads(nn.Module):
    """A recurrent chain of draft heads for the backbone `host`, wired as `layout` says.

    Made anew they are copies of the host's last layer and final norm around a projection that passes the
    hidden state on; see also `fresh_heads`, `load_heads`, `load_checkpoint_heads`. Parameters are the heads'
    own; the backbone's are only looked at. `trained_depth` is the depth they were trained to, 0 for none.
    Raises ModelError for norms that are not stored as the layout says: such heads would draft noise.
    """

    def __init__(self, host: Host, layout: MtpLayout, *, trained_depth: int = 0) -> None:
        super().__init__()
        deltas = host.norms_are_deltas()
        if deltas != (layout.norms == "delta"):
            raise ModelError(
                f"draft heads of layout {layout.name}: its norms are stored as {layout.norms}s, those of "
                f"{type(host.model).__name__} are not; they belong to another family of models"
            )
        self.host = host
        self.layout = layout
        self.trained_depth = trained_depth
        self.fusions = nn.ModuleList(Fusion(host, layout) for _ in range(layout.fusions))
        self.blocks = nn.ModuleList(host.new_layer() for _ in range(layout.layers))

    @property
    def max_depth(self) -> int:
        """How many tokens a chain may have; layers are used again past their number."""
        return MAX_DEPTH

    @contextmanager
    def watching(self) -> Generator[Callable[[Tensor], Tensor]]:
        """Gives what the heads are fed by a pass of the backbone within, from its last hidden states [T, D].

            with heads.watching() as fed:
                final = decoder.hidden(token_ids, positions, layout)
            chain = heads.chain(hidden=fed(final), ...)

        Detached: no gradient goes back. One pass at a time: where the layout takes states before the final
        norm, they are caught on the way, those of the last pass.
        """
        if self.layout.hidden == "post_norm":
            yield Tensor.detach
            return
        with self.host.watching_final_norm() as seen:
            yield lambda _: seen[-1]

    def fed_by(self, final: Float[Tensor, "T D"]) -> Float[Tensor, "T D"]:
        """Returns what to feed the heads, from the backbone's last hidden states alone.

        As `watching` gives it, but for each state's scale and mean where the layout takes states before the
        final norm: the heads' own norm takes both away. Raises ModelError as `Host.before_final_norm`.
        """
        return final if self.layout.hidden == "post_norm" else self.host.before_final_norm(final)

    def slot(self, depth: int) -> int:
        """Returns which slot of a cache `depth` reads and writes."""
        return depth - 1 if self.layout.attention == "same_depth" else (depth - 1) % self.layout.layers

    def extends(self, depth: int) -> bool:
        """Returns whether `depth` goes on with the keys of an earlier one, or writes anchors of its own."""
        return self.layout.attention == "first_use" and depth > self.layout.layers

    def fusion(self, depth: int) -> Fusion:
        """Returns the norms and the projection that `depth` uses."""
        return cast(Fusion, self.fusions[(depth - 1) % self.layout.layers % len(self.fusions)])

    def fused(
        self,
        *,
        depth: int,
        hidden: Float[Tensor, "n D"],
        token_ids: Int[Tensor, " n"],
        positions: Int[Tensor, " n"],
    ) -> Float[Tensor, "n twice_D"]:
        """Returns what the projection of `depth` is given: both parts, each by its norm. As for `step`."""
        fusion = self.fusion(depth)
        embedded = self.host.embed(token_ids)
        if self.layout.zero_first:
            embedded = embedded.masked_fill((positions == 0).unsqueeze(-1), 0.0)
        parts = [fusion.embedding_norm(embedded), fusion.hidden_norm(hidden)]
        return torch.cat(parts if self.layout.order == "embedding_first" else parts[::-1], dim=-1)

    def step(
        self,
        *,
        depth: int,
        hidden: Float[Tensor, "n D"],
        token_ids: Int[Tensor, " n"],
        positions: Int[Tensor, " n"],
        layout: AttentionLayout,
    ) -> DraftStep:
        """Runs one depth on a flat row of n: over many anchors, or on with the chains of many sequences.

        `hidden` is the backbone's state at the anchor (depth 1, as `watching` gives it) or what the depth
        before carried; `token_ids` are the tokens read, t + i of anchor t at depth i; `positions` are those
        of the tokens before them, t + i - 1. Who attends to whom is `layout`'s business: a `DraftCache` of
        slot `slot(depth)`, or an engine's own. Rows do not meet anywhere else.
        """
        check_depth(depth, self.max_depth)
        fusion = self.fusion(depth)
        fused = fusion.projection(
            self.fused(depth=depth, hidden=hidden, token_ids=token_ids, positions=positions)
        )
        raw = self.host.run(self.blocks[(depth - 1) % self.layout.layers], fused, positions, layout)
        normed = fusion.final_norm(raw)
        return DraftStep(normed, raw if self.layout.carried == "pre_norm" else normed)

    def chain(
        self,
        *,
        hidden: Float[Tensor, "T D"],
        token_ids: Int[Tensor, " T"],
        positions: Int[Tensor, " T"],
        lengths: Sequence[int],
        depth: int,
        valid: Bool[Tensor, " T"] | None = None,
    ) -> Chain:
        """Runs the chain teacher-forced from every anchor of packed sequences, for training.

        `hidden` are the backbone's states as `watching` gives them, detached here once more; `lengths`
        those of the sequences in the row, each of consecutive tokens; `valid` which tokens the policy
        generated, all when None. Rows that do not count are finite and of no consequence. With `first_use`
        attention every depth sees exactly what it sees in decoding; with `same_depth` anchor t sees what the
        same depth computed of anchors before it. Raises ValueError for a depth out of bounds and for
        lengths that do not add up; a sequence too short for the depth has nothing that counts.
        """
        check_depth(depth, self.max_depth)
        steps = self.unrolled(hidden=hidden, token_ids=token_ids, positions=positions, lengths=lengths)
        states = [step.hidden for step in itertools.islice(steps, depth)]
        if valid is None:
            valid = torch.ones_like(token_ids, dtype=torch.bool)
        return Chain(hidden=torch.stack(states), counts=chain_mask(valid=valid, depth=depth, lengths=lengths))

    def unrolled(
        self,
        *,
        hidden: Float[Tensor, "T D"],
        token_ids: Int[Tensor, " T"],
        positions: Int[Tensor, " T"],
        lengths: Sequence[int],
    ) -> Iterator[DraftStep]:
        """Yields what `chain` makes of all anchors, depth by depth, up to `max_depth`; runs one at a time."""
        check_lengths(lengths, len(token_ids))
        carried = hidden.detach()
        firsts: list[PackedLayout] = []
        chains: list[list[ChainLayout]] = [[] for _ in range(self.layout.layers)]
        for depth in range(1, self.max_depth + 1):
            layout: PackedLayout | ChainLayout
            if self.extends(depth):
                slot = self.slot(depth)
                layout = ChainLayout(firsts[slot], chains[slot], ahead=depth - 1 - slot)
                chains[slot].append(layout)
            else:
                layout = PackedLayout(lengths)
                firsts.append(layout)
            step = self.step(
                depth=depth,
                hidden=carried,
                token_ids=shifted(token_ids, by=depth, lengths=lengths),
                positions=positions + (depth - 1),
                layout=layout,
            )
            yield step
            carried = step.carried
