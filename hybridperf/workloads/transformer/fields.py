"""Is a field of a model, a layout or a step of the kind that it must be? One sentence with the
field's name where it is not.

Python takes "no" for true, True for one and NaN for a number that is neither above nor below zero:
here none of them passes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hybridperf.io import InputError

MOST = 10**9  # of any size or degree: beyond it products leave 64 bits, and nobody's machine


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """`InputError` for anything but a whole number of `least` to a billion."""
    if type(value) is int and least <= value <= MOST:
        return  # thousands of rows a second come this way
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        hint = f"; int({name}) would do" if isinstance(value, np.integer) and value >= least else ""
        raise InputError(f"{name} must be a whole number of {least} or more, got {value!r}{hint}")
    if value > MOST:
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
    if (
        not number
        or not (value > 0 or (zero and value == 0))
        or (math.isinf(value) and not infinite)
    ):
        raise InputError(
            f"{name} must be a number {'of zero or more' if zero else 'above zero'}, got {value!r}"
        )


def check_kind(name: str, value: Any, kind: type, hint: str = "") -> None:
    """`InputError` for a value that is not of a class of ours; `hint`: what to do."""
    if not isinstance(value, kind):
        raise InputError(f"{name} must be a {kind.__name__}, got {value!r}{hint and '; ' + hint}")
