"""A step of the user's own, where its name says that it is found."""

from __future__ import annotations

import importlib
import os
import sys
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
