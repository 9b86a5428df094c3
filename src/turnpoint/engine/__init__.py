"""The rollout engine: samples and scores tokens with any decoder, on CPU and CUDA.

Reading order: engine (what a caller sees), scheduler (what the next step runs), runner (one step),
layout (who attends to whom in it), rows and prefix_cache (where keys and values live), sampler.
"""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.engine.engine import TorchEngine as TorchEngine
    from turnpoint.engine.stats import EngineStats as EngineStats
    from turnpoint.engine.verification import verify_chain as verify_chain
    from turnpoint.engine.weights import weights_checksum as weights_checksum

__all__ = ["EngineStats", "TorchEngine", "verify_chain", "weights_checksum"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "EngineStats": "stats",
        "TorchEngine": "engine",
        "verify_chain": "verification",
        "weights_checksum": "weights",
    },
)
