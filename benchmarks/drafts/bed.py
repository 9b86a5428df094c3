"""Where drafts are measured: a model, prompts, and what it writes there by itself.

    organism     the organism's cold start (benchmarks/organism), float32
    structured   SmolLM2-135M after a cold start on benchmarks/drafts/structured.py, bfloat16
    chat         SmolLM2-135M as it comes, asked for short texts, bfloat16

The cold start of `structured` takes minutes of one core, once, and is kept in turnpoint's cache folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

import turnpoint as tp
from benchmarks.drafts import structured
from benchmarks.organism.bed import make_organism
from turnpoint.drafting.texts import DraftHeads, DraftText, split_held_out
from turnpoint.drafting.train import LossPlan, fitting_text, train_drafts
from turnpoint.engine import TorchEngine
from turnpoint.models.folders import cache_folder, staged
from turnpoint.models.loading import LoadedModel, load_model
from turnpoint.models.mtp_fresh import fit_projection, fresh_heads
from turnpoint.models.renderer import ChatRenderer
from turnpoint.protocols import Completion, GenerateRequest
from turnpoint.training.optimizer import MasterAdamW
from turnpoint.types import Message, TokenIds

MODEL = "smollm2-135m-instruct"
_TAUGHT = 480  # examples of the cold start: 30 steps, after which an entropy of .15 nats is left
_FITTED_ON = 4096  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Bed:
    """One of them."""

    name: str
    model: LoadedModel
    renderer: ChatRenderer
    prompts: Sequence[TokenIds]
    max_tokens: int
    learning_rate: float  # of heads


def organism_bed(prompts: int) -> Bed:
    """Returns the organism, asked its own problems."""
    made = make_organism()
    lines = made.problems.read_text(encoding="utf-8").splitlines()[:prompts]
    questions = [json.loads(line)["question"] for line in lines]
    limit = made.recipe.sampling.max_new_tokens
    return _bed("organism", str(made.model), questions, dtype="float32", max_tokens=limit, learning_rate=3e-3)


def structured_bed(prompts: int) -> Bed:
    """Returns SmolLM2 after its cold start, asked problems that it has not seen."""
    questions = [it.question for it in structured.examples(prompts, seed=1)]
    folder = str(make_structured())
    return _bed("structured", folder, questions, dtype="bfloat16", max_tokens=160, learning_rate=1e-3)


def chat_bed(prompts: int) -> Bed:
    """Returns SmolLM2 as it comes."""
    topics = [
        f"Tell me something about {it.question.split()[-1]}" for it in structured.examples(prompts, seed=2)
    ]
    return _bed("chat", MODEL, topics, dtype="bfloat16", max_tokens=128, learning_rate=1e-3)


BEDS: Mapping[str, Callable[[int], Bed]] = {
    "organism": organism_bed,
    "structured": structured_bed,
    "chat": chat_bed,
}


def make_structured() -> Path:
    """Teaches SmolLM2 the structured problems unless that is done; returns a Hugging Face folder."""
    folder = cache_folder() / "benchmarks" / f"structured-{tp.__version__}-{_TAUGHT}"
    if folder.is_dir():
        return folder / "model"
    rows = structured.examples(_TAUGHT, seed=0)
    with (
        staged(folder, replace=False) as new,
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        taught = new / "taught.jsonl"
        lines = [json.dumps({"question": it.question, "answer": it.answer}) for it in rows]
        taught.write_text("\n".join(lines) + "\n", encoding="utf-8")
        recipe = tp.parse_sft_recipe(
            {
                "name": "run",
                "output_dir": str(new),
                "model": {"path": MODEL},
                "tasks": {"kind": "jsonl", "path": str(taught)},
                "optimizer": {"learning_rate": 2e-4},
                "training": {"epochs": 1, "examples_per_step": 16},
            }
        )
        tp.export(tp.sft(recipe).folder, new / "model")
    return folder / "model"


def _bed(
    name: str,
    model: str,
    questions: Sequence[str],
    *,
    dtype: Literal["float32", "bfloat16"],
    max_tokens: int,
    learning_rate: float,
) -> Bed:
    loaded = load_model(model, dtype=dtype)
    renderer = ChatRenderer(
        loaded.tokenizer, thinking=False, system=None, suffix="", stop_ids=loaded.stop_ids
    )
    return Bed(
        name=name,
        model=loaded,
        renderer=renderer,
        prompts=[renderer.prompt([Message(role="user", content=it)]) for it in questions],
        max_tokens=max_tokens,
        learning_rate=learning_rate,
    )


def requests(
    bed: Bed, *, samples: int, seed: int, temperature: float = 1.0, stop: bool = True
) -> list[GenerateRequest]:
    """Returns `samples` requests for each prompt; without `stop` each runs to the limit."""
    return [
        GenerateRequest(
            id=f"{index}/{sample}",
            prompt_ids=prompt,
            max_tokens=bed.max_tokens,
            temperature=temperature,
            stop_ids=bed.renderer.stop_ids if stop else frozenset(),
            seed=seed,
        )
        for index, prompt in enumerate(bed.prompts)
        for sample in range(samples)
    ]


def serve(engine: TorchEngine, asked: Sequence[GenerateRequest]) -> list[Completion]:
    """Returns the completions of all requests at once."""

    async def answers() -> list[Completion]:
        return await asyncio.gather(*[engine.generate(it) for it in asked])

    return asyncio.run(answers())


def own_texts(
    bed: Bed, *, samples: int, seed: int, temperature: float = 1.0, model: LoadedModel | None = None
) -> list[DraftText]:
    """Returns what `model`, or the bed's own, writes to each prompt, with its log-probabilities."""
    loaded = model or bed.model
    engine = TorchEngine(loaded.decoder, decode=bed.renderer.text, context_length=loaded.context_length)
    asked = requests(bed, samples=samples, seed=seed, temperature=temperature)
    texts: list[DraftText] = []
    for request, answer in zip(asked, serve(engine, asked), strict=True):
        before, after = len(request.prompt_ids), len(answer.token_ids)
        texts.append(
            DraftText(
                token_ids=np.concatenate([request.prompt_ids, answer.token_ids]),
                sampled=np.arange(before + after) >= before,
                logprobs=np.concatenate([np.zeros(before, dtype=np.float32), answer.logprobs]),
                group=request.id.split("/")[0],
            )
        )
    return texts


