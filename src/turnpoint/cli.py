"""The command `turnpoint`: thin, so that everything it does can be done from Python too.

What the user got wrong ends in one line on standard error and status 2; what broke, in one line and status 1.
Heavy libraries load only when a command runs.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from turnpoint.errors import TurnpointError

app = typer.Typer(
    name="turnpoint",
    help="RL post-training of language models with verifiable rewards.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the recipe, for example training.steps=20."),
]


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe in YAML.")], overrides: _Overrides = None
) -> None:
    """Trains a model as a recipe says; Ctrl-C saves."""
    from turnpoint.commands.train import train as run_training
    from turnpoint.config import load_recipe

    run_training(load_recipe(recipe, overrides or ()))


@app.command()
def sft(
    recipe: Annotated[Path, typer.Argument(help="A recipe of supervised fine-tuning in YAML.")],
    overrides: _Overrides = None,
) -> None:
    """Trains a model on solutions, as a cold start; Ctrl-C saves."""
    from turnpoint.commands.sft import sft as run_sft
    from turnpoint.config import load_sft_recipe

    run_sft(load_sft_recipe(recipe, overrides or ()))


@app.command("eval")
def evaluate(
    source: Annotated[Path, typer.Argument(help="A recipe, or a run folder for its latest checkpoint.")],
    overrides: _Overrides = None,
) -> None:
    """Answers held-out problems greedily and by sampling, and says what the figures can bear."""
    from turnpoint.commands.evaluate import evaluate as run_evaluation

    run_evaluation(source, overrides or ())


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    folder: Annotated[Path, typer.Argument(help="Where the model goes.")],
) -> None:
    """Writes the trained model of a run as a normal Hugging Face folder."""
    from turnpoint.commands.export import export as run_export

    run_export(run, folder)


def main() -> None:
    """Runs the command; the entry point of the package. SIGTERM and SIGHUP save as Ctrl-C does."""
    for polite in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(polite) is signal.SIG_DFL:  # nohup ignores SIGHUP, and so do we then
            signal.signal(polite, _interrupt)
    try:
        status: object = app(standalone_mode=False)  # 130 after Ctrl-C, None after a command
    except TurnpointError as error:
        _complain(str(error), error.exit_status)
    except typer.TyperException as error:  # a command line that cannot be read
        _complain(f"{error.format_message().rstrip('.')}; see turnpoint --help", error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:  # a reader such as `head` has gone; say nothing more, also at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:  # standard output on a full disk, above all
        _complain(str(error), 1)
    sys.exit(status if isinstance(status, int) else 0)


def _interrupt(*_: object) -> None:
    signal.raise_signal(signal.SIGINT)


def _complain(message: str, status: int) -> NoReturn:
    line = f"turnpoint: {' '.join(message.split())}"
    print(line.encode(errors="replace").decode(), file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
