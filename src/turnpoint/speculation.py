"""From the `engine.draft` section of a recipe to draft heads at work in an engine."""

from __future__ import annotations

from turnpoint.config import EngineDraftConfig
from turnpoint.engine.depth import DepthRule, FixedDepth, GoodputDepth
from turnpoint.engine.mtp import MtpDrafter
from turnpoint.engine.parallel import ParallelDrafter
from turnpoint.engine.speculation import Speculation
from turnpoint.errors import ModelError
from turnpoint.models.decoder import Decoder
from turnpoint.models.mtp import MtpHeads
from turnpoint.models.mtp_folder import load_heads


def open_speculation(draft: EngineDraftConfig | None, decoder: Decoder) -> Speculation | None:
    """Returns how an engine around `decoder` drafts, None without; it serves one engine.

    Raises ModelError in one line for heads that cannot be read, were made for another backbone, or were not
    trained so deep.
    """
    if draft is None:
        return None
    heads = load_heads(decoder, draft.heads, retrained=draft.retrained)
    if draft.depth > heads.trained_depth:
        raise ModelError(
            f"engine.draft.depth = {draft.depth}: the heads in {draft.heads} were trained to "
            f"{heads.trained_depth}; take engine.draft.depth={max(1, heads.trained_depth)} or less, or train "
            f"them deeper by turnpoint draft"
        )
    heads.requires_grad_(False)
    drafter = (
        MtpDrafter(heads, deepest=draft.depth) if isinstance(heads, MtpHeads) else ParallelDrafter(heads)
    )
    rule: DepthRule = GoodputDepth(draft.depth) if draft.adaptive else FixedDepth(draft.depth)
    return Speculation(
        drafter=drafter,
        depth=rule,
        mode=draft.mode,
        tempered=draft.tempered,
        learning=heads if draft.training else None,
    )
