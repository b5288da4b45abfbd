"""What rows of measured or planned training steps say: a model, a layout, a machine, and what is missing or contradicts itself.

Both schemas are read (`data/README.md`): that of published steps and vTrain's. A row's own words come first, then its framework's
habits (`presets/step_rows.toml`), and each habit that was used stands in the row's notes. What cannot be predicted is refused with one
sentence that names the row and the rule; what contradicts itself is predicted by its layout and flagged. N rows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from hybridperf.hardware import load_device, load_system
from hybridperf.io import InputError
from hybridperf.steps import contradictions
from hybridperf.steps.columns import check_columns
from hybridperf.steps.names import Machine, aliases, framework_of, habits_of, machine, plain, word
from hybridperf.steps.record import Record, Refused
from hybridperf.workloads.transformer import Layout, TransformerShape, load_shape
from hybridperf.workloads.transformer.codes import SCHEDULES
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.framework import config_habits
from hybridperf.workloads.transformer.step import refuse_unmodelled
from hybridperf.workloads.transformer.zoo import shape_of

_SIZES = ("hidden", "heads", "layers", "ffn", "vocab", "seq", "kv_heads", "head_dim", "experts", "topk", "decoder_layers", "image", "patch")
_EXPECTED = {"moe": ("experts", "topk"), "t5": ("decoder_layers",), "vit": ("image", "patch")}  # of families that are others without these
_NEAR_SCHEDULE = "zb or zb-h1 is zero_bubble, of zero-bubble schedules the one that is built"
_FAR = 2.0  # how many times beyond what was measured is said
_PADDING = 0.02  # of a vocabulary: 50304 for 50257
_WIDEST_FUSED_HEAD = 256  # of FlashAttention's kernels and cuDNN's
_CONTEXT = ("source", "section", "system_detail", "gpu")
_LARGEST_ASSUMED_MICRO_BATCH = 4


@dataclasses.dataclass(frozen=True)
class ResolvedRow:
    """One row, understood. `refused` says why it cannot be predicted; then `config` is None."""

    config: TransformerConfig | None
    machine: Machine | None
    source: str
    framework: str
    host: str | None = None
    notes: tuple[str, ...] = ()  # what was assumed
    flags: tuple[str, ...] = ()  # what contradicts itself
    refused: str = ""
    name: str = ""  # how a message calls it
    named: bool = True  # its framework is said, or known of its source

    @property
    def note(self) -> str:
        """All that is to be said of the row, in one line."""
        return self.refused or "; ".join((*self.flags, *self.notes))


@dataclasses.dataclass(frozen=True)
class Resolved:
    """The rows of a table, in its order."""

    rows: tuple[ResolvedRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ResolvedRow]:
        return iter(self.rows)

    @property
    def predictable(self) -> list[int]:
        """Places of the rows that have a config."""
        return [at for at, row in enumerate(self.rows) if row.config is not None]

    @property
    def notes(self) -> list[str]:
        """One line for each row."""
        return [row.note for row in self.rows]


def resolve(frame: pd.DataFrame, device: str | None = None, system: str | None = None, host: str | None = None) -> Resolved:
    """Understand each row of a table of training steps; `device`, `system`, `host` override what rows say.

    `InputError` for a device or system that nobody knows, and a table without a model; a row that is wrong is refused by itself.
    """
    check_columns(frame.columns)
    if device:
        load_device(device)
    if system:
        load_system(system)
    records = frame.to_dict("records")
    return Resolved(tuple(_resolve(Record(at, record), device, system, host) for at, record in enumerate(records)))


def _resolve(row: Record, device: str | None, system: str | None, host: str | None) -> ResolvedRow:
    source = row.text("source")
    framework = plain(row.text("framework")) or framework_of(source)
    found: Machine | None = None
    named = True
    try:
        why = _no_transformer(row)
        if why:
            raise Refused(f"expected a Transformer, got {row.text('model')}: {why}")
        if framework not in aliases()["framework"]:
            if framework:
                row.notes.append(f"framework {framework} is not known, only {', '.join(aliases()['framework'])}")
            framework = row.assume("framework", "megatron_core")
            habits = {**aliases()["framework"][framework], "precision": "bf16"}
            row.notes[-1] += f" (where the row does not say: {habits['implies']}); it is the quickest, others may take 10 to 30 % longer"
            named = False
        else:
            habits = {**aliases()["framework"][framework], **habits_of(source)}
        shape = _shape(row)
        found = machine(_gpu(row, device), " ".join(row.text(name) for name in _CONTEXT), device, system)
        gpus_per_node, whole = _nodes(row, found)
        if row.yes("offload"):
            raise Refused("expected offload false, got true: state that moves to host memory is not modelled")
        layout = _layout(row, habits, gpus_per_node, shape)
        strict = not habits.get("ragged_heads", False)
        gpus, global_batch = row.count("n_gpus"), row.count("global_batch")
        if row.count("gpus_per_node") is None and gpus and gpus > whole and gpus % whole:
            raise Refused(f"expected whole nodes of {whole} GPUs, a number that is assumed, got {gpus} GPUs; give gpus_per_node")
        row.notes += _checked(layout, shape, gpus, gpus_per_node, whole, strict)
        dtype, fields = _habits(row, habits, layout, found)
        if dict(fields).get("attention", "fused") == "fused" and shape.dim > _WIDEST_FUSED_HEAD:
            row.notes.append(f"fused attention assumed for heads of {shape.dim}, which kernels of up to {_WIDEST_FUSED_HEAD} do not take")
        flags = contradictions.of(row.record, shape, layout, found, dtype, dict(fields)["quant"], global_batch)
        config = _config(shape, layout, dtype, fields, min(gpus_per_node, layout.ranks))
        refuse_unmodelled(config)
        row.notes += _unseen(config)
    except (Refused, InputError) as error:
        return ResolvedRow(None, found, source, framework, host, refused=f"{row.name}: {error}", name=row.name)
    return ResolvedRow(config, found, source, framework, host, (*found.notes, *row.notes), flags, name=row.name, named=named)


def _nodes(row: Record, found: Machine) -> tuple[int, int]:
    """(GPUs that count as a node, GPUs of a node that runs take whole): the row's own, but a switch's and another system's come first."""
    said = row.count("gpus_per_node")
    if found.renoded:
        if said not in (None, found.whole):
            row.notes.append(f"gpus_per_node {found.whole} of the system that was given, in place of the row's {said}")
        return found.gpus_per_node, found.whole
    if found.switched:
        return found.gpus_per_node, said or found.whole
    said = said or row.assume("gpus_per_node", found.gpus_per_node)
    return said, said


