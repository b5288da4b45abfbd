"""What rows of training steps say, in the columns that are read: unique records of text, how their
cells are taken as numbers and as yes or no, and the model that a record means: a published model
with the row's own sizes, or these alone. How it is spread over ranks: `row_layout.py`.

Tables of sweeps repeat almost everything: each combination of cells is a record once, whatever
stands in other columns. Which columns are read, and by what other names and words:
`fields/steps.toml`. Axes: R rows, U records.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.fields import fields_of
from hybridperf.fields.registry import YES
from hybridperf.io import InputError
from hybridperf.workloads.transformer import TransformerShape, load_shape
from hybridperf.workloads.transformer.zoo import shape_of

FIELDS = fields_of("steps")
_NEEDED = ("hidden", "heads", "layers", "seq", "vocab")  # of a model without a name
SIZES = (
    "hidden", "heads", "layers", "ffn", "vocab", "seq", "kv_heads", "head_dim", "experts", "topk",
    "decoder_layers", "image", "patch",
)  # fmt: skip
# of families that are others without these
_EXPECTED = {"moe": ("experts", "topk"), "t5": ("decoder_layers",), "vit": ("image", "patch")}
_PADDING = 0.02  # of a vocabulary: 50304 for 50257


class Refused(Exception):
    """Why a row cannot be predicted."""


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Without Python's search for cycles among many small objects: a fifth of a plan's time, a
    third of that of a table of steps.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@dataclasses.dataclass
class Record:
    """One record with typed values. `notes` fills as things are assumed."""

    said: Mapping[str, Any]  # by column: text, or its whole number; nothing of an empty cell
    notes: list[str] = dataclasses.field(default_factory=list)
    assumed: set[str] = dataclasses.field(default_factory=set)  # columns

    def text(self, field: str) -> str:
        """What stands there, "" for nothing."""
        return str(self.said.get(field, ""))

    def count(self, field: str) -> int | None:
        """A whole number of 1 or more, None for nothing."""
        said = self.said.get(field)
        return FIELDS[field].count(said) if type(said) is str else said

    def yes(self, field: str) -> bool | None:
        """Yes or no, None for nothing."""
        found = self.word(field)
        return found == YES if found else None

    def word(self, field: str) -> str:
        """One of the field's words, "" for nothing."""
        return FIELDS[field].word(self.text(field))

    def assume(self, field: str, value: Any) -> Any:
        """`value`, which the row does not give."""
        self.notes.append(f"{field} {value} assumed")
        self.assumed.add(field)
        return value


def unique_records(
    frame: pd.DataFrame, columns: Sequence[str]
) -> tuple[list[dict[str, str]], np.ndarray]:
    """(what rows say in some columns, each combination once [U]; which of it each row says [R])."""
    cells = [(name, *_cells(frame[name])) for name in columns if name in frame]
    of = np.zeros(len(frame), np.int64)
    for _, codes, texts in cells:
        if len(texts):
            of = pd.factorize(of * (len(texts) + 1) + codes + 1)[0]
    _, first = np.unique(of, return_index=True)
    found: list[dict[str, str]] = [{} for _ in first]
    for name, codes, texts in cells:
        for record, code in zip(found, codes[first].tolist(), strict=True):
            if code >= 0 and texts[code]:
                record[name] = texts[code]
    return found, of


def whole_numbers(record: dict[str, str]) -> dict[str, Any]:
    """A record with cells that are counts read as such, once for all rows that say them."""
    return {name: _counted(name, text) for name, text in record.items()}


@functools.lru_cache(65536)
def _counted(field: str, text: str) -> Any:
    try:
        return FIELDS[field].count(text)
    except InputError:  # said of the row
        return text


def row_names(frame: pd.DataFrame, places: Iterable[int] | None = None) -> list[str]:
    """How a message calls each row [R]: its place and its id.

    `places`: of rows that are a part of a table, in that; None: counted from 1.
    """
    at = range(1, len(frame) + 1) if places is None else places
    if "id" not in frame:
        return [f"row {place}" for place in at]
    codes, texts = _cells(frame["id"])
    shown = [*(f" ({text})" if text else "" for text in texts), ""]
    return [f"row {place}{shown[code]}" for place, code in zip(at, codes.tolist(), strict=True)]


