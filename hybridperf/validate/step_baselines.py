"""What someone says of a training step who has no calibration: each step's seconds by what is known
without one, and by the measured seconds of the *other* steps.

    datasheet roofline                             the datasheet alone
    roofline x best constant of the others         a model that does not beat it has learned a
                                                   machine's overall slowness and nothing more
    best constant MFU or bandwidth of the others   what a step computes, or what its ops read and
                                                   write, at the rate that the others reached:
                                                   whichever fits those better
    usual seconds of the others                    no step looked at at all
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridperf.engine.prediction import Prediction
from hybridperf.model.batch import stacked
from hybridperf.ops import OpCall
from hybridperf.validate.scores import by_the_others

ROOFLINE = "datasheet roofline"
OF_OTHERS = " of the others"
SCALED = f"roofline x best constant{OF_OTHERS}"
RATE = f"best constant MFU or bandwidth{OF_OTHERS}"
USUAL = f"usual seconds{OF_OTHERS}"


def baselines(predicted: Sequence[Prediction], measured_s: Any) -> dict[str, np.ndarray]:
    """Seconds of each step [N] by the name of a baseline; those of other steps need others.

    Args:
        predicted: the steps; only their rooflines and what they compute and move are asked.
        measured_s: their seconds [N].
    """
    roofline_s = np.array([one.roofline_s for one in predicted])
    works = {
        SCALED: [roofline_s],
        RATE: [
            work
            for work in (
                np.array([one.workload.flops for one in predicted]),
                np.array([moved_bytes(one) for one in predicted]),
            )
            if (work > 0).all()
        ],
        USUAL: [np.ones(len(predicted))],
    }
    found = {name: by_the_others(sizes, measured_s) for name, sizes in works.items() if sizes}
    return {ROOFLINE: roofline_s} | {name: s for name, s in found.items() if s is not None}


def moved_bytes(predicted: Prediction) -> float:
    """What the ops of a step read and write, each by itself."""
    times = predicted.workload.times_run()
    ops = {at: call for at, call in enumerate(predicted.workload.calls) if isinstance(call, OpCall)}
    runs = np.array([times[at] * call.times for at, call in ops.items()])
    return float(sum(
        np.sum(runs[batch.part.rows] * batch.work.bytes)
        for batch in stacked(list(ops.values()), predicted.model.device)
    ))  # fmt: skip
