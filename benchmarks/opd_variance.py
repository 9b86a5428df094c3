"""How noisy a distillation gradient is by what is made of the teacher's law, on real contexts.

    python -m benchmarks.opd_variance [--model FOLDER] [--new-tokens 32] [--draws 1024]

The student is the model, asked instructions and sums by its chat template; the teacher is the same model
after `turnpoint sft` on a few hundred sums with written steps (kept in turnpoint's cache folder). At every
token that the student sampled, both laws p and q are known, and so is, exactly, the gradient of each
estimator of KL(p || q) by the student's logits, for every token y that could have been sampled:

    sampled    g_y (e_y - p),                                g = log p - log q
    baseline   (g_y - KL) (e_y - p)                          vOPD (arXiv 2605.07865)
    hybrid k   exact on the k likeliest + [y outside] g_y (e_y - p);    k = 0: nothing is exact, sampled
    tail k     the rest as one outcome: no noise, but another divergence
    full       no noise, no bias

`variance` is the trace of its covariance over y, summed over the vocabulary, mean over tokens, by formula (no
draws); `bias`, of estimators without noise, the distance from the gradient of the KL, relative to that
gradient's norm, mean over tokens. `mass` is what p has on the k likeliest. For a few of the tokens the
library's own losses are differentiated at `--draws` sampled tokens each: `drawn_variance` is over the
formula's, `drawn_bias` the squared distance of the mean from the true gradient over what the variance lets
expect: near 1 both.
Prints one JSON line per estimator.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import tempfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

import turnpoint as tp
from benchmarks.common import emit, facts, folder_of, mistakes
from benchmarks.organism.build import write_lines
from turnpoint.assemble import load_policy
from turnpoint.config import parse_recipe, parse_sft_recipe
from turnpoint.losses import reverse_kl_topk_hybrid, reverse_kl_topk_tail
from turnpoint.losses.laws import LOWEST_LOGPROB
from turnpoint.models.folders import cache_folder, staged
from turnpoint.protocols import GenerateRequest
from turnpoint.teachers import sampled_token_signal
from turnpoint.types import Message

KS = (1, 4, 16, 64)
_TEACHER = "opd-teacher-1"  # another number where what it is taught changes
_LESSON = 384  # sums with written steps
_CHECKED = 8  # tokens whose estimators are drawn
_ROWS = 128  # of logits at a time
_ASKED = [
    f"Explain in a few sentences why a {thing} is useful." for thing in ("lever", "map", "clock", "bridge")
] + [
    "Write a short poem about rain.",
    "Name three capitals of Europe and one fact about each.",
    "How do I boil an egg?",
    "Write a Python function that reverses a string.",
]


def sum_problem(rng: random.Random) -> tuple[str, str]:
    """Returns a sum of three to five numbers and how it is solved, step by step."""
    terms = [rng.randint(2, 99) for _ in range(rng.randint(3, 5))]
    total, steps = terms[0], list[str]()
    for term in terms[1:]:
        steps.append(f"{total} + {term} = {total + term}.")
        total += term
    return f"What is {' + '.join(map(str, terms))}?", f"{' '.join(steps)} The answer is {total}."


def teacher_folder(model: str) -> Path:
    """Returns the fine-tuned copy of `model`; the first time that takes minutes of one core."""
    folder = cache_folder() / _TEACHER
    if not folder.is_dir():
        rng = random.Random(0)
        sums = [sum_problem(rng) for _ in range(_LESSON)]
        rows = [{"question": question, "answer": answer} for question, answer in sums]
        with tempfile.TemporaryDirectory() as name, _quiet():
            write_lines(Path(name) / "sums.jsonl", rows)
            recipe: dict[str, Any] = {
                "name": "teacher",
                "output_dir": name,
                "model": {"path": model},
                "tasks": {"kind": "jsonl", "path": f"{name}/sums.jsonl", "format": "plain"},
                "optimizer": {"learning_rate": 2e-5},
                "training": {"examples_per_step": 16, "epochs": 1},
            }
            run = tp.sft(parse_sft_recipe(recipe))
            with staged(folder, replace=False) as new:
                tp.export(run.folder, new / "model")
    return folder / "model"


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


# --- contexts -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt and what the student sampled."""

    ids: list[int]
    prompt: int  # how many of them are the prompt


