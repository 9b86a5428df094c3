"""From a recipe to teachers: opened, audited against the policy, and who has which."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from turnpoint.assemble import Policy, make_renderer, open_model
from turnpoint.branching import texts
from turnpoint.config import (
    DistillConfig,
    EmaTeacher,
    HindsightTeacher,
    HybridLoss,
    MixtureTeacher,
    ModelConfig,
    ModelTeacher,
    RunConfig,
    RunTeacher,
    SampledLoss,
    ServerTeacher,
    StartTeacher,
)
from turnpoint.diagnosis.teacher_memory import TeacherMemory, memory_of_model, memory_of_twin
from turnpoint.engine.engine import TorchEngine
from turnpoint.engine.weights import weights_checksum
from turnpoint.errors import ModelError, RecipeError
from turnpoint.learnt import open_run
from turnpoint.models.decoder import Decoder
from turnpoint.models.loading import LoadedModel
from turnpoint.models.twin import twin
from turnpoint.protocols import Engine, Renderer, Teacher
from turnpoint.served import open_server
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
from turnpoint.teachers.mixture import Mixture
from turnpoint.teachers.probe import Probe
from turnpoint.teachers.remembered import RememberedScores
from turnpoint.teachers.routing import Routing
from turnpoint.teachers.scoring import ScoringTeacher, Told
from turnpoint.teachers.server_engine import ServerEngine
from turnpoint.teachers.teaching import Teaching, Visit
from turnpoint.training.average import Average, Averages
from turnpoint.training.packing import together
from turnpoint.types import Group, Task, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Teachers of a run, and what there is to say about them."""

    teaching: Teaching
    weights: Mapping[str, str | Probe]  # checksums of teachers' own; what those behind servers say
    decoders: Mapping[str, Decoder]  # of teachers whose whole law is in this process
    averages: Averages  # of teachers that follow the policy
    memory: tuple[TeacherMemory, ...]  # of those in this process
    same: tuple[str, ...]  # those with the weights that the policy starts with
    notes: tuple[str, ...]
    remembered: RememberedScores | None  # what a branch rule asks, for a teacher to read
    rows: Callable[[Group], str]  # whose whole law is asked of a group; empty where none is

    def equals(self) -> dict[str, Teacher]:
        """Returns the teachers with the policy's weights, but for those that come for their turn alone."""
        teachers = self.teaching.teachers
        return {f"teacher {name}": teachers[name] for name in self.same if name in teachers}


