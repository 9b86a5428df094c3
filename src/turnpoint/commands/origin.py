"""What a run began with, and must go on with: its problems, the weights of its model, its recipe."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from turnpoint._lines import described
from turnpoint.config import (
    EngineDraftConfig,
    FunctionVerifierConfig,
    ModelConfig,
    Recipe,
    RunConfig,
    SavedAdapter,
    SftConfig,
    VerifierConfig,
)
from turnpoint.errors import ModelError, RecipeError, RunFolderError
from turnpoint.models.loading import LoadedModel
from turnpoint.models.mtp_folder import WEIGHTS
from turnpoint.reports.run_log import RunFolder
from turnpoint.tasks import Fingerprint
from turnpoint.teachers.probe import Probe
from turnpoint.verifiers.function import source_file

R = TypeVar("R", bound=Recipe)

_WEIGHTS = (".safetensors", ".bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What is written when a run begins."""

    model: str  # checksum of the files of its weights, those of an adapter included
    recipe: Mapping[str, Any]  # JSON
    problems: Mapping[str, Fingerprint]  # by what they are for, in words
    judge: str  # checksum of the file of a function that rewards; empty for judges of ours
    # by name: checksums of their weights, or of those behind servers what they said
    teachers: Mapping[str, str | Probe] = field(default_factory=dict[str, "str | Probe"])
    draft: str = ""  # checksum of the weights of draft heads; empty without

    @staticmethod
    def of(
        config: RunConfig | SftConfig,
        model: LoadedModel,
        problems: Mapping[str, Fingerprint],
        teachers: Mapping[str, str | Probe],
    ) -> Origin:
        """Returns the origin of a run of `config` whose model was loaded just now."""
        return Origin(
            model=model_checksum(config.model, model),
            recipe=config.model_dump(mode="json"),
            problems=problems,
            judge=judge_checksum(config.verifier) if isinstance(config, RunConfig) else "",
            teachers=teachers,
            draft=heads_checksum(config.engine.draft) if isinstance(config, RunConfig) else "",
        )

    def write(self, folder: RunFolder) -> None:
        """Writes it to `folder`."""
        folder.write_origin(_ORIGIN.dump_python(self, mode="json"))

    @staticmethod
    def read(folder: RunFolder) -> Origin:
        """Returns what `write` wrote; raises RunFolderError in one line when it is not that."""
        if not folder.origin.exists():
            raise RunFolderError(
                f"{folder.origin} is not there, and with it what the run began with; bring it back, or start "
                f"a new run"
            )
        try:
            return _ORIGIN.validate_python(folder.read_origin())
        except ValidationError as error:
            raise RunFolderError(
                f"{folder.origin}: not what turnpoint writes: {described(error)}; bring the file back, or "
                f"start a new run"
            ) from error


_ORIGIN = TypeAdapter(Origin)


def begun_with(folder: RunFolder, parse: Callable[[Mapping[str, Any]], R]) -> R:
    """Returns the recipe that the run in `folder` began with; recipe.yaml may have been edited since.

    Raises RunFolderError in one line when `parse` refuses what origin.json says.
    """
    try:
        return parse(Origin.read(folder).recipe)
    except RecipeError as error:
        raise RunFolderError(f"{folder.origin}: .recipe: {error}") from error


def changed_keys(then: Recipe, now: Recipe, *, free: Sequence[str]) -> list[str]:
    """Returns the dotted keys in which two recipes differ; raises RecipeError for one that is not `free`.

    A section in `free` stands for all its keys.
    """
    old, new = dict(_leaves(then.model_dump(mode="json"))), dict(_leaves(now.model_dump(mode="json")))
    changed = [key for key in {**new, **old} if old.get(key, ...) != new.get(key, ...)]
    for key in changed:
        if not any(key == one or key.startswith(f"{one}.") for one in free):
            raise RecipeError(
                f"{key}: a run that goes on keeps its recipe; only {', '.join(free)} can change. For another "
                f"recipe, start a new run"
            )
    return changed


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted key, value)."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(cast(Mapping[str, Any], value), f"{prefix}{name}.")
        else:
            yield prefix + name, value


def model_checksum(config: ModelConfig, model: LoadedModel) -> str:
    """Returns what the weights of a model are known by, wherever its files are; of one on disk as it was."""
    folders = [model.folder]
    if isinstance(config.adapter, SavedAdapter):
        folders.append(config.adapter.path)
    checksum = 0
    for path in (path for folder in folders for path in sorted(folder.iterdir())):
        if path.suffix not in _WEIGHTS:
            continue
        checksum = zlib.crc32(path.name.encode(), checksum)
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                checksum = zlib.crc32(block, checksum)
    return f"{checksum:08x}"


def judge_checksum(config: VerifierConfig) -> str:
    """Returns what a function that rewards is known by: the content of its file, not of what that imports."""
    file = source_file(config.path) if isinstance(config, FunctionVerifierConfig) else None
    return "" if file is None else f"{zlib.crc32(file.read_bytes()):08x}"


def heads_checksum(draft: EngineDraftConfig | None) -> str:
    """Returns what draft heads are known by, wherever their folder is; empty where nothing drafts."""
    return "" if draft is None else f"{zlib.crc32((draft.heads / WEIGHTS).read_bytes()):08x}"


def check_heads(then: Origin, now: Origin, *, run: Path) -> None:
    """Raises ModelError when draft heads are not those that `run` began with."""
    if now.draft != then.draft:
        raise ModelError(
            f"engine.draft.heads: these are not the heads that {run} began with (checksum {then.draft} then, "
            f"{now.draft} now); bring them back, or start a new run"
        )


def check_judge(then: Origin, now: Origin, *, run: Path) -> None:
    """Raises RecipeError when the function that rewards is not what it was when `run` began."""
    if now.judge != then.judge:
        raise RecipeError(
            f"verifier.path: the file of the reward function is not what it was when {run} began (checksum "
            f"{then.judge} then, {now.judge} now); bring it back, or start a new run"
        )


def check_teachers(then: Origin, now: Origin, *, run: Path) -> None:
    """Raises ModelError when a teacher does not hold the weights that it had when `run` began."""
    for name, mine in now.teachers.items():
        before = then.teachers.get(name, "unknown")
        if isinstance(mine, Probe) and isinstance(before, Probe):
            same, how = (
                mine.same_weights(before),
                f"mean |difference| {mine.gap(before):.3g} nats on a prompt",
            )
        else:
            same, how = mine == before, f"checksum {before} then, {mine} now"
        if not same:
            raise ModelError(
                f"teacher {name} does not hold the weights that it had when {run} began ({how}); bring them "
                f"back, or start a new run"
            )


def check_model(then: Origin, now: str, *, source: str, run: Path) -> None:
    """Raises ModelError when the model loaded from `source`, of checksum `now`, is not that of the run."""
    if now != then.model:
        raise ModelError(
            f"model {source} does not hold the weights that {run} began with (checksum {then.model} then, "
            f"{now} now); bring them back, or start a new run"
        )
