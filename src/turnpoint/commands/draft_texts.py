"""Texts for draft heads: the rollouts of runs, or a file of texts, as ids of one model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from turnpoint.config import DraftConfig, JsonlTexts, RunConfig, RunTexts, load_run_recipe
from turnpoint.drafting.texts import DraftText, drafts_of, group_texts
from turnpoint.errors import DataError, RecipeError, RunFolderError
from turnpoint.models.demonstration import UnusableSolution
from turnpoint.models.loading import LoadedModel
from turnpoint.models.renderer import ChatRenderer
from turnpoint.models.template import encode
from turnpoint.reports.text import number, plural
from turnpoint.rollout.recorder import read_groups
from turnpoint.types import Message, token_array


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """What was read."""

    texts: tuple[DraftText, ...]
    temperature: float  # of the policy's law
    notes: tuple[str, ...]  # what was read and what left out, in sentences


def read_texts(config: DraftConfig, model: LoadedModel) -> Texts:
    """Returns the texts of `config` as ids of `model`.

    Raises UserError in one line for what cannot be read, runs that sampled at different temperatures, ids
    that the model has not got, and when no text reaches `config.depth`.
    """
    temperature = _temperature(config)
    texts, notes = list[DraftText](), list[str]()
    for source in config.data:
        match source:
            case RunTexts():
                found = run_texts(source.path, limit=source.limit)
            case JsonlTexts():
                found = _jsonl_texts(source, model)
        fitting = [it for it in found if len(it) <= model.context_length]
        if dropped := len(found) - len(fitting):
            notes.append(
                f"{plural(dropped, 'text')} of {source.path} left out: longer than the context of "
                f"{number(model.context_length)} tokens"
            )
        usable = [it for it in fitting if drafts_of(it)]
        if dropped := len(fitting) - len(usable):
            notes.append(f"{plural(dropped, 'text')} of {source.path} left out: too short to draft in")
        notes.append(f"{source.path}: {plural(len(usable), 'text')}, {_tokens(usable)}")
        texts += usable
    check_ids(texts, model)
    check_depth(texts, config.depth)
    return Texts(texts=tuple(texts), temperature=temperature, notes=tuple(notes))


def _tokens(texts: Sequence[DraftText]) -> str:
    return f"{number(sum(int(it.sampled.sum()) for it in texts))} sampled tokens"


def run_texts(run: Path, *, limit: int | None = None) -> list[DraftText]:
    """Returns the rollouts of a run, the latest `limit` of them; raises RunFolderError when it has none."""
    rollouts = run / "rollouts.jsonl"
    if not rollouts.is_file():
        raise RunFolderError(
            f"{run} has no rollouts.jsonl to learn drafts from; give the folder of a run of turnpoint train"
        )
    texts = [text for group in read_groups(rollouts) for text in group_texts(group)]
    if not texts:
        raise RunFolderError(f"{rollouts} holds no rollouts yet; run some steps of turnpoint train first")
    return texts[-limit:] if limit is not None else texts


def run_temperature(run: Path) -> float:
    """Returns at which temperature a run of `turnpoint train` sampled; raises RecipeError as reading does."""
    config = load_run_recipe(run / "recipe.yaml")
    if not isinstance(config, RunConfig):
        raise RunFolderError(f"{run} is a run of turnpoint sft, which samples nothing; give one of train")
    return config.sampling.temperature


def _temperature(config: DraftConfig) -> float:
    runs = {str(it.path): run_temperature(it.path) for it in config.data if isinstance(it, RunTexts)}
    known = sorted(set(runs.values()))
    pathwise = config.loss == "pathwise_tv" or (
        config.first is not None and config.first.loss == "pathwise_tv"
    )
    if pathwise and config.temperature is not None and known != [config.temperature]:
        raise RecipeError(
            f"loss = pathwise_tv at temperature = {config.temperature:g} on texts sampled at "
            f"{', '.join(f'{it:g}' for it in known)}: it needs the law that sampled them; take "
            f"temperature=null, or loss=end_to_end_tv"
        )
    if config.temperature is not None:
        return config.temperature
    if len(known) > 1:
        raise RecipeError(
            f"the runs in data sampled at temperatures {', '.join(f'{it:g}' for it in known)}; say by "
            f"temperature=T at which the heads are to draft"
        )
    return known[0] if known else 1.0


def check_ids(texts: Sequence[DraftText], model: LoadedModel) -> None:
    """Raises DataError for a token id that `model` has not got: the texts are another model's."""
    for text in texts:
        if (most := int(text.token_ids.max())) >= model.decoder.vocab_size:
            raise DataError(
                f"a text holds token id {most}, and {model.source} knows {model.decoder.vocab_size} ids; "
                f"the texts are another model's"
            )


def check_depth(texts: Sequence[DraftText], depth: int) -> None:
    """Raises DataError when no text has a chain as deep as `depth`."""
    longest = max((_longest(it) for it in texts), default=0)
    if longest < depth + 1:
        raise DataError(
            f"depth = {depth} takes {depth + 1} sampled tokens in a row, and the longest of "
            f"{plural(len(texts), 'text')} has {longest}; lower depth or bring longer texts"
        )


def _longest(text: DraftText) -> int:
    ends = np.flatnonzero(np.diff(np.concatenate([[0], text.sampled.astype(np.int8), [0]])))
    return int((ends[1::2] - ends[0::2]).max(initial=0))


# --- files ----------------------------------------------------------------------------------------


def _jsonl_texts(source: JsonlTexts, model: LoadedModel) -> list[DraftText]:
    renderer = ChatRenderer(model.tokenizer, thinking=False, system=None, suffix="", stop_ids=model.stop_ids)
    texts: list[DraftText] = []
    try:
        with source.path.open(encoding="utf-8-sig") as file:
            for line_number, line in enumerate(file, start=1):
                if source.limit is not None and len(texts) >= source.limit:
                    break
                if line.strip():
                    where = f"{source.path}, line {line_number}"
                    texts.append(_text(line, renderer, model, where))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{source.path}: cannot be read: {error}") from error
    if not texts:
        raise DataError(f"{source.path} holds no texts")
    return texts


def _text(line: str, renderer: ChatRenderer, model: LoadedModel, where: str) -> DraftText:
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where} is not JSON: {error}") from error
    match row:
        case {"messages": [*turns, {"role": "assistant", "content": str(reply)}]}:
            return _reply(turns, reply, renderer, where)
        case {"text": str(words)} if words:
            ids = token_array(encode(model.tokenizer, words))
            return DraftText(token_ids=ids, sampled=np.ones(len(ids), dtype=np.bool_))
        case _:
            raise DataError(
                f"{where} has neither text nor messages that end with the assistant's: {line.strip()[:60]!r}"
            )


def _reply(turns: Sequence[Any], reply: str, renderer: ChatRenderer, where: str) -> DraftText:
    messages: list[Message] = []
    for turn in turns:
        match turn:
            case {"role": str(role), "content": str(content)}:
                messages.append(Message(role=role, content=content))
            case _:
                raise DataError(f"{where}: a message needs role and content, both text")
    try:
        shown = renderer.demonstrate(messages, reply)
    except UnusableSolution as error:
        raise DataError(f"{where}: {error}") from error
    ids = token_array(np.concatenate([shown.prompt_ids, shown.token_ids]))
    return DraftText(token_ids=ids, sampled=np.arange(len(ids)) >= len(shown.prompt_ids))
