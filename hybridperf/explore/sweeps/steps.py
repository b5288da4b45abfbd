"""A step written down in the spec: ops and collectives on streams, whose sizes are formulas of the
parameters.

[target]
kind = "step"
model = "h100_sxm"           # prices the ops
system = "dgx_h100"          # prices the collectives, if there are any
[[target.ops]]
op = "gemm"
dtype = "bf16"
m = "batch * seq"            # every dimension of the op: a number or a formula
n = 16384
k = 4096
times = 24                   # in a row on its stream; a number or a formula
[[target.ops]]
collective = "all_reduce"
bytes = "2 * 4096 * 16384"
n_gpus = 8                   # a group of that many ranks
after = ["op1"]              # waits for these names; without `name` they are op1, op2, ... in order

Ops stand on stream "compute" and collectives on "comm" unless `stream` names another. The step is
one rank's: what others do shows in the collectives. Parameters are the names in the formulas, the
knobs of the platform and the rates of links (`Links`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from hybridperf.collectives.fit import collectives_by_name
from hybridperf.collectives.model import CollectiveModel
from hybridperf.engine.batches import knob_names, with_knobs
from hybridperf.engine.contraction import contracted
from hybridperf.engine.evaluate import makespan
from hybridperf.engine.interval import UNKNOWN_SHARE
from hybridperf.engine.lower import StepProgram, lower
from hybridperf.engine.step_function import LINK_KNOBS
from hybridperf.explore.sweeps import trust
from hybridperf.explore.sweeps.document import check_keys
from hybridperf.explore.sweeps.programs import batch_size
from hybridperf.explore.sweeps.smooth import soft_end
from hybridperf.explore.sweeps.step_ops import StepEntry, StepOp, alike_ops, graph_of, read_ops
from hybridperf.explore.sweeps.target import Columns, WrittenTarget, check_positive, place, register
from hybridperf.explore.sweeps.written import Part
from hybridperf.io.namespace import QUICKLY_COMPILED, SOONER_COMPILED, Array
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.model import PerfModel, model_or_datasheet
from hybridperf.model.variance import Components, ends

_LARGEST_BATCH = 4096  # points evaluated together


@jax.jit
def _on_path(program: StepProgram, seconds: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(seconds of the step [B], how often its critical path passes each op [U, B])."""
    step_s, pulled = jax.vjp(lambda each: makespan(program, each), seconds)
    return step_s, pulled(jnp.ones_like(step_s))[0]


class StepGiven(Part):
    """A step of ops and collectives: parameters are names in their formulas, and knobs."""

    kind: Literal["step"]
    model: Annotated[str, Field(description="prices the ops: a model, or a datasheet")]
    system: Annotated[str | None, Field(description="prices the collectives")] = None
    ops: Annotated[list[StepEntry], Field(min_length=1)]