def sampled(model: str, *, new_tokens: int) -> list[Sample]:
    """Returns the student's own answers to instructions and as many sums."""
    rng = random.Random(1)
    questions = _ASKED + [sum_problem(rng)[0] for _ in _ASKED]
    config = parse_recipe(
        {
            "model": {"path": model, "dtype": "float32"},
            "tasks": {"kind": "jsonl", "path": "unused"},
            "sampling": {"max_new_tokens": new_tokens},
        }
    )
    policy = load_policy(config, examples=())
    prompts = [policy.renderer.prompt([Message(role="user", content=it)]) for it in questions]

    async def sample() -> list[Sample]:
        requests = [
            GenerateRequest(
                id=str(index), prompt_ids=ids, max_tokens=new_tokens, stop_ids=policy.renderer.stop_ids
            )
            for index, ids in enumerate(prompts)
        ]
        answers = await asyncio.gather(*[policy.engine.generate(request) for request in requests])
        return [
            Sample([*request.prompt_ids.tolist(), *answer.token_ids.tolist()], len(request.prompt_ids))
            for request, answer in zip(requests, answers, strict=True)
        ]

    return asyncio.run(sample())


def logits_of(folder: str, samples: list[Sample]) -> Tensor:
    """Returns [N, V], float32, one row for each sampled token: the law it has been drawn from."""
    import transformers

    model = cast(Any, transformers).AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return torch.cat(
            [model(torch.tensor([it.ids])).logits[0, it.prompt - 1 : -1].float() for it in samples]
        )


# --- by formula -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Laws:
    """Both laws of a few tokens, float64: p [N, V], g = log p - log q, kl [N]."""

    p: Tensor
    gap: Tensor

    @staticmethod
    def of(student: Tensor, teacher: Tensor) -> Laws:
        log_p, log_q = (
            logits.double().log_softmax(-1).clamp(min=LOWEST_LOGPROB) for logits in (student, teacher)
        )
        return Laws(log_p.exp(), log_p - log_q)

    @property
    def kl(self) -> Tensor:
        return (self.p * self.gap).sum(-1)

    @property
    def gradient(self) -> Tensor:
        """Of KL(p || q) by the logits of p."""
        return self.p * (self.gap - self.kl.unsqueeze(-1))

    def noise(self, factor: Tensor) -> Tensor:
        """Returns [N], the trace of the covariance of factor_y (e_y - p), y ~ p; `factor` is [N, V]."""
        reach = 1 - 2 * self.p + self.p.square().sum(-1, keepdim=True)  # |e_y - p|^2
        second = (self.p * factor.square() * reach).sum(-1)
        mean = self.p * (factor - (self.p * factor).sum(-1, keepdim=True))
        return (second - mean.square().sum(-1)).clamp(min=0.0)

    def inside(self, k: int) -> Tensor:
        """Returns [N, V], True at the k likeliest of p."""
        top = self.p.topk(k, dim=-1).indices if k else torch.zeros(len(self.p), 0, dtype=torch.long)
        return torch.zeros_like(self.p, dtype=torch.bool).scatter_(-1, top, True)


@dataclass(frozen=True, slots=True)
class Estimator:
    """One way to a gradient; `k` 0: without candidates."""

    name: str
    k: int
    variance: Callable[[Laws], Tensor]  # [N], exact
    gradient: Callable[[Tensor, Tensor, Tensor], Tensor]  # by the library: student, teacher, sampled ids

    @property
    def certain(self) -> bool:
        """Whether its gradient is the same whichever token was sampled."""
        return self.name in ("tail", "full")


