"""Whether this process can compute, and what it says when it is interrupted.

JAX runs threads, which a fork does not copy: a prediction in a forked process would wait for them
for ever.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from hybridperf.io.errors import InputError

_STATE = {"computed": False, "forked": False}


def check_not_forked() -> None:
    """`InputError` in a process that was forked from one that had predicted or loaded a model."""
    if _STATE["forked"]:
        raise InputError(
            "this process was forked from one that had used JAX, whose threads a fork does not"
            " copy, and would wait for ever; start processes by"
            ' multiprocessing.get_context("spawn")'
        )
    _STATE["computed"] = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _STATE.update(forked=_STATE["computed"]))


@contextlib.contextmanager
def keeping(what: str) -> Iterator[None]:
    """Have an interrupt say what is kept, which the command line prints."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(str(interrupt) or what) from None
