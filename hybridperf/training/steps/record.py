"""What rows of training steps say, in the columns that are read: unique records of text, how their
cells are taken as numbers and as yes or no, and the model and the layout that a record means: a
published model with the row's own sizes, or these alone; how it is spread over ranks, by the row
itself or its framework's habits.

Tables of sweeps repeat almost everything: each combination of cells is a record once, whatever
stands in other columns. A table may have any other columns. But a header in capitals, cells between
semicolons or "microbatch" would be passed over without a word and each row refused, or worse,
predicted by assumptions: `misspelt` finds columns that look like one that is read but for their
spelling, or go by another name. Those that are read: `read_columns.py`. Axes: R rows, U records.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import gc
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.io import InputError
from hybridperf.io.errors import plain as plain_word
from hybridperf.training.steps.names import aliases, plain, word
from hybridperf.training.steps.read_columns import READ
from hybridperf.workloads.schedules.names import KINDS
from hybridperf.workloads.transformer import Layout, TransformerShape, load_shape
from hybridperf.workloads.transformer.columns import SCHEDULES
from hybridperf.workloads.transformer.layout import ORDER, Order
from hybridperf.workloads.transformer.zoo import shape_of

_YES, _NO = ("1", "1.0", "true", "yes", "on"), ("0", "0.0", "false", "no", "off", "none")
_OPEN = ("", "unknown", "recipe", "submission")
_NEEDED = ("hidden", "heads", "layers", "seq", "vocab")  # of a model without a name
_ALIKE = 0.85  # of difflib's ratio: "microbatch" and "micro_batches", not "sequence"
_SIZES = (
    "hidden", "heads", "layers", "ffn", "vocab", "seq", "kv_heads", "head_dim", "experts", "topk",
    "decoder_layers", "image", "patch",
)  # fmt: skip
# of families that are others without these
_EXPECTED = {"moe": ("experts", "topk"), "t5": ("decoder_layers",), "vit": ("image", "patch")}
# a pipeline whose stages idle so long, of the time that they work, is taken for interleaved, by so
# many layers a chunk
_IDLE, _CHUNK_LAYERS = 0.5, 2
INTERLEAVED = "interleaved"
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
        return _whole(field, said) if type(said) is str else said

    def yes(self, field: str) -> bool | None:
        """Yes or no, None for nothing."""
        text = self.text(field).lower()
        if is_open(text):
            return None
        if text not in (*_YES, *_NO):
            raise Refused(f"expected yes or no in {field}, got {self.text(field)!r}")
        return text in _YES

    def assume(self, field: str, value: Any) -> Any:
        """`value`, which the row does not give."""
        self.notes.append(f"{field} {value} assumed")
        self.assumed.add(field)
        return value


def is_open(text: str) -> bool:
    """Whether a cell leaves its field open: it is empty, or says that nothing is known."""
    return plain(text) in _OPEN


@functools.lru_cache(65536)
def _whole(field: str, text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 1 or value != int(value):
        given = repr(text) if math.isnan(value) else text.removesuffix(".0")
        raise Refused(f"expected a whole number of 1 or more in {field}, got {given}")
    return int(value)


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
        return _whole(field, text)
    except Refused:  # said of the row
        return text


def row_names(frame: pd.DataFrame) -> list[str]:
    """How a message calls each row [R]: its place, counted from 1, and its id."""
    if "id" not in frame:
        return [f"row {at}" for at in range(1, len(frame) + 1)]
    codes, texts = _cells(frame["id"])
    shown = [*(f" ({text})" if text else "" for text in texts), ""]
    return [f"row {at}{shown[code]}" for at, code in enumerate(codes.tolist(), 1)]


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


def misspelt(columns: Iterable[str]) -> dict[str, str]:
    """Columns that are not read, with the column that each is taken for a misspelling of."""
    named = [str(name) for name in columns]
    absent = [name for name in READ if name not in named]
    found = {}
    for name in named:
        if name not in READ:
            called = str(aliases()["columns"].get(plain(name), ""))
            near = difflib.get_close_matches(plain_word(name), absent, 1, _ALIKE)
            if called in absent or near:
                found[name] = called if called in absent else near[0]
    return found


def check_columns(columns: Iterable[str]) -> None:
    """`InputError` for a table no row of which can name its model, or that says a thing twice."""
    named = [str(name) for name in columns]
    if twice := [name for name in READ if named.count(name) > 1]:
        raise InputError(f"expected each column once, got two of {twice[0]!r}; rename one of them")
    derived = {"seq"} if {"image", "patch"} <= set(named) else set()
    if "model" in named or set(_NEEDED) - derived <= set(named):
        return
    pairs = misspelt(named).items()
    near = [f"{wrong!r} for {right!r}" for wrong, right in pairs if right in ("model", *_NEEDED)]
    mend = f"rename {', '.join(near)}" if near else "name columns so"
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
        missing = ", ".join(name for name in _NEEDED if name not in sizes)
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


# the layout
# --------------------------------------------------------------------------------------------------


def row_degrees(row: Record) -> tuple[int, int, int, int]:
    """(tp, pp, cp, dp) of a row; `Refused` where they do not make its GPUs."""
    tp, pp, cp = row.count("tp"), row.count("pp"), row.count("cp") or 1
    dp, gpus = row.count("dp"), row.count("n_gpus")
    if tp is None and pp is None and dp is None:
        raise Refused("expected a layout (tp, pp, dp, or two of them and n_gpus), got none of them")
    tp, pp = tp or _left(row, "tp", pp, cp, dp, gpus), pp or _left(row, "pp", tp, cp, dp, gpus)
    if dp is None:
        if gpus is None:
            raise Refused("expected dp or n_gpus, got neither")
        if gpus % (tp * pp * cp):
            raise Refused(
                f"expected n_gpus to be a multiple of tp x pp x cp = {tp * pp * cp}, got {gpus}"
            )
        dp = gpus // (tp * pp * cp)
    if gpus is not None and tp * pp * cp * dp != gpus:
        raise Refused(
            f"expected tp x pp x cp x dp to be n_gpus, got {tp} x {pp} x {cp} x {dp} ="
            f" {tp * pp * cp * dp} for {gpus} GPUs"
        )
    return tp, pp, cp, dp


def row_layout(
    row: Record, degrees: tuple[int, int, int, int], habits: Mapping[str, Any],
    gpus_per_node: int, shape: TransformerShape,
) -> Layout:  # fmt: skip
    """The layout of a row with such degrees (`row_degrees`) whose framework has such habits.

    What the row says comes first, whatever is assumed: a habit that it rules out, or that could not
    run with it, gives way. `Refused` where it cannot be.
    """
    tp, pp, cp, dp = degrees
    named, chunks = _schedule(row), row.count("vp")
    named = named or (INTERLEAVED if chunks and chunks > 1 else "")
    micro_batch, accumulation = _batches(row, dp, pp, named)
    schedule, vp = _pipeline(row, shape, pp, accumulation, habits)
    ep = row.count("ep") or 1
    kind = KINDS[schedule]
    # what is not modelled is not assumed either
    zero = 0 if kind.pipes > 1 else min(habits["zero"], 2 if kind.splits_backward else 3)
    if (shards := row.count("shard_ranks")) and shards != dp * cp:
        zero = max(zero, 1)
    zero = _zero(row, zero)
    recompute = "none" if kind.splits_backward else habits["recompute"]
    sequence_parallel, expert_tp = _shared_layers(row, shape, tp, cp, dp, ep, habits)
    return Layout(
        tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, expert_tp=None if expert_tp == tp else expert_tp, vp=vp,
        micro_batch=micro_batch, accumulation=accumulation, zero=zero,
        sequence_parallel=sequence_parallel,
        shard_ranks=_shard_ranks(row, tp, dp * cp, gpus_per_node, habits, bool(zero)),
        recompute=_recompute(row, recompute), schedule=schedule, order=_order(row),
    )  # fmt: skip


def _shared_layers(
    row: Record, shape: TransformerShape, tp: int, cp: int, dp: int, ep: int,
    habits: Mapping[str, Any],
) -> tuple[bool, int]:  # fmt: skip
    """(sequence parallelism, ranks that share an expert's matrices): whole experts under tensor
    parallelism need sequences that are dealt out, and sequences that can be.
    """
    given, expert_tp = row.yes("seq_parallel"), row.count("expert_tp")
    if given is None:
        divides = shape.seq % (tp * cp) == 0 or habits.get("ragged_heads", False)
        unshared = expert_tp is None and ep > 1 and (cp * dp) % ep
        wanted = habits["sequence_parallel"] or (shape.experts and (expert_tp == 1 or unshared))
        given = bool(wanted) and divides and "joint" not in shape.mixers
    sequence_parallel = given and tp > 1
    if expert_tp is None:
        expert_tp = 1 if ep > 1 and sequence_parallel else tp
    return sequence_parallel, expert_tp


def _order(row: Record) -> Order:
    """Which dimension varies fastest over neighbouring ranks, the fastest first."""
    given = tuple(row.text("order").split()) or ORDER
    if sorted(given) != sorted(ORDER):
        said = " ".join(given)
        raise Refused(f"expected an order of {' '.join(ORDER)}, fastest first, got {said}")
    return given


def _shard_ranks(
    row: Record, tp: int, data_ranks: int, gpus_per_node: int, habits: Mapping[str, Any],
    sharded: bool,
) -> int | None:  # fmt: skip
    """Over how many data ranks a hybrid shards: those of a node, or None: over all."""
    if (given := row.count("shard_ranks")) is not None:
        return None if given == data_ranks else given
    inside = max(gpus_per_node // tp, 1)
    hybrid = plain(row.text("sharding")) in ("hsdp", "hybrid_shard")
    if data_ranks <= inside or not sharded or not (hybrid or habits.get("shards_in_nodes")):
        return None
    shards = math.gcd(data_ranks, inside)
    if not hybrid:
        return shards if shards > 1 else None
    nothing = ", so nothing is; fsdp shards over all" if shards == 1 else ""
    row.notes.append(
        f"hsdp taken to shard over {shards} of the {data_ranks} data ranks: as many as a node of"
        f" {gpus_per_node} holds at tp {tp}{nothing}"
    )
    return shards


def _left(
    row: Record, name: str, other: int | None, cp: int, dp: int | None, gpus: int | None
) -> int:
    """A degree that the row does not give: what the others leave of its GPUs, else 1."""
    each = other * cp * dp if other and dp else 0
    if gpus and each and gpus % each == 0 and gpus > each:
        row.assume(name, f"{gpus // each} (n_gpus over the other degrees)")
        return gpus // each
    return int(row.assume(name, 1))


def _batches(row: Record, dp: int, pp: int, schedule: str) -> tuple[int, int]:
    """(micro-batch, accumulation); what is missing follows from the global batch, so that the
    schedule runs that a row asks for, "" for none.
    """
    micro_batch, accumulation = row.count("micro_batch"), row.count("grad_accum")
    whole = row.count("global_batch")
    if micro_batch is not None and accumulation is not None:
        return micro_batch, accumulation
    if whole is None:
        raise Refused("expected global_batch, or both micro_batch and grad_accum, got neither")
    if whole % dp:
        raise Refused(f"expected global_batch to be a multiple of dp, got {whole} for dp {dp}")
    each = whole // dp
    if micro_batch is None and accumulation is None:
        fitting = (size for size in (1, 2, 4) if each % size == 0 and each // size >= 4 * pp)
        needs = KINDS[schedule].needs if schedule else ()
        usual = max(fitting, default=1)
        running = (
            size
            for size in (usual, *range(1, each + 1))
            if each % size == 0 and all(need.holds(pp, each // size) for need in needs)
        )
        micro_batch = row.assume("micro_batch", next(running, usual))
    known = micro_batch or accumulation
    if known is None or each % known:
        what = "micro_batch" if micro_batch else "grad_accum"
        raise Refused(
            f"expected {what} to divide the {each} samples of a replica (global_batch / dp), got"
            f" {known}"
        )
    return (micro_batch, each // micro_batch) if micro_batch else (each // known, known)


def _pipeline(
    row: Record, shape: TransformerShape, pp: int, accumulation: int, habits: Mapping[str, Any]
) -> tuple[str, int]:
    """(schedule, chunks of a stage), each as the row says, else what goes with the other."""
    named, vp = _schedule(row), row.count("vp")
    if vp is not None:
        if not named and vp > 1:
            row.assume("schedule", f"{INTERLEAVED} (vp {vp})")
    elif named and named != INTERLEAVED:
        vp = 2 if KINDS[named].folded else 1
    else:
        vp = _chunks(row, shape, pp, accumulation, habits, bool(named))
    return named or (INTERLEAVED if vp > 1 else habits["schedule"]), vp


def _chunks(
    row: Record, shape: TransformerShape, pp: int, accumulation: int, habits: Mapping[str, Any],
    interleaved: bool,
) -> int:  # fmt: skip
    """Chunks of a stage where a row gives none: by layers as the framework's users cut them, who
    would not let stages idle for long where that helps; `interleaved`: the row says that there are
    several.
    """
    habitual = pp > 1 and habits.get("interleaves")
    if pp == 1 or not (habitual or interleaved):
        return 1
    idle, layers, why = (pp - 1) / accumulation, habits.get("chunk_layers"), ""
    chunks = 1
    if not all(need.holds(pp, accumulation) for need in KINDS[INTERLEAVED].needs):
        pass  # it could not run
    elif layers:
        chunks = shape.depth // (pp * layers) if shape.depth % (pp * layers) == 0 else 1
    elif interleaved or idle > _IDLE:
        chunks = max(round(shape.depth / (pp * _CHUNK_LAYERS)), 1)
        why = f": without, stages would idle {idle:.0%} of their work's time"
    chunks = max(chunks, 2) if interleaved else chunks
    row.assume("vp", chunks)
    row.notes[-1] += why if chunks > 1 and not interleaved else ""
    return chunks


def _zero(row: Record, usual: int) -> Any:
    given = row.text("sharding")
    found = word("sharding", given) if given else None
    if given and found is None:
        raise Refused(f"expected a sharding of {', '.join(aliases()['sharding'])}, got {given!r}")
    return int(row.assume("ZeRO stage", usual) if found is None else found)


def _recompute(row: Record, usual: str) -> Any:
    given = row.text("recompute")
    found = word("recompute", given) if given else ""
    if found is None:
        known = [name for name, mode in aliases()["recompute"].items() if mode]
        raise Refused(f"expected a recompute of {', '.join(known)}, got {given!r}")
    return str(found or row.assume("recompute", usual))


def _schedule(row: Record) -> str:
    """The schedule that a row names, or ""."""
    given = row.text("schedule")
    found = word("schedule", given) if given else ""
    if plain(given) in SCHEDULES:
        found = plain(given)
    if found is None:
        raise Refused(f"expected a schedule of {', '.join(SCHEDULES)}, got {plain(given)!r}")
    return str(found)
