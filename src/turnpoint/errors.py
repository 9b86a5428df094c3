"""The errors of turnpoint, each named after the boundary that failed.

    TurnpointError
    |-- UserError                what the user gave cannot be used; the command exits with status 2
    |   |-- RecipeError          a recipe key, value or override
    |   |-- DataError            a dataset, a row, a column, a prompt
    |   |-- ModelError           a model folder or name, an architecture, a tokenizer
    |   `-- RunFolderError       a run folder that cannot be written or read
    |-- EngineError              generating or scoring failed
    |-- WeightSyncError          new weights did not reach the engine
    |-- VerifierError            a verifier broke (not: judged an answer wrong)
    |   `-- SandboxError         the sandbox broke (not: a program misbehaved in it)
    |-- EnvironmentFailure       an environment broke (not: ended an episode)
    `-- TrainingError            a forward, backward or optimiser step cannot be trusted

A bad rollout is data: it becomes an invalid `Verdict` with a reason, is counted, and raises nothing.
Everything here propagates. Messages are one line: the value, what is wrong with it, the way out.
"""


class TurnpointError(Exception):
    """Any failure that turnpoint recognises; the command prints it as one line, never a traceback."""

    exit_status = 1


class UserError(TurnpointError):
    """What the user gave cannot be used."""

    exit_status = 2


class RecipeError(UserError):
    """A recipe key, value or override cannot be used."""


class DataError(UserError):
    """A dataset, row, column or prompt cannot be used."""


class ModelError(UserError):
    """A model folder or name, an architecture or a tokenizer cannot be used."""


class RunFolderError(UserError):
    """A run folder cannot be written or read."""


class EngineError(TurnpointError):
    """Generating or scoring failed."""


class WeightSyncError(TurnpointError):
    """New weights did not reach the engine."""


class VerifierError(TurnpointError):
    """A verifier broke; an answer that is merely wrong is a `Verdict`."""


class SandboxError(VerifierError):
    """The sandbox broke; a program that merely misbehaves is a `Run`."""


class EnvironmentFailure(TurnpointError):
    """An environment broke; an episode that merely ended is a `Verdict`."""


class TrainingError(TurnpointError):
    """A forward, backward or optimiser step cannot be trusted."""
