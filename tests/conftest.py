"""What many tests need; shapes in jaxtyping annotations are checked while tests run, and only then."""

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach a hub
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of several processes would wait for each other

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

from tests import shapes

install_import_hook("turnpoint", f"{shapes.__name__}.check")

settings.register_profile("turnpoint", deadline=None)  # a busy machine is no failure
settings.load_profile("turnpoint")

# Behind the hook, since these import turnpoint.
from tests.recipe import write_tiny_recipe  # noqa: E402
from tests.tiny import save_tiny_model  # noqa: E402
from tests.typed import Answer, Command  # noqa: E402


@pytest.fixture
def turnpoint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command as a user types it, in this process."""
    from turnpoint import cli

    def run(*arguments: str | Path) -> Answer:
        monkeypatch.setattr(sys, "argv", ["turnpoint", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return Answer(status=int(end.value.code or 0), out=said.out, err=said.err)

    return run


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest model, as a Hugging Face folder."""
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def recipe(tmp_path: Path, tiny_folder: Path) -> Path:
    """A recipe that the smallest model runs in seconds."""
    return write_tiny_recipe(tmp_path / "recipe.yaml", model=tiny_folder)