def fitted_heads(bed: Bed, texts: Sequence[DraftText]) -> DraftHeads:
    """Returns new heads, fitted to `texts` by least squares and not yet trained."""
    heads = fresh_heads(bed.model.decoder)
    text = fitting_text(texts, tokens=_FITTED_ON, decoder=bed.model.decoder)
    fit_projection(
        heads,
        bed.model.decoder,
        token_ids=text.token_ids,
        positions=text.positions,
        lengths=text.lengths,
    )
    return heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Heads that stand for those a model comes with, and what they have seen of its texts."""

    heads: DraftHeads
    train: Sequence[DraftText]
    held_out: Sequence[DraftText]


def begin(
    bed: Bed, *, samples: int, steps: int, depth: int, batch_tokens: int, seed: int, held_out: float = 0.2
) -> Beginning:
    """Returns heads fitted to texts of the bed's own and trained on them by `steps` of forward KL."""
    train, held = split_held_out(own_texts(bed, samples=samples, seed=seed), share=held_out, seed=seed)
    heads = fitted_heads(bed, train)
    plan = LossPlan(loss="forward_kl")
    learn(heads, bed, train, plan=plan, steps=steps, depth=depth, batch_tokens=batch_tokens, seed=seed)
    return Beginning(heads=heads, train=train, held_out=held)


def learn(
    heads: DraftHeads,
    bed: Bed,
    texts: Sequence[DraftText],
    *,
    plan: LossPlan,
    steps: int,
    depth: int,
    batch_tokens: int,
    seed: int,
    rate: float = 1.0,
) -> None:
    """Trains `heads` in place, `rate` times as fast as is usual on the bed."""
    optimizer = MasterAdamW(heads, learning_rate=rate * bed.learning_rate, warmup_steps=max(1, steps // 33))
    taken = train_drafts(
        heads,
        bed.model.decoder,
        texts,
        optimizer=optimizer,
        depth=depth,
        steps=steps,
        batch_tokens=batch_tokens,
        plan=plan,
        seed=seed,
    )
    for _ in taken:
        pass
