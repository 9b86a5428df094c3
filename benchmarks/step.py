"""Claim: a whole GRPO step (sample, grade, learn) is at least 3 times faster than TRL's GRPOTrainer.

Both train the same model on the same prompts with the same reward (length, so that no grading hides the difference), the
same optimiser and the same number of sampled tokens: 4 prompts x 8 completions, up to 64 new tokens, bfloat16 compute over
float32 weights. The two alternate in one process; compiled code and pools are warm before the first measured step.

    python benchmarks/step.py [--model FOLDER] [--steps 3]

Prints one JSON line per measured step and one with medians and the ratio. Needs the extra `bench`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import emit, facts
from turnpoint.config import RunConfig, parse_recipe
from turnpoint.run import assemble
from turnpoint.types import Message, Task

PROMPTS, SAMPLES, NEW_TOKENS = 4, 8, 64
