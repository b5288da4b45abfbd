"""Smaller choices in words: strategies per class of layers, Chimera's pipelines, KAISA's shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from hybridperf.report import text
from hybridperf.report.text import percent
from hybridperf.studies import Pipeline, SecondOrder
from hybridperf.studies.strategies import DLRM_A, StageAdditive, dlrm_a, iteration, zionex
from hybridperf.studies.strategies.cluster import Cluster, CostModel
from hybridperf.studies.strategies.layer import Layer
from hybridperf.studies.strategies.mad_max import DLRM_A_LOCAL_BATCH, dlrm_a_mapping
from hybridperf.studies.strategies.search import least_nodes, smallest_bytes
from hybridperf.training.plans.layout_text import counted

_COST_MODELS = (
    "MAD-Max sends the bytes looked up over the number of GPUs, ours the pooled rows that travel:"
    " four times as many on 128"
)
_MEASURED, _MEASURED_GPUS = (
    "published as measured: 67.4 ms if nothing overlapped, 82.37 % exposed, 1.2 million samples/s",
    128,
)
_MEASURED_PER_S = 1.2e6
_FAR = 1.5  # times the measured rate or less of it: worth a warning
_TIMES = ("iteration_s", "compute_s", "communication_s", "exposed_s")


def strategies_report(
    model: str, cluster: Cluster, batch: float, found: pd.DataFrame, top: int = 10
) -> str:
    """The best strategies that fit; where none does, the smallest first."""
    classes = [
        name for name in found if name not in (*_TIMES, "exposed_share", "memory_bytes", "fits")
    ]
    fitting = found[found["fits"]]
    nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"
    where = (
        f"{model} on {counted(cluster.gpus, 'GPU')} in {nodes}, batch {batch:,.0f}: {len(found)}"
        f" strategies, {len(fitting)} fit"
    )
    shown = fitting if len(fitting) else found.sort_values("memory_bytes", kind="stable")
    said = (
        f"into {text.quantity(cluster.capacity_bytes, 'B')}; strategy of each class inside nodes,"
        " across nodes"
    )
    if not len(fitting):
        said = f"into {text.quantity(cluster.capacity_bytes, 'B')}; the smallest ones are shown"
    rows = [
        [
            *(str(row[name]) for name in classes),
            *(text.seconds(row[name]) for name in _TIMES),
            f"{100 * row['exposed_share']:.0f} %",
            text.quantity(row["memory_bytes"], "B"),
        ]
        for _, row in shown.head(top).iterrows()
    ]
    head = [*classes, "iteration", "computing", "sending", "exposed", "of sending", "memory"]
    return f"{where} {said}\n\n{text.table(head, rows)}"


def published_report(gpus: int) -> str:
    """The published mapping of DLRM-A (tables dealt out, matrices on each GPU) by MAD-Max's
    arithmetic and by ours.
    """
    cluster, batch = zionex(max(gpus // 8, 1)), DLRM_A_LOCAL_BATCH * gpus
    both = {
        "MAD-Max's arithmetic": dlrm_a(gpus),
        "stages added (ours)": iteration(DLRM_A, dlrm_a_mapping(), StageAdditive(cluster), batch),
    }
    rows = [
        [
            name,
            *(text.seconds(value) for value in (one.iteration_s, one.serial_s, one.exposed_s)),
            f"{100 * one.exposed_share:.2f} %",
            f"{batch / one.iteration_s / 1e6:.2f}",
        ]
        for name, one in both.items()
    ]
    head = [
        "embedding by mp, dense by ddp",
        "iteration",
        "if nothing overlapped",
        "exposed",
        "of sending",
        "million samples/s",
    ]
    said = [text.table(head, rows), _COST_MODELS]
    if gpus == _MEASURED_GPUS:
        said.append(_MEASURED)
        for name, one in both.items():
            times = _MEASURED_PER_S / (batch / one.iteration_s)
            if not 1 / _FAR <= times <= _FAR:
                said.append(
                    f"warning: {name} predicts {1 / times:.2f} of the measured samples/s: its times"
                    " of this model are not to be relied on, nor is it shown that its order of"
                    " strategies holds; `--cost_model mad-max` is nearer"
                )
    return "\n".join(said)


def nothing_fits(
    model: str,
    layers: Sequence[Layer],
    cost_model: CostModel,
    batch: float,
    fixed: float | None,
    plans: bool,
) -> str:
    """Why no strategy fits, and how many GPUs would do; `fixed`: the batch that stays the same,
    None: samples per GPU do.
    """
    cluster = cost_model.cluster
    parts = smallest_bytes(layers, cost_model, batch)
    kind = max(parts, key=lambda name: parts[name])
    nodes = least_nodes(
        layers, cost_model, lambda gpus: batch / cluster.gpus * gpus if fixed is None else fixed
    )
    least = (
        f"{sum(parts.values()) / 1e9:.1f} GB on each of {counted(cluster.gpus, 'GPU')},"
        f" {percent(parts[kind] / sum(parts.values()))} of it"
    )
    held = cluster.capacity_bytes / 1e9
    enough = (
        f"take {nodes * cluster.gpus_per_node} GPUs"
        if nodes
        else "no number of GPUs is enough for these strategies"
    )
    absent = (
        "; pipelines, micro-batches and recomputation are absent here, `hybridperf plan` has them"
        if plans
        else ""
    )
    return (
        f"expected a strategy of {model} that fits into {held:.1f} GB, got {least} {kind} layers,"
        f" at least; {enough}{absent}"
    )


def pipelines_report(
    model: str,
    gpus: int,
    batch: int,
    found: Mapping[str, Sequence[Pipeline]],
    *,
    alike: Pipeline | None,
    capacity_bytes: float,
    dtype: str,
) -> str:
    """Chimera's shapes of a pipeline beside 1F1B's, fastest first; `alike`: 1F1B in the shape of
    Chimera's best.
    """
    rows = [
        [
            schedule,
            str(one.replicas),
            str(one.stages),
            str(one.micro_batch),
            str(one.micro_batches),
            one.recompute,
            text.quantity(one.memory_bytes, "B"),
            text.seconds(one.pipeline_s),
            text.seconds(one.unoverlapped_s),
            text.seconds(one.step_s),
        ]
        for schedule, shapes in found.items()
        for one in shapes
    ]
    head = [
        "",
        "pipelines W",
        "stages D",
        "micro-batch B",
        "micro-batches N",
        "recompute",
        "memory",
        "pipeline",
        "all-reduce left",
        "step",
    ]
    best = {schedule: shapes[0].step_s for schedule, shapes in found.items()}
    ratio = best["1f1b"] / best["chimera"]
    rule = (
        "of each W and D the micro-batch B that is fastest of those that fit, and recomputation"
        f" only where nothing fits without it; {dtype}, {text.quantity(capacity_bytes, 'B')} a GPU"
    )
    said = [
        f"the best of chimera takes {1 / ratio:.3f} of the time of the best of 1f1b, each in its"
        " own shape"
    ]
    if alike is not None:
        first = found["chimera"][0]
        fits = (
            ""
            if alike.memory_bytes <= capacity_bytes
            else f", which takes {text.quantity(alike.memory_bytes, 'B')} and does not fit"
        )
        said.append(
            f"like with like, W {first.replicas}, D {first.stages}, B {first.micro_batch}:"
            f" {first.step_s / alike.step_s:.3f} of 1f1b's {text.seconds(alike.step_s)}{fits}"
        )
    return (
        f"{model} on {counted(gpus, 'GPU')}, batch {batch}: {rule}\n\n{text.table(head, rows)}\n"
        + "\n".join(said)
    )


def pipelines_frame(found: Mapping[str, Sequence[Pipeline]]) -> pd.DataFrame:
    """All shapes, one row each."""
    return pd.DataFrame(
        [
            {"schedule": name, **one._asdict(), "step_s": one.step_s}
            for name, shapes in found.items()
            for one in shapes
        ]
    )


def second_order_report(
    model: str,
    gpus: int,
    every: Sequence[SecondOrder],
    front: Sequence[SecondOrder],
    *,
    beside_bytes: float,
    room_bytes: float,
) -> str:
    """All shares, those marked that no other beats in both memory and time; what training takes
    beside them and leaves.
    """
    rows = [
        [
            f"{one.share:.4g}{' *' if one in front else ''}",
            str(one.grad_workers),
            *(text.quantity(size, "B") for size in (one.memory_bytes, one.received_bytes)),
            *(
                text.seconds(value)
                for value in (one.invert_s, one.precondition_s, one.communication_s, one.step_s)
            ),
            "yes" if one.memory_bytes <= room_bytes else "no",
        ]
        for one in every
    ]
    head = [
        "share",
        "gradient workers",
        "inverses",
        "received a step",
        "inverting",
        "preconditioning",
        "sending",
        "more per step",
        "fits",
    ]
    left = (
        f"{text.quantity(beside_bytes, 'B')} a rank beside the inverses,"
        f" {text.quantity(max(room_bytes, 0.0), 'B')} left for them"
    )
    said = "* no other share beats it in both memory and time"
    if len(front) == 1 < len(every):
        said += ": this one has least memory and least time, so there is nothing to trade here"
    return (
        f"K-FAC of {model} on {counted(gpus, 'rank')}: {left}\n\n{text.table(head, rows)}\n{said}"
    )


def second_order_frame(
    every: Sequence[SecondOrder], front: Sequence[SecondOrder], room_bytes: float
) -> pd.DataFrame:
    """The same, one row each."""
    return pd.DataFrame(
        [
            {
                **one._asdict(),
                "step_s": one.step_s,
                "on_front": one in front,
                "fits": one.memory_bytes <= room_bytes,
            }
            for one in every
        ]
    )
