"""Engines of made-up seconds: what a step takes is known in closed form."""

import numpy as np

from hybridperf.engine.step_times import StepTimes
from hybridperf.serving.engine import Engine


def constant(seconds: float) -> StepTimes:
    """Steps that take the same whatever they hold (the rest is a millionth of it)."""
    sizes, tiny = np.array([1.0, 2.0]), np.full((2, 2), 1e-6 * seconds)
    least = (sizes, sizes, tiny)
    return StepTimes(sizes, tiny[0], *least, *least, seconds * (1 - 2e-6))


def roofline(
    bytes_per_s: float = 1e12, flops_per_s: float = 2e14, host_s: float = 5e-4,
    weight_bytes: float = 15e9, key_bytes: float = 131072.0,
) -> StepTimes:  # fmt: skip
    """Weights are read once and every token multiplies them; keys are read by each sequence."""
    tokens = np.geomspace(1, 16384, 60)
    sequences, keys = np.geomspace(1, 1024, 6), np.geomspace(16, 65536, 7)
    chunk = np.geomspace(1, 16384, 8)
    return StepTimes(
        tokens, np.maximum(weight_bytes / bytes_per_s, weight_bytes * tokens / flops_per_s),
        sequences, keys, sequences[:, None] * keys * (key_bytes / bytes_per_s),
        chunk, keys, chunk[:, None] * keys * (5e5 / flops_per_s) + keys * (key_bytes / bytes_per_s),
        host_s,
    )  # fmt: skip


def engine(**settings: float) -> Engine:
    """One of the roofline's, of 64 slots unless told otherwise."""
    given = {"slots": 64, "budget": 2048} | settings
    return Engine(roofline(), **given)  # type: ignore[arg-type]
