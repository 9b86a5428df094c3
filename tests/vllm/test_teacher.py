"""vLLM's CPU build as the teacher of the model that it serves: what it says must be what our engine says."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import httpx2
import numpy as np
import pytest
import torch

import turnpoint as tp
from tests.teachers.test_run import figures
from tests.vllm.serving import Vllm
from turnpoint.assemble import Policy, load_policy
from turnpoint.config import RunConfig, ServerTeacher
from turnpoint.errors import EngineError, ModelError
from turnpoint.models.locate import model_folder
from turnpoint.models.pretrained import read_config, read_model
from turnpoint.protocols import GenerateRequest, ScoreRequest
from turnpoint.rollout.concurrency import all_of
from turnpoint.served import Served, open_server
from turnpoint.types import Message, Task, TokenIds, token_array

MODEL = "smollm2-135m-instruct"
PROMPTS, SAMPLES, TOKENS = 8, 2, 96
OTHER = "has other weights than when this run started"
MEAN, MOST = 2e-5, 2e-3  # nats, between two float32 implementations of one model

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    with Vllm(model_folder(MODEL), log=tmp_path_factory.mktemp("vllm") / "log") as server:
        server.ready()
        yield server


def recipe(url: str, folder: Path, *more: str) -> RunConfig:
    """Rollouts in chat form of SmolLM2, in float32, that the server at `url` alone teaches."""
    tree: dict[str, Any] = {
        "name": "served",
        "output_dir": str(folder),
        "model": {"path": MODEL, "dtype": "float32"},
        "tasks": {"kind": "reasoning_gym", "name": "chain_sum", "size": 40},
        "verifier": {"kind": "reasoning_gym"},
        "sampling": {"max_new_tokens": 24},
        "rollout": {"prompts_per_step": 4, "samples_per_prompt": 1},
        "training": {"steps": 2},
        "distill": {"task": False, "teachers": {"big": {"kind": "server", "api": "vllm", "url": url}}},
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(tree))  # JSON is YAML
    return tp.load_recipe(path, more)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """SmolLM2 in our engine."""
    return load_policy(recipe("http://nowhere", tmp_path_factory.mktemp("policy")), ())


def opened(url: str, folder: Path, policy: Policy) -> Served:
    """The teacher of `recipe`, audited."""
    config = recipe(url, folder)
    assert config.distill is not None
    teacher = cast(ServerTeacher, config.distill.teachers["big"])
    task = Task(id="t", messages=(Message(role="user", content="Why is the sky blue?"),), answer="")
    opening = open_server(
        teacher, name="big", config=config, policy=policy, examples=(), task=task, longest=256
    )
    return asyncio.run(opening)


def rollouts(policy: Policy) -> list[tuple[TokenIds, int]]:
    """Ids of rollouts of the policy, and where each begins."""
    subjects = ("the sea", "prime numbers", "a list in Python", "bread", "the moon", "rain", "law", "jazz")
    prompts = [
        policy.renderer.prompt([Message(role="user", content=f"Tell me about {it}.")]) for it in subjects
    ]
    requests = [
        GenerateRequest(id=f"{at}/{sample}", prompt_ids=ids, max_tokens=TOKENS)
        for at, ids in enumerate(prompts[:PROMPTS])
        for sample in range(SAMPLES)
    ]

    async def main() -> list[tuple[TokenIds, int]]:
        found = await all_of(policy.engine.generate(request) for request in requests)
        pairs = zip(requests, found, strict=True)
        return [(token_array([*ask.prompt_ids, *it.token_ids]), len(ask.prompt_ids)) for ask, it in pairs]

    return asyncio.run(main())


def scored(engine: Any, sequences: Sequence[tuple[TokenIds, int]]) -> Any:
    """All log-probabilities of the sampled tokens, one after the other."""

    async def main() -> Any:
        asks = (
            ScoreRequest(id=f"{at}", token_ids=ids, start=start) for at, (ids, start) in enumerate(sequences)
        )
        return np.concatenate([it.logprobs for it in await all_of(engine.score(ask) for ask in asks)])

    return asyncio.run(main())


def test_it_says_what_our_engine_says_of_the_same_weights(
    vllm: Vllm, policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = opened(vllm.url, tmp_path, policy)
    assert "it says nothing until they part" in served.note
    sequences = rollouts(policy)
    policy.engine.forget()
    looked_before = vllm.prefix_cache()
    began = time.perf_counter()
    theirs = scored(served.engine, sequences)
    seconds = time.perf_counter() - began
    gaps = np.abs(theirs - scored(policy.engine, sequences))
    served.engine.forget()
    scored(served.engine, sequences)  # each sequence once more, and the probe
    looked = vllm.prefix_cache()
    with capsys.disabled():
        figures = {
            "tokens": len(gaps),
            "sequences": len(sequences),
            "mean": float(gaps.mean()),
            "max": float(gaps.max()),
            "bias": float((theirs - scored(policy.engine, sequences)).mean()),
            "seconds": seconds,
            "prompt_tokens_looked_up": looked[0] - looked_before[0],
        }
        print(f"\n{json.dumps(figures)}")
    assert gaps.mean() < MEAN
    assert gaps.max() < MOST
    assert looked == looked_before  # prompt_logprobs goes past the prefix cache, also the second time


def test_its_prefix_cache_is_there_for_what_is_not_scored(vllm: Vllm) -> None:
    before = vllm.prefix_cache()
    body = {"model": "smol", "prompt": list(range(100, 400)), "max_tokens": 1, "temperature": 0}
    for _ in range(2):
        httpx2.post(f"{vllm.url}/v1/completions", json=body, trust_env=False, timeout=60).raise_for_status()
    looked, found = (after - then for after, then in zip(vllm.prefix_cache(), before, strict=True))
    assert looked == 600
    assert found >= 128


def test_its_answer_about_the_probe_stays(vllm: Vllm, policy: Policy, tmp_path: Path) -> None:
    served = opened(vllm.url, tmp_path, policy)
    sequences = rollouts(policy)

    async def main() -> None:  # alone, and among others
        for _ in range(3):
            served.engine.forget()
            asks = [
                ScoreRequest(id=f"{at}", token_ids=ids, start=start)
                for at, (ids, start) in enumerate(sequences)
            ]
            await all_of(served.engine.score(ask) for ask in asks[:4])

    asyncio.run(main())
    again = opened(vllm.url, tmp_path, policy)
    assert served.probe.gap(again.probe) < 1e-4


def test_what_it_refuses_is_said_in_its_own_words(vllm: Vllm, policy: Policy, tmp_path: Path) -> None:
    served = opened(vllm.url, tmp_path, policy)
    ids = token_array(np.full(511, 60_000))
    with pytest.raises(EngineError, match="status 400: Token id 60000 is out of vocabulary"):
        scored(served.engine, [(ids, 1)])
    with pytest.raises(ModelError, match="serves smol and no 'other'"):
        tp.train(recipe(vllm.url, tmp_path, "distill.teachers.big.model=other"))
    with pytest.raises(
        ModelError, match="has a context of 511 tokens, and a prompt with its rollout may take"
    ):
        tp.train(recipe(vllm.url, tmp_path, "sampling.max_new_tokens=500"))


def test_a_whole_run_is_taught_and_a_self_teacher_says_nothing(vllm: Vllm, tmp_path: Path) -> None:
    run = tp.train(recipe(vllm.url, tmp_path)).folder
    assert figures(run, "teacher/tokens")[0] > 10
    assert abs(figures(run, "teacher/kl")[0]) < MEAN
    assert figures(run, "teacher/silent") == [0.0, 0.0]


def test_a_restart_is_waited_for_and_other_weights_behind_it_are_found(
    vllm: Vllm, policy: Policy, tmp_path: Path
) -> None:
    """Ends the server of this module: the last test."""
    served = opened(vllm.url, tmp_path, policy)
    sequences = rollouts(policy)[:2]
    before = scored(served.engine, sequences)
    vllm.stop()
    served.engine.forget()
    with Vllm(model_folder(MODEL), log=tmp_path / "same.log", port=vllm.port):  # asked while nobody listens
        np.testing.assert_allclose(scored(served.engine, sequences), before, atol=1e-5)
    served.engine.forget()
    changed = changed_copy(tmp_path / "changed")
    with Vllm(changed, log=tmp_path / "changed.log", port=vllm.port), pytest.raises(EngineError, match=OTHER):
        scored(served.engine, sequences)


@torch.no_grad()
def changed_copy(folder: Path) -> Path:
    """Writes SmolLM2 with one of its 30 layers turned down by a fifth."""
    source = model_folder(MODEL)
    model: Any = read_model(source, config=read_config(source), dtype=torch.float32)
    model.model.layers[15].mlp.down_proj.weight.mul_(0.8)
    model.save_pretrained(folder)
    for file in source.iterdir():
        if not (folder / file.name).exists():
            (folder / file.name).write_bytes(file.read_bytes())
    return folder
