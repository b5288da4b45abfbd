"""The interval of a step by its graph: how its critical path moves with calls and step effects, and
what variance comes of their components (`model/variance.py`).

    d log t / d log s_u = times on the critical path of row u x s_u / t

Tables and plans take the same variance of slopes of the closed form (`training/steps/adapt.py`).
Axes: U rows, K effects, B = 3 blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from hybridperf.engine.evaluate import CriticalPath
from hybridperf.engine.graph import Graph
from hybridperf.hardware import DeviceSpec
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.model.adapted_steps import BLOCKS, Adapted, logs_of
from hybridperf.model.calls import BLOCK_LOGS, InStep
from hybridperf.model.group_report import GroupReport
from hybridperf.model.price import Prices
from hybridperf.model.step_effects import NAMES
from hybridperf.model.step_table import in_step_s, unchained
from hybridperf.model.unmeasured import Unmeasured, unmeasured
from hybridperf.model.variance import FOREIGN, Components, beyond_by_stalls, ends

UNKNOWN_SHARE = 0.05  # of a step's seconds, beyond which its interval is not known
_STEP = 1e-4  # in logs, of differences
# of a slope over a deviation over the tangent: another path takes over. One that all of a step
# takes bends less
_KINK = 1.7


@dataclasses.dataclass(frozen=True)
class StepSlopes:
    """How much the log of a step's seconds moves with logs."""

    by_call: np.ndarray  # of each call's seconds by itself [U]
    by_theta: np.ndarray  # of step effects [K]
    by_block: np.ndarray  # of blocks [B]

    def __add__(self, other: StepSlopes) -> StepSlopes:
        """Of a step that both are parts of; its calls those of one after the other's."""
        return StepSlopes(
            np.concatenate([self.by_call, other.by_call]), self.by_theta + other.by_theta,
            self.by_block + other.by_block,
        )  # fmt: skip


def times_on_path(graph: Graph, path: CriticalPath, rows: int) -> np.ndarray:
    """How often the critical path passes each row [U]."""
    row = np.where(path.is_launch, graph.launch_row[path.node], graph.row[path.node])
    return np.bincount(row, minlength=rows + 1)[1:].astype(float)


def step_slopes(
    prices: Prices, adapted: Adapted, in_step: InStep | None, row_s: np.ndarray,
    times: np.ndarray, time_s: float,
) -> StepSlopes:  # fmt: skip
    """Slopes of a step, or of what a worker brings into one.

    Args:
        prices: of its calls.
        adapted: its step effects.
        in_step: where its calls stand in it.
        row_s: their seconds there [U].
        times: how often the critical path passes each row [U].
        time_s: of the whole step.
    """
    table = prices.table
    share = unchained(table, row_s, times) / time_s
    if in_step is None or table.role is None:
        return StepSlopes(share * prices.seconds, np.zeros(len(NAMES)), np.zeros(BLOCKS))
    moved = _STEP * np.eye(1 + len(NAMES))
    seconds = in_step_s(
        table, prices.seconds[:, None] * np.exp(moved[:1]),
        np.exp(adapted.theta[:, None] + moved[1:]),
    )  # fmt: skip
    here_s = in_step_s(table, prices.seconds, np.exp(adapted.theta))
    slopes = (seconds - here_s[:, None]) / _STEP * share[:, None]
    block = [BLOCK_LOGS.index(place.block) for place in in_step.places]
    of_logs = np.bincount(block, share * here_s, minlength=len(BLOCK_LOGS))[1:]
    by_block = np.array(logs_of(np.eye(BLOCKS))).T @ of_logs
    return StepSlopes(slopes[:, 0], slopes[:, 1:].sum(0), by_block)


