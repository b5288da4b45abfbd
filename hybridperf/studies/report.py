"""Smaller choices in words: strategies per class of layers, Chimera's pipelines, KAISA's shares."""

from collections.abc import Mapping, Sequence

import pandas as pd

from hybridperf.report import text
from hybridperf.report.text import percent, quantity, seconds
from hybridperf.studies.chimera import Pipeline
from hybridperf.studies.kaisa import SecondOrder
from hybridperf.studies.strategies import mad_max
from hybridperf.studies.strategies.cluster import Cluster, CostModel
from hybridperf.studies.strategies.layer import Layer
from hybridperf.studies.strategies.mapping import layer_costs
from hybridperf.studies.strategies.search import least_nodes, smallest_bytes
from hybridperf.studies.strategies.timeline import iteration
from hybridperf.training.plans.layout_text import counted

_MEASURED_GPUS = 128
_PUBLISHED = "67.4 ms if nothing overlapped, 82.37 % exposed, 1.2 million samples/s"
_MEASURED_SERIAL_S, _MEASURED_PER_S = 67.4e-3, 1.2e6
_FAR = 1.5  # times the measured rate or less of it: worth a warning


def strategies_report(
    model: str, cluster: Cluster, batch: float, found: pd.DataFrame, top: int = 10
) -> str:
    """The best strategies that fit; where none does, the smallest first."""
    fitting = found[found["fits"]]
    nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"
    where = f"{model} on {counted(cluster.gpus, 'GPU')} in {nodes}, batch {batch:,.0f}"
    into = f"{len(fitting)} fit into {quantity(cluster.capacity_bytes, 'B')}"
    if len(fitting):
        shown, what = fitting, "strategy of each class inside nodes, across nodes"
    else:
        shown = found.sort_values("memory_bytes", kind="stable")
        what = "the smallest ones are shown"
    shown = text.frame_table(shown.drop(columns="fits").head(top))
    return f"{where}: {len(found)} strategies, {into}; {what}\n\n{shown}"


def transformer_report(
    model: str, system: str, gpus: int, batch: int, found: pd.DataFrame, top: int = 10
) -> str:
    """The best strategies of a Transformer, all of which fit."""
    where = f"{model} on {counted(gpus, 'GPU')} of {system}, batch {batch:,}"
    table = text.frame_table(found.head(top))
    what = "strategy inside nodes, across nodes; pipelines have `hybridperf plan`"
    return f"{where}: {len(found)} ways fit, priced as plans are; {what}\n\n{table}"


