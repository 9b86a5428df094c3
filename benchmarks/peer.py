"""A peer in an interpreter of its own, asked and answering in lines of JSON; what processes cost.

The peer's first line says {"kind": "ready"}, and each request is answered by one {"kind": "done"}. What it
prints besides goes to a file. Between requests it waits for its input.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

_TICKS = os.sysconf("SC_CLK_TCK")  # of /proc's clock, a second
_ENDING = 30.0  # seconds that a peer has to end once its input does


class PeerError(Exception):
    """The peer did not do what it was asked; says so in one line."""


class Peer:
    """A running peer; a context manager that ends it."""

    def __init__(
        self, name: str, command: Sequence[str | Path], *, environment: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w", encoding="utf-8") as errors:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=dict(environment),
                    encoding="utf-8",
                )
            except OSError as error:
                raise PeerError(f"{name}: {command[0]} does not start ({error.strerror})") from None

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it ended before
            self._process.stdin.close()
        try:
            self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def ready(self) -> Mapping[str, Any]:
        """Returns what it says once it can be asked; raises PeerError when it does not come to that."""
        return self._answer("ready")

    def sample(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the answer to `request`: prompts, samples of each, new_tokens, logprobs (or not).

        Raises PeerError when it ends, or when what it sampled is not what was asked for.
        """
        assert self._process.stdin is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._ended() from None
        answer = self._answer("done")
        expected = len(request["prompts"]) * request["samples"] * request["new_tokens"]
        if answer["tokens"] != expected:
            raise PeerError(
                f"{self.name} sampled {answer['tokens']} tokens, not {expected}: the arms do not compare"
            )
        if request["logprobs"] and answer["logprobs"] != expected:
            raise PeerError(
                f"{self.name} returned {answer['logprobs']} log-probabilities of {expected} tokens"
            )
        return answer

    def _answer(self, kind: str) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        try:
            answer: Any = json.loads(line)
        except ValueError:
            raise PeerError(f"{self.name} said {line.strip()[:80]!r}, which is no line of JSON") from None
        if not isinstance(answer, dict) or cast(dict[str, Any], answer).get("kind") != kind:
            raise PeerError(f"{self.name} said {line.strip()[:80]!r} where {kind!r} was due")
        return cast(Mapping[str, Any], answer)

    def _ended(self) -> PeerError:
        status = self._process.wait()
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        return PeerError(
            f"{self.name} ended with status {status}; the last it said is {last[:200]!r}, "
            f"the rest is in {self._log}"
        )


def processor_seconds(root: int, *, without: int | None = None) -> float:
    """Returns the processor seconds of process `root` and all below it, but those of `without` and below.

    Read from /proc, to a hundredth of a second; children that ended count with their parent.
    """
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        number = int(path.parent.name)
        parents[number] = int(fields[1])
        ticks[number] = sum(map(int, fields[11:15]))  # own and ended children's, user and system

    def belongs(number: int) -> bool:
        while number not in (root, without, 0):
            number = parents.get(number, 0)
        return number == root

    return sum(spent for number, spent in ticks.items() if belongs(number)) / _TICKS
