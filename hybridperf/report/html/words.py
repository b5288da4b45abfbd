"""Text from anywhere, made safe to stand in a page."""

from __future__ import annotations

import html
import json
import re
from typing import Any

_UNSAFE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)  # last: turn text around
_BEFORE_UNIT = re.compile(r"([0-9]) (?=(?:[a-zA-Zµ]{0,2}(?:s|B|J|W|B/s|FLOP/s)|%)(?![a-zA-Z]))")
_REPLACED = "\ufffd"


def escaped(text: Any) -> str:
    """As the text of an element or an attribute between double quotes; characters that no page may
    hold are replaced.
    """
    return html.escape(_UNSAFE.sub(_REPLACED, str(text)), quote=True)


def whole_figures(text: Any) -> str:
    """`escaped`; no line breaks between a number and its unit (`5.76 s`)."""
    return _BEFORE_UNIT.sub("\\1\u00a0", escaped(text))


def json_in_script(value: Any) -> str:
    """As JSON between script tags: nothing in it can end them."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def clean(text: Any) -> str:
    """The text itself, for JSON."""
    return _UNSAFE.sub(_REPLACED, str(text))


def number(value: float) -> str:
    """A coordinate: two digits behind the point are less than a pixel."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
