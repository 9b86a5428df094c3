"""A folder appears whole or not at all, whoever else is writing it."""

import os
from pathlib import Path

import pytest

from turnpoint.models.folders import cache_folder, staged


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_the_folder_appears_when_the_work_is_done(tmp_path: Path) -> None:
    final = tmp_path / "deep" / "final"
    with staged(final, replace=False) as new:
        (new / "inner").mkdir()
        (new / "inner" / "a").write_text("1")
        assert not final.exists()
    assert names(final.parent) == ["final"]
    assert (final / "inner" / "a").read_text() == "1"
    assert final.stat().st_mode & 0o077 == (0o777 & ~_umask()) & 0o077  # not the scratch folder's 0700


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("replace", [True, False])
def test_an_error_leaves_what_was_there(tmp_path: Path, replace: bool) -> None:
    final = tmp_path / "final"
    final.mkdir()
    (final / "old").touch()

    def fails() -> None:
        with staged(final, replace=replace) as new:
            (new / "half").touch()
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert names(tmp_path) == ["final"]
    assert names(final) == ["old"]


@pytest.mark.parametrize(("replace", "stays"), [(True, "second"), (False, "first")])
def test_of_two_that_do_the_same_work_one_stays_whole(tmp_path: Path, replace: bool, stays: str) -> None:
    final = tmp_path / "final"
    with staged(final, replace=replace) as second:
        (second / "second").touch()
        with staged(final, replace=replace) as first:
            (first / "first").touch()
    assert names(final) == [stays]
    assert names(tmp_path) == ["final"]


def test_half_a_folder_of_a_killed_process_is_not_mistaken_for_the_whole(tmp_path: Path) -> None:
    (tmp_path / ".final.abc" / "new").mkdir(parents=True)
    with staged(tmp_path / "final", replace=False) as new:
        (new / "a").touch()
    assert names(tmp_path / "final") == ["a"]


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "final").touch()
    with pytest.raises(OSError, match="final"), staged(tmp_path / "final", replace=False):
        pass


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNPOINT_CACHE", "~/elsewhere")
    assert cache_folder() == Path.home() / "elsewhere"
    monkeypatch.delenv("TURNPOINT_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "turnpoint"
