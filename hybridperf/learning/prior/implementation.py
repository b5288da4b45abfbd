"""What knobs of a prior belong to: an implementation, written as one text in files and rows.

The text is words joined by `|`, such as op, framework and number format, or collective, library and
link, and perhaps `#` and a version. Rows and knobs keep the text, which sorts and compares fast.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, Self

from hybridperf.ops.frameworks import serving_framework

_WORD, _VERSION = "|", "#"


class Implementation(NamedTuple):
    """The words of an implementation, and the version of its library; empty where none is known."""

    words: tuple[str, ...]
    version: str = ""

    @classmethod
    @functools.cache  # asked of the same few texts for every op
    def parse(cls, text: str) -> Self:
        """From the text of a file or a row."""
        words, _, version = text.partition(_VERSION)
        return cls(tuple(words.split(_WORD)), version)

    def __str__(self) -> str:
        return _WORD.join(self.words) + (f"{_VERSION}{self.version}" if self.version else "")


class OpImplementation(NamedTuple):
    """How an op was run: the words of its `Implementation`."""

    op: str
    framework: str
    dtype: str
    text: tuple[str, ...] = ()  # what else decides the kernel: quantisation, cache format, ...

    @classmethod
    @functools.cache
    def parse(cls, text: str) -> Self:
        """From the text of a file or a row."""
        op, framework, dtype, *rest = Implementation.parse(text).words
        return cls(op, framework, dtype, tuple(rest))

    def __str__(self) -> str:
        return str(Implementation(self.words))

    @property
    def words(self) -> tuple[str, ...]:
        """All words, in the order of the text."""
        return (self.op, self.framework, self.dtype, *self.text)


@functools.cache
def taken_from(text: str) -> str:
    """The implementation whose kernels this one may run on a new architecture; "" for none."""
    words, version = Implementation.parse(text)
    source = ""
    if len(words) > 1:
        source = serving_framework(words[1]).takes_kernels_from.get(words[0], "")
    return str(Implementation((words[0], source, *words[2:]), version)) if source else ""


class CollectiveImplementation(NamedTuple):
    """How a collective was run: the words of its `Implementation`."""

    collective: str
    library: str
    link: str

    @classmethod
    @functools.cache
    def parse(cls, text: str) -> Self:
        """From the text of a file or a row, with or without a version."""
        return cls(*Implementation.parse(text).words)

    def __str__(self) -> str:
        return str(Implementation(tuple(self)))


def unversioned(text: str) -> str:
    """The text of an implementation without its version."""
    return text.partition(_VERSION)[0]
