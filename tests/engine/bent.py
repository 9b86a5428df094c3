"""Decoders that say what a test needs, wait until it lets them go on, or break."""

from __future__ import annotations

import threading

import numpy as np
import torch

from tests.engine.serve import encode
from tests.tiny import tiny_decoder


class Bent:
    """A decoder whose logits are bent, to make it say what a test needs, or whose head breaks."""

    def __init__(self, bias: torch.Tensor | None = None, *, seed: int = 0) -> None:
        self.decoder = tiny_decoder(seed=seed)
        self.broken = False
        self.calls = 0
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        real = self.decoder.finish

        def finish(scores: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.entered.set()
            assert self.gate.wait(20)
            if self.broken:
                raise RuntimeError("out of memory")
            return real(scores) if bias is None else real(scores) + bias

        self.decoder.finish = finish


def always(text: str) -> torch.Tensor:
    """Returns a bias under which only the characters of `text` are drawn."""
    bias = torch.full((tiny_decoder().vocab_size,), -torch.inf)
    bias[torch.from_numpy(encode(text).astype(np.int64))] = 0
    return bias
