"""A workload on a model: seconds, where they go, what they are held up by, and how sure we are."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from hybridperf.engine.evaluate import (
    Timeline,
    check_durations,
    critical_path,
    last_ends,
    timeline,
)
from hybridperf.engine.interval import (
    UNKNOWN_SHARE,
    beside_the_path,
    by_others,
    of_effects,
    step_deviation,
    step_ends,
    step_slopes,
    times_on_path,
    unsure,
)
from hybridperf.engine.lower import Lowered, lower
from hybridperf.engine.workload import Workload
from hybridperf.io import InputError
from hybridperf.io.later import pd
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.io.process import check_not_forked
from hybridperf.model import PerfModel, model_or_datasheet
from hybridperf.model.calls import call_columns, kind_of, row_kinds
from hybridperf.model.group_report import WIDE, GroupReport, below_roofline, narrowed_by
from hybridperf.model.price import Prices, price
from hybridperf.model.sources import how
from hybridperf.model.step_effects import vector
from hybridperf.model.step_table import Parts, chained, in_step_seconds, split
from hybridperf.ops import FUSED, GROUPS, OpCall

_LARGEST_LOG_ERROR = 5.0  # where none is known
_WAIT = "wait"
_LOOKUPS = ("embedding_bag", "embedding_bag_backward", "embedding_bag_scatter")


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted time of one step and where it goes; what `hp.predict` returns.

    Arrays have one entry per node of the workload's graph [N] or per different call [U].
    """

    workload: Workload
    model: PerfModel
    time_s: float  # of the step
    low_s: float | None  # 90 % interval; None where the model has no measurements to take it from
    high_s: float | None
    roofline_s: float  # the same step by the datasheet alone
    op_s: np.ndarray  # [U] seconds of each call
    op_roofline_s: np.ndarray  # [U] seconds by the datasheet alone
    # int [U] index into `row_kinds()`: groups of ops, then collectives by name, then given seconds
    op_group: np.ndarray
    op_in_range: np.ndarray  # bool [U] whether the call lies inside what was measured
    timeline: Timeline  # start and end seconds of each node [N]
    on_critical_path: np.ndarray  # bool [N]
    in_range: bool  # whether all calls lie inside what was measured
    notes: tuple[str, ...]  # what to know before trusting the time

    def __repr__(self) -> str:
        interval = "no interval"
        if self.low_s is not None and self.high_s is not None:
            interval = f"90 % interval {self.low_s:.4g} to {self.high_s:.4g} s"
        roofline = f"datasheet roofline {self.roofline_s:.4g} s"
        what = f"{self.workload.name} on {self.model.device.id}: {self.time_s:.4g} s"
        return f"<Prediction: {what} ({interval}), {roofline}; notes: {len(self.notes)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the sentence of `repr`, the breakdown, the notes."""
        said = [html.escape(repr(self)), self.breakdown().to_html(index=False, float_format="%.4g")]
        return "".join(f"<p>{one}</p>" for one in (*said, *map(html.escape, self.notes)))

    def breakdown(self) -> pd.DataFrame:
        """Seconds by group, largest first: `group, share, seconds, roofline_s, ops, in_range`.

        Groups may overlap in time, so that seconds need not add up to the step's.
        """
        times = self.workload.times_run()
        row = np.flatnonzero(times)
        times = times[row]
        frame = pd.DataFrame({
            "group": [row_kinds()[g] for g in self.op_group[row]],
            "seconds": times * self.op_s[row],
            "times": times, "roofline_s": times * self.op_roofline_s[row],
            "in_range": self.op_in_range[row],
        })  # fmt: skip
        out = frame.groupby("group").agg(
            seconds=("seconds", "sum"), roofline_s=("roofline_s", "sum"), ops=("times", "sum"),
            in_range=("in_range", "all"),
        )  # fmt: skip
        out.insert(1, "share", out["seconds"] / (out["seconds"].sum() or 1.0))
        return out.sort_values("seconds", ascending=False).reset_index()

    def explain(self, call: int) -> str:
        """Why a call takes as long as it does: its price by itself as a waterfall of stages.

        Args:
            call: its place among `workload.calls`.
        """
        asked = self.workload.calls[call]
        if not isinstance(asked, OpCall):
            raise InputError(
                f"expected the place of an op among the calls, got {call}, which is"
                f" {row_kinds()[self.op_group[call]]}; `explain` tells of ops"
            )
        return str(self.model.explain(asked))

    def ops(self) -> pd.DataFrame:
        """Every node in issue order: `label, group, start_s, seconds, roofline_s, critical`.

        The op's dimensions follow. With several ranks or streams, `rank` and `stream` follow the
        label. A node that only waits has no seconds.
        """
        graph = self.workload.graph
        row = graph.row - 1
        where = {"rank": graph.rank, "stream": [graph.stream_names[at] for at in graph.stream]}
        frame = pd.DataFrame({
            "label": graph.labels,
            **(where if len(graph.stream_names) > 1 or graph.rank.any() else {}),
            "group": [row_kinds()[self.op_group[r]] if r >= 0 else _WAIT for r in row],
            "start_s": self.timeline.start_s, "seconds": np.where(row >= 0, self.op_s[row], 0.0),
            "roofline_s": np.where(row >= 0, self.op_roofline_s[row], 0.0),
            "critical": self.on_critical_path,
        })  # fmt: skip
        calls = self.workload.calls
        dims = [call_columns(calls[r]) if r >= 0 else {"op": _WAIT} for r in row]
        return pd.concat([frame, pd.DataFrame(dims)], axis=1)


