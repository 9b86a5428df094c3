"""Loads a user's reward function inside a worker and turns what it returns into a fixed reply."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, cast

from turnpoint.types import Json, Message, Task

_LARGEST = 1e9  # beyond it, gradients and their squares leave float32


def task_to_json(task: Task) -> Json:
    """Returns `task` as JSON, for `task_from_json` in the worker."""
    return {
        "id": task.id,
        "messages": [{"role": message.role, "content": message.content} for message in task.messages],
        "answer": task.answer,
        "metadata": dict(task.metadata),
    }


def task_from_json(tree: Mapping[str, Any]) -> Task:
    """Returns the task that `task_to_json` wrote."""
    messages = tuple(
        Message(role=message["role"], content=message["content"]) for message in tree["messages"]
    )
    return Task(id=tree["id"], messages=messages, answer=tree["answer"], metadata=tree["metadata"])


def load(path: str) -> Callable[[str, Mapping[str, Any]], Json]:
    """Returns the function at `path`: (completion, task as JSON) -> [reward, feedback, problem]."""
    function = find(path)

    def call(completion: str, task: Mapping[str, Any]) -> Json:
        return _reply(function(completion, task_from_json(task)))

    return call


def load_checker(path: str) -> Callable[[Json, Json, Json], Json]:
    """Returns the function at `path`: (input, expected, got) -> True or False, or null for anything else."""
    function = find(path)

    def call(given: Json, expected: Json, got: Json) -> Json:
        answer = function(given, expected, got)
        return answer if isinstance(answer, bool) else None

    return call


def find(path: str) -> Callable[..., Any]:
    """Returns the function at `path`, imported.

    A file's own folder, or the working folder for a module, is where its imports are found too.
    """
    where, _, name = path.rpartition(":")
    if where.endswith(".py"):
        sys.path.append(str(Path(where).resolve().parent))
        spec = importlib.util.spec_from_file_location(Path(where).stem, where)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses and pickle look their module up
        spec.loader.exec_module(module)
    else:
        sys.path.append(os.getcwd())
        module = importlib.import_module(where)
    if not callable(function := getattr(module, name, None)):
        raise AttributeError(f"{where} has no function {name}")
    return function


def _reply(returned: object) -> Json:
    """Returns [reward, feedback, ""] or, for what is no reward, [None, "", problem]."""
    pair = cast("tuple[Any, ...]", returned) if isinstance(returned, tuple) else (returned, "")
    reward, feedback = pair if len(pair) == 2 else (None, "")
    if not isinstance(reward, Real) or not math.isfinite(reward) or not isinstance(feedback, str):
        return [None, "", f"returned {returned!r:.200}, which is no finite number"]
    if abs(float(reward)) > _LARGEST:
        return [None, "", f"returned {returned!r:.200}, beyond the {_LARGEST:g} that a reward may be"]
    return [float(reward), feedback, ""]
