"""Smaller choices in words: strategies per class of layers, Chimera's pipelines, KAISA's shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from hybridperf.choices import Pipeline, SecondOrder
from hybridperf.report import text
from hybridperf.strategies import DLRM_A, StageAdditive, dlrm_a, iteration, zionex
from hybridperf.strategies.cluster import Cluster
from hybridperf.strategies.mad_max import DLRM_A_LOCAL_BATCH, dlrm_a_mapping

_LAWS = "MAD-Max sends the bytes looked up over the number of GPUs, ours the pooled rows that travel: four times as many on 128"
_MEASURED, _MEASURED_GPUS = "published as measured: 67.4 ms if nothing overlapped, 82.37 % exposed, 1.2 million samples/s", 128
_TIMES = ("iteration_s", "compute_s", "communication_s", "exposed_s")


def strategies_report(model: str, cluster: Cluster, batch: float, found: pd.DataFrame, top: int = 10) -> str:
    """The best strategies that fit; where none does, the smallest first."""
    classes = [name for name in found if name not in (*_TIMES, "exposed_share", "memory_bytes", "fits")]
    fitting = found[found["fits"]]
    nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"
    where = f"{model} on {cluster.gpus} GPUs in {nodes}, batch {batch:,.0f}: {len(found)} strategies, {len(fitting)} fit"
    shown = fitting if len(fitting) else found.sort_values("memory_bytes", kind="stable")
    said = f"into {text.quantity(cluster.capacity_bytes, 'B')}; strategy of each class inside nodes, across nodes"
    if not len(fitting):
        said = f"into {text.quantity(cluster.capacity_bytes, 'B')}; the smallest ones are shown: take more GPUs or a smaller batch"
    rows = [
        [
            *(str(row[name]) for name in classes), *(text.seconds(row[name]) for name in _TIMES), f"{100 * row['exposed_share']:.0f} %",
            text.quantity(row["memory_bytes"], "B"),
        ]
        for _, row in shown.head(top).iterrows()
    ]  # fmt: skip
    head = [*classes, "iteration", "computing", "sending", "exposed", "of sending", "memory"]
    return f"{where} {said}\n\n{text.table(head, rows)}"


def published_report(gpus: int) -> str:
    """The published mapping of DLRM-A (tables dealt out, matrices on each GPU) by MAD-Max's arithmetic and by ours."""
    cluster, batch = zionex(max(gpus // 8, 1)), DLRM_A_LOCAL_BATCH * gpus
    both = {"MAD-Max's arithmetic": dlrm_a(gpus), "stages added (ours)": iteration(DLRM_A, dlrm_a_mapping(), StageAdditive(cluster), batch)}
    rows = [
        [
            name, *(text.seconds(value) for value in (one.iteration_s, one.serial_s, one.exposed_s)), f"{100 * one.exposed_share:.2f} %",
            f"{batch / one.iteration_s / 1e6:.2f}",
        ]
        for name, one in both.items()
    ]  # fmt: skip
    head = ["embedding by mp, dense by ddp", "iteration", "if nothing overlapped", "exposed", "of sending", "million samples/s"]
    return f"{text.table(head, rows)}\n{_LAWS}" + (f"\n{_MEASURED}" if gpus == _MEASURED_GPUS else "")


def pipelines_report(model: str, gpus: int, batch: int, found: Mapping[str, Sequence[Pipeline]]) -> str:
    """Chimera's shapes of a pipeline beside 1F1B's, fastest first."""
    rows = [
        [
            schedule, str(one.replicas), str(one.stages), str(one.micro_batch), str(one.micro_batches), one.recompute,
            text.quantity(one.memory_bytes, "B"), text.seconds(one.pipeline_s), text.seconds(one.unoverlapped_s), text.seconds(one.step_s),
        ]
        for schedule, shapes in found.items()
        for one in shapes
    ]  # fmt: skip
    head = ["", "pipelines W", "stages D", "micro-batch B", "micro-batches N", "recompute", "memory", "pipeline", "all-reduce left", "step"]
    best = {schedule: shapes[0].step_s for schedule, shapes in found.items()}
    ratio = best["1f1b"] / best["chimera"]
    said = f"the best of chimera takes {1 / ratio:.3f} of the time of the best of 1f1b"
    return f"{model} on {gpus} GPUs, batch {batch}\n\n{text.table(head, rows)}\n{said}"


def pipelines_frame(found: Mapping[str, Sequence[Pipeline]]) -> pd.DataFrame:
    """All shapes, one row each."""
    return pd.DataFrame([{"schedule": name, **one._asdict(), "step_s": one.step_s} for name, shapes in found.items() for one in shapes])


def second_order_report(model: str, gpus: int, every: Sequence[SecondOrder], front: Sequence[SecondOrder]) -> str:
    """All shares, those marked that no other beats in both memory and time."""
    rows = [
        [
            f"{one.share:.4g}{' *' if one in front else ''}", str(one.grad_workers),
            *(text.quantity(size, "B") for size in (one.memory_bytes, one.received_bytes)),
            *(text.seconds(value) for value in (one.invert_s, one.precondition_s, one.communication_s, one.step_s)),
        ]
        for one in every
    ]  # fmt: skip
    head = ["share", "gradient workers", "inverses", "received a step", "inverting", "preconditioning", "sending", "more per step"]
    return f"K-FAC of {model} on {gpus} ranks\n\n{text.table(head, rows)}\n* no other share beats it in both memory and time"


def second_order_frame(every: Sequence[SecondOrder], front: Sequence[SecondOrder]) -> pd.DataFrame:
    """The same, one row each."""
    return pd.DataFrame([{**one._asdict(), "step_s": one.step_s, "on_front": one in front} for one in every])
