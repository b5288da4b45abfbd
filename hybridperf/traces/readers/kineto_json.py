"""The JSON that PyTorch's profiler (Kineto) writes, decoded into the few fields that traces need.

The file is an object with `traceEvents`, or that list alone. Of the phases in it, `X` (an interval)
matters, and `s` and `f` (a flow from a launching call to the device's event) where events carry no
correlation. `ts` and `dur` are microseconds, whole or not, whatever `displayTimeUnit` says; with
`baseTimeNanoseconds` they count from there.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import msgspec

from hybridperf.io import InputError

Number = int | float | str | None  # some versions quote numbers
_NOT_JSON_NUMBERS = re.compile(
    rb"(:\s*)[-+]?(?:nan|inf(?:inity)?)(?:\([a-z0-9]*\))?(?=\s*[,}\]])", re.IGNORECASE
)
_NO_ESCAPE = re.compile(rb'(\\\\)|\\(?!["/bfnrtu])')
_NAME, _AFTER_NAME = b'"name": "', b'", "pid":'
_BARE_QUOTE = re.compile(rb'((?<!\\)(?:\\\\)*)"')
# a space instead: between values, where JSON allows some, no harm
_NO_CONTROLS = bytes(max(byte, 32) for byte in range(256))

# of any type, since other tools use the same names
Json: TypeAlias = Any


class Args(msgspec.Struct, gc=False):
    """What an event carries besides its interval."""

    correlation: Json = None
    stream: Json = None
    device: Json = None
    bytes: Json = None
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    # as PyTorch 1.8 and 1.9 spell it
    dims_before: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input type")
    elements: Json = msgspec.field(default=None, name="In msg nelems")
    elements_type: Json = msgspec.field(default=None, name="dtype")
    elements_out: Json = msgspec.field(default=None, name="Out msg nelems")
    bytes_out: Json = msgspec.field(default=None, name="Out bytes")  # as our own timelines have it
    collective: Json = msgspec.field(default=None, name="Collective name")
    group: Json = msgspec.field(default=None, name="Process Group Name")
    group_ranks: Json = msgspec.field(default=None, name="Process Group Ranks")
    group_size: Json = msgspec.field(default=None, name="Group size")
    first_rank: Json = msgspec.field(default=None, name="Global rank start")
    rank_stride: Json = msgspec.field(default=None, name="Global rank stride")
    name: Json = None  # of a process, in metadata


class Event(msgspec.Struct, gc=False):
    """One entry of `traceEvents`."""

    ph: Json = None
    cat: Json = None
    name: Json = None
    ts: Number = None
    dur: Number = None
    pid: Json = None
    tid: Json = None
    id: Json = None
    args: Args | None = None


class Document(msgspec.Struct):
    """A Kineto trace as its JSON stands in the file."""

    traceEvents: list[Event] | None = None
    deviceProperties: Json = None
    distributedInfo: Json = None
    baseTimeNanoseconds: Number = None
    nodes: msgspec.Raw = msgspec.Raw()  # an execution trace has these instead
    workload_graph: msgspec.Raw = msgspec.Raw()  # and Chakra's JSON these


class WrongKind(InputError):
    """No Kineto trace: JSON of another kind, or no JSON."""


_OBJECT, _LIST = msgspec.json.Decoder(Document), msgspec.json.Decoder(list[Event])
_DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError)


def decoded(text: bytes, source: str) -> Document:
    """A trace's fields.

    Raises: InputError: JSON that is cut off or no trace's; `WrongKind` for what is another kind.
    """
    text = text.removeprefix(b"\xef\xbb\xbf").strip()
    first: Exception | None = None
    # of what Kineto is known to write although JSON has no such thing
    for mend in (bytes, _mended, _quotes_escaped):
        text = mend(text)
        try:
            return _decoded(text, source)
        except msgspec.ValidationError as error:
            raise _not_as_expected(text, source, error) from error
        except _DAMAGED as error:
            first = first or error
            if "truncated" in str(error):
                break
    raise _no_json(text, source, first) from first  # type: ignore[arg-type]


def _decoded(text: bytes, source: str) -> Document:
    if text[:1] == b"[":
        return Document(traceEvents=_LIST.decode(text))
    document = _OBJECT.decode(text)
    if document.traceEvents is not None:
        return document
    what, found = "", "found JSON without traceEvents; check which file the profiler wrote"
    if bytes(document.nodes) or bytes(document.workload_graph):
        what, found = " (traceEvents)", "found an execution trace, which has no times of kernels"
    raise WrongKind(f"expected a Kineto trace{what} in {source}, {found}")


def _mended(text: bytes) -> bytes:
    """Valid JSON: null for what is no number, stray controls and backslashes escaped."""
    text = text.translate(_NO_CONTROLS).decode("utf-8", errors="replace").encode()
    text = _NO_ESCAPE.sub(lambda found: found[0] if found[1] else rb"\\", text)
    return _NOT_JSON_NUMBERS.sub(rb"\1null", text)


def _quotes_escaped(text: bytes) -> bytes:
    """Escapes quotes within names: a name ends where the next field, `pid`, begins."""
    parts = text.split(_NAME)
    for i, part in enumerate(parts):
        name, after, rest = part.partition(_AFTER_NAME)
        if after and b'"' in name:
            parts[i] = _BARE_QUOTE.sub(rb'\1\\"', name) + after + rest
    return _NAME.join(parts)


def _no_json(text: bytes, source: str, error: Exception) -> InputError:
    if text[:1] not in (b"{", b"["):
        found = "found no JSON; check which file the profiler wrote"
        return WrongKind(f"expected a Kineto trace in {source}, {found}")
    if text[-1:] not in (b"}", b"]") or "truncated" in str(error):
        mend = "record it again or copy it whole"
        return InputError(f"{source} is cut off: its JSON does not end; {mend}")
    why = clipped(error).removeprefix("JSON is malformed: ")
    mend = "record it again or restore a copy"
    return InputError(f"{source} is damaged (not JSON: {why}); {mend}")


def _not_as_expected(text: bytes, source: str, error: Exception) -> InputError:
    """The error for a field of another type; broken JSON after it counts first."""
    try:
        msgspec.json.decode(text)
    except _DAMAGED as broken:
        return _no_json(text, source, broken)
    kind = InputError if b'"traceEvents"' in text or b'"ph"' in text else WrongKind
    found = f"found a field of another type ({clipped(error)})"
    return kind(f"expected a Kineto trace in {source}, {found}; record it again")


def clipped(found: object, characters: int = 80) -> str:
    """Something from a file on one short line."""
    line = " ".join(str(found).split())
    return line if len(line) <= characters else line[: characters - 3] + "..."


def as_text(value: object) -> str:
    """A field as text, whatever its type."""
    return value if isinstance(value, str) else str(value)


def as_number(value: object) -> float | None:
    """As given, or in quotes; None for anything else."""
    if not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (OverflowError, ValueError):
        return None


def as_whole(value: object) -> int | None:
    """The same as a whole number."""
    found = as_number(value)
    return int(found) if found is not None and abs(found) < 2**53 else None
