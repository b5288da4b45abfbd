"""Which number of a machine a step's time depends on: d log seconds / d log knob, by name.

An elasticity of -0.4 means: one percent more of it makes the step 0.4 percent shorter. Names are
those that `predict_batch` takes (`memory_bytes_per_s`, `peak_flops_scale`, a group's own knob as
`gemm__compute_efficiency`) and `l2__level_speedup` for a memory level's. Exact on the longest path;
the learned correction of an op stays fixed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from hybridperf.engine.batches import gradient
from hybridperf.engine.prediction import Prediction
from hybridperf.engine.workload import priced
from hybridperf.hardware import LEVELS
from hybridperf.io import InputError
from hybridperf.io.later import pd
from hybridperf.model import GROUP_KNOBS, LEVEL_KNOBS, Platform
from hybridperf.model.step_effects import NAMES
from hybridperf.ops import GROUPS


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
    _, platform = priced(prediction.model, prediction.workload)
    slopes = gradient(prediction.model, prediction.workload)
    rows = [
        (knob, value, slope * value / prediction.time_s)
        for (knob, value), (_, slope) in zip(_numbers(platform), _numbers(slopes), strict=True)
        if np.isfinite(value) and slope != 0
    ]
    frame = pd.DataFrame(rows, columns=["knob", "value", "elasticity"])
    return frame.sort_values("elasticity", key=np.abs, ascending=False, ignore_index=True)


def _numbers(platform: Platform) -> Iterator[tuple[str, float]]:
    """Every number of a platform (or its slopes) by name."""
    yield "memory_bytes_per_s", float(platform.memory_bytes_per_s)
    yield "peak_flops_scale", float(platform.peak_flops_scale)
    for name, effect in zip(NAMES, np.asarray(platform.effects), strict=True):
        yield name, float(effect)
    for link in () if platform.links is None else dataclasses.fields(platform.links):
        yield link.name, float(np.asarray(getattr(platform.links, link.name)))
    for at, level in enumerate(LEVELS):
        yield f"{level}__level_bytes", float(np.asarray(platform.level_bytes)[at])
        for knob in LEVEL_KNOBS:
            yield f"{level}__{knob}", float(np.asarray(getattr(platform.knobs, knob))[at])
    for at, group in enumerate(GROUPS):
        for knob in GROUP_KNOBS:
            yield f"{group}__{knob}", float(np.asarray(getattr(platform.knobs, knob))[at])
