"""Forward work that is run again before the backward, for the memory of its activations."""

from __future__ import annotations

import dataclasses
from typing import Literal

from hybridperf.workloads.transformer.passes import Passes

Recompute = Literal["none", "selective", "full"]


def recompute(passes: Passes, mode: Recompute) -> Passes:
    """The whole forward, or the attention core (`selective`, Korthikanti et al. 2022), again."""
    if mode == "none":
        return passes
    again = tuple(step for step in passes.forward if mode == "full" or step.core)
    return dataclasses.replace(passes, recomputed=again)
