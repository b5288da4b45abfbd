"""Libraries that take tenths of a second to import and that a first prediction does without: each
is imported when a name of it is first used. SciPy is left to itself: `import scipy` is quick, and
`scipy.optimize` is imported when it is first named.

`lazy_loader.load` does the same for one thread: in Python 3.11 a second one may meet a library that
the first is still loading.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["optax", "pd"]


class _Later:
    def __init__(self, library: str) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._library), name)


if TYPE_CHECKING:
    import optax
    import pandas as pd
else:
    optax, pd = map(_Later, ("optax", "pandas"))