def beside_the_path(
    slopes: StepSlopes, adapted: Adapted, missing: Unmeasured | None,
    seconds: Callable[[np.ndarray], np.ndarray], time_s: float,
) -> StepSlopes:  # fmt: skip
    """Slopes of a step on one rank, where effects that the critical path hardly passes count by
    what they do if they are off by a deviation: kernels of a step that waits for its host, or the
    host of one that is about to.

    Args:
        slopes: of the critical path.
        adapted: the step's effects.
        missing: what was not measured of it.
        seconds: of the step [B] by its effects [K, B].
        time_s: predicted.
    """
    off = np.sqrt(np.diag(adapted.covariance)[: len(NAMES)])
    off = np.hypot(off, 0.0 if missing is None else missing.widths)
    moved = np.exp(adapted.theta[:, None] + np.diag(off))
    more = np.log(seconds(moved) / time_s) / np.where(off > 0, off, 1.0)
    bends = more > _KINK * np.maximum(slopes.by_theta, 0.0) + _STEP
    by_theta = np.where(bends, more, slopes.by_theta)
    return dataclasses.replace(slopes, by_theta=by_theta)


def unsure(prices: Prices) -> np.ndarray:
    """Whether the error of each row is unknown: ops whose group or number format nobody measured,
    some collectives [U].
    """
    guessed = np.zeros(len(prices.seconds), bool)
    guessed[list(prices.unmeasured)] = True
    return np.isnan(prices.spread) | (guessed & ~by_others(prices))


def by_others(prices: Prices) -> np.ndarray:
    """Whether each row goes by other devices, which tell how wide, too [U]."""
    return np.isinf(prices.outside) & np.isfinite(prices.spread)


def of_effects(
    model: PerfModel, in_step: InStep | None, reports: Mapping[str, GroupReport]
) -> Unmeasured | None:
    """What was not measured of a step whose effects say how sure it is; None where calls do.
    `reports`: on groups of ops that count as its machine's.
    """
    if in_step is None or not (reports or model.references is not None):
        return None
    return unmeasured(model, in_step.probes)


def step_deviation(
    slopes: StepSlopes, components: Components, adapted: Adapted, in_step: InStep | None,
    missing: Unmeasured | None,
) -> float:  # fmt: skip
    """Deviation of the log of a step's seconds.

    What its families have in common is said by its step effects, if these do (`of_effects`). Whole
    Transformer steps, which are probed for what was not measured of their machine, were seen with
    the scatter of single ops in them.
    """
    if missing is None or in_step is None:
        return float(np.sqrt(components.variance(slopes.by_call)))
    effects = adapted.variance(
        slopes.by_theta[None], slopes.by_block[:, None], np.array([in_step.cell]),
        missing.widths[:, None],
    )[0]  # fmt: skip
    ops = 0.0 if in_step.probes else components.but("class").variance(slopes.by_call)
    return float(np.sqrt(effects + ops))


def step_ends(
    device: DeviceSpec, adapted: Adapted, in_step: InStep | None, time_s: float, deviation: float
) -> tuple[float, float]:
    """Low and high seconds of a step.

    Args:
        device: that it runs on.
        adapted: its step effects.
        in_step: what is known of it.
        time_s: predicted.
        deviation: of its log.
    """
    longer, least_s, middle_s = np.zeros(1), 0.0, np.array([time_s])
    if in_step is not None:
        stalled_s = adapted.effects.stall_s * in_step.stalls
        stalls = beyond_by_stalls(in_step.stall_chance, stalled_s, middle_s, deviation)
        longer, deviation = stalls, float(np.hypot(deviation, FOREIGN * in_step.foreign))
        peaks = [peak for one in in_step.formats if (peak := _peak(device, one))]
        least_s = in_step.least_flops / max(peaks) if peaks else 0.0
    low_s, high_s = ends(middle_s, np.array([deviation]), longer, least_s)
    return float(low_s[0]), float(high_s[0])


def _peak(device: DeviceSpec, dtype: str) -> float:
    """FLOP/s of products in a number format; 0 where the device has none."""
    try:
        return device.peak(dtype, "matrix")
    except InputError:
        return 0.0
