"""Checks of single fields of a model, a layout or a step: one sentence with the field's name.

Python takes "no" for true, True for one and NaN for a number that is neither above nor below zero:
here none of them passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridperf.io import InputError, unknown

LARGEST = 10**9  # of any size or degree: beyond it products leave 64 bits, and nobody's machine


def check_whole(name: str, value: Any, minimum: int = 1) -> None:
    """`InputError` for anything but a whole number of `minimum` to a billion."""
    if type(value) is int and minimum <= value <= LARGEST:
        return  # thousands of rows a second come this way
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        hint = (
            f"; int({name}) would do" if isinstance(value, np.integer) and value >= minimum else ""
        )
        raise InputError(f"{name} must be a whole number of {minimum} or more, got {value!r}{hint}")
    if value > LARGEST:
        raise InputError(f"{name} must be a billion or less, got {value}")


def check_flag(name: str, value: Any) -> None:
    """`InputError` for what is neither true nor false."""
    if value is True or value is False:
        return
    if not isinstance(value, bool | np.bool_) and not (isinstance(value, int) and value in (0, 1)):
        raise InputError(f"{name} must be true or false, got {value!r}")


def check_number(name: str, value: Any, zero: bool = False, infinite: bool = False) -> None:
    """`InputError` for anything but a number above zero; `zero`, `infinite`: these pass too."""
    number = not isinstance(value, bool) and isinstance(value, int | float | np.number)
    large_enough = number and (value > 0 or (zero and value == 0))
    if not large_enough or (math.isinf(value) and not infinite):
        limit = "of zero or more" if zero else "above zero"
        raise InputError(f"{name} must be a number {limit}, got {value!r}")


def check_word(name: str, value: Any, allowed: Sequence[str]) -> None:
    """`InputError` for anything but one of the allowed words."""
    if value not in allowed:
        raise unknown(name, str(value), allowed, f"known are {', '.join(allowed)}")


def check_kind(name: str, value: Any, kind: type, hint: str = "") -> None:
    """`InputError` for a value that is not of a class of ours; `hint`: what to do."""
    if not isinstance(value, kind):
        raise InputError(f"{name} must be a {kind.__name__}, got {value!r}{hint and '; ' + hint}")
