"""`hybridperf devices`, `systems`, `models`, `show`: what is known."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from typer import Argument


def devices() -> None:
    """Devices whose facts are known."""
    from hybridperf.hardware import device_names, load_device
    from hybridperf.report import text

    def half(peaks: Mapping[str, float]) -> float | None:
        return peaks.get("bf16", peaks.get("fp16"))

    columns: dict[str, Callable[[Any], str]] = {
        "device": lambda spec: spec.id,
        "name": lambda spec: spec.name,
        "fp32": lambda spec: text.quantity(spec.peak_flops_per_s.get("fp32"), "FLOP/s"),
        "bf16/fp16 matrix": lambda spec: text.quantity(half(spec.peak_flops_per_s), "FLOP/s"),
        "memory": lambda spec: text.quantity(spec.memory_bytes, "B"),
        "bandwidth": lambda spec: text.quantity(spec.memory_bytes_per_s, "B/s"),
    }
    print(text.items_table(map(load_device, device_names()), columns))


def systems() -> None:
    """Systems (nodes and their links) whose facts are known."""
    from hybridperf.hardware import load_system, other_names, system_names
    from hybridperf.report import text

    columns: dict[str, Callable[[Any], Any]] = {
        "system": lambda spec: spec.id,
        "also called": lambda spec: ", ".join(other_names("systems", spec.id)),
        "description": lambda spec: spec.description,
        "per node": lambda spec: spec.accelerators_per_node,
        "inside a node": lambda spec: text.quantity(spec.intra_bytes_per_s, "B/s"),
        "of a node": lambda spec: text.quantity(spec.node_bytes_per_s, "B/s"),
    }
    print(text.items_table(map(load_system, system_names()), columns))


def models() -> None:
    """Transformers whose sizes are known, for `plan`, `choose` and `steps`; see `show NAME`."""
    from hybridperf.report.known import shapes_table

    print(shapes_table())


def show(
    name: Annotated[str, Argument()],
    other: Annotated[str, Argument()] = "",
) -> None:
    """What is known of a device, system, Transformer, model or `ops`; how two models differ."""
    from hybridperf.model import check_folder
    from hybridperf.report.known import difference, known

    for one in filter(None, (name, other)):
        check_folder(one)
    print(difference(name, other) if other else known(name))