def positive_numbers(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Numbers above zero of a column [R]; NaN for anything else, and without the column."""
    if name not in frame:
        return np.full(len(frame), np.nan)
    values = pd.to_numeric(frame[name], "coerce").to_numpy(float, na_value=np.nan)
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)


def _cells(column: pd.Series) -> tuple[np.ndarray, list[str]]:
    """(which text each row has, -1 for an empty cell [R]; the texts)."""
    if column.dtype == object:  # of equal values, 1 and True, each is what it is written as
        column = pd.Series([None if _empty(one) else str(one) for one in column], dtype=object)
    codes, values = pd.factorize(column)
    return codes, [str(one).strip() for one in values.tolist()]


def _empty(value: Any) -> bool:
    return value is None or value is pd.NA or value != value  # NaN differs from itself


def check_columns(columns: Iterable[str]) -> None:
    """`InputError` for a table no row of which can name its model."""
    named = [str(name) for name in columns]
    derived = {"seq"} if {"image", "patch"} <= set(named) else set()
    if "model" in named or set(_NEEDED) - derived <= set(named):
        return
    mend = "name columns so"
    for sign, what in ((";", "semicolons"), ("\t", "tabs")):
        if len(named) == 1 and sign in named[0]:
            mend = f"separate cells by commas, not {what}"
    have = ", ".join(map(repr, named[:8])) + (", ..." if len(named) > 8 else "")
    raise InputError(
        f"expected a column model, or {', '.join(_NEEDED)}, in a table of training steps, got"
        f" {have}; {mend}"
    )


# the model
# --------------------------------------------------------------------------------------------------


def row_shape(row: Record) -> TransformerShape:
    """The row's own sizes over those of the published model of that name, if it is known."""
    given = {name: value for name in SIZES if (value := row.count(name)) is not None}
    family = row.text("family")
    kind = FIELDS["family"].meant(family)
    shape, assumed, odd = _known_shape(row.text("model"), family, kind, tuple(given.items()))
    for name, value in assumed:
        row.assume(name, value)
    row.notes += odd
    return shape


@functools.lru_cache(4096)
def _known_shape(
    model: str, family: str, kind: Any, given: tuple[tuple[str, int], ...]
) -> tuple[TransformerShape, tuple[tuple[str, Any], ...], tuple[str, ...]]:
    """(shape, what of it was assumed, where it is not the published one)."""
    sizes: dict[str, Any] = dict(given)
    try:
        published, why = load_shape(model) if model else None, "neither"
    except InputError as error:
        published, why = None, str(error)
    if published is None:
        if kind == "vit":
            sizes = _patched(sizes, 0, 0)
        missing = ", ".join(name for name in _NEEDED if name not in sizes)
        if missing:
            raise Refused(
                f"expected {missing} or the name of a published model in model, got {why}"
            )
        if kind is None:
            raise Refused(f"expected a family of {FIELDS['family'].legal}, got {family!r}")
        assumed: list[tuple[str, Any]] = []
        if not kind:
            kind = "gpt"
            assumed.append(("family", kind))
        lacking = " and ".join(name for name in _EXPECTED.get(kind, ()) if name not in sizes)
        if lacking:
            raise Refused(f"expected {lacking} of a family {kind} given by its sizes, got nothing")
        if "ffn" not in sizes:
            sizes["ffn"] = 4 * sizes["hidden"]
            assumed.append(("ffn", f"{sizes['ffn']} (4 x hidden)"))
        return shape_of(model or family or "unnamed", {"family": kind, **sizes}), tuple(assumed), ()
    if published.family == "vit":
        sizes = _patched(sizes, published.image, published.patch)
    assumed = [] if "seq" in sizes else [("seq", f"{published.seq} (the model's)")]
    unlike = tuple(_unlike(published, sizes, kind))
    return dataclasses.replace(published, **sizes), tuple(assumed), unlike


def _patched(sizes: Mapping[str, Any], image: int, patch: int) -> dict[str, Any]:
    """Sizes of a ViT, whose tokens are the patches of an image and one more."""
    image, patch = sizes.get("image", image), sizes.get("patch", patch)
    if "seq" in sizes or not patch or not {"image", "patch"} & set(sizes):
        return dict(sizes)
    return {**sizes, "seq": (image // patch) ** 2 + 1}


def _unlike(published: TransformerShape, given: Mapping[str, int], family: Any) -> Iterator[str]:
    """Where a row's sizes are not those of the model it names."""
    if family and family != published.family:
        yield f"family {family} given, {published.name} is a {published.family}: predicted as that"
    for name, value in given.items():
        own = getattr(published, name) or (published.heads if name == "kv_heads" else 0)
        if name == "head_dim":
            own = published.dim
        padded = name == "vocab" and own <= value <= own * (1 + _PADDING)
        if name != "seq" and value != own and not padded:
            yield f"{name} {value} given, {published.name} has {own or 'none'}"
    places = published.max_positions or published.seq
    if published.positions == "learned" and given.get("seq", 0) > places:
        yield f"seq {given['seq']} given, {published.name} has {places} learned positions"
