"""At which bandwidth a machine of slow links is as fast as another: by the engine, on a batch of
bandwidths at once.
"""

from __future__ import annotations

import numpy as np

from hybridperf.engine.batches import BatchPredictor
from hybridperf.engine.step_function import LINK_KNOBS
from hybridperf.engine.workload import Workload
from hybridperf.io import InputError
from hybridperf.model import PerfModel

_POINTS, _TURNS = 65, 4
_LEAST, _MOST = 1e5, 1e14  # bytes/s


def break_even(
    model: PerfModel, workload: Workload, target_s: float, knob: str = "node_bytes_per_s"
) -> float:
    """Bytes/s of a link at which a step takes so many seconds.

    Args:
        model: a machine with links.
        workload: the step.
        target_s: what it is to take, such as the same step on another cluster.
        knob: which link: `intra_bytes_per_s`, `rank_bytes_per_s`, `node_bytes_per_s`.

    Returns:
        0 where any bandwidth from 1e5 bytes/s on will do, infinite where none up to 1e14 does.

    Raises:
        InputError: an unknown link, no positive target, or a step without messages.
    """
    if knob not in LINK_KNOBS:
        raise InputError(f"expected a link of {', '.join(LINK_KNOBS)}, got {knob!r}")
    if not (np.isfinite(target_s) and target_s > 0):
        raise InputError(f"expected a target of seconds above zero, got {target_s:g}")
    step, low, high = BatchPredictor(model, workload), _LEAST, _MOST
    for _ in range(_TURNS):
        rates = np.geomspace(low, high, _POINTS)
        within = step(**{knob: rates}) <= target_s
        if not within.any():
            return float("inf")
        at = int(np.argmax(within))
        if at == 0:
            return 0.0 if low == _LEAST else float(low)
        low, high = rates[at - 1], rates[at]
    return float(high)
