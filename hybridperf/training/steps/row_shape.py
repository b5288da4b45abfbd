"""The model of a row of training steps: a published one with its own sizes, or these alone."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from hybridperf.io import InputError
from hybridperf.training.steps.names import aliases, word
from hybridperf.workloads.transformer import TransformerShape, load_shape
from hybridperf.workloads.transformer.zoo import shape_of

_YES, _NO = ("1", "1.0", "true", "yes", "on"), ("0", "0.0", "false", "no", "off", "none")
_SIZES = (
    "hidden", "heads", "layers", "ffn", "vocab", "seq", "kv_heads", "head_dim", "experts", "topk",
    "decoder_layers", "image", "patch",
)  # fmt: skip
# of families that are others without these
_EXPECTED = {"moe": ("experts", "topk"), "t5": ("decoder_layers",), "vit": ("image", "patch")}
_PADDING = 0.02  # of a vocabulary: 50304 for 50257


class Refused(Exception):
    """Why a row cannot be predicted."""


@dataclasses.dataclass
class Record:
    """One record of a table with typed values. `notes` fills as things are assumed."""

    at: int
    record: Mapping[str, Any]
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """How a message calls it: its place, counted from 1, and its id."""
        own = self.text("id")
        return f"row {self.at + 1}" + (f" ({own})" if own else "")

    def text(self, field: str) -> str:
        """What stands there, "" for nothing."""
        value = self.record.get(field)
        nothing = value is None or value is pd.NA or value != value  # NaN differs from itself
        return "" if nothing else str(value).strip()

    def count(self, field: str) -> int | None:
        """A whole number of 1 or more, None for nothing."""
        text = self.text(field)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 1 or value != int(value):
            given = repr(text) if math.isnan(value) else text.removesuffix(".0")
            raise Refused(f"expected a whole number of 1 or more in {field}, got {given}")
        return int(value)

    def yes(self, field: str) -> bool | None:
        """Yes or no, None for nothing."""
        text = self.text(field).lower()
        if text in ("", "unknown", "recipe"):
            return None
        if text not in (*_YES, *_NO):
            raise Refused(f"expected yes or no in {field}, got {self.text(field)!r}")
        return text in _YES

    def assume(self, field: str, value: Any) -> Any:
        """`value`, which the row does not give."""
        self.notes.append(f"{field} {value} assumed")
        return value


def row_shape(row: Record) -> TransformerShape:
    """The row's own sizes over those of the published model of that name, if it is known."""
    given = {name: value for name in _SIZES if (value := row.count(name)) is not None}
    shape, assumed, odd = _known_shape(row.text("model"), row.text("family"), tuple(given.items()))
    for name, value in assumed:
        row.assume(name, value)
    row.notes += odd
    return shape


@functools.lru_cache(4096)
def _known_shape(
    model: str, family: str, given: tuple[tuple[str, int], ...]
) -> tuple[TransformerShape, tuple[tuple[str, Any], ...], tuple[str, ...]]:
    """(shape, what of it was assumed, where it is not the published one)."""
    sizes: dict[str, Any] = dict(given)
    kind: Any = word("family", family) if family else ""
    try:
        published, why = load_shape(model) if model else None, "neither"
    except InputError as error:
        published, why = None, str(error)
    if published is None:
        if kind == "vit":
            sizes = _patched(sizes, 0, 0)
        needed = ("hidden", "heads", "layers", "seq", "vocab")
        missing = ", ".join(name for name in needed if name not in sizes)
        if missing:
            raise Refused(
                f"expected {missing} or the name of a published model in model, got {why}"
            )
        if kind is None:
            families = ", ".join(filter(None, aliases()["family"].values()))
            raise Refused(f"expected a family of {families}, got {family!r}")
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
    unlike = tuple(_unlike(published, sizes, word("family", family)))
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