async def open_teachers(
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

    `tasks`: those that are trained on; `longest`: tokens of the longest prompt with its rollout. Call it
    before a checkpoint is loaded: the start is what the policy holds now. Raises DataError for a task
    without a teacher, RecipeError for a loss over more ids than there are, and ModelError for a teacher that
    cannot be opened or does not read the policy's tokens as the policy does. `ask(what, look)` is called for
    every check of the latter; it may keep what `look` says or raises.
    """
    routing = Routing(names=how.chosen, key=how.key)
    routing.check(tasks)
    _check_likeliest(how, policy.model.decoder.vocab_size)
    hindsight = any(isinstance(teacher, HindsightTeacher) for teacher in how.teachers.values())
    shared = hindsight and config.rollout.branching is not None
    opening = _Opening(
        config=config,
        how=how,
        policy=policy,
        examples=examples,
        task=max(tasks, key=lambda task: len(task.messages)),  # templates part behind the first turn
        longest=longest,
        ask=ask,
        remembered=RememberedScores(engine=policy.engine) if shared else None,
    )
    for name in how.teachers:
        await opening.open(name)
    shares = {name: it.share for name, it in how.teachers.items() if it.share is not None}
    teaching = Teaching(
        teachers=opening.teachers,
        visits=opening.visits,
        mixtures=opening.mixtures,
        shares=shares,
        routing=routing,
        task=how.task,
        clip=how.loss.clip if isinstance(how.loss, SampledLoss) else None,
        kinds=kinds_of(policy),
        rest=opening.rest,
    )
    return Opened(
        teaching=teaching,
        weights=opening.weights,
        decoders=opening.decoders,
        averages=Averages(opening.averages),
        memory=tuple(opening.memory),
        same=tuple(opening.same),
        notes=tuple(opening.notes),
        remembered=opening.remembered,
        rows=together if isinstance(how.loss, SampledLoss) else lambda group: routing.of(group.task),
    )


def _check_likeliest(how: DistillConfig, vocab_size: int) -> None:
    if isinstance(how.loss, HybridLoss) and how.loss.k > vocab_size:
        raise RecipeError(
            f"distill.loss.k = {how.loss.k}, and the policy has {vocab_size} ids; take a smaller k, or "
            f"distill.loss.kind = reverse_kl, which is exact on all of them"
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
    remembered: RememberedScores | None
    teachers: dict[str, Teacher] = field(default_factory=dict[str, Teacher])
    visits: dict[str, Visit] = field(default_factory=dict[str, Visit])
    mixtures: dict[str, Mixture] = field(default_factory=dict[str, Mixture])
    engines: list[TorchEngine | ServerEngine] = field(
        default_factory=list["TorchEngine | ServerEngine"]
    )  # around teachers' own weights
    decoders: dict[str, Decoder] = field(default_factory=dict[str, Decoder])
    averages: dict[str, Average] = field(default_factory=dict[str, Average])
    weights: dict[str, str | Probe] = field(default_factory=dict[str, "str | Probe"])
    memory: list[TeacherMemory] = field(default_factory=list[TeacherMemory])
    same: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    def rest(self) -> None:
        """Empties caches, so that a run that goes on from here rounds as one that never stopped."""
        for engine in self.engines:
            engine.forget()
        if self.remembered is not None:
            self.remembered.forget()
        if self.visits:
            gc.collect()

    async def open(self, name: str) -> None:
        teacher = self.how.teachers[name]
        match teacher:
            case ServerTeacher():
                await self._served(name, teacher)
            case HindsightTeacher():
                told = told_of(teacher, self.policy.renderer)
                self.teachers[name] = self._scoring(name, self.remembered or self.policy.engine, told)
            case MixtureTeacher(of=of, mean=mean):
                self.mixtures[name] = Mixture(of=of, mean=mean, coef=self._coef(name))
            case StartTeacher() | EmaTeacher():
                self._open_twin(name, teacher)
            case ModelTeacher() | RunTeacher():
                self._open_model(name, teacher)
        match self.teachers.get(name):
            case ScoringTeacher(engine=engine, temperature=temperature):
                able, who = engine.capabilities, f"teacher {name}"
                self.ask(
                    f"{name}: temperature", lambda: check_temperature(who, able, temperature=temperature)
                )
            case _:
                pass  # made of others, or an engine of ours once it is brought in

    def _open_twin(self, name: str, teacher: StartTeacher | EmaTeacher) -> None:
        decoder = twin(self.policy.model.decoder)
        if isinstance(teacher, EmaTeacher):
            self.averages[name] = Average(decoder, decay=teacher.decay)
        # packed weights would be a copy of all layers, of what an adapter leaves alone, too
        engine = self._engine(decoder, self.policy.model.context_length, pack=False)
        self._keep(name, decoder, engine)
        self.same.append(name)
        averaged = isinstance(teacher, EmaTeacher)
        self.memory.append(memory_of_twin(name, decoder, cached=self._cached(), averaged=averaged))

    def _open_model(self, name: str, teacher: ModelTeacher | RunTeacher) -> None:
        model = self._load(name, teacher)
        self._audit(name, model, template=teacher.template)
        visits = self.how.resident == "one"
        self.memory.append(memory_of_model(name, model.decoder, cached=self._cached(), visits=visits))
        if visits:
            self.visits[name] = self._visit(name, teacher)
        else:
            self._keep(name, model.decoder, self._engine(model.decoder, model.context_length))

    def _keep(self, name: str, decoder: Decoder, engine: TorchEngine) -> None:
        self.decoders[name] = decoder
        self.engines.append(engine)
        self.teachers[name] = self._scoring(name, engine)

    def _visit(self, name: str, teacher: ModelTeacher | RunTeacher) -> Visit:
        @asynccontextmanager
        async def visiting() -> AsyncGenerator[Teacher]:
            model = self._load(name, teacher)
            if (now := _weights(model)) != self.weights[name]:
                raise ModelError(
                    f"teacher {name} ({model.source}) no longer holds the weights that it had when the run "
                    f"was started (checksum {self.weights[name]} then, {now} now); bring them back and go on"
                )
            engine = self._engine(model.decoder, model.context_length)
            try:
                yield self._scoring(name, engine)
            finally:
                await engine.close()

        return visiting

    def _scoring(self, name: str, engine: Engine, told: Told | None = None) -> Teacher:
        temperature = self.config.sampling.temperature
        return ScoringTeacher(
            name=name, engine=engine, coef=self._coef(name), temperature=temperature, told=told
        )

    def _coef(self, name: str) -> float:
        own = self.how.teachers[name].coef
        return self.how.coef if own is None else own

    def _engine(self, decoder: Decoder, context_length: int, *, pack: bool = True) -> TorchEngine:
        return TorchEngine(
            decoder,
            decode=self.policy.renderer.text,
            context_length=context_length,
            max_step_tokens=self.config.engine.max_step_tokens,
            cache_tokens=self.config.engine.cache_tokens,
            pack=pack,
        )

    def _load(self, name: str, teacher: ModelTeacher | RunTeacher) -> LoadedModel:
        if self.how.resident == "one":
            gc.collect()  # the one before: a model and its parts know each other
        device, dtype = self.config.model.device, self._dtype
        try:
            if isinstance(teacher, RunTeacher):
                model = open_run(teacher.path, device=device, dtype=dtype)
            else:
                base = ModelConfig(path=teacher.path, device=device, dtype=dtype)
                model = open_model(base, seed=self.config.seed)
        except ModelError as error:
            raise ModelError(f"teacher {name} cannot be opened: {error}") from error
        return replace(model, decoder=_over_ids_of(self.policy.model.decoder, model.decoder))

    async def _served(self, name: str, teacher: ServerTeacher) -> None:
        served = await open_server(
            teacher,
            name=name,
            config=self.config,
            policy=self.policy,
            examples=self.examples,
            task=self.task,
            longest=self.longest,
        )
        self.weights[name] = served.probe
        self.notes.extend([served.note] if served.note else [])
        self.engines.append(served.engine)
        self.teachers[name] = self._scoring(name, served.engine)
        where = f"{served.probe.model} behind {teacher.url} reads ids and problems as the policy does"
        self.ask(f"{name}: server", lambda: where)

    @property
    def _dtype(self) -> Any:
        return self.policy.model.dtype

    def _audit(self, name: str, model: LoadedModel, *, template: str) -> None:
        student, teacher = reader_of("the policy", self.policy.model), reader_of(f"teacher {name}", model)
        self.ask(f"{name}: ids", lambda: check_vocabulary(student, teacher))
        self.ask(f"{name}: context", lambda: check_context(teacher, longest=self.longest))
        if template == "same":
            self.ask(f"{name}: rendering", lambda: self._check_rendering(teacher, model))
        self.weights[name] = _weights(model)
        if self.weights[name] == _weights(self.policy.model):
            self.same.append(name)
            self.notes.append(
                f"teacher {name} has the weights that the policy starts with: it says nothing until they part"
            )

    def _check_rendering(self, teacher: Reader, model: LoadedModel) -> str:
        mine = self.policy.renderer.prompt(self.task.messages)
        try:
            theirs = make_renderer(self.config.prompt, model, self.examples).prompt(self.task.messages)
        except ModelError as error:
            raise ModelError(
                f"{teacher.name} cannot render a problem of the run: {error}. Take one with the policy's "
                f"template, or let it judge another with template=any"
            ) from error
        words = [self.policy.model.tokenizer.decode([token]) for token in mine.tolist()]
        return check_rendering(teacher, student_ids=mine, teacher_ids=theirs, words=words)

    def _cached(self) -> int:
        """Returns how many tokens a step leaves at most in a prefix cache."""
        rollout = self.config.rollout
        scored = rollout.prompts_per_step * rollout.samples_per_prompt * self.longest
        return min(self.config.engine.cache_tokens, scored)


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
        who = group.members[member]
        if teacher.source == "branch":
            seen = who.insight
            heard = seen is not None and seen.hindsight and not seen.set_aside
            return _under(group, seen.hindsight) if seen is not None and heard else None
        if teacher.source == "feedback":
            outcome = texts.outcome(who.verdict, who.finish, most=teacher.feedback_characters)
            return _under(group, texts.hindsight(outcome))
        solved = [it.text for index, it in enumerate(group.members) if index != member and it.verdict.passed]
        return _under(group, texts.solved_hindsight(solved[0])) if solved else None

    def _under(group: Group, hindsight: str) -> TokenIds:
        return renderer.prompt(group.task.messages, hindsight=hindsight)

    return told


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
