"""A user's own program: a step where its name says that it is found, and which line asked for
something: the innermost that is neither ours nor an installed package's.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridperf.io import InputError


def made_by(reference: str) -> tuple[Any, ...]:
    """What `module:function` returns, called without arguments; modules of this folder are found.

    Raises:
        InputError: the function cannot be called, for whatever reason.
    """
    module, _, name = reference.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)()
    except Exception as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"cannot make the step {reference}: {what}") from error


def check_call(
    fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], takes: Any = None
) -> None:  # fmt: skip
    """Raises `InputError` where a function cannot be called so.

    Args:
        fn: the function, or the module.
        args: what it is given.
        kwargs: what it is given by name.
        takes: whose arguments count, if not its own: a module's `forward`.
    """
    if not callable(fn):
        raise InputError(f"{user_line()}: expected a function or a module, got {fn!r}")
    try:
        signature = inspect.signature(takes or fn)
    except (TypeError, ValueError):  # of C
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise InputError(
            f"{user_line()}: expected the arguments of {name}{signature}, got others ({error});"
            " give what it takes, in its order"
        ) from error


# wherever they are installed: folders of one environment miss what it borrows from another
_FOREIGN = (
    "site-packages",
    "/lib/python",
    "<frozen",
    "<string>",
    "/bin/hybridperf",
    str(Path(__file__).parent.parent),
)


@functools.lru_cache(4096)
def is_foreign(file: str) -> bool:
    """Whether a file is ours, Python's or an installed package's."""
    return any(part in file for part in _FOREIGN)


def user_line() -> str:
    """`FILE line N` of who called; "" if unknown."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_foreign(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename} line {frame.f_lineno}"
        frame = frame.f_back
    return ""


def line_of(error: BaseException) -> str:
    """The same of what an error was raised by."""
    frames = traceback.extract_tb(error.__traceback__)
    known = [one for one in frames if not is_foreign(one.filename)]
    return f"{known[-1].filename} line {known[-1].lineno}" if known else ""


def labelled(kind: str, where: str) -> str:
    """What people read of an op: its kind, and the file's name and line where that is known."""
    file, _, line = where.rpartition(" line ")
    return f"{kind} ({file.rsplit('/', 1)[-1]}:{line})" if file else kind