@functools.lru_cache(65536)
def _unseen(config: TransformerConfig) -> list[str]:
    """Sizes far outside all measured steps."""
    layout, shape = config.layout, config.shape
    values = {"n_gpus": layout.ranks} | {name: getattr(shape, name) for name in ("seq", "hidden")}
    values |= {name: getattr(layout, name) for name in ("micro_batch", "tp", "pp")}
    return [
        f"{name} {values[name]} is far outside measured steps ({low} to {high}): extrapolated"
        for name, (low, high) in aliases()["measured"].items()
        if not low / _FAR <= values[name] <= high * _FAR
    ]


def _no_transformer(row: Record) -> str:
    return str(aliases()["refused"].get(plain(row.text("model")), ""))


def _gpu(row: Record, device: str | None) -> str:
    gpu = row.text("gpu")
    if not gpu and not device:
        raise Refused("expected an accelerator in gpu, got nothing; name it by --device")
    return gpu


# --- model ------------------------------------------------------------------------------------------------------------------------------


def _shape(row: Record) -> TransformerShape:
    """The row's own sizes over those of the published model of that name; all of them where no model is known."""
    said = {name: value for name in _SIZES if (value := row.count(name)) is not None}
    shape, assumed, odd = _known_shape(row.text("model"), row.text("family"), tuple(said.items()))
    for name, value in assumed:
        row.assume(name, value)
    row.notes += odd
    return shape


