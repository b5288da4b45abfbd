"""Columns of tables that say nothing to a question: whoever reads one tells them here, and whoever
answers says them with the answer, so that none is passed over in silence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from contextvars import ContextVar

_PASSED: ContextVar[dict[str, None] | None] = ContextVar("passed", default=None)


@contextlib.contextmanager
def columns_not_read() -> Iterator[dict[str, None]]:
    """Names of columns of tables read meanwhile that say nothing to their question, in order."""
    passed = dict[str, None]()
    token = _PASSED.set(passed)
    try:
        yield passed
    finally:
        _PASSED.reset(token)
        if (outer := _PASSED.get()) is not None:
            outer.update(passed)


def remark_not_read(names: Collection[str]) -> tuple[str, ...]:
    """A sentence on columns that say nothing, none where there are none."""
    return (f"not read: {', '.join(names)}",) if names else ()


def pass_by(names: Iterable[str]) -> None:
    """Tell that columns of a table are not read."""
    if (heard := _PASSED.get()) is not None:
        heard.update(dict.fromkeys(names))
