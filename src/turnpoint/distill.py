"""From a recipe to teachers: opened, audited against the policy, and who has which."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnpoint.assemble import Policy, make_renderer, open_model
from turnpoint.branching import texts
from turnpoint.config import (
    DistillConfig,
    HindsightTeacher,
    ModelConfig,
    ModelTeacher,
    RunConfig,
    RunTeacher,
    SampledLoss,
    load_run_recipe,
)
from turnpoint.engine.engine import TorchEngine
from turnpoint.engine.weights import weights_checksum
from turnpoint.errors import ModelError
from turnpoint.models.decoder import Decoder
from turnpoint.models.loading import LoadedModel
from turnpoint.protocols import Renderer, Teacher
from turnpoint.teachers.audit import (
    Ask,
    Reader,
    check_context,
    check_rendering,
    check_temperature,
    check_vocabulary,
    refuse,
)
from turnpoint.teachers.kinds import TokenKinds
from turnpoint.teachers.routing import Routing
from turnpoint.teachers.scoring import ScoringTeacher
from turnpoint.teachers.teaching import Teaching
from turnpoint.training.checkpoint import load_latest
from turnpoint.types import Group, Task, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Teachers of a run, and what there is to say about them."""

    teaching: Teaching
    weights: Mapping[str, str]  # checksums of teachers' own
    decoders: Mapping[str, Decoder]  # of teachers whose whole law is in this process
    same: tuple[str, ...]  # teachers with the weights that the policy starts with
    notes: tuple[str, ...]


