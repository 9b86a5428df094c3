"""Rollouts per second: our engine against vLLM's CPU build, on the same new prompts, one after the other.

    python -m benchmarks.vllm --python .venv-vllm/bin/python [--work groups wave] [--rounds 3]

vLLM runs in a process and an environment of its own (`make bench-vllm` makes it), compiled, with prefix
caching, in bfloat16, with as many threads on the same cores. While one arm works the other waits; what it
spends meanwhile is printed. Both sample as many tokens at temperature 1 from the whole law and return their
log-probabilities. vLLM gets blocks of 32 tokens, which were fastest for it (its own 128 have nearly half of a
256-token prompt computed again for each sample), and Intel's OpenMP as its own launcher sets it. The first
round warms up. vLLM's seconds are its own, without the pipe.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.common import emit, facts, folder_of
from benchmarks.peer import Peer, PeerError, processor_seconds
from benchmarks.rollout import WORK, load, ours
from benchmarks.turns import OURS, Arm, Work, ceiling, measure, report
from turnpoint.models.decoder import Decoder
from turnpoint.types import TokenIds

CONTEXT = 2048
CACHE_GIB = 3  # for vLLM's keys and values: all of `groups` without sharing, and half as much again


def environment(python: Path, cores: Sequence[int], cache: Path) -> dict[str, str]:
    """Returns the variables that vLLM runs with; raises PeerError where Intel's OpenMP is missing."""
    openmp = python.parent.parent / "lib" / "libiomp5.so"
    if not openmp.exists():
        raise PeerError(f"{openmp} is missing; install benchmarks/requirements-vllm.txt beside {python}")
    names = ",".join(map(str, cores))
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return inherited | {
        "PYTHONSAFEPATH": "1",  # else `import vllm` finds this file beside the server
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # what its launcher would set is set below
        "LD_PRELOAD": str(openmp),
        "OMP_NUM_THREADS": str(len(cores)),
        "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{names}]",
        "KMP_BLOCKTIME": "5",  # milliseconds that threads wait awake: within a step, not between turns
        "KMP_TPAUSE": "0",
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
    }


def vllm_arm(peer: Peer, work: Work, *, logprobs: bool) -> Arm:
    """Returns vLLM's side."""

    def sample(number: int, prompts: list[TokenIds], new_tokens: int) -> float:
        request = {
            "prompts": [prompt.tolist() for prompt in prompts],
            "samples": work.samples,
            "new_tokens": new_tokens,
            "logprobs": logprobs,
        }
        return float(peer.sample(request)["seconds"])

    return Arm(sample=sample, spent=lambda: processor_seconds(peer.pid))


def our_arm(folder: str, work: Work, *, workers: int, without: int) -> Arm:
    """Returns our side, which is this process and all below it but `without`."""
    run = ours(folder, work.samples, workers=workers)

    def sample(number: int, prompts: list[TokenIds], new_tokens: int) -> float:
        began = time.perf_counter()
        sampled = run(number, prompts, new_tokens)
        seconds = time.perf_counter() - began
        if sampled != (expected := work.sequences * new_tokens):
            raise PeerError(f"turnpoint sampled {sampled} tokens, not {expected}")
        return seconds

    return Arm(sample=sample, spent=lambda: processor_seconds(os.getpid(), without=without))


def options_of() -> argparse.Namespace:
    """Returns what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--python", type=Path, required=True, help="of the environment that vLLM is in")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--work", nargs="+", choices=WORK, default=["groups", "wave"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of each side, on as many cores")
    parser.add_argument("--workers", type=int, help="processes of our engine; a thread each, if not said")
    parser.add_argument("--no-logprobs", action="store_true", help="vLLM need not return them; ours does")
    parser.add_argument("--block-size", type=int, default=32, help="tokens of a block of vLLM's cache")
    parser.add_argument("--cache", type=Path, help="of what vLLM compiles (beside its environment)")
    parser.add_argument("--log", type=Path, default=Path("build/bench/vllm.log"), help="what vLLM prints")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least one is needed")
    if sys.platform != "linux":
        parser.error("vLLM's CPU build is measured on Linux only: cores are bound and counted there")
    usable = sorted(os.sched_getaffinity(0))
    if not 1 <= options.threads <= len(usable):
        parser.error(f"--threads {options.threads}: this process may use {len(usable)} cores")
    options.cores = usable[: options.threads]
    options.workers = options.workers or options.threads
    return options


def start(options: argparse.Namespace, folder: str) -> Peer:
    """Returns vLLM, which takes a minute or more to be ready."""
    python = options.python.absolute()  # not resolved: a link is what makes it the environment's own
    if not python.exists():
        raise PeerError(f"--python {options.python}: no such file; `make bench-vllm` makes the environment")
    cache = options.cache or python.parent.parent / "cache"
    command = [
        python,
        Path(__file__).with_name("vllm_server.py"),
        *("--model", folder),
        *("--context", str(CONTEXT)),
        *("--block-size", str(options.block_size)),
    ]
    surroundings = environment(python, options.cores, cache.absolute())
    return Peer("vllm", command, environment=surroundings, log=options.log)


def run(options: argparse.Namespace) -> None:
    """Measures and prints each work."""
    folder = folder_of(options.model)
    os.sched_setaffinity(0, options.cores)  # vLLM inherits it
    torch.set_num_threads(options.threads)
    before = facts()  # with the load of what else runs
    with start(options, folder) as peer:
        ready = peer.ready()
        if ready["threads"] != options.threads:
            raise PeerError(f"vllm has {ready['threads']} threads, not {options.threads}")
        decoder = Decoder(model := load(folder), vocab_size=model.config.vocab_size)
        setting = {
            "rounds": options.rounds,
            "workers": options.workers,
            "logprobs": not options.no_logprobs,
            "block_size": options.block_size,
            "bound_to": options.cores,
            "peer_versions": ready["versions"],
        }
        for name in options.work:
            work = Work(**dict(zip(Work.__slots__, WORK[name], strict=True)))
            arms = {
                OURS: our_arm(folder, work, workers=options.workers, without=peer.pid),
                "vllm": vllm_arm(peer, work, logprobs=not options.no_logprobs),
            }
            turns, ceilings = measure(
                arms,
                work,
                rounds=options.rounds,
                warm_tokens=work.new_tokens,
                beside=lambda work=work: ceiling(decoder, work),
            )
            sizes = {size: getattr(work, size) for size in Work.__slots__}
            for line in report(turns, ceilings, work):
                emit(benchmark="vllm", work=name, **sizes, **setting, **before, **line)


def main() -> None:
    """Measures and prints; says in one line what did not work."""
    try:
        run(options_of())
    except PeerError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
