"""What the commands share: options, the compilation cache, small readers of what the user wrote."""

import contextlib
import copy
import importlib.metadata
import inspect
import math
import os
import re
import sys
import textwrap
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from typer import Option, Typer

from hybridperf.cli.manner import result, with_manner
from hybridperf.fields.registry import columns_help

if TYPE_CHECKING:
    import pandas as pd

SOME_ROWS_UNPREDICTED, WORSE_THAN_BASELINE = 3, 4  # exit status
_T = TypeVar("_T")

Out = Annotated[Path, Option()]
Folder = Annotated[Path, Option("--folder")]
Name = Annotated[str, Option()]
Shape = Annotated[str, Option("--shape")]
_COLUMNS = re.compile(r"^ +COLUMNS (\w+)$", re.MULTILINE)
WORDS = tomllib.loads(resources.files(__package__).joinpath("options.toml").read_text("utf-8"))


def add_commands(app: Typer, *commands: Callable[..., Any]) -> None:
    """Give an app its commands, with what `options.toml` says of their arguments and options.

    A flag has no opposite: `--quick` and no `--no-quick`. A line `COLUMNS jobs` of a command's text
    becomes the fields of such a table, whose schema `--schema` prints, WRITTEN what it adds.
    """
    for command in commands:
        words = WORDS["all"] | WORDS.get(command.__name__, {})
        for name, hint in get_type_hints(command, include_extras=True).items():
            if name != "return":
                kind, *said = get_args(hint) if get_origin(hint) is Annotated else (hint,)
                flag = [f"--{name.replace('_', '-')}"] if kind is bool else []
                option = copy.copy(said[0]) if said else Option(*flag)
                option.help = words[name]
                command.__annotations__[name] = Annotated[kind, option]
        asked = _COLUMNS.findall(command.__doc__ or "")
        command.__doc__ = _COLUMNS.sub(
            lambda found: textwrap.indent(columns_help(found[1]), "    "), command.__doc__ or ""
        ).replace("    WRITTEN\n", textwrap.indent(words.get("written", ""), "    "))
        own_progress = command.__name__ in WORDS["own_progress"]
        run = with_manner(command, own_progress=own_progress, tables=asked)
        name = command.__name__.replace("_", "-")
        # options that name fields come as further words
        settings = {"ignore_unknown_options": command.__name__ in WORDS["fields_are_options"]}
        example = f"\b\nExample:\n  $ {words['command_line']}"
        app.command(name, epilog=example, context_settings=settings)(run)


def warn(*messages: str) -> None:
    """Remarks on standard error."""
    for message in messages:
        print(f"hybridperf: {message}", file=sys.stderr)


def wrong(message: str) -> ValueError:
    """The `InputError` that says what was expected, what came and what to do."""
    from hybridperf.io import InputError  # with pandas: only where something is wrong

    return InputError(message)


def ready(path: Path, what: str) -> None:
    """Make the folder of a file that is written after minutes of work, and print that.

    Raises:
        InputError: the file cannot be written.
    """
    import tempfile

    from hybridperf.io import is_stream

    if is_stream(path):
        return
    folder = path.absolute().parent
    try:
        if not folder.exists():
            folder.mkdir(parents=True)
            print(f"folder {folder} made for {what}")
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = f"{path}: {error.strerror or error}"
        place = f"expected a place that can be written in {what}"
        raise wrong(f"{place}, got {reason}; name another") from error
    if path.is_dir():
        raise wrong(f"expected a file in {what}, got the folder {path}; name a file in it")


def table_ready(
    out: Path | None, read: Iterable[Path | None], **others: Path | None
) -> None:  # fmt: skip
    """See before any work that the table in --out can be written, over nothing that is read, and so
    can other files, by their options.
    """
    from hybridperf.io.tables import check_table_name

    files = {"--out": out} | {f"--{name.replace('_', '-')}": one for name, one in others.items()}
    keep_files(files, read)
    if out is not None:
        check_table_name(out)
    for option, path in files.items():
        if path is not None:
            ready(path, option)


def say_elasticities(by_result: "Mapping[str, pd.DataFrame]", most: int = 12) -> None:
    """Print tables of `hp.elasticities` by what they are of, each with its strongest rows."""
    import pandas as pd

    for name, found in by_result.items():
        print(f"\nd log {name} / d log of each number:")
        print(found.head(most).to_string(index=False))
    tables = [found.assign(result=name) for name, found in by_result.items()]
    result(elasticities=pd.concat(tables, ignore_index=True))


def table_written(table: "pd.DataFrame", out: Path | None, words: str) -> None:
    """Write a table to --out where that is given, and say so: "all 3 jobs in"."""
    from hybridperf.io import write_table

    if out is not None:
        write_table(table, out)
        print(f"{words} {out}")


