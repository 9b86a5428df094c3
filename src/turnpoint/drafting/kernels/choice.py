"""Which row pass runs where."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from turnpoint.drafting.kernels.plain import PLAIN_ROWS
from turnpoint.drafting.kernels.rows import RowKernel


def row_kernel(device: torch.device) -> RowKernel:
    """Returns the row pass for tensors on `device`: Triton's on CUDA where it is installed, else torch's."""
    if device.type == "cuda" and find_spec("triton") is not None:
        from turnpoint.drafting.kernels.triton import TRITON_ROWS

        return TRITON_ROWS
    return PLAIN_ROWS
