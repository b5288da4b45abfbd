"""`hybridperf choose`: smaller choices that papers made, as searches. What is heavy is imported
when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from hybridperf.cli.common import compilation_cache

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer(
    no_args_is_help=True,
    help="Choices smaller than a plan: strategies per class of layers, Chimera's, KAISA's.",
)

Model = Annotated[
    str, Option("--model", help="a published shape, or a .toml or .json file of sizes")
]
System = Annotated[
    str, Option("--system", help="nodes and links: a name of `hybridperf systems`, or a .toml file")
]
Gpus = Annotated[int, Option("--gpus", help="how many", min=1)]
Batch = Annotated[int, Option("--batch", help="samples of a step over all GPUs", min=1)]
Device = Annotated[str, Option("--device", help="accelerator; the system's own if not given")]
Top = Annotated[int, Option("--top", help="how many of the best are shown", min=1)]
OutTable = Annotated[
    Path | None, Option("--out", help="write all of them here, too (.csv, .parquet)")
]
Seq = Annotated[
    int | None, Option("--seq", help="tokens of a sequence; the model's own if not given", min=1)
]

_MATRICES = 6  # of a layer of BERT
_MEASURED_ON, _INVERT_MS, _PRECONDITION_MS = (
    "v100_sxm2",
    80.8,
    8.9,
)  # published with KAISA's question, of a layer of BERT-large


@app.command()
def strategies(
    model: Annotated[
        str, Option(help="dlrm-a, a published shape, or a .toml or .json file of sizes")
    ],
    gpus: Gpus,
    batch: Annotated[
        int | None, Option(help="samples of a step over all GPUs; of dlrm-a 512 a GPU", min=1)
    ] = None,
    system: Annotated[
        str,
        Option(help="a name of `hybridperf systems` or a .toml file; of dlrm-a MAD-Max's ZionEX"),
    ] = "",
    device: Device = "",
    law: Annotated[
        str, Option(help="stages: ours, times of stages added; mad-max: its own arithmetic")
    ] = "stages",
    by: Annotated[
        str, Option(help="kind: one strategy per class of layers; layer: per layer")
    ] = "kind",
    compute: Annotated[float, Option(help="share of peak that products reach")] = 0.6,
    memory: Annotated[float, Option(help="share of memory bandwidth that is reached")] = 0.8,
    links: Annotated[float, Option(help="share of links' bandwidths that is reached")] = 0.8,
    top: Top = 10,
    out: OutTable = None,
) -> None:
    """Which of ddp, fsdp, tp and mp for which class of layers, inside nodes and across them
    (MAD-Max's question).
    """
    from hybridperf.io import InputError
    from hybridperf.studies import report as reports
    from hybridperf.studies.strategies.named import named_cluster, named_cost_model, named_layers
    from hybridperf.studies.strategies.search import search_strategies

    layers, local = named_layers(model)
    if local is None and not system:
        raise InputError(
            f"expected --system NAME for {model}, got none; `hybridperf systems` lists those known"
        )
    if local is None and batch is None:
        raise InputError(
            f"expected --batch for {model}, got none; give samples of a step over all GPUs"
        )
    cluster = named_cluster(
        system, gpus, device or None, compute=compute, memory=memory, links=links
    )
    samples = (local or 0) * gpus if batch is None else batch
    found = search_strategies(layers, named_cost_model(law, cluster), samples, by=by, fitting=False)
    print(reports.strategies_report(model, cluster, samples, found, top))
    if (
        local is not None
        and not system
        and batch is None
        and gpus % cluster.gpus_per_node == 0
        and gpus >= 8
    ):
        print("\n" + reports.published_report(gpus))
    _write(found, out)
    if not found["fits"].any():
        fixed = None if local is not None and batch is None else samples
        raise InputError(
            reports.nothing_fits(
                model, layers, named_cost_model(law, cluster), samples, fixed, plans=local is None
            )
        )


@app.command()
def chimera(
    model: Model,
    system: System,
    gpus: Gpus,
    batch: Batch,
    seq: Seq = None,
    device: Device = "",
    dtype: Annotated[
        str, Option(help="of weights and activations; Chimera's own runs were fp32")
    ] = "bf16",
    memory_bytes: Annotated[
        float | None, Option(help="of each device; the datasheet's if not given")
    ] = None,
    out: OutTable = None,
) -> None:
    """How many pipelines of how many stages, and which micro-batch: Chimera's two-way pipelines
    beside 1F1B.
    """
    import dataclasses

    from hybridperf.studies import report as reports
    from hybridperf.studies.chimera import pipeline_like, pipelines
    from hybridperf.training.plans.layer import layer_forward_s
    from hybridperf.training.plans.setup import training_setup
    from hybridperf.training.steps.memory_fit import USABLE
    from hybridperf.workloads.transformer import load_shape

    compilation_cache()
    shape = load_shape(model)
    if seq is not None:
        shape = dataclasses.replace(shape, seq=seq)
    shared = training_setup(shape, system, device=device or None, dtype=dtype)
    capacity = USABLE * (shared.machine.memory_bytes if memory_bytes is None else memory_bytes)
    fabric = shared.machine.system
    link = fabric.link_bytes_per_s(gpus)
    found = {
        schedule: pipelines(
            shape,
            gpus,
            batch,
            capacity,
            layer_forward_s(shared),
            latency_s=fabric.latency_s,
            bytes_per_s=link,
            dtype=dtype,
            schedule=schedule,
            largest=False,
        )
        for schedule in ("chimera", "1f1b")
    }
    alike = pipeline_like(
        shape,
        found["chimera"][0],
        batch,
        layer_forward_s(shared),
        "1f1b",
        latency_s=fabric.latency_s,
        bytes_per_s=link,
        dtype=dtype,
    )
    print(
        reports.pipelines_report(
            shape.name, gpus, batch, found, alike=alike, capacity_bytes=capacity, dtype=dtype
        )
    )
    _write(reports.pipelines_frame(found), out)


@app.command()
def kaisa(
    model: Model,
    gpus: Gpus,
    system: System,
    invert_ms: Annotated[
        float | None,
        Option(
            help="to invert the factors of a layer of BERT-large; of a V100's, scaled, if not given"
        ),
    ] = None,
    precondition_ms: Annotated[
        float | None, Option(help="to precondition that layer; the same")
    ] = None,
    micro_batch: Annotated[
        int, Option(help="samples of a rank, for the memory beside the inverses", min=1)
    ] = 1,
    dtype: Annotated[
        str, Option(help="of weights and activations, for the memory beside the inverses")
    ] = "fp32",
    device: Device = "",
    memory_bytes: Annotated[
        float | None, Option(help="of each device; the datasheet's if not given")
    ] = None,
    every: Annotated[int, Option(help="steps between inversions", min=1)] = 10,
    out: OutTable = None,
) -> None:
    """On which share of the ranks K-FAC keeps its inverses: memory against communication."""
    from hybridperf.hardware import device_of, load_device, load_system
    from hybridperf.io import InputError
    from hybridperf.studies import report as reports
    from hybridperf.studies.kaisa import (
        SecondOrderCosts,
        factored,
        second_order_front,
        second_orders,
    )
    from hybridperf.training.steps.memory_fit import USABLE
    from hybridperf.workloads.memory import memory
    from hybridperf.workloads.transformer import Layout, load_shape

    shape, fabric = load_shape(model), load_system(system)
    spec = load_device(device_of(fabric, device))
    faster = spec.peak("fp32", "vector") / load_device(_MEASURED_ON).peak("fp32", "vector")
    scaled = invert_ms is None or precondition_ms is None
    invert_ms = _INVERT_MS / faster if invert_ms is None else invert_ms
    precondition_ms = _PRECONDITION_MS / faster if precondition_ms is None else precondition_ms
    if not (invert_ms > 0 and precondition_ms > 0):
        raise InputError(
            f"expected --invert-ms and --precondition-ms above 0, got {invert_ms:g} and"
            f" {precondition_ms:g}"
        )
    layer = factored(load_shape("bert-large"))[:_MATRICES]
    link = fabric.link_bytes_per_s(gpus)
    costs = SecondOrderCosts.of_layer(
        layer,
        1e-3 * invert_ms,
        1e-3 * precondition_ms,
        bytes_per_s=link,
        latency_s=fabric.latency_s,
        every=every,
    )
    shares, front = (
        second_orders(factored(shape), gpus, costs),
        second_order_front(factored(shape), gpus, costs),
    )
    beside = float(memory(shape, Layout(dp=gpus, micro_batch=micro_batch), dtype=dtype).peak_bytes)
    room = USABLE * (spec.memory_bytes if memory_bytes is None else memory_bytes) - beside
    print(
        reports.second_order_report(
            shape.name, gpus, shares, front, beside_bytes=beside, room_bytes=room
        )
    )
    times = (
        f"inverting takes {invert_ms:.3g} ms and preconditioning {precondition_ms:.3g} ms of a"
        " layer of BERT-large"
    )
    if scaled:
        times += (
            f" on {spec.id}: {_INVERT_MS:g} and {_PRECONDITION_MS:g} ms of a V100 by fp32 peaks, an"
            " assumption; give --invert-ms"
        )
    print(times)
    _write(reports.second_order_frame(shares, front, room), out)
    if not any(one.memory_bytes <= room for one in shares):
        least = min(one.memory_bytes for one in shares)
        raise InputError(
            f"expected inverses that fit beside {shape.name} on {spec.id}, got {least / 1e9:.2f} GB"
            f" at least where {max(room, 0) / 1e9:.2f} GB are left; take more GPUs, a smaller"
            " --micro-batch or a narrower --dtype"
        )


def _write(frame: pd.DataFrame, out: Path | None) -> None:
    from hybridperf.io import write_table

    if out is not None:
        write_table(frame, out)
        print(f"\nall {len(frame)} in {out}")
