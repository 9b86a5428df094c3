"""Runs with a teacher behind a server: what is learnt, what is refused at start, what a failure costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import turnpoint as tp
from tests.runs import rollouts, state_bytes
from tests.stub_server import StubServer
from tests.teachers.test_run import figures
from tests.tiny import CONTEXT, byte_tokenizer, save_tiny_model, tiny_decoder
from tests.typed import Command
from turnpoint.assemble import load_policy
from turnpoint.commands.origin import Origin
from turnpoint.config import ServerTeacher
from turnpoint.errors import EngineError, ModelError, RecipeError
from turnpoint.protocols import ScoreRequest, Scores
from turnpoint.reports.run_log import RunFolder
from turnpoint.served import Served, open_server
from turnpoint.teachers import transport as transport_module
from turnpoint.teachers.probe import Probe
from turnpoint.types import Message, Task

APIS = ("vllm", "sglang")
QUESTION = Message(role="user", content="1 + 2 =")
Decode = Callable[[list[int]], str]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "_FIRST_WAIT", 0.01)


@pytest.fixture
def vllm() -> Iterator[StubServer]:
    with StubServer("vllm") as server:
        yield server


def taught(stub: StubServer, *more: str, tokenizer: Path | None = None) -> list[str]:
    """Options of a run of two small steps that `stub` alone teaches."""
    own = [f"distill.teachers.big.tokenizer={tokenizer}"] if tokenizer else []
    return [
        f"distill.teachers.big={{kind: server, api: {stub.api}, url: {stub.url}, deadline: 5}}",
        *own,
        "distill.task=false",
        "rollout.samples_per_prompt=1",
        "evaluation=null",
        *more,
    ]


def test_servers_teach_what_the_same_model_in_this_process_does(
    recipe: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    other = save_tiny_model(tmp_path / "other", seed=1)
    with StubServer("vllm") as vllm, StubServer("sglang") as sglang:
        local = [f"distill.teachers.big.path={other}", *taught(vllm)[1:]]
        options = {
            "local": local,
            "vllm": taught(vllm),
            "sglang": taught(sglang, tokenizer=tiny_folder),
        }
        runs = {
            name: tp.train(tp.load_recipe(recipe, [*given, f"name={name}"])).folder
            for name, given in options.items()
        }
        asked = len(vllm.scores_asked())
    for name in APIS:
        assert figures(runs[name], "teacher/kl") == pytest.approx(figures(runs["local"], "teacher/kl"))
        assert figures(runs[name], "grad_norm")[0] == pytest.approx(figures(runs["local"], "grad_norm")[0])
    assert asked == 1 + 2 * (1 + 4)  # a probe at start; in each of two steps one again, and four rollouts
    said = Origin.read(RunFolder.open(runs["sglang"])).teachers["big"]
    assert isinstance(said, Probe)
    assert (said.model, said.version) == ("tiny", "default")


def test_a_run_whose_server_dies_keeps_what_it_has_and_goes_on_elsewhere(
    recipe: Path, turnpoint: Command
) -> None:
    with StubServer("vllm") as first, StubServer("vllm") as second:
        whole = tp.train(tp.load_recipe(recipe, [*taught(first), "training.steps=3", "name=whole"])).folder
        stops = taught(first, "training.steps=3", "name=part", "distill.teachers.big.deadline=0.2")
        first.faults.extend([None] * (1 + 2 * 5))  # two steps are answered
        first.always = "close"
        answer = turnpoint("train", recipe, *stops)
        assert answer.status == EngineError.exit_status
        assert f"teacher big at {first.url}: no answer" in answer.err.replace("\n", " ")
        part = whole.parent / "part"
        assert len(figures(part, "teacher/kl")) == 2
        tp.resume(part, [f"distill.teachers.big.url={second.url}", "distill.teachers.big.in_flight=2"])
    assert state_bytes(part) == state_bytes(whole)
    assert rollouts(part) == rollouts(whole)


def test_a_run_goes_on_only_with_the_weights_behind_the_server_that_it_began_with(
    recipe: Path, vllm: StubServer
) -> None:
    run = tp.train(tp.load_recipe(recipe, [*taught(vllm), "training.steps=1"])).folder
    before = (run / "metrics.jsonl").read_text()
    vllm.decoder = tiny_decoder(seed=2)
    with pytest.raises(ModelError, match=r"teacher big does not hold the weights .* nats on a prompt\)"):
        tp.resume(run, ["training.steps=2"])
    assert (run / "metrics.jsonl").read_text() == before


def test_weights_that_change_while_a_run_goes_on_end_it(recipe: Path, vllm: StubServer) -> None:
    def other(tree: Any) -> Any:
        vllm.decoder = tiny_decoder(seed=2)
        return tree

    vllm.faults.extend([*[None] * 5, other])  # behind the last rollout of the first step
    with pytest.raises(EngineError, match="has other weights than when this run started"):
        tp.train(tp.load_recipe(recipe, taught(vllm)))
    run = recipe.parent / "runs" / "tiny"
    assert len(figures(run, "teacher/kl")) == 1


def test_the_policy_behind_a_server_says_nothing_and_that_is_said(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StubServer("vllm", seed=0) as stub:
        run = tp.train(tp.load_recipe(recipe, [*taught(stub), "training.steps=1"])).folder
    assert abs(figures(run, "teacher/kl")[0]) < 1e-5
    assert "it says nothing until they part" in " ".join(capsys.readouterr().out.split())


def test_opening_a_server_leaves_the_policy_as_it_was_and_no_token_of_context_out(
    recipe: Path, vllm: StubServer
) -> None:
    config = tp.load_recipe(recipe, taught(vllm))
    policy, task = load_policy(config, ()), Task(id="t", messages=(QUESTION,), answer="")
    assert config.distill is not None
    teacher = cast(ServerTeacher, config.distill.teachers["big"])

    async def main() -> tuple[Served, Scores]:
        served = await open_server(
            teacher, name="big", config=config, policy=policy, examples=(), task=task, longest=CONTEXT
        )
        ids = policy.renderer.prompt(task.messages)
        return served, await policy.engine.score(ScoreRequest(id="r", token_ids=ids, start=1))

    served, again = asyncio.run(main())
    assert again.cached_tokens == 0
    assert served.engine.capabilities.context_length == CONTEXT
    assert served.note == ""


def test_a_server_that_is_not_there_is_said_before_anything_is_spent(
    recipe: Path, turnpoint: Command
) -> None:
    with StubServer("vllm") as stub:
        options = taught(stub)
    answer = turnpoint("train", recipe, *options)
    assert answer.status == 2
    said = " ".join(answer.err.split())
    assert f"teacher big at {stub.url}: no answer" in said
    assert not (recipe.parent / "runs" / "tiny").exists()


def _short_context(stub: StubServer) -> None:
    stub.models = {"tiny": 20}


def _other_model(stub: StubServer) -> None:
    stub.models = {"huge": 257, "small": 257}


def _other_vocabulary(stub: StubServer) -> None:
    stub.tokenizer = byte_tokenizer()


def _two_ids_swapped(stub: StubServer) -> None:
    tokenizer = stub.tokenizer
    swapped = {40: 41, 41: 40}

    def decode(ids: list[int]) -> str:
        return tokenizer.decode([swapped.get(token, token) for token in ids])

    stub.tokenizer = _Reading(tokenizer, decode, tokenizer.encode)


def _nothing_special(stub: StubServer) -> None:
    def encode(text: str) -> list[int]:
        return [7] * len(text)

    stub.tokenizer = _Reading(stub.tokenizer, stub.tokenizer.decode, encode)


def _other_template(stub: StubServer) -> None:
    stub.tokenizer.chat_template = "<|system|>be brief<|end|>" + stub.tokenizer.chat_template


def _logits(stub: StubServer) -> None:
    def raised(tree: Any) -> Any:
        for place in tree["choices"][0]["prompt_logprobs"][1:]:
            for value in place.values():
                value["logprob"] += 12
        return tree

    stub.always = raised


def _refusal(stub: StubServer) -> None:
    stub.always = 400


class _Reading:
    """A tokenizer that reads ids, and perhaps texts, in its own way."""

    def __init__(self, tokenizer: Any, decode: Decode, encode: Callable[[str], list[int]]) -> None:
        self._decode, self._encode = decode, encode
        self.apply_chat_template = tokenizer.apply_chat_template

    def decode(self, ids: list[int], **_: Any) -> str:
        return self._decode(ids)

    def __call__(self, text: str, **_: Any) -> Any:
        return {"input_ids": self._encode(text)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_short_context, r"has a context of 19 tokens, and a prompt with its rollout may take \d+"),
        (_other_model, "serves huge, small: say by the teacher's `model` which one teaches"),
        (
            _other_vocabulary,
            r"reads ids as something else, the first is 0: '<\|pad\|>' to the policy, '!' to",
        ),
        (_two_ids_swapped, "the first is 40: "),
        (_nothing_special, r"reads '<\|pad\|>' as the ids .*, and the policy as \[0\]"),
        (_other_template, r"would have been shown a problem as \d+ tokens, .* template=any"),
        (_logits, "above 0: the server gives logits"),
        (_refusal, "status 400: This model's maximum context length"),
    ],
)
def test_what_the_policy_cannot_learn_from_is_refused_at_start(
    recipe: Path, vllm: StubServer, change: Callable[[StubServer], None], message: str
) -> None:
    change(vllm)
    with pytest.raises(ModelError, match=message) as error:
        tp.train(tp.load_recipe(recipe, taught(vllm)))
    assert vllm.url in str(error.value)


def test_another_template_is_let_through_when_asked(recipe: Path, vllm: StubServer) -> None:
    _other_template(vllm)
    options = taught(vllm, "distill.teachers.big.template=any", "training.steps=1")
    assert figures(tp.train(tp.load_recipe(recipe, options)).folder, "teacher/kl")[0] > 1


def test_the_recipe_that_ships_runs_and_its_few_shot_prompt_is_compared(
    tiny_folder: Path, tmp_path: Path
) -> None:
    shipped = Path(__file__).parents[2] / "recipes" / "debug" / "opd_server.yaml"
    options = [f"model={{path: {tiny_folder}, dtype: float32}}", f"output_dir={tmp_path}", "prompt.shots=1"]
    with StubServer("sglang") as stub:  # which renders no chat, but raw text
        options += [f"distill.teachers.big.url={stub.url}", "distill.teachers.big.api=sglang"]
        tp.train(tp.load_recipe(shipped, options))
        plain = stub.tokenizer

        def cut(text: str) -> list[int]:
            return plain.encode(text)[:30]

        stub.tokenizer = _Reading(plain, plain.decode, cut)
        with pytest.raises(ModelError, match="would have been shown a problem as 30 tokens"):
            tp.train(tp.load_recipe(shipped, [*options, "name=again"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["sampling.temperature=0.7"], r"sampling.temperature = 0.7, and a server .* Take sampling.temp"),
        (
            ["distill.loss={kind: reverse_kl}"],
            "takes the whole law of teachers in this process, and big is behind a server",
        ),
        (["distill.teachers.big.url=localhost:8000"], "'localhost:8000' is no address of a server; write"),
        (["distill.teachers.big.url='http://a:x'"], "is no address"),
        (["distill.teachers.big.api=tgi"], "api"),
        (["distill.teachers.big.retries=3"], "retries"),
        (["distill.teachers.big.in_flight=0"], "in_flight"),
        (["distill.teachers.big.deadline=0"], "deadline"),
        (["distill.teachers.big.api=sglang"], "give the folder of its model as tokenizer, or take template"),
        (["distill.teachers.big.tokenizer=x"], "tokenizer = x would not be looked at"),
    ],
)
def test_a_recipe_that_asks_too_much_of_a_server_is_refused(
    recipe: Path, options: list[str], message: str
) -> None:
    server = "distill.teachers.big={kind: server, api: vllm, url: 'http://localhost:8000/'}"
    with pytest.raises(RecipeError, match=message) as error:
        tp.load_recipe(recipe, [server, *options])
    assert "\n" not in str(error.value)
    assert tp.load_recipe(recipe, [server]).distill is not None
