"""From a recipe to a teacher behind a server: found, audited against the policy, its weights probed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnpoint.assemble import Policy, make_renderer
from turnpoint.config import ChatPrompt, RunConfig, ServerTeacher
from turnpoint.errors import EngineError, ModelError
from turnpoint.models.locate import model_folder
from turnpoint.models.pretrained import read_tokenizer
from turnpoint.models.renderer import ChatRenderer
from turnpoint.protocols import ScoreRequest
from turnpoint.teachers.audit import Reader, check_context, check_rendering
from turnpoint.teachers.probe import Probe, probe_ids
from turnpoint.teachers.server import Server, Wire, find_model
from turnpoint.teachers.server_audit import check_ids
from turnpoint.teachers.server_engine import Known, ServerEngine
from turnpoint.teachers.transport import Transport
from turnpoint.teachers.wire_sglang import SglangWire
from turnpoint.teachers.wire_vllm import VllmWire
from turnpoint.types import Task, TokenIds, token_array


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server that may teach; `note`: what there is to say about it, or empty."""

    engine: ServerEngine
    probe: Probe
    note: str


async def open_server(
    teacher: ServerTeacher,
    *,
    name: str,
    config: RunConfig,
    policy: Policy,
    examples: Sequence[tuple[str, str]],
    task: Task,
    longest: int,
) -> Served:
    """Returns the server of `teacher`; `task`: what is rendered, `longest`: tokens of the longest rollout.

    Raises ModelError in one line when it does not answer, has not the model, too short a context, or does
    not read ids or render `task` as the policy does.
    """
    transport = Transport(
        name=f"teacher {name}", url=teacher.url, in_flight=teacher.in_flight, deadline=teacher.deadline
    )
    try:
        model, context = await find_model(transport, teacher.model)
        wire: Wire = VllmWire(model=model) if teacher.api == "vllm" else SglangWire(model=model)
        server = Server(transport=transport, wire=wire)
        # Both servers want room for one token more than they are given.
        reader = Reader(
            name=transport.who, vocabulary={}, special_ids=frozenset(), context_length=context - 1
        )
        check_context(reader, longest=longest)
        await _check_ids(server, policy)
        prompt = policy.renderer.prompt(task.messages)
        if teacher.template == "same":
            theirs = await _rendered(server, teacher, config, policy, examples, task, prompt)
            words = [policy.model.tokenizer.decode([token]) for token in prompt.tolist()]
            check_rendering(reader, student_ids=prompt, teacher_ids=theirs, words=words)
        ids = probe_ids(prompt)
        scored, _ = await server.score(ids.tolist(), 1)
    except EngineError as error:
        raise ModelError(str(error)) from error
    probe = Probe.of(
        scored.logprobs.tolist(), model=model, version=scored.version, tolerance=teacher.tolerance
    )
    known = Known(name=transport.who, context_length=context - 1, ids=ids, probe=probe)
    note = await _same_law_note(policy, ids, probe, who=transport.who)
    return Served(engine=ServerEngine(server, known), probe=probe, note=note)


async def _check_ids(server: Server, policy: Policy) -> None:
    tokenizer: Any = policy.model.tokenizer
    await check_ids(
        server,
        name=server.transport.who,
        ids=sorted(tokenizer.get_vocab().values()),
        special_ids=sorted(tokenizer.all_special_ids),
        decode=lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False),
        encode=lambda text: tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"],
    )


async def _rendered(
    server: Server,
    teacher: ServerTeacher,
    config: RunConfig,
    policy: Policy,
    examples: Sequence[tuple[str, str]],
    task: Task,
    prompt: TokenIds,
) -> TokenIds:
    """Returns the ids that the server, or the tokenizer that stands in for it, makes of `task`."""
    renderer = make_renderer(config.prompt, policy.model, examples)
    if not isinstance(renderer, ChatRenderer):
        ids = await server.ids(renderer.shown(task.messages), special=True)
        return token_array(ids[: len(prompt)])  # without what the tokenizer puts behind raw text
    assert isinstance(config.prompt, ChatPrompt), "a chat is rendered by its own kind of prompt"
    turns, thinking = renderer.shown(task.messages), config.prompt.thinking
    if teacher.tokenizer is not None:
        tokenizer = read_tokenizer(model_folder(teacher.tokenizer))
        theirs = ChatRenderer(tokenizer, stop_ids=frozenset(), thinking=thinking)
        return theirs.prompt(turns)
    ids = await server.prompt(turns, thinking=thinking)
    assert ids is not None, "a recipe names the tokenizer of a server that renders nothing"
    return token_array(ids)


async def _same_law_note(policy: Policy, ids: TokenIds, probe: Probe, *, who: str) -> str:
    """Returns a line when the policy says of the probe what the server says."""
    mine = await policy.engine.score(ScoreRequest(id="probe", token_ids=ids, start=1))
    policy.engine.forget()  # as every engine is found when a run begins or goes on
    own = Probe.of(mine.logprobs.tolist(), model="", version="", tolerance=probe.tolerance)
    if not probe.same_weights(own):
        return ""
    return (
        f"{who} gives a problem of the run the probabilities of the model that the policy starts from (mean "
        f"|difference| {probe.gap(own):.2g} nats): it says nothing until they part"
    )