@functools.lru_cache(4096)
def _known_shape(
    model: str, family: str, said: tuple[tuple[str, int], ...]
) -> tuple[TransformerShape, tuple[tuple[str, Any], ...], tuple[str, ...]]:
    """(shape, what of it nobody said, where it is not the published one)."""
    sizes: dict[str, Any] = dict(said)
    kind: Any = word("family", family) if family else ""
    try:
        published, why = load_shape(model) if model else None, "neither"
    except InputError as error:
        published, why = None, str(error)
    if published is None:
        if kind == "vit":
            sizes = _patched(sizes, 0, 0)
        missing = [name for name in ("hidden", "heads", "layers", "seq", "vocab") if name not in sizes]
        if missing:
            raise Refused(f"expected {', '.join(missing)} or the name of a published model in model, got {why}")
        if kind is None:
            raise Refused(f"expected a family of {', '.join(filter(None, aliases()['family'].values()))}, got {family!r}")
        assumed: list[tuple[str, Any]] = []
        if not kind:
            kind = "gpt"
            assumed.append(("family", kind))
        if lacking := [name for name in _EXPECTED.get(kind, ()) if name not in sizes]:
            raise Refused(f"expected {' and '.join(lacking)} of a family {kind} given by its sizes, got nothing")
        if "ffn" not in sizes:
            sizes["ffn"] = 4 * sizes["hidden"]
            assumed.append(("ffn", f"{sizes['ffn']} (4 x hidden)"))
        return shape_of(model or family or "unnamed", {"family": kind, **sizes}), tuple(assumed), ()
    if published.family == "vit":
        sizes = _patched(sizes, published.image, published.patch)
    assumed = [] if "seq" in sizes else [("seq", f"{published.seq} (the model's)")]
    return dataclasses.replace(published, **sizes), tuple(assumed), tuple(_unlike(published, sizes, word("family", family)))


