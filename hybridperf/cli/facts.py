"""`hybridperf devices`, `systems`, `models`, `show`: what is known."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from typer import Argument

from hybridperf.cli.manner import result


def devices() -> None:
    """Devices whose facts are known, and which are calibrated: measured rows and date."""
    from hybridperf.hardware import device_names, load_device
    from hybridperf.model.files import shipped_from
    from hybridperf.report import text

    shipped = shipped_from("model.json")

    def half(peaks: Mapping[str, float]) -> float | None:
        return peaks.get("bf16", peaks.get("fp16"))

    columns: dict[str, Callable[[Any], str]] = {
        "device": lambda spec: spec.id,
        "name": lambda spec: spec.name,
        "fp32": lambda spec: text.quantity(spec.peak_flops_per_s.get("fp32"), "FLOP/s"),
        "bf16/fp16 matrix": lambda spec: text.quantity(half(spec.peak_flops_per_s), "FLOP/s"),
        "memory": lambda spec: text.quantity(spec.memory_bytes, "B"),
        "bandwidth": lambda spec: text.quantity(spec.memory_bytes_per_s, "B/s"),
        "calibrated": lambda spec: _calibrated(shipped.get(spec.id)),
    }
    known = [load_device(name) for name in device_names()]
    result(devices=[spec.model_dump() | {"calibrated": shipped.get(spec.id)} for spec in known])
    print(text.items_table(known, columns))
    print(_counted("devices", [shipped.get(spec.id) for spec in known]))


def systems() -> None:
    """Systems (nodes and their links) whose facts are known, and which are calibrated."""
    from hybridperf.hardware import load_system, other_names, system_names
    from hybridperf.model.files import shipped_from
    from hybridperf.report import text

    shipped = shipped_from("collectives.json")

    columns: dict[str, Callable[[Any], Any]] = {
        "system": lambda spec: spec.id,
        "also called": lambda spec: ", ".join(other_names("systems", spec.id)),
        "description": lambda spec: spec.description,
        "per node": lambda spec: spec.accelerators_per_node,
        "inside a node": lambda spec: text.quantity(spec.intra_bytes_per_s, "B/s"),
        "of a node": lambda spec: text.quantity(spec.node_bytes_per_s, "B/s"),
        "calibrated": lambda spec: _calibrated(shipped.get(spec.id)),
    }
    known = [load_system(name) for name in system_names()]
    result(systems=[spec.model_dump() | {"calibrated": shipped.get(spec.id)} for spec in known])
    print(text.items_table(known, columns))
    print(_counted("systems", [shipped.get(spec.id) for spec in known]))


def _counted(what: str, shipped: Sequence[Mapping[str, Any] | None]) -> str:
    measured = sum(one is not None for one in shipped)
    return f"{len(shipped)} {what}: {measured} calibrated, the others known by their datasheet"


def _calibrated(facts: Mapping[str, Any] | None) -> str:
    return "datasheet only" if facts is None else f"{facts['rows']:,} rows, {facts['date']}"


def models() -> None:
    """Transformers whose sizes are known, for `plan`, `predict` and `steps`; see `show NAME`."""
    from hybridperf.cli.known import shapes_table
    from hybridperf.workloads.transformer.zoo import load_shape, shape_names

    result(models={name: dataclasses.asdict(load_shape(name)) for name in shape_names()})
    print(shapes_table())


def show(
    name: Annotated[str, Argument()],
    other: Annotated[str, Argument()] = "",
) -> None:
    """What is known of a device, system, Transformer, model or `ops`; how two models differ."""
    from hybridperf.cli.known import difference, group_facts, known
    from hybridperf.model.files import check_folder

    for one in filter(None, (name, other)):
        check_folder(one)
    said = difference(name, other) if other else known(name)
    result(text=said, groups=[] if other else group_facts(name))
    print(said)
