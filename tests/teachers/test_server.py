"""A server as a teacher's engine: the law of its model token by token, and every way in which it can fail."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

from tests.engine.serve import logprobs_of, prompt
from tests.stub_server import Fault, StubServer
from tests.tiny import CONTEXT, tiny_decoder
from turnpoint.errors import EngineError
from turnpoint.protocols import Engine, GenerateRequest, ScoreRequest
from turnpoint.rollout.concurrency import all_of
from turnpoint.teachers import transport as transport_module
from turnpoint.teachers.probe import Probe
from turnpoint.teachers.server import Server, find_model
from turnpoint.teachers.server_engine import Known, ServerEngine
from turnpoint.teachers.transport import Transport
from turnpoint.teachers.wire_sglang import SglangWire
from turnpoint.teachers.wire_vllm import VllmWire
from turnpoint.types import Floats, TokenIds, token_array

PROBE = prompt(12, seed=99)
APIS = ("vllm", "sglang")


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "_FIRST_WAIT", 0.01)


@pytest.fixture(params=APIS)
def stub(request: pytest.FixtureRequest) -> Iterator[StubServer]:
    with StubServer(request.param) as server:
        yield server


@pytest.fixture
def vllm() -> Iterator[StubServer]:
    with StubServer("vllm") as server:
        yield server


def engine_of(
    stub: StubServer, *, in_flight: int = 8, deadline: float = 20.0, cache_tokens: int = 1 << 20
) -> ServerEngine:
    """The engine that a run would open; what the probe says is computed here, from the stub's weights."""
    transport = Transport(name="teacher big", url=stub.url, in_flight=in_flight, deadline=deadline)
    wire = VllmWire(model="tiny") if stub.api == "vllm" else SglangWire(model="tiny")
    law = logprobs_of(stub.decoder, PROBE, 1)
    probe = Probe.of(law.tolist(), model="tiny", version="", tolerance=0.05)
    known = Known(name=transport.who, context_length=CONTEXT, ids=PROBE, probe=probe)
    return ServerEngine(Server(transport=transport, wire=wire), known, cache_tokens=cache_tokens)


def ask(ids: TokenIds, start: int = 1, **options: Any) -> ScoreRequest:
    return ScoreRequest(id="r", token_ids=ids, start=start, **options)


def scores(engine: ServerEngine, *requests: ScoreRequest) -> list[Floats]:
    """Scores of all requests, asked at once in a loop of their own."""

    async def main() -> list[Floats]:
        return [found.logprobs for found in await all_of(engine.score(request) for request in requests)]

    return asyncio.run(main())


def changed(change: Callable[[list[Any]], object]) -> Callable[[Any], Any]:
    """A fault that changes the list of positions in an answer, whichever server's it is."""

    def fault(tree: Any) -> Any:
        change(
            tree["choices"][0]["prompt_logprobs"]
            if "choices" in tree
            else tree["meta_info"]["input_token_logprobs"]
        )
        return tree

    return fault


def shorter(places: list[Any]) -> None:
    """Leaves out the last position."""
    places.pop()


def no_answer(tree: Any) -> Any:
    """A fault that answers something else."""
    return {"object": "error"}


def last_value(value: float | None) -> Callable[[Any], Any]:
    """A fault that gives the last position another log-probability."""

    def change(places: list[Any]) -> None:
        if isinstance(places[-1], dict):
            (law,) = cast(dict[str, Any], places[-1]).values()
            law["logprob"] = value
        else:
            places[-1][0] = value

    return changed(change)


def test_it_is_an_engine_that_scores_as_its_model_does_from_any_token_on(stub: StubServer) -> None:
    engine = engine_of(stub)
    assert isinstance(engine, Engine)
    requests = [ask(prompt(20, seed=seed), start) for seed, start in ((1, 1), (2, 7), (3, 19))]
    for request, found in zip(requests, scores(engine, *requests), strict=True):
        expected = logprobs_of(tiny_decoder(seed=1), request.token_ids, request.start)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert engine.capabilities.context_length == CONTEXT
    assert not engine.capabilities.score_temperature


def test_sglang_is_asked_for_no_position_that_nobody_wants() -> None:
    with StubServer("sglang") as stub:
        scores(engine_of(stub), ask(prompt(20), 7))
        assert [body["logprob_start_len"] for body in stub.scores_asked()] == [0, 6]  # the probe, first
        assert stub.scores_asked()[1]["sampling_params"] == {"max_new_tokens": 0, "temperature": 0}


def test_one_answer_serves_equal_requests_and_no_others(stub: StubServer) -> None:
    engine, ids = engine_of(stub), prompt(20)
    first, second, later = scores(engine, ask(ids, 3), ask(ids, 3), ask(ids, 5))
    scores(engine, ask(ids, 3))
    assert len(stub.scores_asked()) == 1 + 2  # the probe, and two different questions
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first[2:], later, atol=1e-5)
    engine.forget()
    scores(engine, ask(ids, 3))
    assert len(stub.scores_asked()) == 3 + 2


