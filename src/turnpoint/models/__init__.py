"""Models: loading, attention for flat rows, rendering of prompts, export."""

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
    from turnpoint.models.heads import linear_head as linear_head
    from turnpoint.models.loading import LoadedModel as LoadedModel
    from turnpoint.models.loading import load_model as load_model
    from turnpoint.models.renderer import ChatRenderer as ChatRenderer
    from turnpoint.models.renderer import FewShotRenderer as FewShotRenderer

__all__ = [
    "Adapter",
    "ChatRenderer",
    "Decoder",
    "FewShotRenderer",
    "LoadedModel",
    "add_adapter",
    "base_state",
    "convert_gguf",
    "export_adapter",
    "export_model",
    "fetch_embedded",
    "linear_head",
    "load_adapter",
    "load_model",
    "merged_state",
]
__getattr__, __dir__ = lazy(
    __name__,
    {
        "Adapter": "adapter",
        "ChatRenderer": "renderer",
        "Decoder": "decoder",
        "FewShotRenderer": "renderer",
        "LoadedModel": "loading",
        "add_adapter": "adapter",
        "base_state": "adapter",
        "convert_gguf": "gguf",
        "export_adapter": "export",
        "export_model": "export",
        "fetch_embedded": "embedded",
        "linear_head": "heads",
        "load_adapter": "adapter",
        "load_model": "loading",
        "merged_state": "adapter",
    },
)
