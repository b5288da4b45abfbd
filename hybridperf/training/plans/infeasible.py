"""What to say where nothing can run: one sentence with the nearest thing that works."""

from __future__ import annotations

import itertools
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

    def legal(samples: int, narrowed: Mapping[str, Sequence[Any]] | None) -> bool:
        found = space(
            setup.shape,
            gpus,
            setup.gpus_per_node,
            samples,
            narrowed,
            setup.strict,
            schedules=setup.schedules,
        )
        return len(found) > 0

    if only and legal(batch, None):
        pinned = ", ".join(f"{name} {'/'.join(map(str, values))}" for name, values in only.items())
        return f"no layout of {where} is legal with {pinned}; without --only there are some"
    steps = range(1, max(_NEAREST_BATCHES, batch))
    others = (other for step in steps for other in (batch - step, batch + step) if other >= 1)
    near = itertools.islice(others, 4 * _NEAREST_BATCHES)  # nearest first
    nearest = next((samples for samples in near if legal(samples, only)), None)
    if nearest is not None:
        batch_words = f"a global batch of {nearest} is the nearest that has one"
        return f"no layout of {where} is legal; {batch_words}"
    return (
        f"no layout of {where} is legal: fewer GPUs than heads x layers x samples of a batch are"
        " needed; take a larger batch"
    )


def nothing_fits(
    setup: TrainingSetup, tried: LayoutSpace, needed: np.ndarray,
    only: Mapping[str, Sequence[Any]] | None,
) -> str:  # fmt: skip
    """No layout has room: what the smallest needs, and how many devices would do."""
    smallest, per_node = int(np.argmin(needed)), setup.gpus_per_node
    x = {name: int(column[smallest]) for name, column in tried.base._asdict().items()}
    ranks = ", ".join(f"{name} {x[name]}" for name in ("tp", "pp", "cp", "dp"))
    why = (
        f"no layout of {setup.shape.name} fits on {counted(tried.gpus, 'GPU')} with"
        f" {setup.capacity_bytes / 1e9:.0f} GB to use each: the smallest needs"
        f" {needed[smallest] / 1e9:.0f} GB ({ranks}, ZeRO-{x['zero']}, micro-batch"
        f" {x['micro_batch']})"
    )
    for doubling in range(1, _DOUBLINGS + 1):
        gpus = tried.gpus * 2**doubling
        whole = gpus if gpus <= per_node else -(-gpus // per_node) * per_node
        batch = max(tried.global_batch, whole)
        batch = -(-batch // whole) * whole if tried.global_batch % whole else tried.global_batch
        nodes_of = setup.for_gpus(whole).gpus_per_node
        more = space(
            setup.shape, whole, nodes_of, batch, only, setup.strict, schedules=setup.schedules
        )
        if len(more) and (memory_of(setup, more) <= setup.capacity_bytes).any():
            with_batch = "" if batch == tried.global_batch else f" with a global batch of {batch}"
            return f"{why}; {whole} GPUs{with_batch} would do"
    return f"{why}; not even {whole} GPUs would do, take devices with more memory"
