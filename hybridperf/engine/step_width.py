"""How wide the interval of a step is on variations of a machine, from one pass over its graph.

The time of a step T is a longest path: d log T / d log t_u is the share of T that row u of the
duration table has on it. Where rows of one component c (a kind of call) err together, each by its
own deviation s_u of the log of its seconds, and components apart,

    width^2 = sum over c of ( sum over u in c of  share_u s_u )^2

to first order. It scales the interval that `hp.predict` draws for today's machine, so that both are
equal there:

    low = T exp(-w_low width / width_today),   high = T exp(w_high width / width_today)

Deviations are those of today's machine.

Axes: U rows, C components, B configurations.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.engine.evaluate import ends_and_times
from hybridperf.engine.lower import StepProgram
from hybridperf.engine.prediction import predict
from hybridperf.engine.step_function import PreparedStep
from hybridperf.io import InputError
from hybridperf.io.namespace import Array
from hybridperf.model import PerfModel
from hybridperf.model.calls import kind_of
from hybridperf.model.price import price


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepWidth:
    """The components of variance that widen a step's interval."""

    deviation: Array  # [C, U] of the log of seconds, 0 for rows of other components
    parts: Array  # [P, 3] and [E, 3], as `StepTable` has them: rows made of others
    exposed: Array
    per_width: Array  # [2] log half-widths of today's interval over today's width

    columns = ("time_s", "low_s", "high_s")

    @staticmethod
    def of(model: PerfModel, step: PreparedStep) -> StepWidth:
        """`InputError` where nothing is known of how far a step errs."""
        found = predict(model, step.workload)
        if found.low_s is None or found.high_s is None:
            raise InputError(
                f"no interval of {step.workload.name} is known on {model.device.id}; leave out"
                " interval=True, or measure its ops"
            )
        calls = step.workload.calls
        spread = np.nan_to_num(price(model, calls, step.workload.in_step).spread)
        kind = np.array([kind_of(call) for call in calls])
        kinds = np.unique(kind)
        deviation = np.where(kind == kinds[:, None], spread, 0.0)
        table = step.rows.table
        unit = StepWidth(deviation, table.parts, table.exposed, np.ones(2))
        durations = jnp.asarray(found.op_s, jnp.result_type(float))[:, None]
        width = float(unit.width(step.lowered.program, durations)[1][0])
        if width == 0 or found.time_s == 0:
            return unit
        logs = np.log([found.time_s / found.low_s, found.high_s / found.time_s])
        return dataclasses.replace(unit, per_width=logs / width)

    def width(self, program: StepProgram, durations: Array) -> tuple[Array, Array]:
        """(seconds [B], width [B]) of the step at durations [U, B]."""
        end, times = ends_and_times(program, durations)
        chain, part, often = self.parts.T
        times = times.at[part].add(times[chain] * often[:, None])
        times = times.at[chain].set(0.0)
        row, message, _ = self.exposed.T
        times = times.at[message].add(times[row]).at[row].set(0.0)
        share = times * durations / jnp.where(end > 0, end, 1.0)
        each = jnp.asarray(self.deviation, durations.dtype) @ share
        return end, jnp.sqrt((each**2).sum(0))

    def ends(self, program: StepProgram, durations: Array) -> tuple[Any, Any, Any]:
        """(seconds, low, high) [B] of the step."""
        end, width = self.width(program, durations)
        low, high = jnp.asarray(self.per_width, end.dtype)
        return end, end * jnp.exp(-low * width), end * jnp.exp(high * width)
