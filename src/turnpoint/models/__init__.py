"""Models: loading, attention for flat rows, rendering of prompts, draft heads, export."""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.models.adapter import Adapter as Adapter
    from turnpoint.models.adapter import add_adapter as add_adapter
    from turnpoint.models.adapter import base_state as base_state
    from turnpoint.models.adapter import load_adapter as load_adapter
    from turnpoint.models.adapter import merged_state as merged_state
    from turnpoint.models.decoder import Decoder as Decoder
    from turnpoint.models.embedded import fetch_embedded as fetch_embedded
    from turnpoint.models.export import export_adapter as export_adapter
    from turnpoint.models.export import export_model as export_model
    from turnpoint.models.gguf import convert_gguf as convert_gguf
    from turnpoint.models.heads import detached_head as detached_head
    from turnpoint.models.heads import linear_head as linear_head
    from turnpoint.models.loading import LoadedModel as LoadedModel
    from turnpoint.models.loading import load_model as load_model
    from turnpoint.models.mtp import MtpHeads as MtpHeads
    from turnpoint.models.mtp_attention import DraftCache as DraftCache
    from turnpoint.models.mtp_checkpoints import checkpoint_state as checkpoint_state
    from turnpoint.models.mtp_folder import load_checkpoint_heads as load_checkpoint_heads
    from turnpoint.models.mtp_folder import load_heads as load_heads
    from turnpoint.models.mtp_folder import save_heads as save_heads
    from turnpoint.models.mtp_fresh import fit_projection as fit_projection
    from turnpoint.models.mtp_fresh import fresh_heads as fresh_heads
    from turnpoint.models.mtp_fresh import parallel_heads as parallel_heads
    from turnpoint.models.mtp_layout import MtpLayout as MtpLayout
    from turnpoint.models.mtp_parallel import ParallelHeads as ParallelHeads
    from turnpoint.models.mtp_shift import chain_mask as chain_mask
    from turnpoint.models.renderer import ChatRenderer as ChatRenderer
    from turnpoint.models.renderer import FewShotRenderer as FewShotRenderer

__all__ = [
    "Adapter",
    "ChatRenderer",
    "Decoder",
    "DraftCache",
    "FewShotRenderer",
    "LoadedModel",
    "MtpHeads",
    "MtpLayout",
    "ParallelHeads",
    "add_adapter",
    "base_state",
    "chain_mask",
    "checkpoint_state",
    "convert_gguf",
    "detached_head",
    "export_adapter",
    "export_model",
    "fetch_embedded",
    "fit_projection",
    "fresh_heads",
    "linear_head",
    "load_adapter",
    "load_checkpoint_heads",
    "load_heads",
    "load_model",
    "merged_state",
    "parallel_heads",
    "save_heads",
]
__getattr__, __dir__ = lazy(
    __name__,
    {
        "Adapter": "adapter",
        "ChatRenderer": "renderer",
        "Decoder": "decoder",
        "DraftCache": "mtp_attention",
        "FewShotRenderer": "renderer",
        "LoadedModel": "loading",
        "MtpHeads": "mtp",
        "MtpLayout": "mtp_layout",
        "ParallelHeads": "mtp_parallel",
        "add_adapter": "adapter",
        "base_state": "adapter",
        "chain_mask": "mtp_shift",
        "checkpoint_state": "mtp_checkpoints",
        "convert_gguf": "gguf",
        "detached_head": "heads",
        "export_adapter": "export",
        "export_model": "export",
        "fetch_embedded": "embedded",
        "fit_projection": "mtp_fresh",
        "fresh_heads": "mtp_fresh",
        "linear_head": "heads",
        "load_adapter": "adapter",
        "load_checkpoint_heads": "mtp_folder",
        "load_heads": "mtp_folder",
        "load_model": "loading",
        "merged_state": "adapter",
        "parallel_heads": "mtp_fresh",
        "save_heads": "mtp_folder",
    },
)
