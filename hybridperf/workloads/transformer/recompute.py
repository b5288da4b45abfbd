"""Forward work that is run again before the backward, for the memory of its activations."""

from __future__ import annotations

import dataclasses
from typing import Literal

from hybridperf.workloads.transformer.passes import Passes

Recompute = Literal["none", "selective", "full"]


def recompute(passes: Passes, mode: Recompute) -> Passes:
    """`full`: the whole forward, its collectives included. `selective`: the attention core
    (Korthikanti et al. 2022).
    """
    if mode == "none":
        return passes
    again = (
        passes.forward if mode == "full" else tuple(step for step in passes.forward if step.core)
    )
    return dataclasses.replace(passes, recomputed=again)
