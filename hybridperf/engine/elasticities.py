"""Which number of a machine a step's time depends on: d log seconds / d log knob, by name.

An elasticity of -0.4 means: one percent more of it makes the step 0.4 percent shorter. Names are
those that `predict_batch` takes: `memory_bytes_per_s`, `peak_flops_scale`, a group's own knob as
`gemm__compute_efficiency`, a memory level's as `l2__level_speedup`. They are the slopes of
`hp.step_function`, exact on the longest path. Of any function of knobs they are its `jax.grad`.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from hybridperf.engine.knobs import KnobFunction, flattened
from hybridperf.engine.prediction import Prediction
from hybridperf.engine.step_function import StepFunction, flat
from hybridperf.io import InputError, unknown
from hybridperf.io.later import pd


def elasticities(of: Prediction | StepFunction | KnobFunction, result: str = "") -> pd.DataFrame:
    """How strongly each number drives a step's time, or another result, the strongest first.

        hp.elasticities(hp.predict(model, workload))
        hp.elasticities(hp.run_function(plan, steps=1e6), "usd")

    The elasticity is d log result / d log knob: -0.4 means that 1 % more of the knob makes the step
    0.4 % shorter.

    Args:
        of: what `hp.predict` gives, or a function of knobs at today's values.
        result: which of its results, where a function of knobs has several.

    Returns:
        A row per knob that matters: `knob` (as `predict_batch` names it; names of a function's
        nested knobs joined by `__`), `value`, `elasticity`.

    Raises:
        InputError: when it is given something else, or a result that the function does not have.
    """
    if isinstance(of, KnobFunction):
        return _table(*_of_function(of, result))
    if isinstance(of, StepFunction):
        return _table(flat(of.knobs), flat(of.slopes()), float(of(of.knobs)))
    if not isinstance(of, Prediction):
        expected = "expected a prediction, what hp.predict gives, or a function of knobs"
        raise InputError(f"{expected}, got {type(of).__name__}")
    step = StepFunction(of.model, of.workload)
    return _table(flat(step.knobs), flat(step.slopes()), of.time_s)


def _of_function(of: KnobFunction, result: str) -> tuple[dict[str, float], dict[str, float], float]:
    """(values, slopes, result) at today's values."""

    def wanted(knobs: Mapping[str, object]) -> jax.Array:
        found = of(knobs)
        several = isinstance(found, Mapping)
        if several and result not in found:
            raise unknown("result", result, found, f"known are {', '.join(found)}")
        if result and not several:
            raise InputError(f"expected no result of a function that has one, got {result!r}")
        return found[result] if several else found

    value, slopes = jax.value_and_grad(wanted)(of.knobs)
    values, by_knob = (
        {"__".join(path): float(number) for path, number in flattened(tree)}
        for tree in (of.knobs, slopes)
    )
    return values, by_knob, float(value)


def _table(values: Mapping[str, float], slopes: Mapping[str, float], result: float) -> pd.DataFrame:
    rows = [
        (knob, float(value), float(slopes[knob]) * float(value) / result)
        for knob, value in values.items()
        if float(slopes[knob]) * float(value) != 0
    ]
    frame = pd.DataFrame(rows, columns=["knob", "value", "elasticity"])
    return frame.sort_values("elasticity", key=np.abs, ascending=False, ignore_index=True)
