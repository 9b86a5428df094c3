"""What README.md shows runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.recipe import write_tiny_recipe
from tests.tiny import save_tiny_model

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
RUN, PARTS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_run_in_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipes").mkdir()
    write_tiny_recipe(tmp_path / "recipes" / "demo.yaml", model=save_tiny_model(tmp_path / "model"))
    monkeypatch.chdir(tmp_path)
    exec(RUN, {})
    assert capsys.readouterr().out.splitlines()[-1].startswith(str(tmp_path / "recipes" / "runs" / "tiny"))


def test_the_parts_in_the_readme() -> None:
    scope: dict[str, Any] = {}
    exec(PARTS, scope)
    # REINFORCE at ratio 1: minus the advantage over the denominator, +-2/3 with the leave-one-out baseline
    expected = [-2 / 36] * 3 + [2 / 36] * 6 + [-2 / 36] * 3
    assert scope["logprobs"].grad.tolist() == pytest.approx(expected)
