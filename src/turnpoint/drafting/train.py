"""Training draft heads on texts, the policy frozen: it is passed through, never through its gradient.

One step is one packed row of texts: the policy's states without a gradient, the heads' chain from every
sampled token, a loss of `turnpoint.drafting.losses` computed beside the output head, AdamW on float32
masters of the heads' own weights. The same texts, seed and sizes give the same heads on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from turnpoint.drafting.fused import fused_linear_tv
from turnpoint.drafting.kernels.plain import PLAIN_ROWS
from turnpoint.drafting.kernels.rows import RowKernel
from turnpoint.drafting.losses import DraftLossName
from turnpoint.drafting.rows import draft_rows
from turnpoint.drafting.texts import DraftHeads, DraftText, PackedTexts, drafts_of, endless, pack_texts
from turnpoint.models.decoder import Decoder
from turnpoint.models.heads import detached_head
from turnpoint.training.optimizer import MasterAdamW


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPlan:
    """Which loss, and which one for the first steps, where drafts overlap too little to learn from it."""

    loss: DraftLossName = "end_to_end_tv"
    first: DraftLossName = "negative_log"
    first_steps: int = 0

    def at(self, step: int) -> DraftLossName:
        """Returns the loss of `step`, counted from 0."""
        return self.first if step < self.first_steps else self.loss


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStepFigures:
    """What one step showed, before its update."""

    step: int  # from 1
    loss_name: DraftLossName
    loss: float  # mean over anchors
    acceptance: tuple[float, ...]  # by depth; NaN where no text is long enough
    tokens: int  # through the networks
    anchors: int
    grad_norm: float
    learning_rate: float


def train_drafts(
    heads: DraftHeads,
    decoder: Decoder,
    texts: Sequence[DraftText],
    *,
    optimizer: MasterAdamW,
    depth: int,
    steps: int,
    batch_tokens: int,
    plan: LossPlan,
    temperature: float = 1.0,
    seed: int = 0,
    kernel: RowKernel = PLAIN_ROWS,
    progress: Callable[[int, int], None] = lambda steps, tokens: None,
) -> Iterator[DraftStepFigures]:
    """Yields the figures of `steps` steps as they are taken; changes `heads` in place and nothing else.

    `optimizer` is of `heads`. `temperature`: of the policy's law. `batch_tokens`: of one step; a longer text
    is a step of its own. Texts without a token that could be drafted are passed over. Path-wise losses are
    unbiased on texts that this policy sampled at this temperature alone, which the caller sees to.
    Raises ValueError when no text has anything to draft, and TrainingError as the optimiser does.
    """
    usable = [it for it in texts if drafts_of(it)]
    if not usable:
        raise ValueError(
            f"none of {len(texts)} texts has two sampled tokens behind another: nothing to draft"
        )
    order = endless([len(it) for it in usable], tokens=batch_tokens, seed=seed)
    head = detached_head(decoder)
    for step, batch in zip(range(steps), order, strict=False):
        packed = pack_texts([usable[index] for index in batch], device=decoder.device)
        rows = draft_rows(heads, decoder, packed, depth=depth)
        found = fused_linear_tv(
            head=head,
            target_hidden=rows.target_hidden,
            draft_hidden=rows.draft_hidden,
            next_ids=rows.next_ids,
            mask=rows.mask,
            denominator=len(rows.anchors),
            loss=plan.at(step),
            temperature=temperature,
            kernel=kernel,
        )
        found.loss.backward()
        moved = optimizer.step()
        heads.trained_depth = max(heads.trained_depth, depth)
        progress(1, len(packed.token_ids))
        sums, counts = (cast("list[float]", it.double().sum(0).tolist()) for it in (found.alphas, rows.mask))
        yield DraftStepFigures(
            step=step + 1,
            loss_name=plan.at(step),
            loss=float(found.loss.detach()),
            acceptance=tuple(
                total / count if count else float("nan") for total, count in zip(sums, counts, strict=True)
            ),
            tokens=len(packed.token_ids),
            anchors=len(rows.anchors),
            grad_norm=moved["grad_norm"].value or 0.0,
            learning_rate=moved["learning_rate"].value or 0.0,
        )


def fitting_text(texts: Sequence[DraftText], *, tokens: int, decoder: Decoder) -> PackedTexts:
    """Returns the first of `texts`, about `tokens` in all, for `fit_projection`."""
    chosen, total = list[DraftText](), 0
    for text in texts:
        chosen.append(text)
        total += len(text)
        if total >= tokens:
            break
    return pack_texts(chosen, device=decoder.device)
