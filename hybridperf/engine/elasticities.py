"""Which number of a machine a step's time depends on: d log seconds / d log knob, by name.

An elasticity of -0.4 means: one percent more of it makes the step 0.4 percent shorter. Names are
those that `predict_batch` takes: `memory_bytes_per_s`, `peak_flops_scale`, a group's own knob as
`gemm__compute_efficiency`, a memory level's as `l2__level_speedup`. They are the slopes of
`hp.step_function`, exact on the longest path.
"""

from __future__ import annotations

import numpy as np

from hybridperf.engine.prediction import Prediction
from hybridperf.engine.step_function import StepFunction, flat
from hybridperf.io import InputError
from hybridperf.io.later import pd


def elasticities(prediction: Prediction) -> pd.DataFrame:
    """How strongly each number of the machine drives a step's time, the strongest first.

    The elasticity is d log seconds / d log knob: -0.4 means that 1 % more of the knob makes the
    step 0.4 % shorter.

    Returns:
        A row per knob that matters: `knob` (as `predict_batch` names it), `value`, `elasticity`.

    Raises:
        InputError: when it is not given what `hp.predict` returns.
    """
    if not isinstance(prediction, Prediction):
        expected = "expected a prediction, what hp.predict gives"
        raise InputError(f"{expected}, got {type(prediction).__name__}")
    step = StepFunction(prediction.model, prediction.workload)
    values, slopes = flat(step.knobs), flat(step.slopes())
    rows = [
        (knob, float(value), float(slopes[knob]) * float(value) / prediction.time_s)
        for knob, value in values.items()
        if float(slopes[knob]) * float(value) != 0
    ]
    frame = pd.DataFrame(rows, columns=["knob", "value", "elasticity"])
    return frame.sort_values("elasticity", key=np.abs, ascending=False, ignore_index=True)
