"""Strategies of a Transformer: the layouts of a plan (`hp.plan`) that treat whole levels of a
cluster alike, in the words of `mapping.py`, with what is computed again and how many micro-batches
a step has. Seconds and memory are the plan's.

    ddp    data parallelism without sharding         fsdp    ZeRO-3 over the level
    tp     tensor parallelism over the level
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.hardware import load_system
from hybridperf.io import InputError
from hybridperf.studies.strategies.mapping import Strategy
from hybridperf.training.plans.run import plan
from hybridperf.training.plans.table import at_ranks
from hybridperf.workloads.transformer import Layout, TransformerShape

CHOSEN = ("transformer", "recompute", "micro_batch", "accumulation")


def transformer_strategies(
    model: str | TransformerShape, system: str, gpus: int, batch: int, *,
    device: str | None = None, memory_bytes: float | None = None,
) -> pd.DataFrame:  # fmt: skip
    """A table of every strategy of a Transformer that fits, the fastest first.

    Args:
        model: name of a published model, a file of its sizes, or a shape (`hp.load_shape`).
        system: name of a system, or a .toml file.
        gpus: number of devices.
        batch: samples of a step over all devices.
        device: name of the accelerator; None: the system's own.
        memory_bytes: memory of each device, bytes; None: the datasheet's.

    Returns:
        A row for each strategy, recomputation and micro-batch: `transformer` ("inside, across"),
            `recompute, micro_batch, accumulation, iteration_s, compute_s, exposed_s, memory_bytes,
            fits`.

    Raises:
        InputError: when none fits; the message names what would do.
    """
    per_node = load_system(system).accelerators_per_node
    levels = min(per_node, gpus), max(gpus // per_node, 1)
    only: dict[str, Sequence[Any]] = {
        "pp": [1], "cp": [1], "ep": [1], "zero": [0, 3], "tp": sorted({1, *levels, gpus}),
    }  # fmt: skip
    found = plan(
        model, system, gpus, batch=batch, device=device, memory_bytes=memory_bytes, only=only
    )
    layouts = (found.layout(found.choice(rank)) for rank in range(len(found)))
    strategies = [_strategy(layout, found.setup.gpus_per_node, levels) for layout in layouts]
    whole = np.array([at for at, one in enumerate(strategies) if one is not None], int)
    if not len(whole):
        raise InputError(
            f"expected a strategy of whole nodes of {found.setup.shape.name} that fits, got none;"
            " `hybridperf plan` shares parts of a node, too"
        )
    frame = at_ranks(found, whole).assign(transformer=[str(strategies[at]) for at in whole])
    frame = frame.rename(columns={"time_s": "iteration_s", "exposed_comm_s": "exposed_s"})
    times = ["iteration_s", "compute_s", "exposed_s", "memory_bytes", "fits"]
    return frame[[*CHOSEN, *times]].drop_duplicates([*CHOSEN[:3]], ignore_index=True)


def _strategy(layout: Layout, per_node: int, levels: tuple[int, int]) -> Strategy | None:
    """What each level does; None where a level is shared in parts."""
    tensor, shard = (layout.group(name, per_node) for name in ("tp", "shard"))
    words = []
    for size, of_tensor, of_shard in zip(
        levels, (tensor.ranks_per_node, tensor.nodes), (shard.ranks_per_node, shard.nodes),
        strict=True,
    ):  # fmt: skip
        sharded = of_shard if layout.zero else 1
        if {of_tensor, sharded} - {1, size}:
            return None
        tensor_word = "tp" if size > 1 and of_tensor == size else ""
        words.append(tensor_word or ("fsdp" if size > 1 and sharded == size else "ddp"))
    return Strategy(*words)
