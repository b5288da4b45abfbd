"""`hybridperf choose`: smaller choices that papers made."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from hybridperf.cli import common
from hybridperf.cli.common import Name, Shape, add_commands, wrong
from hybridperf.cli.pool import colocate, edge

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer(
    no_args_is_help=True,
    help="Choices smaller than a plan: strategies per class of layers, Chimera's, KAISA's; edge or"
    " cloud, tasks that share a machine.",
)

Gpus = Annotated[int, Option("--gpus", min=1)]

_BATCH = "samples of a step over all GPUs"


def strategies(
    model: Shape,
    gpus: Gpus,
    batch: Annotated[int | None, Option(min=1)] = None,
    system: str = "",
    device: str = "",
    law: str = "priced",
    by: str = "kind",
    compute: float = 0.6,
    memory: float = 0.8,
    links: float = 0.8,
    top: Annotated[int, Option(min=1)] = 10,
    out: Path | None = None,
) -> None:
    """Which of ddp, fsdp, tp and mp for which class of layers, in and across nodes (MAD-Max)."""
    from hybridperf.studies import report as reports
    from hybridperf.studies.strategies import search
    from hybridperf.studies.strategies.search import transformer_strategies

    common.compilation_cache()
    layers, local = search.named_layers(model)
    if local is None and not system:
        known = "`hybridperf systems` lists those known"
        raise wrong(f"expected --system NAME for {model}, got none; {known}")
    if local is None and batch is None:
        raise wrong(f"expected --batch for {model}, got none; give {_BATCH}")
    if local is None and batch is not None and law == search.PRICED:
        if by != "kind":
            raise wrong("expected --by kind: one strategy is of all layers of a Transformer")
        ways = transformer_strategies(model, system, gpus, batch, device=device or None)
        print(reports.transformer_report(model, system, gpus, batch, ways, top))
        _write(ways, out)
        return
    shares = {"compute": compute, "memory": memory, "links": links}
    cost_model = search.named_cost_model(law, system, gpus, device or None, **shares)
    cluster = cost_model.cluster
    samples = (local or 0) * gpus if batch is None else batch
    found = search.search_strategies(layers, cost_model, samples, by=by, fitting=False)
    print(reports.strategies_report(model, cluster, samples, found, top))
    usual_batch = local is not None and batch is None
    if usual_batch and not system and gpus % cluster.gpus_per_node == 0 and gpus >= 8:
        ours = search.named_cost_model(search.PRICED, "", gpus)
        print("\n" + reports.published_report(gpus, ours))
    _write(found, out)
    if not found["fits"].any():
        fixed, plans = None if usual_batch else samples, local is None
        raise wrong(reports.nothing_fits(model, layers, cost_model, samples, fixed, plans))


def chimera(
    model: Shape,
    system: Name,
    gpus: Gpus,
    batch: Annotated[int, Option(min=1)],
    seq: Annotated[int | None, Option(min=1)] = None,
    device: str = "",
    dtype: str = "bf16",
    memory_bytes: float | None = None,
    out: Path | None = None,
) -> None:
    """How many pipelines, stages, and samples of a micro-batch: Chimera compared with 1F1B."""

    from hybridperf.studies import report as reports
    from hybridperf.studies.chimera import pipeline_like, pipelines, planned
    from hybridperf.training.plans.setup import training_setup
    from hybridperf.workloads.memory import memory

    common.compilation_cache()
    shared = training_setup(
        model, system, seq=seq, device=device or None, dtype=dtype, memory_bytes=memory_bytes
    )
    shape = shared.shape
    law, capacity, counted = planned(shared), shared.capacity_bytes, shared.memory_terms
    found = {
        schedule: pipelines(
            shape, gpus, batch, capacity, law=law, schedule=schedule, largest=False, **counted
        )
        for schedule in ("chimera", "1f1b")
    }
    best = found["chimera"][0]
    alike = pipeline_like(
        best, batch, law, "1f1b", lambda one: float(memory(shape, one, **counted).peak_bytes)
    )
    print(reports.pipelines_report(shape.name, gpus, batch, found, alike, capacity, dtype))
    _write(reports.pipelines_frame(found), out)


def kaisa(
    model: Shape,
    gpus: Gpus,
    system: Name,
    invert_ms: float | None = None,
    precondition_ms: float | None = None,
    micro_batch: Annotated[int, Option(min=1)] = 1,
    dtype: str = "fp32",
    device: str = "",
    memory_bytes: float | None = None,
    every: Annotated[int, Option(min=1)] = 10,
    out: Path | None = None,
) -> None:
    """On which share of the ranks K-FAC keeps its inverses: memory against communication."""
    from hybridperf.hardware import device_of, load_device, load_system
    from hybridperf.studies import kaisa as study
    from hybridperf.studies import report as reports
    from hybridperf.training.steps.memory_fit import USABLE
    from hybridperf.workloads.memory import memory
    from hybridperf.workloads.transformer import Layout, load_shape

    shape, fabric, known = load_shape(model), load_system(system), study.PUBLISHED
    spec, measured_on = load_device(device_of(fabric, device)), load_device(known["device"])
    faster = spec.peak("fp32", "vector") / measured_on.peak("fp32", "vector")
    scaled = invert_ms is None or precondition_ms is None
    invert_ms = known["invert_ms"] / faster if invert_ms is None else invert_ms
    if precondition_ms is None:
        precondition_ms = known["precondition_ms"] / faster
    if not (invert_ms > 0 and precondition_ms > 0):
        got = f"{invert_ms:g} and {precondition_ms:g}"
        raise wrong(f"expected --invert-ms and --precondition-ms above 0, got {got}")
    layer = study.factored(load_shape(known["model"]))[: known["matrices"]]
    link = fabric.link_bytes_per_s(gpus)
    costs = study.SecondOrderCosts.of_layer(
        layer, 1e-3 * invert_ms, 1e-3 * precondition_ms, bytes_per_s=link,
        latency_s=fabric.latency_s, every=every,
    )  # fmt: skip
    shares = study.second_orders(study.factored(shape), gpus, costs)
    front = study.second_order_front(study.factored(shape), gpus, costs)
    taken = float(memory(shape, Layout(dp=gpus, micro_batch=micro_batch), dtype=dtype).peak_bytes)
    room = USABLE * (spec.memory_bytes if memory_bytes is None else memory_bytes) - taken
    times = f"inverting takes {invert_ms:.3g} ms and preconditioning {precondition_ms:.3g} ms"
    print(reports.second_order_report(shape.name, gpus, shares, front, taken, room))
    print(f"{times} of a layer of {known['model']}", end="")
    if scaled:
        published = "{invert_ms:g} and {precondition_ms:g} ms of {device}".format_map(known)
        print(f" on {spec.id}: {published} by fp32 peaks, an assumption; give --invert-ms", end="")
    print()
    _write(reports.second_order_frame(shares, front, room), out)
    if not any(one.memory_bytes <= room for one in shares):
        lowest_gb = min(one.memory_bytes for one in shares) / 1e9
        got = f"{lowest_gb:.2f} GB at least where {max(room, 0) / 1e9:.2f} GB are left"
        raise wrong(
            f"expected inverses that fit next to {shape.name} on {spec.id}, got {got}; take more"
            " GPUs, a smaller --micro-batch or a narrower --dtype"
        )


def mapa(
    topology: Annotated[str, Argument()],
    gpus: Gpus,
    system: str = "",
    out: Path | None = None,
) -> None:
    """Sets of a node's GPUs by MAPA's published regression, beside our all-reduce bandwidth."""
    import itertools

    import pandas as pd

    from hybridperf.hardware.topology import load_topology
    from hybridperf.report.text import frame_table
    from hybridperf.runs.placement import Placer
    from hybridperf.studies import mapa as study

    node = load_topology(topology, system)
    most = min(node.gpus_per_node, 8)
    if not 2 <= gpus <= most:
        raise wrong(f"expected --gpus of 2 to {most} of one node, got {gpus}")
    common.compilation_cache()
    placer, rows = Placer.of(node), []
    for some in itertools.combinations(range(most), gpus):
        links = study.ring_links(node, some)
        rows.append({
            "gpus": " ".join(map(str, some)),
            **dict(zip(("double", "single", "through_host"), links, strict=True)),
            "mapa_bytes_per_s": study.effective_bytes_per_s(*links),
            "ours_bytes_per_s": placer.bandwidth(some, 256e6),
        })  # fmt: skip
    frame = pd.DataFrame(rows).sort_values("mapa_bytes_per_s", ascending=False)
    print(frame_table(frame.head(10)))
    off = max(abs(study.effective_bytes_per_s(*x) / (gb * 1e9) - 1) for *x, gb in study.VECTORS)
    print(f"its {len(study.VECTORS)} published values are met to {off:.3%}")
    common.result(largest_error=off)
    _write(frame, out)


def _write(frame: "pd.DataFrame", out: Path | None) -> None:
    common.result(rows=frame)
    common.table_written(frame, out, f"\nall {len(frame)} in")


add_commands(app, strategies, chimera, kaisa, mapa, edge, colocate)
