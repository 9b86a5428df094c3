"""What a run began with, and must go on with: its problems, the weights of its model, its recipe."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from turnpoint.config import ModelConfig, SavedAdapter
from turnpoint.errors import ModelError, RunFolderError
from turnpoint.models.loading import LoadedModel
from turnpoint.reports.run_log import RunFolder
from turnpoint.tasks import Fingerprints

_WEIGHTS = (".safetensors", ".bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What is written when a run begins."""

    model: str  # checksum of the files of its weights, those of an adapter included
    recipe: Mapping[str, Any]  # JSON
    problems: Fingerprints | None = None  # None: a run of `sft`, which cannot go on

    def write(self, folder: RunFolder) -> None:
        """Writes it to `folder`."""
        folder.write_origin(_ORIGIN.dump_python(self, mode="json"))

    @staticmethod
    def read(folder: RunFolder) -> Origin:
        """Returns what `write` wrote; raises RunFolderError in one line when it is not that."""
        try:
            return _ORIGIN.validate_python(folder.read_origin())
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise RunFolderError(
                f"{folder.origin}: not what turnpoint writes: {where}: {first['msg']}; bring the file back, "
                f"or start a new run"
            ) from error


_ORIGIN = TypeAdapter(Origin)


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


def check_model(then: Origin, now: str, *, source: str, run: Path) -> None:
    """Raises ModelError when the model loaded from `source`, of checksum `now`, is not that of the run."""
    if now != then.model:
        raise ModelError(
            f"model {source} does not hold the weights that {run} began with (checksum {then.model} then, "
            f"{now} now); bring them back, or start a new run"
        )
