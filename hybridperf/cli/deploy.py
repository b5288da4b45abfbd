"""`hybridperf serve --shape`: the best deployment of a model on some GPUs."""

from pathlib import Path

from hybridperf.cli import common
from hybridperf.cli.common import named_in, names_in, seconds_in, wrong
from hybridperf.cli.manner import printed


def of_shape(
    shape: str, system: str, device: str, gpus: int, isl: int, osl: int, sla: str, framework: str,
    precision: str, prices: Path | None, top: int, out: Path | None, html: Path | None,
    requests: Path | None = None, trace: str = "",
) -> None:  # fmt: skip
    """Print all deployments, ranked; `hybridperf serve` has the arguments."""
    from hybridperf.io import read_table
    from hybridperf.report.serving import open_loop_report, serving_report
    from hybridperf.runs import open_loop
    from hybridperf.runs import serving_rows as names
    from hybridperf.runs.deployments import Question, deployments, precisions
    from hybridperf.runs.serving_machines import machine_of
    from hybridperf.runs.serving_table import unmeasured_note
    from hybridperf.training.plans.economy import economy
    from hybridperf.workloads.transformer.zoo import load_shape

    for option, number in (("--gpus", gpus), ("--isl", isl), ("--osl", osl - 1), ("--top", top)):
        if number < 1:
            least, given = (2, number + 1) if option == "--osl" else (1, number)
            raise wrong(f"expected {option} of at least {least}, got {given}")
    files = [Path(one) for one in (shape, system, device) if one.endswith((".toml", ".json"))]
    common.table_ready(out, [*files, prices, requests], html=html)
    if trace and requests is None:
        raise wrong(f"expected --requests FILE with --trace {trace}, got none")
    recorded = open_loop.recorded(read_table(requests), trace) if requests else None
    limits = _limits(sla)
    notes: list[str] = []
    machine = machine_of(system, device)
    known = names.known_framework(framework, notes)
    model, sizes = machine.load(), load_shape(names.named_model(shape)[0])
    schemes = names.schemes_of(
        shape, names_in(precision) or precisions(model), machine, known, bool(sizes.experts)
    )
    common.compilation_cache()
    asked = Question(
        sizes, model, gpus, isl, osl, known, limits.get("ttft", float("inf")),
        limits.get("tpot", float("inf")), schemes, all_reduce=machine.all_reduce,
    )  # fmt: skip
    if recorded is not None:
        asked = open_loop.with_lengths_of(asked, recorded)
    rates = economy(model.device, prices)
    found = deployments(asked, rates)
    bare = "" if model.measured.families else unmeasured_note(model.device.id)
    notes += [one for one in (machine.note, bare, *rates.notes) if one]
    limit = f", {sla}" if sla else ""
    lengths = f"{asked.prompt} + {asked.output} tokens"
    head = f"{sizes.name}: {lengths} on {gpus} x {model.device.name}{limit}"
    common.result(deployments=found.head(top))
    if printed():
        print(serving_report(found, head, shape, top, rates.money, notes))
    if recorded is not None:
        served = open_loop.served_openly(asked, found.iloc[0].to_dict(), recorded)
        common.result(open_loop=served.percentiles())
        print("\n" + open_loop_report(served))
    common.table_written(found, out, f"\n{len(found)} deployments, the best first, in")


def _limits(sla: str) -> dict[str, float]:
    """Seconds by what is limited."""
    from hybridperf.io import unknown

    found = named_in(names_in(sla), "--sla", "ttft=1s,tpot=30ms", seconds_in)
    for name in found:
        if name not in ("ttft", "tpot"):
            raise unknown("limit", name, ("ttft", "tpot"), "known are ttft, tpot")
    return found