def predict(model: PerfModel | str | Path, workload: Workload) -> Prediction:
    """The time of one step of a workload on a machine, its 90 % interval, and where time goes.

    Args:
        model: the machine, from `hp.load_model`, `hp.fit` or `hp.PerfModel.datasheet`; or its
            folder, or the name of a shipped calibration or a device.
        workload: the step, from `hp.transformer`, `hp.dlrm`, `hp.from_jax` or `hp.load_program`.

    Raises:
        InputError: when the workload was compiled for another kind of device, or the model cannot
            price one of its calls.
    """
    check_not_forked()
    if not isinstance(workload, Workload):
        mend = "hp.dlrm, hp.transformer and hp.from_jax make one"
        raise InputError(f"expected a workload, got {type(workload).__name__}; {mend}")
    if isinstance(model, str | Path):
        model = model_or_datasheet(model)
    check_backend(model, workload)
    calls, in_step = workload.calls, workload.in_step
    prices = price(model, calls, in_step)
    adapted = model.adapted("" if in_step is None else in_step.framework)
    parts = split(calls)
    group = np.array([kind_of(call) for call in calls], np.int32)
    lowered = lower(workload.graph)
    op_s = check_durations(
        lowered, in_step_seconds(prices.table, prices.seconds, vector(adapted.effects))
    )
    times = timeline(lowered, op_s)
    path = critical_path(lowered, op_s)
    given = np.isin(np.arange(len(calls)), list(parts[2]))  # as long by any datasheet
    op_roofline_s = chained(prices.table, np.where(given, op_s, prices.roofline_s))
    roofline_s = timeline(lowered, op_roofline_s).end_s.max()
    time_s = float(times.end_s.max())
    reports = model.measured.groups
    missing, uncertain = of_effects(model, in_step, reports), unsure(prices)
    whose = "" if in_step is None else model.steps_note(in_step.framework)
    times_run = workload.times_run()
    run_s = times_run * op_s
    unknown = 0.0
    if missing is None and run_s.any():
        unknown = float(run_s[uncertain].sum() / run_s.sum())
    interval: tuple[float, float] | None = None if time_s else (0.0, 0.0)
    deviation = 0.0
    if time_s and unknown <= UNKNOWN_SHARE:
        on_path = times_on_path(workload.graph, path, len(calls))
        slopes = step_slopes(prices, adapted, in_step, op_s, on_path, time_s)
        if in_step is not None and not parts[1]:
            slopes = beside_the_path(slopes, adapted, missing, moved_s(prices, lowered), time_s)
        deviation = step_deviation(slopes, prices.components, adapted, in_step, missing)
        interval = step_ends(model.device, adapted, in_step, time_s, deviation)
    inside = prices.in_range
    critical = np.zeros(len(workload.graph), bool)
    critical[path.node[~path.is_launch]] = True
    notes = _notes(model, reports, parts, prices, group, run_s, workload)
    notes += filter(None, [whose])
    if missing is not None:
        notes += missing.notes
    notes += _below_roofline(model, workload, parts[0], op_s, op_roofline_s)
    times_wide = float(np.exp(2 * NINE_OF_TEN * deviation))  # for other reasons than stalls
    if times_wide > WIDE:
        notes.append(_wide(workload, run_s, prices, times_wide))
    if unknown > UNKNOWN_SHARE and model.groups:  # without any measurements a note says that
        kinds = sorted({row_kinds()[g] for g in group[uncertain & (times_run > 0)]})
        what = f"the error of {unknown:.0%} of the step is not known"
        notes.append(f"no interval: {what} ({', '.join(kinds)})")
    return Prediction(
        workload=workload,
        model=model,
        time_s=time_s,
        low_s=None if interval is None else interval[0],
        high_s=None if interval is None else interval[1],
        roofline_s=float(roofline_s),
        op_s=op_s,
        op_roofline_s=op_roofline_s,
        op_group=group,
        op_in_range=inside,
        timeline=times,
        on_critical_path=critical,
        in_range=bool(inside.all()),
        notes=(*workload.notes, *notes),
    )


def moved_s(prices: Prices, lowered: Lowered) -> Callable[[np.ndarray], np.ndarray]:
    """Seconds of a step [B] as a function of its step effects [K, B]."""

    def seconds(effects: np.ndarray) -> np.ndarray:
        alone_s = np.repeat(prices.seconds[:, None], effects.shape[1], 1)
        return last_ends(lowered.program, in_step_seconds(prices.table, alone_s, effects))

    return seconds