def published_report(gpus: int, ours: CostModel) -> str:
    """The published mapping of DLRM-A by MAD-Max's arithmetic and by our prices of ZionEX.

    Tables are dealt out over all GPUs, matrices are on each.
    """
    laws = {"MAD-Max's arithmetic": mad_max.MadMax(mad_max.zionex(max(gpus // 8, 1))), "ours": ours}
    batch, chosen = mad_max.DLRM_A_LOCAL_BATCH * gpus, mad_max.dlrm_a_mapping()
    both = {name: iteration(mad_max.DLRM_A, chosen, law, batch) for name, law in laws.items()}
    parts = {name: published_parts(law) for name, law in laws.items()}
    head = ["embedding by mp, dense by ddp", *parts["ours"], "all of them", "overlapped"]
    rows = []
    for name, one in both.items():
        times = map(seconds, (*parts[name].values(), one.serial_s, one.iteration_s))
        rate = f"{batch / one.iteration_s / 1e6:.2f}"
        rows.append([name, *times, f"{100 * one.exposed_share:.2f} %", rate])
    tables = mad_max.DLRM_A[0]
    looked_up, sent = (
        mad_max.DLRM_A_LOCAL_BATCH * size for size in (tables.read_bytes, tables.output_bytes)
    )
    theirs = quantity(mad_max.LOOKUPS_SENT * looked_up / gpus, "B")
    lines = [
        text.table([*head, "exposed of sending", "million samples/s"], rows),
        f"each way a GPU sends {quantity(sent, 'B')} of the bags of its tables, by MAD-Max"
        f" {theirs}: {mad_max.LOOKUPS_SENT} x the bytes looked up / {gpus}",
    ]
    if gpus == _MEASURED_GPUS:
        lines.append(f"published as measured: {_PUBLISHED}")
        more = {what: parts["ours"][what] - s for what, s in parts["MAD-Max's arithmetic"].items()}
        over = ", ".join(f"{what} {1e3 * s:+.1f}" for what, s in more.items())
        excess_s = both["ours"].serial_s - _MEASURED_SERIAL_S
        lines.append(
            f"ours is {1e3 * excess_s:+.1f} ms off the measured sum; against MAD-Max's: {over} ms"
        )
        for name, one in both.items():
            times_off = _MEASURED_PER_S / (batch / one.iteration_s)
            if not 1 / _FAR <= times_off <= _FAR:
                lines.append(
                    f"warning: {name} predicts {1 / times_off:.2f} of the measured samples/s: times"
                    " of this model are not to be relied on, nor is it shown that their order of"
                    " strategies holds"
                )
    return "\n".join(lines)


def published_parts(law: CostModel) -> dict[str, float]:
    """Seconds of each part of DLRM-A's published mapping, one after the other."""
    chosen, batch = mad_max.dlrm_a_mapping(), float(mad_max.DLRM_A_LOCAL_BATCH)
    asked = {one: layer_costs(one, chosen[one.name], law, batch) for one in mad_max.DLRM_A}

    def compute_s(embedding: bool) -> float:
        return sum(
            one.units * (asks.forward_s + asks.backward_s)
            for one, asks in asked.items()
            if (one.kind == "embedding") == embedding
        )

    return {
        "matrices": compute_s(False),
        "lookups": compute_s(True),
        "all-to-all": sum(2 * one.units * asks.lookup_exchange_s for one, asks in asked.items()),
        "all-reduce": sum(one.units * asks.gradients_s for one, asks in asked.items()),
    }


def nothing_fits(
    model: str, layers: Sequence[Layer], cost_model: CostModel, batch: float, fixed: float | None,
    plans: bool,
) -> str:  # fmt: skip
    """Why no strategy fits a batch of so many samples, and how many GPUs would do.

    `fixed` is the batch that stays the same on more GPUs, None where samples per GPU do; `plans`
    says whether `hybridperf plan` knows the model.
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
        absent = "pipelines, micro-batches and recomputation are absent from this law"
        enough += f"; {absent}, --law priced has all but pipelines, `hybridperf plan` has them"
    return (
        f"expected a strategy of {model} that fits into {cluster.capacity_bytes / 1e9:.1f} GB, got"
        f" {each}, {percent(parts[kind] / whole)} of it {kind} layers, at least; {enough}"
    )


def pipelines_report(
    model: str, gpus: int, batch: int, found: Mapping[str, Sequence[Pipeline]],
    alike: Pipeline | None, capacity_bytes: float, dtype: str,
) -> str:  # fmt: skip
    """Chimera's shapes of a pipeline next to 1F1B's, fastest first.

    `found` has pipelines by schedule, `chimera` and `1f1b`; `alike` is 1F1B in the shape of
    Chimera's best, None where it has none such.
    """
    table = text.frame_table(pipelines_frame(found))
    best = {schedule: shapes[0].step_s for schedule, shapes in found.items()}
    ratio = best["1f1b"] / best["chimera"]
    rule = (
        "of each W and D the micro-batch B that is fastest of those that fit, and recomputation"
        f" only where nothing fits without it; {dtype}, {quantity(capacity_bytes, 'B')} a GPU"
    )
    bests = f"{1 / ratio:.3f} of the time of the best of 1f1b, each in its own shape"
    lines = [f"the best of chimera takes {bests}"]
    if alike is not None:
        first = found["chimera"][0]
        shape = f"W {first.replicas}, D {first.stages}, B {first.micro_batch}"
        times = f"{first.step_s / alike.step_s:.3f} of 1f1b's {seconds(alike.step_s)}"
        if alike.memory_bytes > capacity_bytes:
            times += f", which takes {quantity(alike.memory_bytes, 'B')} and does not fit"
        lines.append(f"like with like, {shape}: {times}")
    where = f"{model} on {counted(gpus, 'GPU')}, batch {batch}"
    return f"{where}: {rule}\n\n{table}\n" + "\n".join(lines)


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

    Training takes `beside_bytes` of a rank besides the inverses, `room_bytes` are left for them.
    """
    beside = f"{quantity(beside_bytes, 'B')} a rank besides the inverses"
    left = f"{beside}, {quantity(max(room_bytes, 0.0), 'B')} left for them"
    legend = "on front: no other share beats it in both memory and time"
    if len(front) == 1 < len(every):
        legend += ": this one has least memory and least time, so there is nothing to trade here"
    where = f"K-FAC of {model} on {counted(gpus, 'rank')}"
    shares = text.frame_table(second_order_frame(every, front, room_bytes))
    return f"{where}: {left}\n\n{shares}\n{legend}"


def second_order_frame(
    every: Sequence[SecondOrder], front: Sequence[SecondOrder], room_bytes: float
) -> pd.DataFrame:
    """All shares, one row each."""
    frame = pd.DataFrame({**one._asdict(), "step_s": one.step_s} for one in every)
    fits = [one.memory_bytes <= room_bytes for one in every]
    return frame.assign(on_front=[one in front for one in every], fits=fits)
