"""The model and the layout of a row of training steps: a published model with the row's own sizes,
or these alone; how it is spread over ranks, by the row itself or its framework's habits.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from hybridperf.io import InputError
from hybridperf.training.steps.names import aliases, plain, word
from hybridperf.training.steps.records import Record, Refused
from hybridperf.workloads.schedules.names import KINDS
from hybridperf.workloads.transformer import Layout, TransformerShape, load_shape
from hybridperf.workloads.transformer.columns import SCHEDULES
from hybridperf.workloads.transformer.layout import ORDER, Order
from hybridperf.workloads.transformer.zoo import shape_of

_SIZES = (
    "hidden", "heads", "layers", "ffn", "vocab", "seq", "kv_heads", "head_dim", "experts", "topk",
    "decoder_layers", "image", "patch",
)  # fmt: skip
# of families that are others without these
_EXPECTED = {"moe": ("experts", "topk"), "t5": ("decoder_layers",), "vit": ("image", "patch")}
# a pipeline whose stages idle so long, of the time that they work, is taken for interleaved, by so
# many layers a chunk
_IDLE, _CHUNK_LAYERS = 0.5, 2
_PADDING = 0.02  # of a vocabulary: 50304 for 50257


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


def row_layout(
    row: Record, habits: Mapping[str, Any], gpus_per_node: int, shape: TransformerShape
) -> Layout:
    """The layout of a row whose framework has such habits; `Refused` where it cannot be."""
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
    micro_batch, accumulation = _batches(row, dp, pp)
    vp, ep, named = row.count("vp"), row.count("ep") or 1, _schedule(row)
    if vp is None and named and KINDS[named].folded:
        vp = 2
    elif vp is None:
        interleaves = pp > 1 and habits.get("interleaves")
        vp = _chunks(row, shape, pp, accumulation, habits) if interleaves else 1
    schedule = named or ("interleaved" if vp > 1 else str(habits.get("schedule", "1f1b")))
    if not named and vp > 1 and row.count("vp"):
        row.assume("schedule", f"interleaved (vp {vp})")
    # what is not modelled is not assumed either
    if KINDS[schedule].pipes > 1:
        habits = {**habits, "zero": 0}
    if KINDS[schedule].splits_backward:
        habits = {**habits, "recompute": "none"}
    sequence_parallel = row.yes("seq_parallel")
    if sequence_parallel is None:
        sequence_parallel = habits.get("sequence_parallel", False)
    expert_tp = row.count("expert_tp") or (1 if ep > 1 else tp)
    return Layout(
        tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, expert_tp=None if expert_tp == tp else expert_tp, vp=vp,
        micro_batch=micro_batch, accumulation=accumulation, zero=_zero(row, habits),
        sequence_parallel=sequence_parallel and tp > 1,
        shard_ranks=_shard_ranks(row, tp, dp * cp, gpus_per_node),
        recompute=_recompute(row, habits), schedule=schedule, order=_order(row),
    )  # fmt: skip


def _order(row: Record) -> Order:
    """Which dimension varies fastest over neighbouring ranks, the fastest first."""
    given = tuple(row.text("order").split()) or ORDER
    if sorted(given) != sorted(ORDER):
        said = " ".join(given)
        raise Refused(f"expected an order of {' '.join(ORDER)}, fastest first, got {said}")
    return given


def _shard_ranks(row: Record, tp: int, data_ranks: int, gpus_per_node: int) -> int | None:
    """Over how many data ranks a hybrid shards: those of a node, or None: over all."""
    if (given := row.count("shard_ranks")) is not None:
        return None if given == data_ranks else given
    inside = max(gpus_per_node // tp, 1)
    if plain(row.text("sharding")) not in ("hsdp", "hybrid_shard") or data_ranks <= inside:
        return None
    shards = math.gcd(data_ranks, inside)
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


def _batches(row: Record, dp: int, pp: int) -> tuple[int, int]:
    """(micro-batch, accumulation); what is missing follows from the global batch."""
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
        micro_batch = row.assume("micro_batch", max(fitting, default=1))
    known = micro_batch or accumulation
    if known is None or each % known:
        what = "micro_batch" if micro_batch else "grad_accum"
        raise Refused(
            f"expected {what} to divide the {each} samples of a replica (global_batch / dp), got"
            f" {known}"
        )
    return (micro_batch, each // micro_batch) if micro_batch else (each // known, known)


def _chunks(
    row: Record, shape: TransformerShape, pp: int, accumulation: int, habits: Mapping[str, Any]
) -> int:
    """Chunks of a stage where a row gives none: by layers as the framework's users cut them, who
    would not let stages idle for long where that helps.
    """
    idle, layers, why = (pp - 1) / accumulation, habits.get("chunk_layers"), ""
    chunks = 1
    if layers:
        chunks = shape.depth // (pp * layers) if shape.depth % (pp * layers) == 0 else 1
    elif idle > _IDLE:
        chunks = max(round(shape.depth / (pp * _CHUNK_LAYERS)), 1)
        why = f": without, stages would idle {idle:.0%} of their work's time"
    row.assume("vp", chunks)
    row.notes[-1] += why if chunks > 1 else ""
    return chunks


def _zero(row: Record, habits: Mapping[str, Any]) -> Any:
    given = row.text("sharding")
    found = word("sharding", given) if given else None
    if given and found is None:
        raise Refused(f"expected a sharding of {', '.join(aliases()['sharding'])}, got {given!r}")
    return int(row.assume("ZeRO stage", habits["zero"]) if found is None else found)


def _recompute(row: Record, habits: Mapping[str, Any]) -> Any:
    given = row.text("recompute")
    found = word("recompute", given) if given else ""
    if found is None:
        known = [name for name, mode in aliases()["recompute"].items() if mode]
        raise Refused(f"expected a recompute of {', '.join(known)}, got {given!r}")
    return str(found or row.assume("recompute", habits["recompute"]))


def _schedule(row: Record) -> str:
    """The schedule that a row names, or ""."""
    given = row.text("schedule")
    found = word("schedule", given) if given else ""
    if plain(given) in SCHEDULES:
        found = plain(given)
    if found is None:
        raise Refused(f"expected a schedule of {', '.join(SCHEDULES)}, got {plain(given)!r}")
    return str(found)
