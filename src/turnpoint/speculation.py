"""From the `engine.draft` section of a recipe to draft heads at work in an engine."""

from __future__ import annotations

from turnpoint.config import EngineDraftConfig
from turnpoint.engine.depth import DepthRule, FixedDepth, GoodputDepth
from turnpoint.engine.mtp import MtpDrafter
from turnpoint.engine.speculation import Speculation
from turnpoint.errors import ModelError
from turnpoint.models.decoder import Decoder
from turnpoint.models.mtp import MtpHeads
from turnpoint.models.mtp_folder import load_heads


def open_speculation(draft: EngineDraftConfig | None, decoder: Decoder) -> Speculation | None:
    """Returns how an engine around `decoder` drafts, None without; it serves one engine.

    Raises ModelError in one line for heads that cannot be read, were made for another backbone, or that an
    engine cannot draft with.
    """
    if draft is None:
        return None
    heads = load_heads(decoder, draft.heads, retrained=draft.retrained)
    if not isinstance(heads, MtpHeads):
        raise ModelError(
            f"engine.draft.heads = {draft.heads}: parallel heads, and an engine drafts by a recurrent chain; "
            f"train heads of kind fresh"
        )
    heads.requires_grad_(False)
    rule: DepthRule = GoodputDepth(draft.depth) if draft.adaptive else FixedDepth(draft.depth)
    return Speculation(
        drafter=MtpDrafter(heads),
        depth=rule,
        mode=draft.mode,
        tempered=draft.adaptive,
        learning=heads if draft.training else None,
    )
