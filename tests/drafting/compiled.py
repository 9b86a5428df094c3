"""Compiles the Triton row pass for NVIDIA GPUs of the compute capabilities given; prints one line per kernel.

    python -m tests.drafting.compiled 80 90

Needs triton, which brings NVIDIA's assembler, and no GPU. Raises what Triton raises for what is no kernel.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from turnpoint.drafting.kernels import triton as kernels

_SIZES = {"TILE": 4096, "FORWARD": True, "REVERSE": True}
_TENSORS = {
    "found": "*fp32",
    "normalisers": "*fp32",
    "figures": "*fp32",
    "numbers": "*fp32",
    "token_ids": "*i64",
}
_LOGITS = ("logits", "target", "draft")


def main() -> None:
    compiler: Any = importlib.import_module("triton.compiler")
    target: Any = importlib.import_module("triton.backends.compiler").GPUTarget
    names = ("_normalise", "_measure", "_slope")
    for capability in map(int, sys.argv[1:]):
        for dtype in ("fp32", "bf16", "fp16"):
            for name in names:
                kernel: Any = getattr(kernels, name)
                found = compiler.compile(
                    compiler.ASTSource(kernel, *signature(list(kernel.arg_names), dtype)),
                    target=target("cuda", capability, 32),
                    options={"num_warps": 8, "enable_fp_fusion": True},
                )
                print(name, dtype, capability, len(found.asm["cubin"]))


def signature(names: list[str], dtype: str) -> tuple[dict[str, str], dict[str, Any], dict[Any, Any]]:
    """Returns types, constants and what pointers are divisible by, as a launch on such tensors would."""
    pointers = {**_TENSORS, **dict.fromkeys(_LOGITS, f"*{dtype}")}
    types = {name: "constexpr" if name in _SIZES else pointers.get(name, "i32") for name in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if name in pointers}
    return types, {name: _SIZES[name] for name in names if name in _SIZES}, aligned


if __name__ == "__main__":
    main()
