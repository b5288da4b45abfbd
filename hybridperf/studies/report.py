"""Smaller choices in words: strategies per class of layers, Chimera's pipelines, KAISA's shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from hybridperf.report import text
from hybridperf.report.text import percent
from hybridperf.studies.chimera import Pipeline
from hybridperf.studies.kaisa import SecondOrder
from hybridperf.studies.strategies.cluster import Cluster, CostModel, StageAdditive
from hybridperf.studies.strategies.layer import Layer
from hybridperf.studies.strategies.mad_max import (
    DLRM_A,
    DLRM_A_LOCAL_BATCH,
    dlrm_a,
    dlrm_a_mapping,
    zionex,
)
from hybridperf.studies.strategies.search import least_nodes, smallest_bytes
from hybridperf.studies.strategies.timeline import iteration
from hybridperf.training.plans.layout_text import counted

_COST_MODELS = (
    "MAD-Max sends the bytes looked up over the number of GPUs, ours the pooled rows that travel:"
    " four times as many on 128"
)
_MEASURED_GPUS = 128
_MEASURED = (
    "published as measured: 67.4 ms if nothing overlapped, 82.37 % exposed, 1.2 million samples/s"
)
_MEASURED_PER_S = 1.2e6
_FAR = 1.5  # times the measured rate or less of it: worth a warning
_TIMES = ("iteration_s", "compute_s", "communication_s", "exposed_s")
_NOT_CLASSES = (*_TIMES, "exposed_share", "memory_bytes", "fits")


def strategies_report(
    model: str, cluster: Cluster, batch: float, found: pd.DataFrame, top: int = 10
) -> str:
    """The best strategies that fit; where none does, the smallest first."""
    classes = [name for name in found if name not in _NOT_CLASSES]
    fitting = found[found["fits"]]
    nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"
    where = f"{model} on {counted(cluster.gpus, 'GPU')} in {nodes}, batch {batch:,.0f}"
    into = f"{len(fitting)} fit into {text.quantity(cluster.capacity_bytes, 'B')}"
    if len(fitting):
        shown, what = fitting, "strategy of each class inside nodes, across nodes"
    else:
        shown = found.sort_values("memory_bytes", kind="stable")
        what = "the smallest ones are shown"
    rows = [
        [
            *(str(row[name]) for name in classes), *(text.seconds(row[name]) for name in _TIMES),
            f"{100 * row['exposed_share']:.0f} %", text.quantity(row["memory_bytes"], "B"),
        ]
        for _, row in shown.head(top).iterrows()
    ]  # fmt: skip
    head = [*classes, "iteration", "computing", "sending", "exposed", "of sending", "memory"]
    return f"{where}: {len(found)} strategies, {into}; {what}\n\n{text.table(head, rows)}"


def published_report(gpus: int) -> str:
    """The published mapping of DLRM-A by MAD-Max's arithmetic and by ours.

    Tables are dealt out over all GPUs, matrices are on each.
    """
    cluster, batch = zionex(max(gpus // 8, 1)), DLRM_A_LOCAL_BATCH * gpus
    ours = iteration(DLRM_A, dlrm_a_mapping(), StageAdditive(cluster), batch)
    both = {"MAD-Max's arithmetic": dlrm_a(gpus), "stages added (ours)": ours}
    rows = []
    for name, one in both.items():
        times = [text.seconds(value) for value in (one.iteration_s, one.serial_s, one.exposed_s)]
        rate = f"{batch / one.iteration_s / 1e6:.2f}"
        rows.append([name, *times, f"{100 * one.exposed_share:.2f} %", rate])
    head = [
        "embedding by mp, dense by ddp", "iteration", "if nothing overlapped", "exposed",
        "of sending", "million samples/s",
    ]  # fmt: skip
    lines = [text.table(head, rows), _COST_MODELS]
    if gpus == _MEASURED_GPUS:
        lines.append(_MEASURED)
        for name, one in both.items():
            times_off = _MEASURED_PER_S / (batch / one.iteration_s)
            if not 1 / _FAR <= times_off <= _FAR:
                lines.append(
                    f"warning: {name} predicts {1 / times_off:.2f} of the measured samples/s: its"
                    " times of this model are not to be relied on, nor is it shown that its order"
                    " of strategies holds; `--law mad-max` is nearer"
                )
    return "\n".join(lines)


def nothing_fits(
    model: str, layers: Sequence[Layer], cost_model: CostModel, batch: float, fixed: float | None,
    plans: bool,
) -> str:  # fmt: skip
    """Why no strategy fits, and how many GPUs would do.

    Args:
        model: its name.
        layers: its layers.
        cost_model: of the cluster that is too small.
        batch: samples of a step.
        fixed: the batch that stays the same on more GPUs; None: samples per GPU do.
        plans: whether `hybridperf plan` knows the model.
    """
    cluster = cost_model.cluster
    parts = smallest_bytes(layers, cost_model, batch)
    whole, kind = sum(parts.values()), max(parts, key=lambda name: parts[name])

    def batch_of(gpus: int) -> float:
        return batch / cluster.gpus * gpus if fixed is None else fixed

    nodes = least_nodes(layers, cost_model, batch_of)
    each = f"{whole / 1e9:.1f} GB on each of {counted(cluster.gpus, 'GPU')}"
    enough = "no number of GPUs is enough for these strategies"
    if nodes:
        enough = f"take {nodes * cluster.gpus_per_node} GPUs"
    if plans:
        enough += "; pipelines, micro-batches and recomputation are absent here, `hybridperf plan`"
        enough += " has them"
    return (
        f"expected a strategy of {model} that fits into {cluster.capacity_bytes / 1e9:.1f} GB, got"
        f" {each}, {percent(parts[kind] / whole)} of it {kind} layers, at least; {enough}"
    )


def pipelines_report(
    model: str, gpus: int, batch: int, found: Mapping[str, Sequence[Pipeline]],
    alike: Pipeline | None, capacity_bytes: float, dtype: str,
) -> str:  # fmt: skip
    """Chimera's shapes of a pipeline next to 1F1B's, fastest first.

    Args:
        model: its name.
        gpus: workers.
        batch: samples of a step.
        found: pipelines by schedule, `chimera` and `1f1b`.
        alike: 1F1B in the shape of Chimera's best; None: it has none such.
        capacity_bytes: of a worker.
        dtype: of weights and activations.
    """
    rows = [
        [
            schedule, str(one.replicas), str(one.stages), str(one.micro_batch),
            str(one.micro_batches), one.recompute, text.quantity(one.memory_bytes, "B"),
            *(text.seconds(value) for value in (one.pipeline_s, one.unoverlapped_s, one.step_s)),
        ]
        for schedule, shapes in found.items()
        for one in shapes
    ]  # fmt: skip
    head = [
        "", "pipelines W", "stages D", "micro-batch B", "micro-batches N", "recompute", "memory",
        "pipeline", "all-reduce left", "step",
    ]  # fmt: skip
    best = {schedule: shapes[0].step_s for schedule, shapes in found.items()}
    ratio = best["1f1b"] / best["chimera"]
    rule = (
        "of each W and D the micro-batch B that is fastest of those that fit, and recomputation"
        f" only where nothing fits without it; {dtype}, {text.quantity(capacity_bytes, 'B')} a GPU"
    )
    lines = [
        f"the best of chimera takes {1 / ratio:.3f} of the time of the best of 1f1b, each in its"
        " own shape"
    ]
    if alike is not None:
        first = found["chimera"][0]
        shape = f"W {first.replicas}, D {first.stages}, B {first.micro_batch}"
        times = f"{first.step_s / alike.step_s:.3f} of 1f1b's {text.seconds(alike.step_s)}"
        if alike.memory_bytes > capacity_bytes:
            times += f", which takes {text.quantity(alike.memory_bytes, 'B')} and does not fit"
        lines.append(f"like with like, {shape}: {times}")
    where = f"{model} on {counted(gpus, 'GPU')}, batch {batch}"
    return f"{where}: {rule}\n\n{text.table(head, rows)}\n" + "\n".join(lines)


def pipelines_frame(found: Mapping[str, Sequence[Pipeline]]) -> pd.DataFrame:
    """All shapes, one row each."""
    return pd.DataFrame(
        {"schedule": name, **one._asdict(), "step_s": one.step_s}
        for name, shapes in found.items()
        for one in shapes
    )


def second_order_report(
    model: str, gpus: int, every: Sequence[SecondOrder], front: Sequence[SecondOrder],
    beside_bytes: float, room_bytes: float,
) -> str:  # fmt: skip
    """All shares with their costs; those on the Pareto front of memory and time are marked.

    Args:
        model: its name.
        gpus: ranks.
        every: all shares.
        front: those that no other beats in both memory and time.
        beside_bytes: what training takes on a rank besides the inverses.
        room_bytes: what is left for them.
    """
    rows = []
    for one in every:
        times = (one.invert_s, one.precondition_s, one.communication_s, one.step_s)
        rows.append([
            f"{one.share:.4g}{' *' if one in front else ''}", str(one.grad_workers),
            *(text.quantity(size, "B") for size in (one.memory_bytes, one.received_bytes)),
            *map(text.seconds, times), "yes" if one.memory_bytes <= room_bytes else "no",
        ])  # fmt: skip
    head = [
        "share", "gradient workers", "inverses", "received a step", "inverting", "preconditioning",
        "sending", "more per step", "fits",
    ]  # fmt: skip
    left = (
        f"{text.quantity(beside_bytes, 'B')} a rank besides the inverses,"
        f" {text.quantity(max(room_bytes, 0.0), 'B')} left for them"
    )
    legend = "* no other share beats it in both memory and time"
    if len(front) == 1 < len(every):
        legend += ": this one has least memory and least time, so there is nothing to trade here"
    where = f"K-FAC of {model} on {counted(gpus, 'rank')}"
    return f"{where}: {left}\n\n{text.table(head, rows)}\n{legend}"


def second_order_frame(
    every: Sequence[SecondOrder], front: Sequence[SecondOrder], room_bytes: float
) -> pd.DataFrame:
    """All shares, one row each."""
    return pd.DataFrame(
        {
            **one._asdict(), "step_s": one.step_s, "on_front": one in front,
            "fits": one.memory_bytes <= room_bytes,
        }
        for one in every
    )  # fmt: skip