def open_teachers(
    config: RunConfig,
    how: DistillConfig,
    policy: Policy,
    tasks: Sequence[Task],
    *,
    examples: Sequence[tuple[str, str]],
    longest: int,
    ask: Ask = refuse,
) -> Opened:
    """Returns the teachers of `how`, which is what `config` says of them.

    `tasks`: those that are trained on; `longest`: tokens of the longest prompt with its rollout. Raises
    DataError for a task without a teacher, and ModelError for a teacher that cannot be opened or does not
    read the policy's tokens as the policy does. `ask(what, look)` is called for every check of the latter;
    it may keep what `look` says or raises.
    """
    routing = Routing(names=tuple(how.teachers), key=how.key)
    routing.check(tasks)
    opening = _Opening(
        config=config,
        how=how,
        policy=policy,
        examples=examples,
        task=tasks[0],
        longest=longest,
        ask=ask,
        notes=[],
        same=[],
        engines=[],
        decoders={},
        weights={},
    )
    teachers = {name: opening.open(name) for name in how.teachers}
    clip = how.loss.clip if isinstance(how.loss, SampledLoss) else None
    teaching = Teaching(
        teachers=teachers,
        routing=routing,
        task=how.task,
        clip=clip,
        kinds=kinds_of(policy),
        rest=opening.rest,
    )
    return Opened(
        teaching=teaching,
        weights=opening.weights,
        decoders=opening.decoders,
        same=tuple(opening.same),
        notes=tuple(opening.notes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opening:
    config: RunConfig
    how: DistillConfig
    policy: Policy
    examples: Sequence[tuple[str, str]]
    task: Task
    longest: int
    ask: Ask
    notes: list[str]
    same: list[str]
    engines: list[TorchEngine]  # around teachers' own weights
    decoders: dict[str, Decoder]
    weights: dict[str, str]

    def rest(self) -> None:
        """Empties caches, so that a run that goes on from here rounds as one that never stopped."""
        for engine in self.engines:
            engine.forget()

    def open(self, name: str) -> Teacher:
        teacher = self.how.teachers[name]
        match teacher:
            case HindsightTeacher():
                engine, told = self.policy.engine, told_of(teacher, self.policy.renderer)
            case ModelTeacher():
                base = ModelConfig(path=teacher.path, device=self.config.model.device, dtype=self._dtype)
                model = open_model(base, seed=self.config.seed)
                engine, told = self._audited(name, model, template=teacher.template), None
            case RunTeacher():
                model = open_run(teacher.path, device=self.config.model.device, dtype=self._dtype)
                engine, told = self._audited(name, model, template=teacher.template), None
        able, temperature = engine.capabilities, self.config.sampling.temperature
        self.ask(
            f"{name}: temperature",
            lambda: check_temperature(f"teacher {name}", able, temperature=temperature),
        )
        return ScoringTeacher(
            name=name,
            engine=engine,
            coef=self.how.coef if teacher.coef is None else teacher.coef,
            temperature=temperature,
            told=told,
        )

    @property
    def _dtype(self) -> Any:
        return self.policy.model.dtype

    def _audited(self, name: str, model: LoadedModel, *, template: str) -> TorchEngine:
        student, teacher = reader_of("the policy", self.policy.model), reader_of(f"teacher {name}", model)
        self.ask(f"{name}: ids", lambda: check_vocabulary(student, teacher))
        self.ask(f"{name}: context", lambda: check_context(teacher, longest=self.longest))
        if template == "same":
            self.ask(f"{name}: rendering", lambda: self._check_rendering(teacher, model))
        decoder = _over_ids_of(self.policy.model.decoder, model.decoder)
        self.weights[name] = _weights(model)
        if self.weights[name] == _weights(self.policy.model):
            self.same.append(name)
            self.notes.append(
                f"teacher {name} has the weights that the policy starts with: it says nothing until they part"
            )
        engine = TorchEngine(
            decoder,
            decode=self.policy.renderer.text,
            context_length=model.context_length,
            max_step_tokens=self.config.engine.max_step_tokens,
            cache_tokens=self.config.engine.cache_tokens,
        )
        self.engines.append(engine)
        self.decoders[name] = decoder
        return engine

    def _check_rendering(self, teacher: Reader, model: LoadedModel) -> str:
        mine = self.policy.renderer.prompt(self.task.messages)
        theirs = make_renderer(self.config.prompt, model, self.examples).prompt(self.task.messages)
        words = [self.policy.model.tokenizer.decode([token]) for token in mine.tolist()]
        return check_rendering(teacher, student_ids=mine, teacher_ids=theirs, words=words)


def _over_ids_of(student: Decoder, teacher: Decoder) -> Decoder:
    """Returns the teacher with the ids that it knows beyond the student's outside its law."""
    if teacher.vocab_size <= student.vocab_size:
        return teacher
    return Decoder(teacher.model, vocab_size=student.vocab_size)


def kinds_of(policy: Policy) -> TokenKinds:
    """Returns which ids that the policy samples are no text; added tokens of its tokenizer are none."""
    tokenizer, ends = policy.model.tokenizer, policy.renderer.stop_ids
    added: Mapping[str, int] = tokenizer.get_added_vocab()
    return TokenKinds(ends=ends, special=frozenset({*tokenizer.all_special_ids, *added.values()}) - ends)


def told_of(teacher: HindsightTeacher, renderer: Renderer) -> Callable[[Group, int], TokenIds | None]:
    """Returns what gives the prompt under which the policy judges its own rollout."""

    def told(group: Group, member: int) -> TokenIds | None:
        if teacher.source == "feedback":
            who = group.members[member]
            outcome = texts.outcome(who.verdict, who.finish, most=teacher.feedback_characters)
            return _under(group, texts.hindsight(outcome))
        solved = [it.text for index, it in enumerate(group.members) if index != member and it.verdict.passed]
        return _under(group, texts.solved_hindsight(solved[0])) if solved else None

    def _under(group: Group, hindsight: str) -> TokenIds:
        return renderer.prompt(group.task.messages, hindsight=hindsight)

    return told


def open_run(run: Path, *, device: str, dtype: Any) -> LoadedModel:
    """Returns the model of a run folder, of `train` or `sft`, with the weights of its latest checkpoint.

    Raises RunFolderError and ModelError in one line when there is none that can be read.
    """
    recipe = load_run_recipe(run / "recipe.yaml")
    model = open_model(recipe.model.model_copy(update={"device": device, "dtype": dtype}), seed=recipe.seed)
    found = load_latest(run / "checkpoints", skipped=lambda line: None)
    if found is None:
        raise ModelError(f"{run} has no complete checkpoint to teach from; train it first")
    _take_weights(model, found[1].state, run)
    return model


@torch.no_grad()
def _take_weights(model: LoadedModel, state: Mapping[str, Tensor], run: Path) -> None:
    for name, weight in model.decoder.model.named_parameters():
        if weight.requires_grad:
            master = state.get(f"master.{name}")
            if master is None or master.shape != weight.shape:
                raise ModelError(f"{run}: its checkpoint does not hold {name} of its own model")
            weight.copy_(master)


def reader_of(name: str, model: LoadedModel) -> Reader:
    """Returns what `model` takes ids for."""
    tokenizer = model.tokenizer
    return Reader(
        name=f"{name} ({model.source})",
        vocabulary=tokenizer.get_vocab(),
        special_ids=frozenset(tokenizer.all_special_ids),
        context_length=model.context_length,
    )


def _weights(model: LoadedModel) -> str:
    return weights_checksum(dict(model.decoder.model.named_parameters()))
