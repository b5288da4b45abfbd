"""A Transformer's step on workers that differ, from a table of them: how long the others wait, and
what share of the batch each should have.

Each worker is a replica on one device. What a micro-batch takes on it, and what a step takes beside
that, are the price of steps with one and with two micro-batches; the best shares follow in closed
form (`updates.best_shares`), the step with them is priced and composed again (`engine/unlike.py`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from hybridperf.collectives.fit import collectives_by_name
from hybridperf.engine.prediction import predict
from hybridperf.engine.unlike import UnlikeStep, Worker, unlike
from hybridperf.engine.workload import Workload
from hybridperf.fields.columns import read_small_table
from hybridperf.hardware import load_system
from hybridperf.io import InputError
from hybridperf.model import PerfModel, model_or_datasheet
from hybridperf.runs.updates import best_shares, updates_per_s
from hybridperf.workloads.memory import USABLE, memory
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.layout import Layout
from hybridperf.workloads.transformer.shape import TransformerShape
from hybridperf.workloads.transformer.step import transformer

MOST_WORKERS = 256


@dataclasses.dataclass(frozen=True)
class Uneven:
    """A step of unlike workers under even and under best shares."""

    # a row a worker: device, slower, micro_batch_s, share, wait_s, best_share, best_wait_s, note
    rows: pd.DataFrame
    even: UnlikeStep
    best: UnlikeStep
    updates_per_s: float  # if none waited for another


@dataclasses.dataclass(frozen=True)
class _Replicas:
    """The step of one replica among `count`, by its number of micro-batches."""

    shape: TransformerShape
    count: int
    micro_batch: int
    gpus_per_node: int
    dtype: str = "bf16"
    zero: Literal[0, 1, 2, 3] = 0

    def layout(self, accumulation: int = 1) -> Layout:
        return Layout(
            dp=self.count, micro_batch=self.micro_batch, accumulation=accumulation, zero=self.zero
        )

    @functools.cache  # noqa: B019  (a few steps, which live as long as the question)
    def step(self, accumulation: int) -> Workload:
        layout = self.layout(accumulation)
        return transformer(TransformerConfig(
            self.shape, layout, dtype=self.dtype, gpus_per_node=self.gpus_per_node
        ))  # fmt: skip

    def too_large(self, model: PerfModel) -> str:
        """What a replica needs where that does not fit into a machine; "" where it does."""
        needed = float(memory(self.shape, self.layout(), dtype=self.dtype).peak_bytes)
        room = float(model.device.memory_bytes)
        fits = needed <= USABLE * room
        return "" if fits else f"does not fit: needs {needed / 1e9:.3g} GB of {room / 1e9:.3g} GB"


def uneven(
    workers: pd.DataFrame, shape: TransformerShape, system: str, batch: int, micro_batch: int = 1,
    *, dtype: str = "bf16", zero: Literal[0, 1, 2, 3] = 0,
) -> Uneven:  # fmt: skip
    """What workers that differ take for a step.

    Args:
        workers: a row each: `device` (a calibration, folder, or device name), `slower` (factor; 1
            where it is not given).
        shape: the model that is trained.
        system: whose links connect them.
        batch: samples of a step of all workers.
        micro_batch: samples that go through a layer together.
        dtype: number format of activations.
        zero: stage of ZeRO over the workers, 0 to 3.

    Raises:
        InputError: a table without devices, slow-downs that are none, or a batch that is no whole
            number of micro-batches of each worker.
    """
    devices, slower = _read(workers)
    count = len(devices)
    if micro_batch < 1 or batch < 1 or batch % (micro_batch * count):
        raise InputError(
            f"expected a batch of so many times {count} workers x {micro_batch} samples, for the"
            f" even shares that best ones are compared with; got {batch}"
        )
    links, per_node = collectives_by_name(system), load_system(system).accelerators_per_node
    models = {
        name: model_or_datasheet(name).with_collectives(links) for name in dict.fromkeys(devices)
    }
    of = [models[name] for name in devices]
    replicas = _Replicas(shape, count, micro_batch, per_node, dtype, zero)
    took = {
        name: [predict(model, replicas.step(many)).time_s for many in (1, 2)]
        for name, model in models.items()
    }
    once, twice = np.array([took[name] for name in devices]).T * slower
    each = twice - once
    share = batch // (micro_batch * count)
    even = _step(of, slower, [share] * count, replicas)
    best, _ = best_shares(each, batch // micro_batch, np.maximum(once - each, 0.0))
    at_work = np.flatnonzero(best)
    fewer = dataclasses.replace(replicas, count=len(at_work))
    step = _step(
        [of[at] for at in at_work], slower[at_work], best[at_work].astype(int).tolist(), fewer
    )
    if step.time_s > even.time_s:  # messages among fewer, or beside longer work
        step, best, at_work = even, np.full(count, float(share)), np.arange(count)
    waits = np.full(count, np.nan)
    waits[at_work] = step.worker_waits_s
    large = {name: replicas.too_large(model) for name, model in models.items()}
    notes = [large[name] or ("" if some > 0 else "the step ends sooner without it")
             for name, some in zip(devices, best, strict=True)]  # fmt: skip
    rows = workers.assign(
        device=devices, slower=slower, micro_batch_s=each, share=share * micro_batch,
        wait_s=even.worker_waits_s, best_share=(best * micro_batch).astype(int), best_wait_s=waits,
        note=notes,
    )  # fmt: skip
    alone = np.array([
        predict(models[name], replicas.step(share)).time_s for name in dict.fromkeys(devices)
    ])  # fmt: skip
    own_s = alone[[[*models].index(name) for name in devices]] * slower
    return Uneven(rows, even, step, updates_per_s(own_s))


def _step(
    models: Sequence[PerfModel], slower: np.ndarray, shares: Sequence[int], replicas: _Replicas
) -> UnlikeStep:
    return unlike([
        Worker(replicas.step(share), model, float(factor))
        for model, factor, share in zip(models, slower, shares, strict=True)
    ])  # fmt: skip


def _read(workers: pd.DataFrame) -> tuple[list[str], np.ndarray]:
    workers = read_small_table(workers, "workers")
    if len(workers) > MOST_WORKERS:
        raise InputError(
            f"expected at most {MOST_WORKERS} workers, got {len(workers)}; give one of each kind"
        )
    if workers["device"].isna().any():
        raise InputError("expected a device of each worker, got an empty one; mend the table")
    slower = workers.reindex(columns=["slower"])["slower"].fillna(1.0)
    return workers["device"].astype(str).tolist(), slower.to_numpy()
