"""What every command does alike: `--json`, `-q`, `-v`, progress; help by task; old spellings."""

import contextlib
import functools
import inspect
import io
import json
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, TextIO

from typer import Exit, Option
from typer.core import TyperGroup

import hybridperf
from hybridperf.fields import json_schema
from hybridperf.fields.columns import columns_not_read, keeping, remark_not_read

_QUICK_S = 3.0  # what takes longer shows that it goes on
_TITLE = 140  # characters
_SENTENCE = 200  # characters of a command among the others: its first sentence, whole
_RESULTS: ContextVar[dict[str, Any] | None] = ContextVar("results", default=None)
_READ: ContextVar[bool] = ContextVar("read", default=True)
_OPTIONS = {
    "as_json": Option("--json", help="print JSON alone: SI units, null where nothing is known"),
    "quiet": Option("--quiet", "-q", help="no progress and no remarks"),
    "verbose": Option("--verbose", "-v", help="also how long it took, versions, all warnings"),
}
_KEEP = Option("--keep", help="columns of tables, separated by commas, that are yours: not read")


class Interrupted(Exception):
    """Ctrl-C while a command ran, with what was kept: typer makes an exit status of the other."""


def result(**found: Any) -> None:
    """What `--json` prints by these names: tables (rows), or what JSON holds anyway."""
    kept = _RESULTS.get()
    if kept is not None:
        kept.update(found)


def printed() -> bool:
    """Whether anybody reads what a command prints: with `--json` nobody does."""
    return _READ.get()


class _Heard(io.StringIO):
    """What is printed, which goes on to standard output as well."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out

    def write(self, text: str) -> int:
        self._out.write(text)
        return super().write(text)

    def flush(self) -> None:
        self._out.flush()


def _schemas(tables: Sequence[str]) -> Any:
    """The option that prints what a command's tables may hold, and ends it."""

    def show(asked: bool) -> None:
        if asked:
            found = {one: json_schema(one) for one in tables}
            print(json.dumps(found if len(found) > 1 else found[tables[0]], indent=1))
            raise Exit

    said = "print what a row may hold as a JSON schema, and end"
    return Option("--schema", callback=show, is_eager=True, help=said)


def with_manner(
    command: Callable[..., Any], *, own_progress: bool, tables: Sequence[str] = ()
) -> Callable[..., Any]:
    """A command with `--json`, `--quiet`, `--verbose`; of tables also `--schema` and `--keep`."""

    @functools.wraps(command)
    def run(*args: Any, as_json: bool, quiet: bool, verbose: bool, **given: Any) -> int:
        given.pop("schema", None)
        kept = [name for words in given.pop("keep", ()) for name in words.split(",")]
        start_s = time.perf_counter()
        with contextlib.ExitStack() as ends:
            if quiet:
                ends.enter_context(_remarks_kept())
            elif verbose:
                ends.enter_context(_all_warnings())
            if not (quiet or own_progress or given.get("rows")):  # tables show how far they are
                ends.enter_context(_working(command.__name__.replace("_", "-")))
            found: dict[str, Any] = {}
            said = io.StringIO() if as_json else _Heard(sys.stdout)
            if as_json or given.get("html"):
                ends.callback(_RESULTS.reset, _RESULTS.set(found))
                ends.callback(_READ.reset, _READ.set(not as_json))
                ends.enter_context(contextlib.redirect_stdout(said))
            passed = ends.enter_context(columns_not_read())
            ends.enter_context(keeping(kept))
            try:
                status = command(*args, **given) or 0
            except KeyboardInterrupt as interrupt:
                raise Interrupted(str(interrupt)) from interrupt
            if passed:
                result(not_read=[*passed])
                print(*remark_not_read(passed))
            if given.get("html"):
                _page(given["html"], command.__name__, found, said.getvalue())
        if as_json:
            from hybridperf.io import plain

            head = {"command": command.__name__, "hybridperf": hybridperf.__version__}
            print(json.dumps(head | {"status": status} | plain(found), allow_nan=False))
        if verbose:
            took = f"{time.perf_counter() - start_s:.1f} s"
            print(f"hybridperf: took {took}; {versions()}", file=sys.stderr)
        return int(status)

    signature = inspect.signature(command)
    said = _OPTIONS | ({"schema": _schemas(tables)} if tables else {})
    options: dict[str, Any] = {name: Annotated[bool, option] for name, option in said.items()}
    defaults: dict[str, Any] = dict.fromkeys(options, False)
    if tables:
        options["keep"], defaults["keep"] = Annotated[list[str], _KEEP], []
    more = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=option
        )
        for name, option in options.items()
    ]
    both = signature.replace(parameters=[*signature.parameters.values(), *more])
    run.__signature__ = both  # type: ignore[attr-defined]
    run.__annotations__ = command.__annotations__ | options
    return run


