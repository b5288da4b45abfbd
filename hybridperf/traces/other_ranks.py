"""A recorded step on another number of ranks (after Lumos, arXiv 2504.09307).

    weak      each rank keeps its batch: only collectives change
    strong    the ranks share one batch, so that each gets old / new of it: ops whose tensors begin
              with the batch are priced at the recorded sizes and at the smaller ones, and the ratio
              changes the measured seconds

Groups of all ranks grow with them, as do those of ranks that lie one stride apart over the whole
run (data-parallel beside others); groups of neighbours (tensor-parallel) stay as they are, and of
any other nobody knows what becomes. A collective takes its measured seconds times predicted new
over old. Gradients and weights stay as large; what carries samples (an all-to-all, and all within
groups of neighbours, and messages of two ranks) is shared out with the batch. All-gathers count
their whole output. Ranks beyond the recorded ones are taken to be like them and scatter as they do:
where a collective's ranks took times of deviation s since the one before, the slowest of n comes
a_n s after their mean (a_n: the expected largest of n normal numbers), so more ranks wait for it
longer by (a_new - a_old) s. The interval reaches from none of that to twice as much.

Which tensors begin with the batch: those whose first dimension is a multiple of a unit, unless they
are as large as a weight. The unit is the rows of the products with a weight that take most time;
where they are tokens, the first dimension of tensors of three dimensions and more that divides
them. Weights are what gradients are accumulated for. Rows of pooled lookups are shared
out, as are their tables. An op that nobody knows changes as the known ones do on average, somewhere
between not at all and in full; updates of lists of weights stay.

Axes: U rows of the replay.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.collectives.model import CollectiveModel, collectives_of
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.model.price import price
from hybridperf.model.step_effects import slowest_of
from hybridperf.ops import OpCall
from hybridperf.ops.embedding_bag import EmbeddingBag, EmbeddingBagBackward
from hybridperf.traces import row_ops
from hybridperf.traces.other_device import KERNEL_S, recorded_on
from hybridperf.traces.readers.kineto import read_traces
from hybridperf.traces.replay import Replay, has_backlog, in_a_row, replay
from hybridperf.traces.replay_graph import DEVICE
from hybridperf.traces.what_if import (
    Change,
    OnWire,
    on_wires,
    predicted,
    seconds_by_op,
    step_table,
    what_if,
)

SCALINGS = ("weak", "strong")
KNOWN = 0.5  # of the device's time, without which its answer would be a guess
_UNMEASURED = 8.0  # each way, of links without measurements: so far off was a box on PCIe
_RARE = 0.01  # of the time: tensors of less do not tell the batch
_WIDTH = NormalDist().inv_cdf(0.95)  # standard deviations from the middle of a 90 % interval
_ACCUMULATED = "torch::autograd::AccumulateGrad"
_UPDATE = re.compile(r"multi_tensor|adam|lamb|foreach", re.I)
_CARRIES_SAMPLES = ("all_to_all", "sendrecv")

Dims = list[list[Any]]


def other_ranks(
    replay: Replay,
    ranks: int,
    scaling: str,
    links: tuple[CollectiveModel, CollectiveModel],
    model: PerfModel,
) -> Change:
    """What another number of ranks makes of each kernel and collective.

    Args:
        replay: a step of one or more ranks of a run.
        ranks: in all.
        scaling: "weak" or "strong".
        links: of the system that the run was recorded on, and of the new one.
        model: of the device, for ratios of sizes.
    """
    if scaling not in SCALINGS:
        raise InputError(f"expected weak or strong scaling, got {scaling!r}")
    world = replay.traces[0].world or (len(replay.traces) if len(replay.traces) > 1 else None)
    if world is None or world < 2:
        recorded = "one rank" if world == 1 else "a trace that does not say of how many"
        raise InputError(f"expected a run of several ranks to scale, got {recorded}")
    if ranks < 2:
        raise InputError(f"expected 2 ranks or more to scale to, got {ranks}")
    share = Fraction(world, ranks) if scaling == "strong" else Fraction(1)
    factor, low, high = (np.ones(len(replay.rows)) for _ in range(3))
    unknown = _collectives(replay, world, ranks, share, links, (factor, low, high))
    notes = ["ranks without a trace are taken to be like those given, late ones as late"]
    if ranks > world and not _spread_s(replay):
        notes.append("one trace does not tell how ranks scatter: no longer wait for the slowest")
    if scaling == "strong" and share != 1:
        notes.append(_computation(replay, share, model, (factor, low, high)))
    what = f"{ranks} ranks for {world}, {scaling} scaling"
    if links[0].system.id != links[1].system.id:
        what += f", {links[1].system.id}"
    return Change(what, factor, unknown, tuple(notes), low=low, high=high)


def rescale_trace(
    paths: Sequence[str | os.PathLike] | str | os.PathLike,
    ranks: int,
    scaling: str,
    *,
    system: str,
    to_system: str = "",
    model: str = "",
    step: str | None = None,
) -> pd.DataFrame:
    """A recorded step of several ranks on another number of ranks.

    Args:
        paths: Kineto traces of one run, of one or more of its ranks.
        ranks: to scale to, in all.
        scaling: "weak" (each rank keeps its batch) or "strong" (they share one).
        system: where it was recorded, by name.
        to_system: where it would run; the same if not given.
        model: of the device; the recorded one's datasheet if not given.
        step: its name; the typical one if not given.

    Returns:
        A row per recorded rank: `step, rank, measured_s, replayed_s, before_s, after_s, low_s,
        high_s`.

    Raises:
        InputError: when the trace does not tell what becomes of its groups or its batch.
    """
    measured = replay(read_traces(paths), step)
    alone = in_a_row(measured) if has_backlog(measured) else measured
    old = collectives_of(system)
    links = old, collectives_of(to_system) if to_system else old
    change = other_ranks(alone, ranks, scaling, links, recorded_on(measured, model))
    return step_table([what_if(alone, [change])], [measured])


def _collectives(
    replay: Replay, world: int, ranks: int, share: Fraction,
    links: tuple[CollectiveModel, CollectiveModel], found: Sequence[np.ndarray],
) -> dict[str, float]:  # fmt: skip
    """Sets the factors of collectives; returns seconds by op of those that nobody can price."""
    wires = on_wires(replay)
    if not wires:
        raise InputError("expected collectives in the step, found none; nothing ties its ranks")
    after = [_rescaled(one, world, ranks, share) for one in wires]
    old, new = (predicted(model, those) for model, those in zip(links, (wires, after), strict=True))
    ratio = (new["predicted_s"] / old["predicted_s"]).to_numpy()
    known = np.isfinite(ratio)
    at = np.array([one.row for one in wires])
    same = np.array(
        [links[0] is links[1] and one == other for one, other in zip(wires, after, strict=True)]
    )
    ends = {"predicted_s": 1.0, "low_s": 1 / _UNMEASURED, "high_s": _UNMEASURED}
    for factors, (bound, unmeasured) in zip(found, ends.items(), strict=True):
        width = (new[bound] / new["predicted_s"]).fillna(unmeasured).to_numpy()
        factors[at] = np.where(known & ~same, ratio * width, 1.0)
    longer, spread_s = np.zeros(len(at)), _spread_s(replay)
    for i, (one, other) in enumerate(zip(wires, after, strict=True)):
        if other.ranks > one.ranks and one.row in spread_s:
            later_s = slowest_of(other.ranks) - slowest_of(one.ranks)
            longer[i] = later_s * spread_s[one.row] / max(replay.rows.busy_s[one.row], 1e-9)
    for factors, times in zip(found, (1.0, 0.0, 2.0), strict=True):
        factors[at] += times * longer
    return seconds_by_op(replay, at[~known])


def _spread_s(replay: Replay) -> dict[int, float]:
    """By row of a collective, the deviation of what its ranks took since the one before."""
    ended_s: dict[int, float] = {}
    spread_s: dict[int, float] = {}
    for meeting in replay.meetings:
        one = meeting.collective
        began_s = dict(zip(one.trace.tolist(), one.start_s.tolist(), strict=True))
        own_s = [at_s - ended_s[trace] for trace, at_s in began_s.items() if trace in ended_s]
        if len(own_s) > 1:
            row = int(replay.nodes.row[min(meeting.node.values())])
            spread_s[row] = float(np.std(np.maximum(own_s, 0.0), ddof=1))
        ended_s |= dict(zip(one.trace.tolist(), one.end_s.tolist(), strict=True))
    return spread_s


def _rescaled(one: OnWire, world: int, ranks: int, share: Fraction) -> OnWire:
    """A collective among the new ranks."""
    members, size = one.members, one.ranks
    carries = one.kind in _CARRIES_SAMPLES
    if one.kind == "sendrecv":
        pass  # of two stages, one rank apart or as far as ever
    elif size == world:
        members, size = (), ranks
    elif not members:
        groups = f"groups of {size} of {world} ranks without saying which"
        mend = "record with PyTorch 2.4 or later, which names them"
        raise InputError(f"expected the ranks of each group, got {groups}; {mend}")
    elif (strides := {int(apart) for apart in np.diff(sorted(members))}) == {1}:
        carries = True
    elif len(strides) == 1 and (stride := strides.pop()) * size == world and ranks % stride == 0:
        size = ranks // stride
        members = tuple(members[0] % stride + stride * at for at in range(size))
    else:
        known = "groups of all ranks, of neighbours, or one stride apart over the whole run"
        raise InputError(f"expected {known} that {ranks} ranks can have, got one of {members}")
    size_bytes = one.bytes * float(share) if carries else one.bytes
    return dataclasses.replace(one, ranks=size, members=members, bytes=size_bytes)


def _computation(
    replay: Replay, share: Fraction, model: PerfModel, found: Sequence[np.ndarray]
) -> str:
    """Sets the factors of ops whose batch is shared among more ranks, or fewer; returns a note."""
    rows, calls = replay.rows, row_ops.recorded_calls(replay)
    batch = _Batch.of(replay, calls, share)
    sizes: dict[row_ops.RecordedCall, tuple[tuple[OpCall, ...], tuple[OpCall, ...]]] = {}
    for call in dict.fromkeys(calls.values()):
        before, after = row_ops.our_ops(call), batch.rescaled(call)
        if before and after and len(before) == len(after):
            sizes[call] = before, after
    device_rows = np.flatnonzero(rows.kind == DEVICE)
    total_s = float(rows.busy_s[device_rows].sum())
    of_call = row_ops.rows_by_call(calls)
    known_rows = np.array([row for call in sizes for row in of_call[call]], int)
    known_s = float(rows.busy_s[known_rows].sum())
    if known_s < KNOWN * total_s:
        told = f"{known_s / max(total_s, 1e-30):.0%} of its time"
        mend = "record with record_shapes=True, or scale weakly"
        raise InputError(
            f"expected shapes that tell the batch of half of the computation, got {told}; {mend}"
        )
    factor, low, high = found
    ends = sorted((float(share), 1.0))
    ratio, width = _ratios(model, list(sizes.values()))
    for call, one, spread in zip(sizes, ratio.tolist(), width.tolist(), strict=True):
        members = of_call[call]
        factor[members] = min(max(one, ends[0]), ends[1])
        spread = spread if one != 1 else 0.0
        low[members] = min(max(one * math.exp(-spread), ends[0]), ends[1])
        high[members] = max(min(one * math.exp(min(spread, 100.0)), ends[1]), ends[0])
    mean = float((rows.busy_s * factor)[known_rows].sum() / known_s)
    for row in np.setdiff1d(device_rows, known_rows).tolist():
        kernel = replay.traces[rows.trace[row]].device_name(int(rows.event[row]))
        if not _UPDATE.search(kernel):
            factor[row], low[row], high[row] = mean, *ends
    named = f"a batch in units of {batch.unit} rows told by {known_s / total_s:.0%} of the time"
    return f"{named}; the rest of the computation changes by x{mean:.2f} as that does on average"


def _ratios(
    model: PerfModel, sizes: Sequence[tuple[tuple[OpCall, ...], tuple[OpCall, ...]]]
) -> tuple[np.ndarray, np.ndarray]:
    """New over old seconds, and half the width of its log; infinite where nothing is known."""
    begins = np.cumsum([0, *(len(before) for before, _ in sizes)])[:-1]
    seconds, spreads = [], []
    for which in (0, 1):
        found = price(model, [call for both in sizes for call in both[which]])
        seconds.append(np.add.reduceat(np.maximum(found.seconds, KERNEL_S), begins))
        spreads.append(np.maximum.reduceat(found.spread, begins))  # NaN wins
    return seconds[1] / seconds[0], np.nan_to_num(spreads[1], nan=np.inf) * _WIDTH


@dataclasses.dataclass(frozen=True)
class _Batch:
    """What tells the batch in the tensors of a step."""

    share: Fraction
    unit: int  # first dimensions with the batch are multiples of it
    weights: frozenset[tuple[int, ...]]
    leading: frozenset[int]  # first dimensions of tensors with the batch

    @classmethod
    def of(
        cls, replay: Replay, calls: Mapping[int, row_ops.RecordedCall], share: Fraction
    ) -> _Batch:
        found = set()
        for trace in replay.traces:
            named = trace.host_named(lambda name: name == _ACCUMULATED) & (trace.host.shapes >= 0)
            for shape in np.unique(trace.host.shapes[named]).tolist():
                found |= {tuple(one) for one in row_ops.dims_of(trace.shapes[shape])[:1] if one}
        weights = frozenset(found)
        if not weights:
            none = "no gradient is accumulated with its shape"
            raise InputError(
                f"expected the shapes of weights, got a step in which {none}; strong scaling needs"
                " a training step recorded with record_shapes=True"
            )
        bare = cls(share, 1, weights, frozenset())
        # seconds by first dimension
        products, others = defaultdict[int, float](float), defaultdict[int, float](float)
        for row, call in calls.items():
            busy_s, dims = float(replay.rows.busy_s[row]), row_ops.dims_of(call.shapes)
            if samples := bare._samples(call):
                products[samples] += busy_s
            elif dims and len(dims[0]) > 2 and not bare._is_weight(dims[0]) and dims[0][0]:
                others[dims[0][0]] += busy_s
        if not products:
            expected = "expected a product with a weight, whose rows are the batch"
            raise InputError(f"{expected}, found none; scale weakly")
        most = max(products, key=lambda rows: products[rows])
        least_s = _RARE * (sum(products.values()) + sum(others.values()))
        unit = min(
            most, *(one for one, s in others.items() if most % one == 0 and s > least_s), most
        )
        if (unit * share).denominator != 1:
            whole = f"expected ranks among which batches in units of {unit} rows can be shared"
            raise InputError(f"{whole}, got {1 / share} times as many as recorded")
        leading = {one for one in (*products, *others) if one % unit == 0}
        return cls(share, unit, weights, frozenset(leading))

    def rescaled(self, call: row_ops.RecordedCall) -> tuple[OpCall, ...] | None:
        """The ops of a call at the new batch; None where nobody knows them."""
        if call.lookup or "codegen_lookup" in call.name:
            return tuple(self._shared(one) for one in row_ops.our_ops(call) or ()) or None
        dims, kind = row_ops.dims_of(call.shapes), call.name.split("::")[-1]
        if kind in ("mm", "addmm"):
            self._product(dims[kind == "addmm" :])
        else:
            for one in dims:
                if self._begins_with_batch(one) or call.name.startswith(("fbgemm::", "fb::")):
                    self._less(one, 0)
        return row_ops.our_ops(call._replace(shapes=json.dumps(dims)))

    def _product(self, dims: Dims) -> None:
        """Of a product: rows of the result, or what a weight's gradient is summed over."""
        first, second = dims[:2]
        if len(first) != 2 or len(second) != 2:
            return
        if not self._is_weight(second) and self._is_weight([first[0], second[1]]):
            self._less(first, 1)
            self._less(second, 0)
        elif first[0] % self.unit == 0:
            self._less(first, 0)

    def _samples(self, call: row_ops.RecordedCall) -> int:
        """Rows of the batch in a product with a weight, 0 in others."""
        dims, kind = row_ops.dims_of(call.shapes), call.name.split("::")[-1]
        at = {"mm": 0, "addmm": 1, "linear": 0, "cudnn_convolution": 0, "convolution": 0}.get(kind)
        if at is None or len(dims) < at + 2 or len(dims[at]) < 2:
            return 0
        return int(dims[at][0]) if self._is_weight(dims[at + 1]) else 0

    def _is_weight(self, shape: Sequence[int]) -> bool:
        return tuple(shape) in self.weights or tuple(shape)[::-1] in self.weights

    def _begins_with_batch(self, shape: Sequence[int]) -> bool:
        if not shape or self._is_weight(shape) or shape[0] % self.unit:
            return False
        return len(shape) > 1 or shape[0] in self.leading

    def _less(self, shape: list[int], at: int) -> None:
        if shape and isinstance(shape[at], int):
            shape[at] = math.ceil(shape[at] * self.share)

    def _shared(self, call: OpCall) -> OpCall:
        """A pooled lookup or its update, of the same samples in fewer tables."""
        op, share = call.op, float(self.share)
        if isinstance(op, EmbeddingBag | EmbeddingBagBackward):
            fewer = {name: getattr(op, name) * share for name in ("pooling", "tables", "width")}
            op = dataclasses.replace(op, rows=max(op.rows * share, 1.0), **fewer)
        return dataclasses.replace(call, op=op)
