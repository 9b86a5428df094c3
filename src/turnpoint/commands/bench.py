"""`turnpoint bench`: what this machine reaches with a model at given lengths, and what it could reach."""

from __future__ import annotations

import json
import statistics
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from turnpoint.assemble import load_problems, make_renderer, open_model, sampling_workers, workers_of
from turnpoint.config import EngineConfig, ModelConfig, RunConfig, TrainingConfig
from turnpoint.diagnosis.room import room_of
from turnpoint.diagnosis.rows import Shape
from turnpoint.errors import UserError
from turnpoint.models.loading import LoadedModel
from turnpoint.reports.terminal import Terminal
from turnpoint.speed.figures import Report
from turnpoint.speed.machine import machine_facts
from turnpoint.speed.measuring import Subject, measure
from turnpoint.speed.words import report_lines

_USUAL = Shape(prompts=8, samples=16, prompt_tokens=256, new_tokens=256)
_LONG_RUN = 10**7  # tokens: what a run samples that is worth measuring for
_TRACE = b'"schemaVersion"'  # with which one begins
_PROMPTS_READ = 256  # of a recipe, for the median of their lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What was asked for beside the recipe; None: as the recipe has it, or 8 x 16 and 256 tokens each."""

    prompts: int | None = None
    samples: int | None = None
    prompt_tokens: int | None = None
    new_tokens: int | None = None


def bench(
    source: RunConfig | str,
    sizes: Sizes | None = None,
    *,
    threads: int | None = None,
    workers: int | None = None,
    rounds: int = 3,
    seconds: float = 10.0,
    profile: Path | None = None,
    as_json: bool = False,
) -> Report:
    """Measures a recipe's model and lengths, or a model by name or folder; shows and returns what was found.

    `threads`: of torch; None leaves them as they are. `workers`: processes that sample; None as the recipe
    says, or as `EngineConfig.workers` chooses for a long run. `seconds`: about what each kind of work may
    take, all `rounds` together; of what takes longer a part is measured, and the table says so. `profile`:
    where a trace of a few decode steps goes, for chrome://tracing. `as_json`: one JSON object, no table.
    Tokens are random and no update is applied. Raises UserError before anything is measured for lengths
    beyond the context, batches beyond memory and a trace that cannot be written, and ModelError as
    `load_model` does.
    """
    terminal = Terminal(Console(stderr=True)) if as_json else Terminal()
    if profile is not None:
        _check_trace(profile)
    with _threads(threads):
        with terminal.phase("loading the model"):
            loaded = _load(source, sizes or Sizes())
        device = loaded.model.decoder.device
        subject = Subject(
            model=loaded.model,
            shape=loaded.shape,
            engine=loaded.engine,
            workers=loaded.workers if workers is None else _asked(workers),
            training=loaded.training,
            temperature=loaded.temperature,
            rounds=rounds,
            seconds=seconds,
            machine=machine_facts(device=device, dtype=loaded.model.dtype),
            room=room_of(device),
            profile=profile,
            terminal=terminal,
        )
        report = measure(subject)
    if as_json:
        print(json.dumps(report.as_json()))
    else:
        terminal.texts(report_lines(report))
    return report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    model: LoadedModel
    shape: Shape
    engine: EngineConfig
    workers: int
    training: TrainingConfig
    temperature: float


def _load(source: RunConfig | str, sizes: Sizes) -> _Loaded:
    if isinstance(source, RunConfig):
        model = open_model(source.model, seed=source.seed)
        usual = Shape(
            prompts=source.rollout.prompts_per_step,
            samples=source.rollout.samples_per_prompt,
            prompt_tokens=sizes.prompt_tokens or _median_prompt(source, model),
            new_tokens=source.sampling.max_new_tokens,
        )
        return _Loaded(
            model=model,
            shape=_shape(sizes, usual),
            engine=source.engine,
            workers=sampling_workers(source, model, tokens=source.sampled_tokens),
            training=source.training,
            temperature=source.sampling.temperature,
        )
    shape = _shape(sizes, _USUAL)
    usual_engine = EngineConfig()
    model = open_model(ModelConfig(path=source), seed=0)
    cached = shape.prompts * shape.prompt_tokens  # the batch finds all of its prompts
    return _Loaded(
        model=model,
        shape=shape,
        engine=EngineConfig(
            max_running=shape.prompts * shape.samples,
            cache_tokens=max(usual_engine.cache_tokens, cached),
        ),
        workers=workers_of(usual_engine, model, tokens=_LONG_RUN),
        training=TrainingConfig(),
        temperature=1.0,
    )


def _asked(workers: int) -> int:
    """Returns `workers`; raises UserError for more than there are threads."""
    if workers > (threads := torch.get_num_threads()):
        raise UserError(f"--workers {workers}: torch has {threads} of the threads that they divide")
    return workers


def _shape(sizes: Sizes, usual: Shape) -> Shape:
    return Shape(
        prompts=sizes.prompts or usual.prompts,
        samples=sizes.samples or usual.samples,
        prompt_tokens=sizes.prompt_tokens or usual.prompt_tokens,
        new_tokens=sizes.new_tokens or usual.new_tokens,
    )


def _median_prompt(config: RunConfig, model: LoadedModel) -> int:
    """Returns the median length of the recipe's prompts, tokens."""
    problems = load_problems(config)
    renderer = make_renderer(config.prompt, model, problems.examples)
    tasks = problems.train.tasks[:_PROMPTS_READ]
    return round(statistics.median(len(renderer.prompt(task.messages)) for task in tasks))


def _check_trace(path: Path) -> None:
    """Raises UserError for a trace that could not be written in the end, or would replace something else."""
    try:
        if path.exists():
            if not path.is_file() or _TRACE not in path.read_bytes()[:1000]:
                raise UserError(f"--profile {path}: it exists and is no trace; choose another place")
        else:
            path.touch()
            path.unlink()
    except (OSError, ValueError) as error:  # ValueError: a path that no file can have
        raise UserError(f"--profile {path!s}: {error}") from error


@contextmanager
def _threads(count: int | None) -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