def cache_folder() -> Path:
    """Where compiled functions are kept: HYBRIDPERF_CACHE, or a place of this version of JAX."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    default = caches / "hybridperf" / f"jax-{importlib.metadata.version('jax')}"
    return Path(os.environ.get("HYBRIDPERF_CACHE", default))


def compilation_cache() -> None:
    """Keep compiled functions from run to run, so that the next prediction starts at once."""
    import jax

    folder = cache_folder()
    if not _is_ours(folder):
        return
    warnings.filterwarnings("ignore", message="Error writing persistent compilation cache")
    with contextlib.suppress(OSError):  # a place that cannot be written costs time, nothing else
        folder.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _is_ours(folder: Path) -> bool:
    """Whether a cache of compiled code, which we would run, is nobody else's; "~": no home."""
    if "HYBRIDPERF_CACHE" in os.environ:
        return True
    with contextlib.suppress(OSError):
        return not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()
    return folder.is_absolute()


def keep_files(written: Mapping[str, Path | None], read: Iterable[Path | None]) -> None:
    """`InputError` where a file to be written, by its option, is read, or written twice."""
    inputs = {os.path.realpath(path): path for path in read if path}
    outputs: dict[str, str] = {}
    for option, path in written.items():
        if path is None:
            continue
        place = os.path.realpath(path)
        if place == os.devnull:
            continue
        if place in inputs:
            instead = f"expected another place in {option} than what is read"
            raise wrong(f"{instead}, got {path}, which would be lost; give a new name")
        if place in outputs:
            both = f"expected different files in {outputs[place]} and {option}"
            raise wrong(f"{both}, got {path} in both; give another name")
        outputs[place] = option


def inside(folder: Path | None, names: Iterable[str], option: str = "--folder") -> dict[str, Path]:
    """Files that a command writes into the folder of an option, for `keep_files`."""
    return {} if folder is None else {f"{option}/{name}": folder / name for name in names}


def say_predicted(predicted: "pd.DataFrame", out: Path | None, column: str = "predicted_s") -> int:
    """Write predicted rows, or show the first ones where there is no file; print how many were
    predicted, and why the first other was not. Returns the exit status.
    """
    result(rows=predicted)
    if out is not None:
        from hybridperf.io import write_table

        write_table(predicted, out)
    else:
        from hybridperf.report.text import print_rows

        print_rows(predicted)
    without = predicted.loc[predicted[column].isna(), "note"]
    written = (
        f", written to {out}" if out else "; --out FILE writes all columns, --json prints them"
    )
    print(f"{len(predicted) - len(without)} of {len(predicted)} rows predicted{written}")
    if without.empty:
        return 0
    rows = "1 row" if len(without) == 1 else f"{len(without)} rows"
    warn(f"{rows} not predicted, the note says why; the first: {without.iloc[0]}")
    return SOME_ROWS_UNPREDICTED


def first_given(command: Callable[..., Any], given: Mapping[str, Any], *but: str) -> str:
    """The first option of a command that is not at its default, without those in `but`, or ""."""
    usual = inspect.signature(command).parameters
    said = (one for one in usual if one not in but and given[one] != usual[one].default)
    return next((f"--{one.rstrip('_').replace('_', '-')}" for one in said), "")


def names_in(text: str) -> list[str]:
    """Names separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def named_in(
    words: Sequence[str], option: str, example: str, value: Callable[[str], _T]
) -> dict[str, _T]:
    """What the NAME=VALUE words of an option say.

    Args:
        words: as they were given; space around a name does not count.
        option: as a sentence begins that names it, such as "--knob NAME=TIMES".
        example: a word that is right.
        value: reads the text of a value; `ValueError` where it is none.

    Raises:
        InputError: a word that is none, or a name that comes twice.
    """
    from hybridperf.io import InputError

    found: dict[str, _T] = {}
    for word in words:
        name, equals, text = word.rpartition("=")
        name = name.strip()
        try:
            if not (equals and name):
                raise ValueError
            read = value(text)
        except InputError:
            raise
        except ValueError:
            raise wrong(f"expected {option} such as {example}, got {word!r}; mend it") from None
        if name in found:
            both = " and ".join(one for one in words if one.rpartition("=")[0].strip() == name)
            raise wrong(f"expected {option.split()[0]} {name} once, got {both}; keep one of them")
        found[name] = read
    return found


def number_in(text: str) -> float:
    """A number; `ValueError` for text that is none."""
    if math.isnan(value := float(text)):
        raise ValueError
    return value


def times_in(text: str) -> float:
    """A factor such as `1.2` or `1.2x`."""
    return number_in(text.removesuffix("x"))


def seconds_in(text: str) -> float:
    """A time such as `100ms` or `20m` in seconds."""
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
    unit = next((one for one in units if text.endswith(one)), "")
    scale, number = units.get(unit), text.removesuffix(unit)
    try:
        value = float(number) * (scale or 1.0)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e7:
        raise wrong(
            "expected a time such as 100ms, 90s, 20m or 1h, above 0 and below 1e7 s (115 days),"
            f" got {text!r}; mend it"
        )
    return value
