"""Checks of single fields of a model, a layout or a step: one sentence with the field's name.

Python takes "no" for true, True for one and NaN for a number that is neither above nor below zero:
here none of them passes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from hybridperf.io import InputError, unknown

LARGEST = 10**9  # of any size or degree: beyond it products leave 64 bits, and nobody's machine
MOST_LAYERS = 10_000  # each has an entry of its own in some lists; DeepNet (2203.00555) has 1,000


def check_fields(of: Any, name: str = "", zero: tuple[str, ...] = ()) -> None:
    """`InputError` for a dataclass' field that is not what its annotation says: a whole number of 1
    or more, of 0 where that is its default or `zero` lists it, a flag, one of some words, or of a
    class; lists and other numbers are not looked at. `name`: of what the fields are.
    """
    kind: Any = type(of)
    for field, optional, check in _checks(kind, zero):
        value = getattr(of, field)
        if not (optional and value is None):
            check(f"{field} of {name}" if name else field, value)


@functools.cache
def _checks(of: type, zero: tuple[str, ...]) -> list[tuple[str, bool, Callable[[str, Any], None]]]:
    """(field, whether it may be None, what checks it)."""
    found: list[tuple[str, bool, Callable[[str, Any], None]]] = []
    hints = get_type_hints(of)
    for field in dataclasses.fields(of):
        hint = hints[field.name]
        kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        optional, kind = NoneType in kinds, kinds[0]
        check: Callable[[str, Any], None]
        if get_origin(kind) is Literal:
            check = functools.partial(check_word, allowed=get_args(kind))
        elif kind is bool:
            check = check_flag
        elif kind is int:
            least = int(field.default != 0 and field.name not in zero)
            most = MOST_LAYERS if field.name == "layers" else LARGEST
            check = functools.partial(check_whole, minimum=least, most=most)
        elif isinstance(kind, type) and kind is not float:
            check = functools.partial(check_kind, kind=kind)
        else:
            continue
        found.append((field.name, optional, check))
    return found


def check_each(of: Any, names: Sequence[str], holds: Callable[[Any], object], words: str) -> None:
    """`InputError`, "NAME WORDS, got VALUE", for the first of some fields that does not hold."""
    for name in names:
        if not holds(value := getattr(of, name)):
            raise InputError(f"{name} {words}, got {value!r}")


def check_whole(name: str, value: Any, minimum: int = 1, most: int = LARGEST) -> None:
    """`InputError` for anything but a whole number of `minimum` to `most`."""
    if type(value) is int and minimum <= value <= most:
        return  # thousands of rows a second come this way
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        hint = (
            f"; int({name}) would do" if isinstance(value, np.integer) and value >= minimum else ""
        )
        raise InputError(f"{name} must be a whole number of {minimum} or more, got {value!r}{hint}")
    if value > most:
        limit = "a billion" if most == LARGEST else f"{most:,}"
        raise InputError(f"{name} must be {limit} or less, got {value}")


def is_count(value: Any) -> bool:
    """Whether something is a whole number of 1 or more, NumPy's too."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


def is_number(value: Any) -> bool:
    """Whether something is one number, NumPy's too."""
    if isinstance(value, np.ndarray | np.generic) and np.ndim(value) == 0:
        value = value.item()
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_positive(value: Any) -> bool:
    """Whether something is a number above zero."""
    return is_number(value) and value > 0


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