@register("step")
class StepTarget(WrittenTarget):
    """Seconds of one step of ops and collectives that the spec lists."""

    Given = StepGiven
    results = {"time_s": float, "in_range": bool, "note": str}  # noqa: RUF012

    def __init__(self, model: PerfModel, system: CollectiveModel | None, ops: tuple[StepOp, ...]):
        self._model, self._system, self._ops, self._graph = model, system, ops, graph_of(ops)
        self.models = (model,) if system is None else (model, system)

    @classmethod
    def read(cls, given: Any, folder: Path, extremes: Columns) -> StepTarget:
        del extremes
        model = model_or_datasheet(place(given.model, folder))
        if not model.groups:  # sizes are traced through its own forms, its intervals are theirs
            model = dataclasses.replace(model, references=None)
        system = collectives_by_name(place(given.system, folder)) if given.system else None
        return cls(model, system, read_ops(given.ops, model, system))

    def known(self) -> set[str]:
        links = LINK_KNOBS if any(op.is_collective for op in self._ops) else ()
        own = {*knob_names()} - {*LINK_KNOBS}
        return (own | {*links}).union(*(op.names() for op in self._ops))

    def check(self, extremes: Columns, given: set[str]) -> None:
        where = f"there are {', '.join(sorted(given))}"
        for op in self._ops:
            what = f"name in the formulas of {op.name!r}:"
            check_keys(sorted(op.names()), sorted(given), what, where)
        for name in set(knob_names()) & set(extremes):
            check_positive(name, extremes[name])

    def remarks(self) -> list[str]:
        asked = {op.is_collective for op in self._ops}
        remarks = self._model.shortcomings() if False in asked else []
        if self._system is None or True not in asked:
            return remarks
        return [*remarks, *self._system.shortcomings()]

    def evaluate(self, columns: Columns) -> dict[str, np.ndarray]:
        rows, values = len(next(iter(columns.values()))), self.taken(columns)
        time_s = self._times(values, rows)
        in_range, note, _ = self._coverage(values, rows)
        return {"time_s": time_s, "in_range": in_range, "note": note}

    @functools.cached_property
    def _program(self) -> StepProgram:
        return contracted(lower(self._graph).program)

    def trust(self, columns: Columns) -> dict[str, np.ndarray]:
        rows, values = len(next(iter(columns.values()))), self.taken(columns)
        in_range, note, seconds = self._coverage(values, rows)
        same, _ = trust.of_platform(self._model, self._system, values, rows)
        times = np.stack([op.times(values, rows) for op in self._ops], 1)
        # an interval allows for a small share of unknown width only
        unknown = np.isnan(seconds["low_s"])
        run_s = seconds["predicted_s"] * times
        share = np.where(unknown, run_s, 0).sum(1) / run_s.sum(1)
        has_interval = same & (share <= UNKNOWN_SHARE)
        own_s = np.where(times > 0, seconds["predicted_s"] * times, 0.0).T
        wide = np.log(seconds["high_s"] / seconds["low_s"]) / 2 / NINE_OF_TEN
        with jax.enable_x64(True):
            step_s, counts = _on_path(self._program, jnp.asarray(own_s))
        moved = np.asarray(counts) * own_s / step_s
        deviation = [
            np.sqrt(Components.of(each, 0 * each, self._shares).variance(slopes))
            for each, slopes in zip(wide, moved.T, strict=True)
        ]
        low_s, high_s = ends(np.asarray(step_s), np.array(deviation))
        known = {"low_s": low_s, "high_s": high_s}
        return {"in_range": in_range, "note": note} | {
            name: np.where(has_interval, end_s, np.nan) for name, end_s in known.items()
        }

    @functools.cached_property
    def _shares(self) -> list[str]:
        """With what each op or message shares how far it is off: those of its name."""
        return [
            f"links: {op.words['collective']}" if op.is_collective else f"family: {op.words['op']}"
            for op in self._ops
        ]

    def _coverage(
        self, values: Columns, rows: int
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Whether each point lies within what was measured, notes, seconds of ops by name."""
        in_formulas = set().union(*(op.names() for op in self._ops))
        sizes = {name: value for name, value in values.items() if name in in_formulas}
        distinct, which = trust.distinct(sizes, rows)  # many points differ in knobs alone
        count = len(next(iter(distinct.values()))) if distinct else 1
        of_distinct = trust.of_ops(self._ops, self._model, self._system, distinct, count)
        ops = {name: column[which] for name, column in of_distinct.items()}
        same, changed = trust.of_platform(self._model, self._system, values, rows)
        note = trust.joined([changed, ops.pop("note")], rows)
        return same & ops.pop("in_range").all(1), note, ops

    def _times(self, values: Columns, rows: int) -> np.ndarray:
        # what is the same at all points is priced once: most sizes of a step are
        same = {name: value[0] for name, value in values.items() if (value == value[0]).all()}
        varied = {name: value for name, value in values.items() if name not in same}
        seconds = []
        with jax.enable_x64(True):
            batched = self._batched(tuple(varied), tuple(same), rows <= _LARGEST_BATCH)
            if not varied:
                return np.repeat(np.asarray(batched({}, same), np.float64), rows)
            # the rest is as wide as what came before it: another width would compile again
            width = min(batch_size(rows), _LARGEST_BATCH)
            for start in range(0, rows, width):
                size = min(width, rows - start)
                some = {name: value[start : start + size] for name, value in varied.items()}
                padding = (0, width - size)
                padded = {name: np.pad(value, padding, mode="edge") for name, value in some.items()}
                seconds.append(np.asarray(batched(padded, same))[:size])
        return np.concatenate(seconds)

    @functools.cache  # noqa: B019  (a target lives as long as its spec)
    def _batched(self, varied: tuple[str, ...], same: tuple[str, ...], once: bool) -> Callable:
        durations, program = self._durations([*varied, *same]), self._program

        def seconds(varied: Mapping[str, Array], same: Mapping[str, Array]) -> Array:
            if not varied:
                return makespan(program, durations(same)[None].T)
            priced = jax.vmap(lambda varied: durations({**varied, **same}))(varied)
            return makespan(program, priced.T)

        return jax.jit(seconds, compiler_options=QUICKLY_COMPILED if once else SOONER_COMPILED)

    def traced(self, names: Collection[str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        durations, program = self._durations(names), self._program
        return lambda values: {"time_s": makespan(program, durations(values)[:, None])[0]}

    def softened(
        self, names: Collection[str]
    ) -> Callable[[Mapping[str, Any], Any], dict[str, Any]]:
        durations, graph = self._durations(names), self._graph
        return lambda values, heat: {"time_s": soft_end(graph, durations(values), heat)}

    def _durations(self, names: Collection[str]) -> Callable[[Mapping[str, Any]], Array]:
        """Seconds [U] of the ops of one point."""
        knobs = sorted((set(knob_names()) - set(LINK_KNOBS)) & set(names))
        rates = sorted(set(LINK_KNOBS) & set(names))
        groups = alike_ops(self._ops)
        base = self._model.platform()
        base_links = self._system.links() if self._system is not None else None

        def durations(values: Mapping[str, Any]) -> Array:
            platform = with_knobs(base, {name: values[name] for name in knobs})
            links = base_links
            if links is not None:
                links = dataclasses.replace(links, **{name: values[name] for name in rates})
            seconds: list[Array] = [None] * len(self._ops)
            for alike in groups:  # ops that differ in sizes only are one op to the compiler
                first = self._ops[alike[0]]
                sizes = [self._ops[at].sizes_at(values) for at in alike]
                stacked = {name: jnp.stack([each[name] for each in sizes]) for name in first.sizes}
                price = functools.partial(first.price, links if first.is_collective else platform)
                each = jax.vmap(lambda given, price=price: price(**given))(stacked)
                for number, at in enumerate(alike):
                    seconds[at] = each[number] * self._ops[at].times.traced(values, jnp)
            return jnp.stack(seconds)

        return durations
