"""The `hybridperf` command: a thin face on the library.

Exit status: 0 done; 2 input that cannot be used, one sentence on standard error says why; 3 some
rows could not be predicted (their `note` says why); 4 `demo` was no better than what
needs no calibration (it says why). No traceback without `--debug`.
"""

import _thread
import atexit
import codecs
import contextlib
import functools
import io
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import CodeType
from typing import Annotated, Any, TextIO

import typer.main

from hybridperf.cli.common import WORDS, add_commands, warn
from hybridperf.cli.doctor import doctor
from hybridperf.cli.explore import shard, sweep
from hybridperf.cli.facts import devices, models, show, systems
from hybridperf.cli.fit import calibrate, calibrations, demo, fit, plan_measurements, share
from hybridperf.cli.fit_check import fit_check
from hybridperf.cli.manner import Interrupted, by_task, renewed, versions
from hybridperf.cli.mcp import mcp
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

_INTERRUPTED = 130  # exit status

# Commands import what is heavy when they run, so that `--help` and wrong options answer at once.
app = typer.Typer(
    cls=by_task(WORDS["tasks"]),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_commands(
    app, demo, calibrate, fit, share, plan_measurements, ops, collectives, predict, steps, serve,
    fit_check, plan, run, rl, pool, place, workers, jobs, shard, sweep, devices, systems, models,
    show, doctor, validate, calibrations, page, mcp,
)  # fmt: skip
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


class _Screen:
    """Standard output or error of any kind: closed, in another character set, or a pipe whose
    reader has seen enough, after which nothing more is written and the command goes on.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: TextIO | None = stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_PLAINER)

    def write(self, text: str) -> int:
        self._tried(lambda stream: stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._tried(lambda stream: stream.flush())

    def _tried(self, use: Callable[[TextIO], Any]) -> None:
        try:
            if self._stream is not None:
                use(self._stream)
        except BrokenPipeError:
            stream, self._stream = self._stream, None
            if stream is not None:  # Python itself flushes it at the end
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", "utf-8")


def _plainer(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that a terminal has not."""
    assert isinstance(error, UnicodeEncodeError)
    characters = error.object[error.start : error.end]
    return "".join({"µ": "u", "×": "x", "–": "-"}.get(one, "?") for one in characters), error.end


_PLAINER = "hybridperf.plainer"
codecs.register_error(_PLAINER, _plainer)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: run a command, turn errors into one sentence and an exit status."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_Screen, streams)
    unraisable = sys.unraisablehook
    sys.unraisablehook = lambda lost: _again(lost, unraisable)
    try:
        _main(arguments)
    finally:
        sys.unraisablehook = unraisable
        sys.stdout, sys.stderr = streams
        # all is written: an interrupt of what Python still tidies up would end it as if it were not
        atexit.unregister(_uninterrupted)
        atexit.register(_uninterrupted)


def _uninterrupted() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _again(lost: Any, unraisable: Callable[[Any], Any]) -> None:
    """Interrupt once more where Python dropped one: no error leaves the callback by which JAX takes
    part in garbage collection, nor a `__del__`.
    """
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        return unraisable(lost)
    _thread.start_new_thread(_interrupt_outside, (_again.__code__,))


def _interrupt_outside(code: CodeType) -> None:
    """Interrupt the main thread once it has left a function: in a hook it would be lost again."""
    inside = True
    while inside:
        time.sleep(0.01)
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        inside = False
        while frame is not None:
            inside, frame = inside or frame.f_code is code, frame.f_back
    _thread.interrupt_main()


def _main(arguments: list[str] | None) -> None:
    """A command, its errors and its exit status."""
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
    from hybridperf.io.files import MOVED

    MOVED.clear()
    try:
        with talk:
            status = command()(arguments, standalone_mode=False)
        if status == _INTERRUPTED:  # typer's, of an interrupt before or after the command itself
            raise KeyboardInterrupt
        sys.stdout.flush()
    except (KeyboardInterrupt, Interrupted) as interrupt:
        _uninterrupted()  # a second one has nothing to add
        kept = f"written were {', '.join(map(str, MOVED))}, other files" if MOVED else "files"
        warn(f"interrupted; {str(interrupt) or f'{kept} that were there are as they were'}")
        status = _INTERRUPTED
    except Exception as error:
        if debug:
            raise
        status = _failed(error)
        if isinstance(error, OSError):
            # let Python end without writing what standard output would not take
            with contextlib.suppress(OSError, ValueError, AttributeError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        warnings.showwarning = shown
    sys.exit(status if isinstance(status, int) else 0)


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
    if isinstance(error, UnicodeEncodeError):
        words = ascii(error.object[:60])
        return f"expected words in UTF-8, got {words}; set a UTF-8 locale (LC_ALL=C.UTF-8)"
    if isinstance(error, OSError):
        place = error.filename or "standard output"
        why = error.strerror or error
        return f"cannot read or write {place}: {why}; free space or name another"
    first = (str(error).splitlines() or [""])[0]
    what = f"unexpected {type(error).__name__}: {first}"
    return f"{what}; run again with --debug and report it"
