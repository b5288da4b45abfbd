"""Values of a field as people write them.

8                 one value
1,2,4,8           each of a list, numbers or words
256..4096         powers of two from the first to the second
1..9:2            1, 3, 5, 7, 9
"""

from __future__ import annotations

import math
import re
from typing import Any

from hybridperf.io import InputError

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?::({_NUMBER}))?")
_BEGUN = re.compile(rf"{_NUMBER}\.\.")
_MOST = 10**6


def values_of(text: str) -> list[Any]:
    """The values that a text says; numbers as numbers unless words are among them.

    Raises:
        InputError: for a range that holds nothing, or goes nowhere.
    """
    words = [word for part in text.split(",") if part.strip() for word in _part(part.strip())]
    if not words:
        raise InputError(f"expected values such as 8, 1,2,4 or 256..4096, got {text!r}")
    numbers = [_number(word) if isinstance(word, str) else word for word in words]
    whole = all(one is not None for one in numbers)
    return numbers if whole else [str(word) for word in words]


def _part(text: str) -> list[Any]:
    found = _RANGE.fullmatch(text)
    if found is None:
        if _BEGUN.match(text):
            raise InputError(f"expected a range such as 256..4096 or 1..9:2, got {text!r}; mend it")
        return [text]
    start, stop = (_real(one) for one in found.groups()[:2])
    if found[3] is None:
        if not 0 < start <= stop:
            raise InputError(
                "expected powers of two between two numbers above zero, the least first, got"
                f" {text}; a range of equal steps is 0..8:2"
            )
        powers = range(math.ceil(math.log2(start)), math.floor(math.log2(stop)) + 1)
        values = [2**power if power >= 0 else 2.0**power for power in powers]
        if not values:
            raise InputError(f"expected a range that holds a power of two, got {text}; widen it")
        return values
    step = _real(found[3])
    count = math.floor((stop - start) / step + 1e-9) + 1 if step else 0
    if not 0 < count <= _MOST:
        raise InputError(
            f"expected a range of 1 to {_MOST:,} steps from its first number on, got {text}"
        )
    return [start + at * step for at in range(count)]


def _real(text: str) -> Any:
    if not math.isfinite(value := float(text)):
        raise InputError(f"expected numbers up to 1.8e308, got {text[:40]}; mend it")
    return value if re.search(r"[.eE]", text) else int(text)


def _number(word: str) -> Any:
    return _real(word) if re.fullmatch(_NUMBER, word) else None