def test_the_cache_is_bounded_and_forgets_what_was_asked_longest_ago(vllm: StubServer) -> None:
    engine = engine_of(vllm, cache_tokens=45)
    one, two, three = (ask(prompt(20, seed=seed)) for seed in (1, 2, 3))
    for request in (one, two, one, three, one):  # the third turns out the second
        scores(engine, request)
    assert len(vllm.scores_asked()) == 1 + 3
    scores(engine, two)
    assert len(vllm.scores_asked()) == 1 + 4


def test_no_more_requests_are_in_flight_than_allowed(vllm: StubServer) -> None:
    engine = engine_of(vllm, in_flight=3)
    scores(engine, *[ask(prompt(20, seed=seed)) for seed in range(20)])
    assert vllm.most_at_once <= 3
    assert len(vllm.scores_asked()) == 1 + 20
    scores(engine, *[ask(prompt(20, seed=seed)) for seed in range(20, 40)])  # in another loop
    assert len(vllm.scores_asked()) == 1 + 40


def test_the_deadline_is_not_about_waiting_for_a_place(vllm: StubServer) -> None:
    def slowly(tree: Any) -> Any:
        time.sleep(0.15)
        return tree

    engine = engine_of(vllm, in_flight=1, deadline=0.6)
    vllm.always = slowly
    scores(engine, *[ask(prompt(20, seed=seed)) for seed in range(6)])


@pytest.mark.parametrize("fault", [500, 503, "close"])
def test_what_passes_is_asked_again(stub: StubServer, fault: Fault) -> None:
    engine, ids = engine_of(stub), prompt(20)
    scores(engine, ask(PROBE))  # who it is, is known
    before = len(stub.scores_asked())
    stub.faults.extend([fault, fault])
    (found,) = scores(engine, ask(ids))
    np.testing.assert_allclose(found, logprobs_of(stub.decoder, ids, 1), atol=1e-5)
    assert len(stub.scores_asked()) == before + 3 + 1  # and who it is now was asked once more


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (400, "refuses .* with status 400: This model's maximum context length is 16 tokens"),
        (413, "with status 413: too long"),
        ("html", "is no JSON: '<html>.*; is something else listening"),
        (no_answer, "answers wrongly to .*(choices|meta_info) is missing"),
        (changed(shorter), "it scored 19 tokens of 20"),
        (last_value(None), "token 19 has no log-probability"),
        (last_value(math.nan), "token 19 has no log-probability"),
        (last_value(3.5), r"token 19 has a log-probability of 3.5, above 0: the server gives logits"),
    ],
)
def test_what_would_be_said_again_is_an_error_at_once(stub: StubServer, fault: Fault, message: str) -> None:
    engine = engine_of(stub)
    scores(engine, ask(PROBE))
    stub.faults.append(fault)
    with pytest.raises(EngineError, match=message) as error:
        scores(engine, ask(prompt(20)))
    assert f"teacher big at {stub.url}" in str(error.value)
    assert "\n" not in str(error.value)
    assert len(stub.scores_asked()) == 3  # the probe, PROBE, and one that failed


def test_other_ids_than_those_sent_are_refused(stub: StubServer) -> None:
    def other(places: list[Any]) -> None:
        if isinstance(places[-1], dict):
            (law,) = cast(dict[str, Any], places[-1]).values()
            places[-1] = {"7": law}
        else:
            places[-1][1] = 7

    engine = engine_of(stub)
    scores(engine, ask(PROBE))
    stub.faults.append(changed(other))
    with pytest.raises(EngineError, match=r"token 19 is \d+, and it scored 7"):
        scores(engine, ask(prompt(20)))


def test_an_impossible_token_is_minus_infinity_and_a_missing_law_is_an_error(vllm: StubServer) -> None:
    engine, ids = engine_of(vllm), prompt(20)
    scores(engine, ask(PROBE))
    vllm.faults.append(last_value(-9999.0))
    (found,) = scores(engine, ask(ids))
    assert found[-1] == -math.inf
    assert np.isfinite(found[:-1]).all()
    vllm.faults.append(changed(lambda places: places.__setitem__(4, None)))
    with pytest.raises(EngineError, match="token 4 has no log-probability, it is missing"):
        scores(engine, ask(ids, 2))


def test_a_server_that_stays_away_is_named_after_the_deadline(stub: StubServer) -> None:
    engine = engine_of(stub, deadline=0.3)
    stub.always = 500
    with pytest.raises(EngineError, match=r"status 500 \(the engine died\) within 0.3 seconds .* attempts"):
        scores(engine, ask(prompt(20)))
    assert len(stub.scores_asked()) > 2
    stub.close()
    with pytest.raises(EngineError, match=f"teacher big at {stub.url}: no answer .*look whether it is run"):
        scores(engine, ask(prompt(20)))


