"""Chimera's choice (Li and Hoefler, SC21): how many replicas W of a pipeline of how many stages D,
and which micro-batch B?

W D = P workers, B the largest micro-batch that fits (or the fastest), N = batch / (W B)
micro-batches per pipeline; of all even D the one with the minimal

    T = (F + p2p) C_f + (K + p2p) C_b + unoverlapped
    p2p = alpha + beta L             L bytes between two stages
    K   = 2 F, 3 F where the forward pass is computed again
    all-reduce of L bytes over r     2 log2(r) alpha + 2 (r - 1)/r beta L   (Rabenseifner)

F, K of one micro-batch on a stage. C_f, C_b, forwards and backwards on the critical path, are N and
N + D - 2 where N = D; in general the makespan is `closed_form_s`. Two pipes hold each stage twice,
so r = 2 W. A stage's gradients are ready in the last wave, s backwards before the end for stage s;
worker w has two stages, w and D - 1 - w. The two on the outer workers are reduced as soon as they
are ready, others when their worker is done (earlier would hold up the critical path). With A the
longer of the all-reduces, what sticks out is

    max(A, 2 A - K)                  the first worker's shallow stage; the second's two, which it
                                     starts one backward before the end

1F1B for comparison: one stage per worker, r = W, what sticks out is A, and K is what it is there.

`planned` prices such a layout as a plan does, in place of these formulas.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from hybridperf.engine.closed import step_seconds
from hybridperf.hardware import DTYPE_BYTES, canonical_dtype
from hybridperf.io import InputError
from hybridperf.training.plans.setup import TrainingSetup
from hybridperf.training.steps.features import features
from hybridperf.workloads.memory import memory
from hybridperf.workloads.schedules import closed_form_s
from hybridperf.workloads.transformer.layout import Layout
from hybridperf.workloads.transformer.shape import TransformerShape

_BACKWARD, _BACKWARD_AGAIN = 2, 3  # forwards that a backward takes
# seconds of a layout's step: passes and messages between stages, gradients that nothing hides
Law = Callable[[Layout], tuple[float, float]]


class Pipeline(NamedTuple):
    """One way to run a model as a pipeline, its memory and its seconds per step."""

    replicas: int  # W: copies of the pipeline
    stages: int  # D
    micro_batch: int  # B: samples
    micro_batches: int  # N per pipeline and step
    recompute: str  # "none" or "full"
    memory_bytes: float  # of the fullest worker
    pipeline_s: float  # passes and messages between stages
    unoverlapped_s: float  # gradients' all-reduces that no computation hides

    @property
    def step_s(self) -> float:
        return self.pipeline_s + self.unoverlapped_s

    def layout(self, schedule: str) -> Layout:
        """The same as a layout."""
        return Layout(
            pp=self.stages, dp=self.replicas, micro_batch=self.micro_batch,
            accumulation=self.micro_batches, schedule=schedule,
            recompute="full" if self.recompute == "full" else "none",
        )  # fmt: skip


def pipelines(
    shape: TransformerShape, workers: int, batch: int, capacity_bytes: float,
    layer_forward_s: Callable[[int], float] | None = None, *, latency_s: float = 0.0,
    bytes_per_s: float = math.inf, law: Law | None = None, dtype: str = "fp32",
    schedule: str = "chimera", recompute: bool = True, largest: bool = True, **counted: Any,
) -> list[Pipeline]:  # fmt: skip
    """Every even number of stages D with its best micro-batch B, the fastest pipeline first.

    The cost model of Chimera (Li and Hoefler, SC21), or another law.

    Args:
        shape: the model.
        workers: GPUs in all: W replicas of D stages.
        batch: samples of a step over all workers.
        capacity_bytes: memory of a worker, bytes.
        layer_forward_s: gives the seconds of one layer's forward pass from the samples of a
            micro-batch.
        latency_s: seconds of an empty message between stages.
        bytes_per_s: bandwidth of a link.
        law: gives the seconds of a layout in place of these three (`planned`).
        dtype: number format of weights and activations.
        schedule: "chimera" or "1f1b".
        recompute: whether a D at which no B fits may compute the forward pass again.
        largest: True: the largest B that fits, Chimera's rule; False: the fastest, with which 1F1B
            is judged fairly.
        counted: what memory is counted by, as in `hp.memory`: `grad_bytes`, `optimizer`,
            `attention`, `dropout`, `split` (Chimera needs "even"), `states`, `knobs`.

    Raises:
        InputError: when nothing fits into memory, or no number of stages divides the workers.
    """

    def memory_bytes(layout: Layout) -> float:
        return float(memory(shape, layout, dtype=dtype, **counted).peak_bytes)

    law = law or paper_law(shape, layer_forward_s, latency_s, bytes_per_s, dtype)
    if schedule not in ("chimera", "1f1b"):
        raise InputError(f"shapes of pipelines are chosen for chimera or 1f1b, got {schedule!r}")
    found, least = [], math.inf
    for stages in range(2, min(workers, shape.depth) + 1, 2):
        if workers % stages:
            continue
        for again in ("none", "full")[: 1 + recompute]:
            replicas = workers // stages
            every = _shapes(replicas, stages, batch, schedule, again, memory_bytes)
            least = min([least, *(each.memory_bytes for each in every)])
            fitting = [each for each in every if each.memory_bytes <= capacity_bytes]
            if fitting:
                tried = fitting[-1:] if largest else fitting
                priced = [_priced(each, law, schedule) for each in tried]
                found.append(min(priced, key=lambda each: each.step_s))
                break
    if not found:
        why = "no pipeline of an even number of stages divides the workers and the batch"
        if math.isfinite(least):
            why = f"no pipeline fits into {capacity_bytes / 1e9:.1f} GB per worker, the smallest"
            why += f" needs {least / 1e9:.1f} GB"
        asked = f"{shape.name}, {workers} workers, batch {batch}"
        raise InputError(f"{why} ({asked}); change the number of workers or the batch")
    return sorted(found, key=lambda each: each.step_s)


def pipeline_like(
    one: Pipeline, batch: int, law: Law, schedule: str, memory_bytes: Callable[[Layout], float]
) -> Pipeline | None:
    """The same W, D, B and recomputation under another schedule, fitting or not; or None."""
    every = _shapes(one.replicas, one.stages, batch, schedule, one.recompute, memory_bytes)
    same = [each for each in every if each.micro_batch == one.micro_batch]
    return _priced(same[0], law, schedule) if same else None


def planned(setup: TrainingSetup) -> Law:
    """Seconds of a layout as a plan's: its calls priced, its schedule composed."""

    def seconds(layout: Layout) -> tuple[float, float]:
        f = features([setup.config(layout)], setup.prices)
        parts = step_seconds(f, setup.adapted.effects)
        out_s = float(parts.exposed_comm_s[0])
        return float(parts.step_s[0]) - out_s, out_s

    return seconds


