"""Problems from reasoning-gym, whose generators make as many as one wants and score them."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from typing import Any, cast

from turnpoint.errors import DataError
from turnpoint.tasks.rows import Row

# What generators raise for options that they cannot serve.
_REFUSALS = (AssertionError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def generator_rows(name: str, *, options: Mapping[str, Any], size: int, seed: int) -> Iterator[Row]:
    """Yields `size` problems of the generator `name`: question, answer, and its own record as `entry`.

    Raises DataError for a generator or option that does not exist (with the nearest names), for options
    that the generator refuses, and when reasoning-gym is not installed. Generators that give no gold
    answer yield null answers.
    """
    problems = _create(name, options=options, size=size, seed=seed)
    for index in range(size):
        try:
            problem = problems[index]
        except _REFUSALS as error:
            raise _refused(name, options, error) from error
        columns = {"question": problem["question"], "answer": problem["answer"], "entry": problem["metadata"]}
        yield Row(index=index, where=f"problem {index}", columns=columns)


def _create(name: str, *, options: Mapping[str, Any], size: int, seed: int) -> Any:
    try:
        from reasoning_gym import factory
    except ImportError as error:
        raise DataError(
            f"tasks.kind = reasoning_gym: {error}; install the extra: pip install 'turnpoint[quickstart]'"
        ) from error
    generators = cast("dict[str, tuple[Any, Any]]", cast(Any, factory).DATASETS)
    if name not in generators:
        near = difflib.get_close_matches(name, generators, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(sorted(generators))}"
        raise DataError(f"tasks.name = {name!r}: no reasoning-gym generator; {hint}")
    _check_options(name, options, [field.name for field in dataclasses.fields(generators[name][1])])
    try:
        return cast(Any, factory).create_dataset(name, **options, size=size, seed=seed)
    except _REFUSALS as error:
        raise _refused(name, options, error) from error


def _check_options(name: str, options: Mapping[str, Any], known: list[str]) -> None:
    own = [option for option in options if option in ("size", "seed")]
    if own:
        raise DataError(f"tasks.options.{own[0]}: write it as tasks.{own[0]}")
    unknown = [option for option in options if option not in known]
    if unknown:
        names = ", ".join(option for option in known if option not in ("size", "seed"))
        raise DataError(f"tasks.options.{unknown[0]}: {name} has no such option; it has {names or 'none'}")


def _refused(name: str, options: Mapping[str, Any], error: Exception) -> DataError:
    said = " ".join(str(error).split()) or type(error).__name__
    return DataError(f"tasks.options = {dict(options)!r}: {name} refuses them: {said}")