def test_a_slow_server_is_named_after_the_deadline_and_its_connection_closed(vllm: StubServer) -> None:
    engine = engine_of(vllm, deadline=0.2)
    vllm.faults.append("hold")
    with pytest.raises(EngineError, match=r"no answer within 0.2 seconds to /v1/completions"):
        scores(engine, ask(prompt(20)))
    assert vllm.comes(lambda: vllm.connections == 0)


def test_cancelling_leaves_no_connection(stub: StubServer) -> None:
    engine = engine_of(stub, in_flight=4)
    stub.always = "hold"

    async def main() -> None:
        asking = asyncio.ensure_future(all_of(engine.score(ask(prompt(20, seed=it))) for it in range(9)))
        assert await asyncio.to_thread(stub.comes, lambda: stub.at_once > 0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(main())
    assert stub.comes(lambda: stub.connections == 0)


def test_connections_close_with_the_last_answer(stub: StubServer) -> None:
    engine = engine_of(stub)

    async def main() -> None:
        await all_of(engine.score(ask(prompt(20, seed=seed))) for seed in range(9))
        assert await asyncio.to_thread(stub.comes, lambda: stub.connections == 0)

    asyncio.run(main())


def test_other_weights_are_found_at_the_next_step_and_after_a_lost_connection(stub: StubServer) -> None:
    engine = engine_of(stub)
    scores(engine, ask(prompt(20)))
    stub.decoder = tiny_decoder(seed=2)
    engine.forget()  # a step ends
    with pytest.raises(EngineError, match=r"has other weights than when this run started .*tolerance 0.05"):
        scores(engine, ask(prompt(20)))
    stub.decoder = tiny_decoder(seed=1)
    scores(engine, ask(prompt(20)))
    stub.decoder = tiny_decoder(seed=2)
    stub.faults.append("close")  # as a restart does
    with pytest.raises(EngineError, match="has other weights"):
        scores(engine, ask(prompt(20, seed=5)))


def test_weights_that_are_named_anew_are_asked_who_they_are() -> None:
    with StubServer("sglang") as stub:
        engine = engine_of(stub)
        scores(engine, ask(prompt(20)))
        stub.weight_version = "step-7"
        scores(engine, ask(prompt(20, seed=2)))  # a new name for the same weights
        stub.weight_version, stub.decoder = "step-8", tiny_decoder(seed=2)
        with pytest.raises(EngineError, match="has other weights"):
            scores(engine, ask(prompt(20, seed=3)))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ask(prompt(20), temperature=0.7), "scores at temperature 1 alone, not at 0.7"),
        (ask(prompt(20), entropy=True), "gives given tokens' laws alone"),
        (ask(prompt(20), top_k=2), "gives given tokens' laws alone"),
        (ask(token_array(np.full(CONTEXT + 1, 9))), f"takes up to {CONTEXT}"),
        (ask(prompt(20), 0), "scored from 1 on"),
    ],
)
def test_what_it_cannot_serve_is_refused_before_it_is_asked(
    vllm: StubServer, request_: ScoreRequest, message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        scores(engine_of(vllm), request_)
    assert vllm.asked == []


def test_it_does_not_generate(vllm: StubServer) -> None:
    with pytest.raises(EngineError, match="is here to score, not to generate"):
        asyncio.run(engine_of(vllm).generate(GenerateRequest(id="r", prompt_ids=prompt(3), max_tokens=1)))


def test_the_longest_rollout_that_fits_is_scored(stub: StubServer) -> None:
    ids = token_array(np.random.default_rng(0).integers(8, 100, CONTEXT))
    (found,) = scores(engine_of(stub), ask(ids, CONTEXT - 1))
    np.testing.assert_allclose(found, logprobs_of(stub.decoder, ids, CONTEXT - 1), atol=1e-5)


def test_a_model_is_found_by_its_name_or_because_it_is_the_only_one(vllm: StubServer) -> None:
    transport = Transport(name="teacher big", url=vllm.url, in_flight=2, deadline=5)
    assert asyncio.run(find_model(transport, None)) == ("tiny", CONTEXT + 1)
    with pytest.raises(EngineError, match="serves tiny and no 'huge'; name the model as the server does"):
        asyncio.run(find_model(transport, "huge"))
    vllm.models = {"tiny": 99, "adapter": None}  # type: ignore[dict-item]
    assert asyncio.run(find_model(transport, "adapter")) == ("adapter", 99)
    with pytest.raises(EngineError, match="serves tiny, adapter: say by the teacher's `model` which"):
        asyncio.run(find_model(transport, None))


def test_a_probe_moves_by_rounding_and_not_by_more() -> None:
    then = Probe.of([-0.5, -2.0, -math.inf], model="m", version="1", tolerance=0.05)
    assert then.logprobs == (-0.5, -2.0, -100.0)
    assert then.same_weights(Probe.of([-0.55, -2.05, -math.inf], model="m", version="2", tolerance=0.05))
    assert not then.same_weights(Probe.of([-0.5, -2.2, -99.9], model="m", version="1", tolerance=0.05))
    assert then.gap(Probe.of([-0.5], model="m", version="1", tolerance=0.05)) == math.inf