def _shapes(
    replicas: int, stages: int, batch: int, schedule: str, recompute: str,
    memory_bytes: Callable[[Layout], float],
) -> list[Pipeline]:  # fmt: skip
    """All micro-batches that deal the batch out, smallest first, with bytes and no seconds yet."""
    found = []
    for micro_batch in (b for b in range(1, batch // replicas + 1) if batch % (replicas * b) == 0):
        count = batch // (replicas * micro_batch)
        if schedule == "chimera" and (count % 2 or (count > stages and count % stages)):
            continue
        one = Pipeline(replicas, stages, micro_batch, count, recompute, 0.0, 0.0, 0.0)
        found.append(one._replace(memory_bytes=memory_bytes(one.layout(schedule))))
    return found


def _priced(one: Pipeline, law: Law, schedule: str) -> Pipeline:
    pipeline_s, unoverlapped_s = law(one.layout(schedule))
    return one._replace(pipeline_s=pipeline_s, unoverlapped_s=unoverlapped_s)


def paper_law(
    shape: TransformerShape, layer_forward_s: Callable[[int], float] | None, latency_s: float,
    bytes_per_s: float, dtype: str,
) -> Law:  # fmt: skip
    """The formulas above."""
    if layer_forward_s is None:
        raise InputError("expected layer_forward_s, latency_s and bytes_per_s, or a law, got none")
    size = DTYPE_BYTES[canonical_dtype(dtype)]

    def seconds(layout: Layout) -> tuple[float, float]:
        layers = math.ceil(shape.depth / layout.pp)  # of the fullest stage, which others wait for
        forward_s = layers * layer_forward_s(layout.micro_batch)
        backward_s = forward_s * (_BACKWARD if layout.recompute == "none" else _BACKWARD_AGAIN)
        send_s = latency_s + layout.micro_batch * shape.seq * shape.hidden * size / bytes_per_s
        passes_s = (forward_s + send_s, backward_s + send_s)
        chimera = layout.schedule == "chimera"
        pipeline_s = float(
            closed_form_s(layout.schedule, layout.pp, layout.accumulation, *passes_s)
        )
        gradients_bytes = layers * shape.layer_parameters * size
        ranks = (2 if chimera else 1) * layout.dp
        reduce_s = rabenseifner_s(ranks, gradients_bytes, latency_s, bytes_per_s)
        out_s = unoverlapped_s(reduce_s, backward_s + send_s) if chimera else reduce_s
        return pipeline_s, out_s

    return seconds


def rabenseifner_s(ranks: int, size: float, latency_s: float, bytes_per_s: float) -> float:
    """An all-reduce by halving and doubling."""
    return 2 * math.log2(ranks) * latency_s + 2 * (ranks - 1) / ranks * size / bytes_per_s


def unoverlapped_s(reduce_s: float, backward_s: float) -> float:
    """What of Chimera's all-reduces sticks out behind the last backward."""
    return max(reduce_s, 2 * reduce_s - backward_s)