def check_backend(model: PerfModel, workload: Workload) -> None:
    """`InputError` for a step that was compiled for another kind of device."""
    if workload.backend is not None and workload.backend != model.device.kind:
        raise InputError(
            f"{workload.name} was compiled for a {workload.backend} and {model.device.id} is a"
            f" {model.device.kind}, which fuses differently; import it on a machine with a"
            f" {model.device.kind}, or choose a {workload.backend} model"
        )
    library = model.provenance.get("library", "jax")
    if workload.backend == "cpu" and model.groups and library != (workload.library or "jax"):
        of = workload.library or "jax"
        raise InputError(
            f"{workload.name} runs through {of} and {model.device.id} was measured through"
            f" {library}; `hybridperf calibrate --library {of}` measures it so"
        )


def _below_roofline(
    model: PerfModel, workload: Workload, ops: Mapping[int, OpCall], op_s: np.ndarray,
    op_roofline_s: np.ndarray,
) -> list[str]:  # fmt: skip
    """Why ops are faster than the datasheet allows, with their share of the step."""
    below = [at for at in np.flatnonzero(op_s < op_roofline_s).tolist() if at in ops]
    own = (ops[at].reuse_bytes for at in below)
    distances = [
        float(ops[at].op.work().reuse_bytes) if distance is None else distance
        for at, distance in zip(below, own, strict=True)
    ]
    why = below_roofline(model.device, op_s[below], op_roofline_s[below], np.array(distances))
    run_s = workload.times_run() * op_s
    notes = []
    for note in sorted({*why} - {""}):
        if (share := run_s[below][why == note].sum() / run_s.sum()) > 0.005:
            notes.append(f"{note} ({share:.0%} of the step)")
    return notes


def _wide(workload: Workload, run_s: np.ndarray, prices: Prices, times: float) -> str:
    """Which call makes most of a wide interval, and what would narrow it."""
    log_width = np.nan_to_num(prices.spread, nan=_LARGEST_LOG_ERROR)
    at = int(np.argmax(run_s * np.expm1(log_width)))
    share = f"{run_s[at] / run_s.sum():.0%} of the step"
    where = f" ({share})" if prices.in_range[at] else f" ({share}, outside what was measured)"
    return narrowed_by(times, call_columns(workload.calls[at]), where)


def _notes(
    model: PerfModel, reports: Mapping[str, GroupReport], parts: Parts, prices: Prices,
    group_of: np.ndarray, run_s: np.ndarray, workload: Workload,
) -> list[str]:  # fmt: skip
    ops, collectives, _ = parts
    notes, peak, has = [], workload.peak_memory, model.device.memory_bytes
    if peak is not None and peak.bytes > has:
        part = f" ({peak.largest_part})" if peak.largest_part else ""
        needs = f"{peak.what} {peak.bytes / 1e9:.4g} GB{part}"
        notes.append(f"does not fit: {needs}, {model.device.id} has {has / 1e9:.4g} GB")
    if collectives and model.collectives is not None:
        fabric = model.collectives
        if fabric.adapted is None:
            no = f"no measurements of {fabric.system.id} in this model"
            notes.append(f"datasheet alone for collectives: {no}")
        most = fabric.system.accelerators_per_node
        if any(call.ranks_per_node > most for call in collectives.values()):
            notes.append(fabric.crowded_remark)
        notes += filter(None, [fabric.system.lent_to(model.device.id)])
    kinds = row_kinds()
    elsewhere = {kinds[g] for g in group_of[by_others(prices)]}
    unknown = {kinds[g] for g in group_of} & set(_LOOKUPS) - set(model.groups) - elsewhere
    if unknown and np.all(np.asarray(model.knobs.level_speedup) == 1):
        notes.append(
            f"no cache of {model.device.id} was measured: embedding rows come from its memory,"
            " however few they are or often looked up"
        )
    if not reports and model.references is None:
        return [*notes, f"datasheet roofline of {model.device.id}: no measurements in this model"]
    total = run_s.sum() or 1.0  # a step without time is no share of anything
    ops = {at: call for at, call in ops.items() if call.kernel != FUSED}
    groups = {GROUPS[group_of[at]] for at in ops}
    for group in sorted(groups - set(reports)):
        share = run_s[group_of == GROUPS.index(group)].sum() / total
        source = next(prices.sources[at] for at in ops if GROUPS[group_of[at]] == group)
        notes.append(f"no {group} measurements: {how(source)} for {share:.1%} of the step")
    for note in sorted(set(prices.unmeasured.values())):
        share = run_s[[at for at, what in prices.unmeasured.items() if what == note]].sum() / total
        notes.append(f"{note}: {share:.1%} of the step is a guess")
    remarks = np.array(prices.remarks, object)
    for note in sorted(set(remarks[workload.times_run() > 0]) - {""}):
        # a step's framework is of training; the measured kernels are of serving frameworks
        default, measured = (
            "no framework given: taken for ",
            "priced by kernels that were measured in ",
        )
        share = run_s[remarks == note].sum() / total
        notes.append(f"{note.replace(default, measured)} ({share:.0%} of the step)")
    outside = run_s[~prices.in_range].sum() / total
    if outside > 0.005:
        notes.append(f"{outside:.0%} of the step lies outside the calibrated range of sizes")
    return notes
