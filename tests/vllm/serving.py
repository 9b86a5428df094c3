"""vLLM's OpenAI-compatible server on loopback, in its own environment, as a user starts it."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

import httpx2
from benchmarks.vllm import environment

_STARTING = 600.0  # seconds
_CACHE_GIB = "1"


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Vllm:
    """A server of the model in `folder`, which answers when it is `ready`; a context manager that ends it."""

    def __init__(self, folder: Path, *, log: Path, port: int | None = None, context: int = 512) -> None:
        python = Path(os.environ["TURNPOINT_VLLM"]).absolute()
        self.port = free_port() if port is None else port
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        cores = sorted(os.sched_getaffinity(0))[:1]
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", folder]
        command += ["--served-model-name", "smol", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--dtype", "float32", "--max-model-len", str(context)]
        command += ["--enforce-eager"]  # compiling takes longer than these tests
        variables = environment(python, cores, log.parent) | {
            "VLLM_CPU_KVCACHE_SPACE": _CACHE_GIB,
            "KMP_AFFINITY": "disabled",  # nothing is timed here, and the machine may be busy
        }
        with log.open("w", encoding="utf-8") as said:
            self._process = subprocess.Popen(command, stdout=said, stderr=said, env=variables)

    def ready(self) -> None:
        """Waits until it answers."""
        ends = time.monotonic() + _STARTING
        while time.monotonic() < ends and self._process.poll() is None:
            try:
                httpx2.get(f"{self.url}/v1/models", trust_env=False)
            except httpx2.TransportError:
                time.sleep(0.5)
            else:
                return
        raise AssertionError(f"vLLM does not serve: {self._log.read_text()[-2000:]}")

    def prefix_cache(self) -> tuple[float, float]:
        """Tokens that were looked up in its prefix cache, and those found there, since it began."""
        lines = httpx2.get(f"{self.url}/metrics", trust_env=False).text.splitlines()
        names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
        looked, found = (
            sum(float(line.split()[-1]) for line in lines if line.startswith(name)) for name in names
        )
        return looked, found

    def stop(self) -> None:
        """Ends it; safe to call twice."""
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Vllm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
