"""The `hybridperf` command: a thin face on the library.

Exit status: 0 done; 2 input that cannot be used, one sentence on standard error says why; 3 some
rows could not be predicted (their `note` says why); 4 `demo` was no better than what
needs no calibration (it says why). No traceback without `--debug`.
"""

import contextlib
import functools
import os
import sys
import warnings
from typing import Annotated, Any

import typer.main

from hybridperf.cli.common import WORDS, add_commands, warn
from hybridperf.cli.explore import search, shard, sweep
from hybridperf.cli.facts import devices, models, show, systems
from hybridperf.cli.fit import calibrate, calibrations, demo, fit, plan_measurements
from hybridperf.cli.manner import Interrupted, by_task, renewed, versions
from hybridperf.cli.page import page
from hybridperf.cli.place import jobs, place
from hybridperf.cli.plan import plan
from hybridperf.cli.pool import pool
from hybridperf.cli.predict import predict
from hybridperf.cli.rl import rl
from hybridperf.cli.run import run
from hybridperf.cli.serve import serve
from hybridperf.cli.steps import steps
from hybridperf.cli.tables import collectives, ops
from hybridperf.cli.trace import app as trace
from hybridperf.cli.validate import validate
from hybridperf.cli.workers import workers

# Commands import what is heavy when they run, so that `--help` and wrong options answer at once.
app = typer.Typer(
    cls=by_task(WORDS["tasks"]),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_commands(app, demo, calibrate, fit, plan_measurements, ops, collectives, predict, steps)
add_commands(
    app,
    serve,
    plan,
    run,
    rl,
    pool,
    place,
    workers,
    jobs,
    shard,
    sweep,
    search,
    devices,
    systems,
    models,
    show,
    validate,
    calibrations,
    page,
)
app.add_typer(trace, name="trace")


def _version(asked: bool) -> None:
    if asked:
        print(versions())
        raise typer.Exit


@app.callback()
def hybridperf(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="say which it is")
    ] = False,
) -> None:
    """Predict how long machine-learning work takes on a machine before anyone runs it there.

    `hybridperf COMMAND --help` tells of a command. --debug, anywhere, shows where an error arose.
    """


@functools.cache
def command() -> Any:
    """All commands, built once: that takes as long as an answer."""
    return typer.main.get_command(app)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: run a command, turn errors into one sentence and an exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments, old = renewed([a for a in arguments if a != "--debug"], WORDS["old"])
    if not {"-q", "--quiet"} & {*arguments}:
        warn(*old)
    if not debug:
        # XLA reports tuning flags of its own cached programs as missing machine features, kilobytes
        # each; before jax is imported
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from hybridperf.io import OldFile

    warnings.filterwarnings("default", category=OldFile)
    shown = warnings.showwarning

    def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, OldFile):
            warn(str(message))
        else:
            shown(message, category, *where, **more)

    warnings.showwarning = show
    # a table on standard output stands there alone
    aside = any(one.endswith("/dev/stdout") for one in arguments)
    talk = contextlib.redirect_stdout(sys.stderr) if aside else contextlib.nullcontext()
    try:
        with talk:
            status = command()(arguments, standalone_mode=False)
        if sys.stdout is not None:  # where the shell has closed it
            sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has seen enough
        status = 0
        _hush()
    except (KeyboardInterrupt, Interrupted) as interrupt:
        nothing = "files that were there are as they were, nothing else is kept"
        warn(f"interrupted; {str(interrupt) or nothing}")
        status = 130
    except Exception as error:
        if debug:
            raise
        status = _failed(error)
        if isinstance(error, OSError):
            _hush()
    finally:
        warnings.showwarning = shown
    sys.exit(status if isinstance(status, int) else 0)


def _hush() -> None:
    """Let Python end without writing what standard output would not take."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(error: Exception) -> int:
    from hybridperf.model.fit.programs import AlreadyReported

    if isinstance(error, AlreadyReported):
        return 2
    message = sentence(error)
    if "\n" in message:  # no command at all: the help text
        print(message)
    else:
        warn(message)
    return 2


def sentence(error: Exception) -> str:
    """What a command says of an error."""
    from hybridperf.io import InputError

    # wrong words: typer's own errors, whose class is not public
    usage = getattr(error, "format_message", None)
    if usage is not None:
        message = str(usage()).strip()
        if "extra argument" in message and "=" in message:
            return f"{message}; an option takes one word, name it before each; see --help"
        return message if "\n" in message else f"{message.rstrip('.')}; see --help"
    if isinstance(error, InputError):
        return " ".join(str(error).split())
    if isinstance(error, OSError):
        place = error.filename or "standard output"
        why = error.strerror or error
        return f"cannot read or write {place}: {why}; free space or name another"
    first = (str(error).splitlines() or [""])[0]
    what = f"unexpected {type(error).__name__}: {first}"
    return f"{what}; run again with --debug and report it"