def _patched(sizes: Mapping[str, Any], image: int, patch: int) -> dict[str, Any]:
    """Sizes of a ViT, whose tokens are the patches of an image and one more; of an image or a patch that a row does not say the model's."""
    image, patch = sizes.get("image", image), sizes.get("patch", patch)
    if "seq" in sizes or not patch or not {"image", "patch"} & set(sizes):
        return dict(sizes)
    return {**sizes, "seq": (image // patch) ** 2 + 1}


def _unlike(published: TransformerShape, said: Mapping[str, int], family: Any) -> Iterator[str]:
    """Where a row's sizes are not those of the model it names."""
    if family and family != published.family:
        yield f"family {family} given, {published.name} is a {published.family}: predicted as that"
    for name, value in said.items():
        own = getattr(published, name) or (published.heads if name == "kv_heads" else 0)
        if name == "head_dim":
            own = published.dim
        padded = name == "vocab" and own <= value <= own * (1 + _PADDING)
        if name != "seq" and value != own and not padded:
            yield f"{name} {value} given, {published.name} has {own or 'none'}"
    places = published.max_positions or published.seq
    if published.positions == "learned" and said.get("seq", 0) > places:
        yield f"seq {said['seq']} given, {published.name} has {places} learned positions"


# --- layout -----------------------------------------------------------------------------------------------------------------------------


def _layout(row: Record, habits: Mapping[str, Any], gpus_per_node: int, shape: TransformerShape) -> Layout:
    tp, pp, cp = row.count("tp"), row.count("pp"), row.count("cp") or 1
    dp, gpus = row.count("dp"), row.count("n_gpus")
    if tp is None and pp is None and dp is None:
        raise Refused("expected a layout (tp, pp, dp, or two of them and n_gpus), got none of them")
    tp, pp = tp or _left(row, "tp", pp, cp, dp, gpus), pp or _left(row, "pp", tp, cp, dp, gpus)
    if dp is None:
        if gpus is None:
            raise Refused("expected dp or n_gpus, got neither")
        if gpus % (tp * pp * cp):
            raise Refused(f"expected n_gpus to be a multiple of tp x pp x cp = {tp * pp * cp}, got {gpus}")
        dp = gpus // (tp * pp * cp)
    if gpus is not None and tp * pp * cp * dp != gpus:
        raise Refused(f"expected tp x pp x cp x dp to be n_gpus, got {tp} x {pp} x {cp} x {dp} = {tp * pp * cp * dp} for {gpus} GPUs")
    micro_batch, accumulation = _batches(row, dp, pp)
    vp, ep = row.count("vp"), row.count("ep") or 1
    if vp is None:
        vp = row.assume("vp", _chunks(shape, pp, habits)) if pp > 1 and habits.get("interleaves") else 1
    schedule = _schedule(row, vp, habits)
    if schedule == "chimera":  # what is not modelled is not assumed either
        habits = {**habits, "zero": 0}
    elif schedule == "zero_bubble":
        habits = {**habits, "recompute": "none"}
    zero = _zero(row, habits)
    return Layout(
        tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, expert_tp=1 if ep > 1 and tp > 1 else None, vp=vp, micro_batch=micro_batch,
        accumulation=accumulation, zero=zero,
        sequence_parallel=_yes(row, "seq_parallel", habits.get("sequence_parallel", False)) and tp > 1,
        shard_ranks=_shard_ranks(row, tp, dp * cp, gpus_per_node),
        recompute=_recompute(row, habits), schedule=schedule,
    )  # fmt: skip


def _shard_ranks(row: Record, tp: int, data_ranks: int, gpus_per_node: int) -> int | None:
    """Over how many data ranks a hybrid shards: those of a node, where tensor parallelism leaves room for some; None: over all."""
    inside = max(gpus_per_node // tp, 1)
    if plain(row.text("sharding")) not in ("hsdp", "hybrid_shard") or data_ranks <= inside:
        return None
    shards = math.gcd(data_ranks, inside)
    row.notes.append(
        f"hsdp taken to shard over {shards} of the {data_ranks} data ranks: as many as a node of {gpus_per_node} holds at tp {tp}"
    )
    return shards


def _left(row: Record, name: str, other: int | None, cp: int, dp: int | None, gpus: int | None) -> int:
    """A degree that the row does not say: what the others, where all are said, leave of its GPUs; else 1."""
    each = other * cp * dp if other and dp else 0
    if gpus and each and gpus % each == 0 and gpus > each:
        row.assume(name, f"{gpus // each} (n_gpus over the other degrees)")
        return gpus // each
    return int(row.assume(name, 1))


def _batches(row: Record, dp: int, pp: int) -> tuple[int, int]:
    """(micro-batch, accumulation); what is missing follows from the global batch."""
    micro_batch, accumulation, whole = row.count("micro_batch"), row.count("grad_accum"), row.count("global_batch")
    if micro_batch is not None and accumulation is not None:
        return micro_batch, accumulation
    if whole is None:
        raise Refused("expected global_batch, or both micro_batch and grad_accum, got neither")
    if whole % dp:
        raise Refused(f"expected global_batch to be a multiple of dp, got {whole} for dp {dp}")
    each = whole // dp
    if micro_batch is None and accumulation is None:
        powers = [size for size in (1, 2, 4) if size <= _LARGEST_ASSUMED_MICRO_BATCH and each % size == 0]
        micro_batch = row.assume("micro_batch", max((size for size in powers if each // size >= 4 * pp), default=1))
    known = micro_batch or accumulation
    if known is None or each % known:
        what = "micro_batch" if micro_batch else "grad_accum"
        raise Refused(f"expected {what} to divide the {each} samples of a replica (global_batch / dp), got {known}")
    return (micro_batch, each // micro_batch) if micro_batch else (each // known, known)


def _chunks(shape: TransformerShape, pp: int, habits: Mapping[str, Any]) -> int:
    """Chunks of a stage where a row does not say: of so many layers as the framework's users give each, 1 where they do not divide."""
    layers = habits.get("chunk_layers")
    return shape.depth // (pp * layers) if layers and shape.depth % (pp * layers) == 0 else 1


def _zero(row: Record, habits: Mapping[str, Any]) -> Any:
    said = row.text("sharding")
    found = word("sharding", said) if said else None
    if said and found is None:
        raise Refused(f"expected a sharding of {', '.join(aliases()['sharding'])}, got {said!r}")
    return int(row.assume("ZeRO stage", habits["zero"]) if found is None else found)


def _recompute(row: Record, habits: Mapping[str, Any]) -> Any:
    said = row.text("recompute")
    found = word("recompute", said) if said else ""
    if found is None:
        known = [name for name, mode in aliases()["recompute"].items() if mode]
        raise Refused(f"expected a recompute of {', '.join(known)}, got {said!r}")
    return str(found or row.assume("recompute", habits["recompute"]))


def _schedule(row: Record, vp: int, habits: Mapping[str, Any]) -> Any:
    said = row.text("schedule")
    found = word("schedule", said) if said else ""
    if found is None:
        near = f"; {_NEAR_SCHEDULE}" if plain(said).startswith(("zb", "zero")) else ""
        raise Refused(f"expected a schedule of {', '.join(SCHEDULES)}, got {plain(said)!r}{near}")
    if found or vp == 1:
        return found or str(habits.get("schedule", "1f1b"))
    if row.count("vp"):
        row.assume("schedule", f"interleaved (vp {vp})")
    return "interleaved"


def _yes(row: Record, field: str, habit: bool) -> bool:
    said = row.yes(field)
    return habit if said is None else said


@functools.lru_cache(65536)
def _checked(layout: Layout, shape: TransformerShape, gpus: int | None, gpus_per_node: int, whole: int, strict: bool) -> list[str]:
    if whole < gpus_per_node:  # a rack: runs take nodes whole, groups lie on racks
        layout.check(shape, gpus=gpus, gpus_per_node=min(whole, gpus or whole), strict=strict)
        return list(layout.check(shape, gpus_per_node=min(gpus_per_node, layout.ranks), strict=strict))
    return list(layout.check(shape, gpus=gpus, gpus_per_node=min(gpus_per_node, gpus or gpus_per_node), strict=strict))


# --- the rest ---------------------------------------------------------------------------------------------------------------------------


def _habits(row: Record, habits: Mapping[str, Any], layout: Layout, found: Machine) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """(dtype, the framework's own fields of a config)."""
    said = row.text("precision")
    if plain(said) in ("", "submission"):
        usual = habits.get("precision", "bf16")
        known = usual in found.spec.peak_flops_per_s
        said = row.assume("precision", usual if known else "bf16")
    dtype = word("precision", said)
    if dtype is None:
        raise Refused(f"expected a precision of {', '.join(aliases()['precision'])}, got {said!r}")
    names = {field.name for field in dataclasses.fields(TransformerConfig)}
    quant = word("quant", said) or ""
    settled = {**config_habits(habits, layout.tp), "quant": quant}
    return dtype, tuple((name, value) for name, value in settled.items() if name in names)


@functools.lru_cache(65536)
def _config(
    shape: TransformerShape, layout: Layout, dtype: str, fields: tuple[tuple[str, Any], ...], gpus_per_node: int
) -> TransformerConfig:
    """One object for all rows that say the same."""
    return TransformerConfig(shape=shape, layout=layout, dtype=dtype, gpus_per_node=gpus_per_node, **dict(fields))
