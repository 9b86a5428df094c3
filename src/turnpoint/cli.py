"""The command `turnpoint`: thin, so that everything it does can be done from Python too.

What the user got wrong ends in one line on standard error and status 2; what broke, in one line and status 1.
When nobody reads standard output any more, a command ends without a word and with status 141.
Heavy libraries load only when a command runs.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn, TextIO, TypeGuard

import typer

from turnpoint.errors import TurnpointError

app = typer.Typer(
    name="turnpoint",
    help="RL post-training of language models with verifiable rewards.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_UNREAD = 128 + signal.SIGPIPE  # 141, what a shell tells of a command that a broken pipe ended
_MOST = 10**9  # of what is counted; sizes that fit nowhere are refused with those that do
_DAY = 86_400.0  # seconds
_INTERRUPTED = 130  # the status of what Ctrl-C ended

_Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Changes to the recipe, for example seed=1 (see docs/recipe.md)."
    ),
]


def _version(wanted: bool | None) -> None:
    if wanted:
        from turnpoint import __version__

        print(f"turnpoint {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool | None, typer.Option("--version", callback=_version, is_eager=True, help="Prints the version.")
    ] = None,
) -> None:
    """RL post-training of language models with verifiable rewards."""


@app.command()
def train(
    source: Annotated[Path, typer.Argument(help="A recipe in YAML, or a run folder that is to go on.")],
    overrides: _Overrides = None,
) -> None:
    """Trains a model as a recipe says, or goes on with a run; Ctrl-C saves."""
    from turnpoint.commands.resume import resume
    from turnpoint.commands.train import train as run_training
    from turnpoint.config import load_recipe

    if source.is_dir():
        resume(source, overrides or ())
    else:
        run_training(load_recipe(source, overrides or ()))


@app.command()
def sft(
    source: Annotated[
        Path,
        typer.Argument(help="A recipe of supervised fine-tuning in YAML, or a run folder that is to go on."),
    ],
    overrides: _Overrides = None,
) -> None:
    """Trains a model on solutions, as a cold start, or goes on with a run; Ctrl-C saves."""
    from turnpoint.commands.sft import resume_sft
    from turnpoint.commands.sft import sft as run_sft
    from turnpoint.config import load_sft_recipe

    if source.is_dir():
        resume_sft(source, overrides or ())
    else:
        run_sft(load_sft_recipe(source, overrides or ()))


@app.command()
def draft(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe of draft heads in YAML.")] = None,
    overrides: _Overrides = None,
    report: Annotated[
        Path | None, typer.Option(help="Trains nothing: what --heads are worth on a run's rollouts.")
    ] = None,
    heads: Annotated[Path | None, typer.Option(help="With --report: a folder of heads.")] = None,
    depth: Annotated[int, typer.Option(min=1, max=16, help="With --report: tokens of a draft.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="With --report: one JSON object.")] = False,
) -> None:
    """Trains draft heads, which make rollouts faster and never change them; does not resume, Ctrl-C saves."""
    from turnpoint.commands.draft import draft as run_draft
    from turnpoint.commands.draft_report import draft_report
    from turnpoint.config import load_draft_recipe
    from turnpoint.errors import UserError

    if (recipe is None) == (report is None) or (report is None) != (heads is None):
        raise UserError("draft takes a recipe, or --report RUN with --heads FOLDER")
    if recipe is not None:
        run_draft(load_draft_recipe(recipe, overrides or ()))
    if report is not None and heads is not None:
        draft_report(report, heads, depth=depth, as_json=as_json)


@app.command()
def doctor(
    recipe: Annotated[Path, typer.Argument(help="A recipe in YAML.")],
    overrides: _Overrides = None,
    seconds: Annotated[
        float, typer.Option(min=0.0, max=_DAY, help="How long to sample rollouts, about.")
    ] = 20.0,
) -> None:
    """Says whether a recipe will work here, in what memory and time; status 2 if it must not run."""
    from turnpoint.commands.doctor import doctor as run_doctor
    from turnpoint.config import load_recipe

    raise typer.Exit(run_doctor(load_recipe(recipe, overrides or ()), seconds=seconds).exit_status)


@app.command()
def bench(
    recipe: Annotated[
        Path | None, typer.Argument(help="A recipe in YAML, whose model and lengths are measured.")
    ] = None,
    overrides: _Overrides = None,
    model: Annotated[
        str | None, typer.Option(help="A model instead: a folder, a hub name, or the embedded one.")
    ] = None,
    prompts: Annotated[
        int | None, typer.Option(min=1, max=_MOST, help="How many; 8 without a recipe.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, max=_MOST, help="Of each prompt; 16 without a recipe.")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, max=_MOST, help="Of each prompt; the recipe's median, or 256.")
    ] = None,
    new_tokens: Annotated[
        int | None, typer.Option(min=1, max=_MOST, help="Of each sample; the recipe's most, or 256.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Of torch; as it chooses if not said.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Processes that sample and divide the threads.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Medians are over so many.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.0, max=_DAY, help="For each kind of work, about.")] = 10.0,
    profile: Annotated[Path | None, typer.Option(help="Where a trace of a few decode steps goes.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Measures tokens a second at a recipe's lengths, and the share of what this machine could reach."""
    from turnpoint.commands.bench import Sizes
    from turnpoint.commands.bench import bench as run_bench
    from turnpoint.config import load_recipe
    from turnpoint.errors import UserError

    if model is not None and recipe is not None:
        raise UserError(f"bench takes a recipe or --model, not both; {recipe} with model.path={model} is one")
    if model is None and recipe is None:
        raise UserError("bench takes a recipe or --model NAME, for example --model smollm2-135m-instruct")
    source = model if recipe is None else load_recipe(recipe, overrides or ())
    assert source is not None, "one of the two was given"
    sizes = Sizes(prompts=prompts, samples=samples, prompt_tokens=prompt_tokens, new_tokens=new_tokens)
    run_bench(
        source,
        sizes,
        threads=threads,
        workers=workers,
        rounds=rounds,
        seconds=seconds,
        profile=profile,
        as_json=as_json,
    )