def _page(path: Path, command: str, found: dict[str, Any], said: str) -> None:
    """Write the page of an answer, under the first line of what was printed."""
    from hybridperf.report.answer_page import write_answer_page

    first = next(filter(str.strip, said.splitlines()), "")
    write_answer_page(path, f"{command.capitalize()}: {first}"[:_TITLE], found, said)
    print(f"page in {path} (open it in a browser)")


@contextlib.contextmanager
def _remarks_kept() -> Iterator[None]:
    """Nothing on standard error but the sentence of a program that failed."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    except ValueError as error:
        from hybridperf.model.fit.programs import AlreadyReported

        if isinstance(error, AlreadyReported):
            print((said.getvalue().splitlines() or [str(error)])[-1], file=sys.stderr)
        raise


@contextlib.contextmanager
def _all_warnings() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


@contextlib.contextmanager
def _working(what: str) -> Iterator[None]:
    """Seconds so far on a terminal's last line, once there are some."""
    if not sys.stderr.isatty():
        yield
        return
    ended, screen, start_s = threading.Event(), sys.stderr, time.monotonic()

    def show() -> None:
        wait_s = _QUICK_S
        while not ended.wait(wait_s):
            print(
                f"\r{what}: {time.monotonic() - start_s:.0f} s", end="\r", file=screen, flush=True
            )
            wait_s = 1.0
        if wait_s < _QUICK_S:
            print("\r\033[K", end="", file=screen, flush=True)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def versions() -> str:
    """`hybridperf 0.1.0, jax 0.9.2, Python 3.11.7`."""
    import importlib.metadata

    jax = importlib.metadata.version("jax")
    return f"hybridperf {hybridperf.__version__}, jax {jax}, Python {platform.python_version()}"


def by_task(tasks: Mapping[str, Sequence[str]]) -> type[TyperGroup]:
    """Help that lists commands under what they are for."""

    class ByTask(TyperGroup):
        def format_commands(self, ctx: Any, formatter: Any) -> None:
            for task, names in tasks.items():
                with formatter.section(task):
                    short = [self.commands[name].get_short_help_str(_SENTENCE) for name in names]
                    formatter.write_dl(list(zip(names, short, strict=True)))

    return ByTask


def renewed(
    arguments: Sequence[str], old: Mapping[str, Mapping[str, str]]
) -> tuple[list[str], list[str]]:
    """Arguments with today's spellings for old ones, and a sentence for each that was old."""
    words = [one for one in arguments[:2] if not one.startswith("-")]
    command = next((name for name in (" ".join(words), *words[:1]) if name in old), "")
    new, said = list(arguments), []
    for at, argument in enumerate(arguments):
        spelt, equals, value = argument.partition("=")
        if spelt in (names := old.get(command, {})):
            new[at] = f"{names[spelt]}{equals}{value}"
            said.append(
                f"{spelt} of `{command}` is now {names[spelt]}; the old spelling works, too"
            )
    return new, said
