"""A user's own program: a step where its name says that it is found; which line asked for
something, the innermost that is neither ours nor an installed package's; and which step effects
count for its kernels and messages, of PyTorch and of JAX alike, as `transformer/in_step.py` has it
for our own steps.
"""

from __future__ import annotations

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
from hybridperf.model.calls import CollectiveCall, StepPlace
from hybridperf.ops import OpCall
from hybridperf.ops.attention import Attention


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
    str(Path(__file__).parent.parent),
)


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


MESSAGE_LAUNCH = StepPlace("collective_launch")
_NAMED = 12  # unknown ops that an error lists


def role_of(call: OpCall) -> str:
    """Which step effects count for a kernel (`model/step_effects.py`)."""
    if isinstance(call.op, Attention):
        return "attention"
    return "gemm" if call.op.unit == "matrix" else "memory"


def place_of(call: CollectiveCall) -> StepPlace:
    """Of a message that whoever reads it waits for."""
    if call.collective in ("alltoall", "sendrecv"):
        return StepPlace("exchange" if call.collective == "alltoall" else "p2p")
    return StepPlace("tp") if call.nodes == 1 else StepPlace("tp_across", float(call.nodes))


def refuse_unpriced(program: str, unpriced: Mapping[str, str], otherwise: str = "") -> None:
    """`InputError` that names what has no price.

    Args:
        program: its name.
        unpriced: the line that asked for it, by kind of op.
        otherwise: what else than leaving it out can be done.
    """
    if not unpriced:
        return
    named = [kind + (f" ({where})" if where else "") for kind, where in unpriced.items()]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    raise InputError(
        f"{program}: cannot price {len(named)} kind(s) of op: {', '.join(named[:_NAMED])}{more};"
        f" leave them out with ignore=... (`--ignore` on the command line){otherwise}"
    )
