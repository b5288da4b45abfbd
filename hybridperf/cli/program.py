"""A program of the user's own, named `module:function` on the command line."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path


def jax_program(reference: str) -> tuple:
    """`module:function` called without arguments: (fn, args, donate_argnums)."""
    import importlib
    import inspect

    from hybridperf.io import InputError

    module_name, _, function_name = reference.partition(":")
    if not function_name:
        raise InputError(f"expected --jax module:function, got {reference!r}")
    sys.path.insert(0, os.getcwd())
    try:
        with code_of(reference):
            module = importlib.import_module(module_name)
    except InputError as error:
        cause = error.__cause__
        missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
        # the module itself, not one that it imports
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise InputError(
                f"cannot import {module_name!r} for --jax ({cause}); run where Python finds it"
            ) from error
        raise
    make = getattr(module, function_name, None)
    if not callable(make):
        raise InputError(
            f"{module_name} has no function {function_name!r}; --jax takes module:function"
        )
    try:
        inspect.signature(make).bind()
    except (TypeError, ValueError) as error:  # ValueError: built in, without a signature
        raise InputError(
            f"{reference} must take no arguments and return (fn, args) or (fn, args,"
            f" donate_argnums): {error}"
        ) from error
    with code_of(reference):
        made = make()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not callable(made[0]):
        got = type(made).__name__
        raise InputError(
            f"{reference} must return (fn, args) or (fn, args, donate_argnums), got {got}"
        )
    return made if len(made) == 3 else (*made, ())


@contextlib.contextmanager
def code_of(reference: str) -> Iterator[None]:
    """Turn what the user's own code raises into a sentence that names it and its line."""
    from hybridperf.io import InputError

    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        first = (str(error).splitlines() or [""])[0]
        what = f"{type(error).__name__}: {first}{_line_of(error)}"
        raise InputError(f"{reference} raised {what}; --debug shows all of it") from error


def _line_of(error: BaseException) -> str:
    """` (in FILE line N)`: the innermost line that is neither ours nor an installed package's."""
    import sysconfig
    import traceback

    if isinstance(error, SyntaxError):
        return f" (in {error.filename} line {error.lineno})"
    folders = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    installed = (*folders, str(Path(__file__).parent.parent), "<")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(installed):
            return f" (in {frame.filename} line {frame.lineno})"
    return ""
