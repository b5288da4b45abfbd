"""Numbers as people write them (300e9, "300B"), and the one that 90 % intervals are made with."""

from hybridperf.io.errors import InputError

NINE_OF_TEN = 1.645  # standard deviations to either side that nine in ten normal errors lie within
_SCALES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_MOST_TOKENS = 1e20


def number_of_tokens(given: float | str, name: str = "tokens") -> float:
    """A number above zero: 300e9, or "300B"."""
    scale = _SCALES.get(given[-1:].upper(), 1.0) if isinstance(given, str) else 1.0
    try:
        value = float(given[:-1] if isinstance(given, str) and scale > 1 else given) * scale
    except (TypeError, ValueError):
        value = 0.0
    if not 0 < value < _MOST_TOKENS:
        raise InputError(
            f"expected a number of tokens above zero, such as 300e9 or 300B, in {name}, got"
            f" {given!r}"
        )
    return value
