"""What to say where nothing can run: one sentence with the nearest thing that works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.training.plans.costs import memory_of
from hybridperf.training.plans.layout_text import counted
from hybridperf.training.plans.setup import TrainingSetup
from hybridperf.training.plans.space import LayoutSpace, space

_DOUBLINGS = 8  # of devices, that are tried
_NEAREST_BATCHES = 64


def nothing_legal(
    setup: TrainingSetup, gpus: int, batch: int, only: Mapping[str, Sequence[Any]] | None
) -> str:
    """No layout is legal: because of what was pinned, or of the batch."""
    where = f"{setup.shape.name} on {counted(gpus, 'GPU')} with a global batch of {batch}"
    if only:
        pinned = ", ".join(f"{name} {'/'.join(map(str, values))}" for name, values in only.items())
        if len(space(setup.shape, gpus, setup.gpus_per_node, batch, None, setup.strict)):
            return f"no layout of {where} is legal with {pinned}; without --only there are some"
    for samples in _near(batch):
        if len(space(setup.shape, gpus, setup.gpus_per_node, samples, only, setup.strict)):
            return (
                f"no layout of {where} is legal; a global batch of {samples} is the nearest that"
                " has one"
            )
    return (
        f"no layout of {where} is legal: fewer GPUs than heads x layers x samples of a batch are"
        " needed; take a larger batch"
    )


def nothing_fits(
    setup: TrainingSetup,
    tried: LayoutSpace,
    needed: np.ndarray,
    only: Mapping[str, Sequence[Any]] | None,
) -> str:
    """No layout has room: what the smallest needs, and how many devices would do."""
    least = int(np.argmin(needed))
    x = {name: int(column[least]) for name, column in tried.base._asdict().items()}
    named = (
        f"tp {x['tp']}, pp {x['pp']}, cp {x['cp']}, dp {x['dp']}, ZeRO-{x['zero']}, micro-batch"
        f" {x['micro_batch']}"
    )
    said = (
        f"no layout of {setup.shape.name} fits on {counted(tried.gpus, 'GPU')} with"
        f" {setup.capacity_bytes / 1e9:.0f} GB to use each: the smallest needs"
        f" {needed[least] / 1e9:.0f} GB ({named})"
    )
    for doubling in range(1, _DOUBLINGS + 1):
        gpus = tried.gpus * 2**doubling
        whole = (
            gpus
            if gpus <= setup.gpus_per_node
            else -(-gpus // setup.gpus_per_node) * setup.gpus_per_node
        )
        batch = max(tried.global_batch, whole)
        batch = -(-batch // whole) * whole if tried.global_batch % whole else tried.global_batch
        more = space(
            setup.shape, whole, setup.for_gpus(whole).gpus_per_node, batch, only, setup.strict
        )
        if len(more) and (memory_of(setup, more) <= setup.capacity_bytes).any():
            with_batch = "" if batch == tried.global_batch else f" with a global batch of {batch}"
            return f"{said}; {whole} GPUs{with_batch} would do"
    return f"{said}; not even {whole} GPUs would do, take devices with more memory"


def _near(batch: int) -> list[int]:
    """Other batches, nearest first."""
    steps = range(1, max(_NEAREST_BATCHES, batch))
    return [other for step in steps for other in (batch - step, batch + step) if other >= 1][
        : 4 * _NEAREST_BATCHES
    ]
