"""A step as a pure function of its sizes and of the machine's numbers, for JAX.

    def build(seq, micro_batch):
        return hp.transformer(...)

    f = hp.sized_step_function(model, build, {"seq": (1024, 32768), "micro_batch": (1, 16)})
    f({"sizes": {"seq": 6000.0}})
    jax.grad(f)(f.knobs)["sizes"]["seq"]                 # seconds for a token more

The step is built at doubling sizes, where its seconds are `hp.predict`'s; between them the seconds
of each row are interpolated, linearly in logs of sizes and seconds, and composed by the graph. That
is exact for what is a power of a size and within a percent or two for a sum of powers; the jumps of
tiles between two such sizes are smoothed away. Held are the graph (sizes that make another one are
refused) and what was learned of each op, which is what today's machine shows at these sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.engine.contraction import contracted
from hybridperf.engine.evaluate import makespan
from hybridperf.engine.knobs import KnobFunction, Knobs
from hybridperf.engine.step_function import PreparedStep, StepRows, platform_at
from hybridperf.engine.step_times import between
from hybridperf.engine.workload import Workload
from hybridperf.io import InputError
from hybridperf.io.namespace import Array
from hybridperf.model import PerfModel, Platform
from hybridperf.model.platform import canonical

_MOST_BUILT = 64
_NOTHING_S = 1e-30


def sized_step_function(
    model: PerfModel, build: Callable[..., Workload], sizes: Mapping[str, tuple[float, float]]
) -> KnobFunction:
    """Seconds of one step as a pure JAX function of its sizes and of the machine's numbers.

    Args:
        model: the machine.
        build: makes the step by its sizes, whole numbers by name.
        sizes: the least and the most of each, whole numbers; it is built at every doubling of the
            least. Beyond the most the line of the last two sizes counts.

    Returns:
        A function of knobs, `f(knobs) -> seconds`: those of the machine (`hp.step_function`), and
        `sizes`, which may be fractions; today's are in the middle of their bounds.

    Raises:
        InputError: when bounds are none, sizes make another graph, or the machine cannot price the
            step.
    """
    axes = {name: _doubling(name, *ends) for name, ends in sizes.items()}
    shape = [len(values) for values in axes.values()]
    if not axes or np.prod(shape) > _MOST_BUILT:
        raise InputError(
            f"expected bounds of sizes that are doubled to {_MOST_BUILT} steps at most, got"
            f" {int(np.prod(shape))} of {', '.join(axes) or 'no size'}; narrow them"
        )
    points = [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]
    steps = [PreparedStep.of(model, build(**point), hold_corrections=True) for point in points]
    first = steps[0]
    for point, step in zip(points, steps, strict=True):
        if not _alike(first, step):
            other, own = (
                ", ".join(f"{name} {value}" for name, value in at.items())
                for at in (points[0], point)
            )
            raise InputError(
                f"expected the same graph at all sizes, got another at {own} than at {other}; give"
                " bounds between which it stays"
            )
    program = jax.device_put(contracted(first.lowered.program))
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(step.rows for step in steps))

    def arrays() -> tuple[StepRows, Platform]:
        return canonical(stacked), canonical(first.platform)

    def seconds(arrays: tuple[StepRows, Platform], knobs: Knobs) -> Array:
        rows, today = arrays
        machine = {name: value for name, value in knobs.items() if name != "sizes"}
        platform = platform_at(today, first.groups, machine)
        at_sizes = jax.vmap(lambda one: one.durations(platform))(rows)  # [steps, U]
        tables = jnp.maximum(at_sizes, _NOTHING_S).T.reshape(-1, *shape)
        where = tuple(
            (np.array(values, float), knobs["sizes"][name]) for name, values in axes.items()
        )
        row_s = between(where, tables, np.arange(len(tables)))
        return makespan(program, row_s[:, None])[0]

    middle = {name: float(values[len(values) // 2]) for name, values in axes.items()}
    usual = first.knobs | {"sizes": middle}
    what = f"seconds of {first.workload.name} by its sizes"
    return KnobFunction(what, usual, seconds, arrays)


def _doubling(name: str, least: float, most: float) -> list[int]:
    """Whole numbers from the least to the most."""
    if not (1 <= least < most and least == int(least) and most == int(most)):
        raise InputError(
            f"expected two whole numbers of {name}, the least first, got {least} and {most}"
        )
    found = [int(least)]
    while found[-1] < most:
        found.append(min(2 * found[-1], int(most)))
    return found


def _alike(one: PreparedStep, other: PreparedStep) -> bool:
    """Whether two steps have one graph, and rows of the same kinds."""
    parts = [(step.lowered.program, step.rows.table.place, step.rows.table.parts) for step in
             (one, other)]  # fmt: skip
    first, second = map(jax.tree.leaves, parts)
    return one.groups == other.groups and all(
        np.array_equal(a, b) for a, b in zip(first, second, strict=True)
    )