@app.command("eval")
def evaluate(
    source: Annotated[Path, typer.Argument(help="A recipe, or a run folder for its latest checkpoint.")],
    overrides: _Overrides = None,
) -> None:
    """Answers held-out problems greedily and by sampling, and says what the figures can bear."""
    from turnpoint.commands.evaluate import evaluate as run_evaluation

    run_evaluation(source, overrides or ())


@app.command("filter")
def filter_command(
    recipe: Annotated[Path, typer.Argument(help="A recipe in YAML.")],
    out: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="Where the kept problems go.")],
    overrides: _Overrides = None,
    minimum: Annotated[float, typer.Option("--min", help="Lowest pass rate that is kept.")] = 0.1,
    maximum: Annotated[float, typer.Option("--max", help="Highest pass rate that is kept.")] = 0.9,
    samples: Annotated[int, typer.Option(help="Rollouts for each problem.")] = 8,
) -> None:
    """Keeps the problems that the policy solves sometimes, never and always left out.

    The same command goes on after an interruption: pass rates are in OUT.jsonl.rates as they are found.
    Another --min or --max costs nothing then. Held-out problems are neither judged nor kept.
    """
    from turnpoint.commands.filter import filter_tasks
    from turnpoint.config import load_recipe

    config = load_recipe(recipe, overrides or ())
    filter_tasks(config, out, minimum=minimum, maximum=maximum, samples=samples)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    folder: Annotated[Path, typer.Argument(help="Where the model goes.")],
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Only the adapter, as peft writes it; it is merged otherwise.")
    ] = False,
) -> None:
    """Writes the trained model of a run as a normal Hugging Face folder."""
    from turnpoint.commands.export import export as run_export

    run_export(run, folder, adapter=adapter)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run folder; the run may be going on.")],
    out: Annotated[
        Path | None, typer.Option(help="Where the page goes; report.html in RUN if not said.")
    ] = None,
) -> None:
    """Writes a run as one page for a browser: curves, groups, trees, tokens."""
    from turnpoint.commands.report import report as write_report

    write_report(run, out)


@app.command("inspect")
def inspect_command(
    source: Annotated[Path, typer.Argument(help="A recipe, or a run folder for its latest checkpoint.")],
    overrides: _Overrides = None,
    task: Annotated[int, typer.Option(min=0, help="Which problem, counted from 0 in the order read.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also writes the group as a page for a browser.")] = None,
) -> None:
    """Samples the group of one problem and shows its tree; trains nothing."""
    from turnpoint.commands.inspect import inspect

    inspect(source, overrides or (), task=task, out=out)


def main() -> None:
    """Runs the command; the entry point of the package. SIGTERM and SIGHUP save as Ctrl-C does."""
    for polite in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(polite) is signal.SIG_DFL:  # nohup ignores SIGHUP, and so do we then
            signal.signal(polite, _interrupt)
    output = _stat_of_output()
    try:
        status: object = app(standalone_mode=False)  # 130 after Ctrl-C, None after a command
        _flush()
        if status == _INTERRUPTED:
            raise KeyboardInterrupt
    except TurnpointError as error:
        _complain(str(error), error.exit_status)
    except typer.TyperException as error:  # a command line that cannot be read
        _complain(f"{error.format_message().rstrip('.')}; see turnpoint --help", error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted", _INTERRUPTED)
    except SystemExit as error:  # typer and rich make a status 1 of a broken pipe, before it gets here
        if isinstance(error.__context__, BrokenPipeError):
            _leave(error.__context__, output)
        raise
    except BrokenPipeError as error:
        _leave(error, output)
    except OSError as error:  # standard output on a full disk, above all
        _complain(str(error), 1)
    sys.exit(status if isinstance(status, int) else 0)


def _interrupt(*_: object) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a job that a script started in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


def _flush() -> None:
    """Writes what waits for standard output now, where a failure can still be told; it may be closed."""
    if isinstance(sys.stdout, io.TextIOBase):
        sys.stdout.flush()


def _leave(error: BrokenPipeError, output: os.stat_result | None) -> NoReturn:
    """Ends as commands do whose reader has gone, such as `head`: without a word, status 128 + SIGPIPE.

    A command that trains has saved what was learnt by then, as after Ctrl-C: the error came up through it.
    A broken pipe that is not the output that was there at the start is told like any other error.
    """
    now = _stat_of_output()
    replaced = output is not None and now is not None and not os.path.samestat(output, now)  # by rich
    if not (replaced or _has_no_reader(sys.__stdout__)):
        _complain(str(error), 1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):  # what waits in buffers must not be tried again at exit
        if _has_no_reader(stream):
            os.dup2(nowhere, stream.fileno())
    sys.exit(_UNREAD)


def _stat_of_output() -> os.stat_result | None:
    return None if sys.__stdout__ is None else os.fstat(sys.__stdout__.fileno())


def _has_no_reader(stream: TextIO | None) -> TypeGuard[TextIO]:
    """Whether `stream` writes into a pipe or socket whose other end is closed."""
    if stream is None:
        return False
    poll = select.poll()
    poll.register(stream.fileno(), 0)  # errors are always told
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _complain(message: str, status: int) -> NoReturn:
    line = f"turnpoint: {' '.join(message.split())}"
    with contextlib.suppress(BrokenPipeError):  # nobody reads it
        print(line.encode(errors="replace").decode(), file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
