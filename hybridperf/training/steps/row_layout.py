"""How a row of training steps is spread over ranks and nodes: what it says, what follows from that,
and what is assumed of the rest; and a layout in columns of such rows.

What the row says comes first. A framework's habits (`framework.defaults`) fill what it leaves open,
and give way where what it says rules them out or could not run with them: a default refuses no row.
Naming a default changes nothing, so each is a function of what is said and of other defaults that
are functions of it: degrees, then batches, then the pipeline's schedule with its chunks, then what
is sharded and computed again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hybridperf.fields.registry import NO, YES
from hybridperf.hardware.machines import Machine
from hybridperf.io.errors import plain
from hybridperf.training.steps.record import FIELDS, Record, Refused
from hybridperf.workloads.schedules.names import KINDS
from hybridperf.workloads.transformer import Layout, TransformerShape
from hybridperf.workloads.transformer.columns import SCHEDULES
from hybridperf.workloads.transformer.layout import ORDER, Order, shares_sequence

INTERLEAVED = "interleaved"
_DEGREES = ("tp", "pp", "dp", "cp", "ep", "vp")
# a pipeline whose stages idle so long, of the time that they work, is taken for interleaved, by so
# many layers a chunk
_IDLE, _CHUNK_LAYERS = 0.5, 2
# ZeRO stages by their words; what an hsdp shards, it shards as zero3 does
STAGES = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3, "hsdp": 3}


@dataclasses.dataclass(frozen=True)
class Nodes:
    """The nodes of a record's machine."""

    whole: int  # GPUs of a node that runs take whole
    assumed: bool = False  # the row does not say the latter
    racks: bool = False  # a switch joins several nodes, which count as one

    @staticmethod
    def of(row: Record, found: Machine) -> Nodes:
        given = row.count("gpus_per_node")
        if found.renoded:
            if given not in (None, found.whole):
                row.notes.append(
                    f"gpus_per_node {found.whole} of the system that was given, in place of the"
                    f" row's {given}"
                )
            return Nodes(found.whole, False, found.switched)
        return Nodes(given or found.whole, given is None, found.switched)

    def of_gpus(self, machine: Machine, gpus: int, tp: int) -> tuple[int, int]:
        """(GPUs that count as a node, GPUs of one that runs take whole) of so many: where nodes are
        assumed and would be broken, the largest that are not, if any of those that hold groups of
        `tp`; `machine`: as it is for so many.
        """
        whole = self.whole
        if self.assumed and gpus > whole and gpus % whole:
            fitting = [n for n in range(1, whole) if gpus % n == 0]
            whole = max([n for n in fitting if n % tp == 0] or fitting)
        return machine.gpus_per_node if self.racks else whole, whole

    def notes(self, whole: int) -> Sequence[str]:
        """What is assumed where runs take nodes of so many GPUs whole."""
        why = f": no whole nodes of {self.whole}" if whole != self.whole else ""
        return [f"gpus_per_node {whole} assumed{why}"] if self.assumed and not self.racks else []


def row_degrees(row: Record) -> tuple[int, int, int, int]:
    """(tp, pp, cp, dp) of a row; `Refused` where they do not make its GPUs."""
    tp, pp, cp = row.count("tp"), row.count("pp"), row.count("cp") or 1
    dp, gpus = row.count("dp"), row.count("n_gpus")
    if tp is None and pp is None and dp is None:
        if not gpus or row.word("sharding") not in ("zero2", "zero3", "hsdp"):
            raise Refused(
                "expected a layout (tp, pp, dp, or two of them and n_gpus), got none of them"
            )
        tp = pp = 1  # who shards weights or gradients over data ranks and says no more
        row.notes.append("tp 1, pp 1 assumed: all GPUs share the data")
        row.assumed |= {"tp", "pp"}
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
        unshared = expert_tp is None and ep > 1 and (cp * dp) % ep
        needed = bool(shape.experts and (expert_tp == 1 or unshared))
        given = shares_sequence(habits, shape, tp, cp, needed)
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
    hybrid = row.word("sharding") == "hsdp"
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


def with_shards(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """FSDP64 says two fields: weights are sharded, over 64 ranks (FSDP2 is PyTorch's second)."""
    text = str(said.get("sharding", ""))
    word, ranks = text.rstrip("0123456789"), text[len(text.rstrip("0123456789")) :]
    field = FIELDS["sharding"]
    if not ranks or field.meant(text) is not None or not field.meant(word):
        return said
    return {"shard_ranks": int(ranks), **said, "sharding": word}


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

    Where all three are given and differ, the global batch is what a step did, which its time and
    rate belong to: tables count accumulation with or without a pipeline's micro-batches.
    """
    micro_batch, accumulation = row.count("micro_batch"), row.count("grad_accum")
    whole = row.count("global_batch")
    if micro_batch is not None and accumulation is not None:
        of_replica = micro_batch * dp
        return (
            micro_batch,
            whole // of_replica if whole and not whole % of_replica else accumulation,
        )
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
    given = row.word("sharding")
    return STAGES[given] if given else int(row.assume("ZeRO stage", usual))


def _recompute(row: Record, usual: str) -> Any:
    return row.word("recompute") or row.assume("recompute", usual)


def _schedule(row: Record) -> str:
    """The schedule that a row names, or ""."""
    given = plain(row.text("schedule"))
    return given if given in SCHEDULES else row.word("schedule")


def layout_columns(layout: Layout) -> dict[str, Any]:
    """A layout in columns of `steps`, all of them."""
    x = layout
    return {
        "n_gpus": x.ranks, **{name: getattr(x, name) for name in _DEGREES},
        "expert_tp": x.expert_tp or x.tp, "seq_parallel": yes_or_no(bool(x.sequence_parallel)),
        "micro_batch": x.micro_batch, "grad_accum": x.accumulation,
        "global_batch": x.global_batch, "sharding": f"zero{x.zero}" if x.zero else "none",
        "shard_ranks": x.shard_ranks or x.data_ranks, "recompute": x.recompute,
        "schedule": x.schedule, "order": " ".join(x.order),
    }  # fmt: skip


def yes_or_no(flag: bool) -> str:
    """A flag as tables write it: "yes" or "no"."""
    return YES if flag else NO
