"""`hybridperf devices`, `systems`, `models`, `show`: what is known."""

from __future__ import annotations

from typing import Annotated

from typer import Argument


def devices() -> None:
    """Devices whose facts are known."""
    from hybridperf.hardware import device_names, load_device
    from hybridperf.report import text

    specs = [load_device(name) for name in device_names()]
    print(
        text.table(
            ["device", "name", "fp32", "bf16/fp16 matrix", "memory", "bandwidth"],
            [
                [
                    s.id,
                    s.name,
                    text.quantity(s.peak_flops_per_s.get("fp32"), "FLOP/s"),
                    text.quantity(
                        s.peak_flops_per_s.get("bf16", s.peak_flops_per_s.get("fp16")), "FLOP/s"
                    ),
                    text.quantity(s.memory_bytes, "B"),
                    text.quantity(s.memory_bytes_per_s, "B/s"),
                ]
                for s in specs
            ],
        )
    )


def systems() -> None:
    """Systems (nodes and their links) whose facts are known."""
    from hybridperf.hardware import load_system, other_names, system_names
    from hybridperf.report import text

    specs = [load_system(name) for name in system_names()]
    print(
        text.table(
            ["system", "also called", "description", "per node", "inside a node", "of a node"],
            [
                [
                    s.id,
                    ", ".join(other_names("systems", s.id)),
                    s.description,
                    str(s.accelerators_per_node),
                    text.quantity(s.intra_bytes_per_s, "B/s"),
                    text.quantity(s.node_bytes_per_s, "B/s"),
                ]
                for s in specs
            ],
        )
    )


def models() -> None:
    """Transformers whose sizes are known, for `plan`, `choose` and `steps`; `show NAME` says all of
    one.
    """
    from hybridperf.report import shapes

    print(shapes.shapes_table())


def show(
    name: Annotated[str, Argument(help="device, system, Transformer, model folder, or `ops`")],
    other: Annotated[
        str, Argument(help="a second model or device: show what the two differ in")
    ] = "",
) -> None:
    """What is known of a device, a system, a Transformer, a calibrated model, or which ops tables
    may name; of two models, what differs.
    """
    from hybridperf.model import check_folder
    from hybridperf.report.difference import difference
    from hybridperf.report.known import known

    for one in filter(None, (name, other)):
        check_folder(one)
    print(difference(name, other) if other else known(name))
