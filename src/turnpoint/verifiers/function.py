"""A Python function of yours as the judge."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from turnpoint.errors import RecipeError, VerifierError
from turnpoint.types import Task, Verdict
from turnpoint.verifiers._user_function import task_to_json
from turnpoint.verifiers.workers import Reply, Status, WorkerPool, WorkerSettings


class FunctionVerifier:
    """Rewards a completion with what `path` returns: `file.py:function` or `package.module:function`.

    The function takes (completion: str, task: turnpoint.types.Task) and returns a number, or a pair
    (number, feedback text). True and False count as 1 and 0. Anything else (None, NaN, infinity, text), a
    number beyond 1e9 either way, an exception, and a call over `timeout` seconds give an invalid verdict
    with the reason, never a reward.

    It runs in worker processes that are killed when they hang or need more than `memory_bytes`, so it keeps
    no state that matters and sees no tensors. It runs with your files and network: this is no sandbox.
    Raises RecipeError in one line when there is no such file or function or it cannot be imported.
    """

    def __init__(
        self, path: str, *, timeout: float = 10.0, workers: int = 2, memory_bytes: int = 4 << 30
    ) -> None:
        check_path(path)
        self._path = path
        settings = WorkerSettings(
            factory="turnpoint.verifiers._user_function:load",
            arguments=[path],
            timeout=timeout,
            memory_bytes=memory_bytes,
        )
        self._pool = WorkerPool(settings, workers=workers)
        try:
            self._pool.wait_until_ready()
        except VerifierError as error:
            self._pool.close()
            raise RecipeError(f"verifier {path}: {error}") from error

    def grade(self, *, task: Task, completion: str) -> Verdict:
        """Returns the function's verdict; safe from any thread. Raises VerifierError without workers."""
        return _conclude(self._path, self._pool.call(completion, task_to_json(task)))

    async def verify(self, task: Task, completion: str) -> Verdict:
        """Returns the function's verdict, as `grade` does."""
        return _conclude(self._path, await self._pool.call_async(completion, task_to_json(task)))

    async def self_check(self, task: Task) -> Verdict:
        """Returns valid when the function gives a reward for the reference answer, whichever it is.

        What your function should say of a right or a wrong answer is not known here.
        """
        return await self.verify(task, task.answer)

    def close(self) -> None:
        """Ends the workers."""
        self._pool.close()

    def __enter__(self) -> FunctionVerifier:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def source_file(path: str) -> Path | None:
    """Returns the file that holds the function at `path`; None for a module that is no plain file.

    Nothing is imported: a module is looked for from the working folder, as the workers do last.
    """
    where = path.rpartition(":")[0]
    if where.endswith(".py"):
        return Path(where)
    inside = Path(*where.split("."))
    found = (inside.with_suffix(".py"), inside / "__init__.py")
    return next((file for file in found if file.is_file()), None)


def check_path(path: str) -> None:
    """Raises RecipeError unless `path` names a function in a file that is there, or in a module."""
    where, colon, name = path.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise RecipeError(f"verifier {path!r}: expected file.py:function or package.module:function")
    if where.endswith(".py"):
        if not Path(where).is_file():
            raise RecipeError(f"verifier {path}: there is no file {where}")
    elif not all(part.isidentifier() for part in where.split(".")):
        raise RecipeError(f"verifier {path}: {where} is neither a .py file nor a module name")


def _conclude(path: str, reply: Reply) -> Verdict:
    if reply.status is not Status.DONE:
        return Verdict.invalid(f"{path} {reply.reason}")
    reward, feedback, problem = cast("tuple[float | None, str, str]", reply.value)
    if reward is None:
        return Verdict.invalid(f"{path} {problem}")
    return Verdict.scored(reward, reason=path, feedback=feedback)
