"""Models: loading, attention for flat rows, rendering of prompts, export."""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.models.decoder import Decoder as Decoder
    from turnpoint.models.embedded import fetch_embedded as fetch_embedded
    from turnpoint.models.export import export_model as export_model
    from turnpoint.models.gguf import convert_gguf as convert_gguf
    from turnpoint.models.loading import LoadedModel as LoadedModel
    from turnpoint.models.loading import load_model as load_model
    from turnpoint.models.renderer import ChatRenderer as ChatRenderer
    from turnpoint.models.renderer import FewShotRenderer as FewShotRenderer

__all__ = [
    "ChatRenderer",
    "Decoder",
    "FewShotRenderer",
    "LoadedModel",
    "convert_gguf",
    "export_model",
    "fetch_embedded",
    "load_model",
]
__getattr__ = lazy(
    __name__,
    {
        "ChatRenderer": "renderer",
        "Decoder": "decoder",
        "FewShotRenderer": "renderer",
        "LoadedModel": "loading",
        "convert_gguf": "gguf",
        "export_model": "export",
        "fetch_embedded": "embedded",
        "load_model": "loading",
    },
)