def by_library(
    values: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Returns what differentiates `values` [rows] by the student's logits [rows, V]."""

    def gradient(student: Tensor, teacher: Tensor, ids: Tensor) -> Tensor:
        leaf = student.clone().requires_grad_()
        (found,) = torch.autograd.grad(values(leaf, teacher, ids).sum(), leaf)
        return found

    return gradient


def signal(student: Tensor, teacher: Tensor, ids: Tensor, *, baseline: bool) -> Tensor:
    """Returns minus the policy gradient's objective, d or d - E d as the advantage."""
    mine, theirs = student.log_softmax(-1), teacher.log_softmax(-1)
    at = ids.unsqueeze(-1)
    own = mine.gather(-1, at).squeeze(-1)
    d = sampled_token_signal(
        student_logprobs=own.detach(), teacher_logprobs=theirs.gather(-1, at).squeeze(-1)
    )
    mean = (mine.exp() * (theirs - mine)).sum(-1).detach() if baseline else 0.0
    return -(d - mean) * own


def hybrid(k: int, name: str = "hybrid") -> Estimator:
    return Estimator(
        name,
        k,
        lambda laws: laws.noise(torch.where(laws.inside(k), 0.0, laws.gap)),
        by_library(
            lambda student, teacher, ids: reverse_kl_topk_hybrid(
                student_logits=student, teacher_logits=teacher, sampled_ids=ids, k=k
            )
        ),
    )


def tail(k: int) -> Estimator:
    return Estimator(
        "tail",
        k,
        lambda laws: torch.zeros(len(laws.p), dtype=torch.float64),
        by_library(
            lambda student, teacher, ids: reverse_kl_topk_tail(
                student_logits=student, teacher_logits=teacher, k=k
            )
        ),
    )


def estimators(vocabulary: int) -> list[Estimator]:
    """Returns all, the sampled one first."""
    return [
        Estimator(
            "sampled",
            0,
            lambda laws: laws.noise(laws.gap),
            by_library(partial(signal, baseline=False)),
        ),
        Estimator(
            "baseline",
            0,
            lambda laws: laws.noise(laws.gap - laws.kl.unsqueeze(-1)),
            by_library(partial(signal, baseline=True)),
        ),
        *map(hybrid, KS),
        *map(tail, KS),
        hybrid(vocabulary, "full"),
    ]


def rows_of(student: Tensor, teacher: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields both a few rows at a time."""
    for start in range(0, len(student), _ROWS):
        yield student[start : start + _ROWS], teacher[start : start + _ROWS]


# --- what came out --------------------------------------------------------------------------------


def measured(it: Estimator, student: Tensor, teacher: Tensor, *, draws: int) -> dict[str, float]:
    """Returns figures of one estimator over all rows."""
    variance, bias, mass = list[Tensor](), list[Tensor](), list[Tensor]()
    for mine, theirs in rows_of(student, teacher):
        laws = Laws.of(mine, theirs)
        variance.append(it.variance(laws))
        mass.append((laws.p * laws.inside(it.k)).sum(-1))
        if it.certain:
            slope = it.gradient(mine, theirs, torch.zeros(len(mine), dtype=torch.long)).double()
            off, whole = (rows.square().sum(-1).sqrt() for rows in (slope - laws.gradient, laws.gradient))
            bias.append(off / whole)
    found = {
        "variance": float(torch.cat(variance).mean()),
        "variance_median": float(torch.cat(variance).median()),
        **({"bias": float(torch.cat(bias).mean())} if bias else {}),
        "mass": round(float(torch.cat(mass).mean()), 4),
    }
    return found | drawn(it, student, teacher, draws=draws)


def drawn(it: Estimator, student: Tensor, teacher: Tensor, *, draws: int) -> dict[str, float]:
    """Returns what the library's own gradients say, over a few rows spread over all."""
    draw = torch.Generator().manual_seed(0)
    spread, off = list[float](), list[float]()
    for row in range(len(student) // (2 * _CHECKED), len(student), len(student) // _CHECKED):
        mine, theirs = student[row : row + 1], teacher[row : row + 1]
        laws = Laws.of(mine, theirs)
        if (trace := float(it.variance(laws))) < 1e-12:
            continue  # nothing to draw
        ids = torch.multinomial(laws.p[0], draws, replacement=True, generator=draw)
        total, squares = torch.zeros_like(laws.p[0]), 0.0
        for start in range(0, draws, _ROWS):
            part = ids[start : start + _ROWS]
            found = it.gradient(mine.expand(len(part), -1), theirs.expand(len(part), -1), part)
            away = found.double() - laws.gradient
            total += away.sum(0)
            squares += float(away.square().sum())
        spread.append(squares / draws / trace)
        off.append(float((total / draws).square().sum()) * draws / trace)
    if not spread:
        return {}
    return {
        "drawn_variance": round(sum(spread) / len(spread), 3),
        "drawn_bias": round(sum(off) / len(off), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--new-tokens", type=int, default=32, help="of each of 16 answers")
    parser.add_argument("--draws", type=int, default=1024)
    given = parser.parse_args()
    with mistakes(parser):
        if min(given.new_tokens, given.draws) < 1:
            raise ValueError("--new-tokens and --draws must be at least 1")
        student = folder_of(given.model)
        teacher = str(teacher_folder(student))
    samples = sampled(student, new_tokens=given.new_tokens)
    mine, theirs = logits_of(student, samples), logits_of(teacher, samples)
    first = None
    for it in estimators(mine.shape[-1]):
        found = measured(it, mine, theirs, draws=given.draws)
        first = found["variance"] if first is None else first
        emit(
            benchmark="opd_variance",
            estimator=it.name,
            k=it.k,
            **found,
            to_sampled=round(found["variance"] / first, 5),
        )
    kl = torch.cat([Laws.of(*part).kl for part in rows_of(mine, theirs)])
    emit(benchmark="opd_variance", tokens=len(mine), ids=mine.shape[-1], kl=float(kl.mean()), **facts())


if __name__ == "__main__":
    main()
