"""How a row of training steps is spread over ranks, by itself or its framework's habits."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from hybridperf.training.steps.names import aliases, plain, word
from hybridperf.training.steps.row_shape import Record, Refused
from hybridperf.workloads.transformer import Layout, TransformerShape
from hybridperf.workloads.transformer.columns import SCHEDULES

_NEAR_SCHEDULE = "zb or zb-h1 is zero_bubble, of zero-bubble schedules the one that is built"


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
    vp, ep = row.count("vp"), row.count("ep") or 1
    if vp is None:
        interleaves = pp > 1 and habits.get("interleaves")
        vp = row.assume("vp", _chunks(shape, pp, habits)) if interleaves else 1
    schedule = _schedule(row, vp, habits)
    if schedule == "chimera":  # what is not modelled is not assumed either
        habits = {**habits, "zero": 0}
    elif schedule == "zero_bubble":
        habits = {**habits, "recompute": "none"}
    sequence_parallel = row.yes("seq_parallel")
    if sequence_parallel is None:
        sequence_parallel = habits.get("sequence_parallel", False)
    return Layout(
        tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, expert_tp=1 if ep > 1 and tp > 1 else None, vp=vp,
        micro_batch=micro_batch, accumulation=accumulation, zero=_zero(row, habits),
        sequence_parallel=sequence_parallel and tp > 1,
        shard_ranks=_shard_ranks(row, tp, dp * cp, gpus_per_node),
        recompute=_recompute(row, habits), schedule=schedule,
    )  # fmt: skip


def _shard_ranks(row: Record, tp: int, data_ranks: int, gpus_per_node: int) -> int | None:
    """Over how many data ranks a hybrid shards: those of a node, or None: over all."""
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


def _chunks(shape: TransformerShape, pp: int, habits: Mapping[str, Any]) -> int:
    """Chunks of a stage where a row gives none: by layers as the framework's users cut them."""
    layers = habits.get("chunk_layers")
    return shape.depth // (pp * layers) if layers and shape.depth % (pp * layers) == 0 else 1


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


def _schedule(row: Record, vp: int, habits: Mapping[str, Any]) -> Any:
    given = row.text("schedule")
    found = word("schedule", given) if given else ""
    if plain(given) in SCHEDULES:
        found = plain(given)
    if found is None:
        near = f"; {_NEAR_SCHEDULE}" if plain(given).startswith(("zb", "zero")) else ""
        raise Refused(f"expected a schedule of {', '.join(SCHEDULES)}, got {plain(given)!r}{near}")
    if found or vp == 1:
        return found or str(habits.get("schedule", "1f1b"))
    if row.count("vp"):
        row.assume("schedule", f"interleaved (vp {vp})")
    return "interleaved"


@functools.lru_cache(65536)
def checked(
    layout: Layout, shape: TransformerShape, gpus: int | None, gpus_per_node: int, whole: int,
    strict: bool,
) -> list[str]:  # fmt: skip
    """What is unusual of a layout; `InputError` for the impossible. `whole`: as in `Machine`."""
    if whole < gpus_per_node:  # a rack: runs take nodes whole, groups lie on racks
        layout.check(shape, gpus=gpus, gpus_per_node=min(whole, gpus or whole), strict=strict)
        gpus_per_node, gpus = min(gpus_per_node, layout.ranks), None
    else:
        gpus_per_node = min(gpus_per_node, gpus or gpus_per_node)
    return list(layout.check(shape, gpus=gpus, gpus_per_node=gpus_per_node, strict=strict))
