"""Seconds of one layer alone on one device, for searches that need no more of a step."""

from __future__ import annotations

import functools
from collections.abc import Callable

from hybridperf.training.plans.setup import TrainingSetup
from hybridperf.training.steps.compose import step_seconds
from hybridperf.training.steps.features import features
from hybridperf.workloads.transformer import Layout

_PASSES = 3.0  # a forward pass and a backward one of two


def layer_forward_s(setup: TrainingSetup) -> Callable[[int], float]:
    """Seconds of one layer forward by the samples of a micro-batch: a third of both passes."""

    @functools.cache
    def seconds(micro_batch: int) -> float:
        f = features([setup.config(Layout(micro_batch=micro_batch))], setup.prices)
        return float(step_seconds(f, setup.adapted.effects).layer_s[0]) / _PASSES

    return seconds
