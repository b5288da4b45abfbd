"""`hybridperf plan`: how a model should be trained on some devices."""

import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from hybridperf.cli import common
from hybridperf.cli.common import Name, Shape
from hybridperf.cli.manner import printed

LIMIT = 100_000  # as `hp.plan`, whose import takes a second
_DRAWN = 2000  # layouts on a page


def plan(
    model: Shape,
    system: Name,
    gpus: Name,
    out: Path | None = None,
    batch: str = "",
    seq: int | None = None,
    tokens: str = "",
    objective: str = "time",
    top: int = 10,
    prices: Path | None = None,
    device: str = "",
    framework: str = "",
    dtype: str = "",
    quant: str = "",
    memory_bytes: float | None = None,
    only: list[str] | None = None,
    knobs: Path | None = None,
    confirm: int = 0,
    offload: Annotated[float, Option(min=0)] = 0.0,
    nvme: Annotated[float, Option(min=0)] = 0.0,
    nvme_bandwidth: Annotated[float, Option(min=0)] = 0.0,
    html: Path | None = None,
    write_launch: str = "",
    row: int = 1,
    folder: Path | None = None,
    why: bool = False,
    limit: int = LIMIT,
    workers: int | None = None,
    scheduler: str | None = None,
) -> None:
    """Find the best layout for training a model: all legal ones that fit, ranked and explained."""
    from hybridperf.io import InputError, check_folder_writable
    from hybridperf.io.numbers import number_of_tokens
    from hybridperf.model.adapted_steps import Adaptation
    from hybridperf.training.plans import report as reports
    from hybridperf.training.plans.explain import confirm as confirmed
    from hybridperf.training.plans.explain import drives, neighbours
    from hybridperf.training.plans.layout_text import counted
    from hybridperf.training.plans.run import plan as run_plan
    from hybridperf.training.plans.table import check_name, write_layouts

    if out is not None:  # before a minute of work
        check_name(out)
        common.ready(out, "--out")
    if html is not None:
        common.ready(html, "--html")
    common.keep_files({"--out": out, "--html": html}, [Path(model), Path(system), prices, knobs])
    if write_launch:
        from hybridperf.training.launch_files.target import target_called

        target_called(write_launch)
        folder = folder or Path(f"launch_{write_launch}")
        check_folder_writable(folder)
    if top < 1:
        raise common.wrong(f"expected --top of 1 or more, got {top}")
    common.compilation_cache()
    if limit < 1:
        raise common.wrong(f"expected --limit of 1 or more, got {limit}")
    counts, batches = _counts("--gpus", gpus), _counts("--batch", batch) or None
    if not counts:
        raise common.wrong(f"expected whole numbers of 1 or more in --gpus, got {gpus!r}")
    if offload and (len(counts) > 1 or batches is None or len(batches) > 1):
        raise common.wrong("expected one number in --gpus and one in --batch with --offload")
    if (nvme or nvme_bandwidth) and not (offload and nvme and nvme_bandwidth):
        raise common.wrong("expected --offload, --nvme and --nvme-bandwidth together, got some")
    tiers = {"cpu_bytes": offload, "nvme_bytes": nvme, "nvme_bytes_per_s": nvme_bandwidth}
    asked: dict[str, Any] = {
        "seq": seq, "device": device or None, "framework": framework,
        "dtype": dtype or None,
        "quant": quant, "memory_bytes": memory_bytes, "only": only_in(only or []),
        "adapted": None if knobs is None else Adaptation.load(knobs),
    }  # fmt: skip
    fitting_s = None
    try:
        found = run_plan(
            model, system, counts, batch=batches,
            tokens=number_of_tokens(tokens, "--tokens") if tokens else None, objective=objective,
            prices=prices, say=lambda how_far: print(how_far, file=sys.stderr, flush=True),
            limit=limit, workers=workers, scheduler=scheduler, **asked,
        )  # fmt: skip
    except InputError:
        if not offload:
            raise
    else:
        fitting_s = found.step_s(found.choice(0))
        # each as soon as it is known; levers take twice as long as the plan
        for part in reports.plan_sections(found, top) if printed() else ():
            print(part, flush=True)
        common.result(**_found(found, max(top, _DRAWN) if html else top))
        if why:
            common.say_elasticities({"time_s": drives(found, row)})
        if html:
            common.result(capacity_bytes=found.setup.capacity_bytes)
        if confirm:
            checked = confirmed(found, neighbours(found, confirm))
            print("\n" + reports.confirmed_report(found, checked))
        if out is not None:
            kept = counted(write_layouts(found, out), "layout")
            of = "" if found.all_kept else f", of {found.legal:,} legal ones (--limit)"
            print(f"\n{kept} in {out}, those that fit first, best first{of}")
        if folder is not None and write_launch:
            _launched(found, write_launch, row, folder)
    if offload and batches:
        _offloaded(model, system, counts[0], batches[0], tiers, top, out, fitting_s, asked)


def _offloaded(
    model: str, system: str, gpus: int, batch: int, tiers: dict[str, float], top: int,
    out: Path | None, fitting_s: float | None, asked: dict[str, Any],
) -> None:  # fmt: skip
    """Layouts that fit with state elsewhere; `fitting_s`: of the best that fits without."""
    from hybridperf.io import write_table
    from hybridperf.training.offload.layouts import offloaded_frame, offloaded_layouts
    from hybridperf.training.offload.step import system_tiers
    from hybridperf.training.plans import report as reports

    places = system_tiers(system, **tiers)
    found = offloaded_layouts(model, system, gpus, places, batch=batch, count=top, **asked)
    print("\n" + reports.offloaded_report(found, tiers["cpu_bytes"], fitting_s))
    if found and out is not None:
        beside = out.with_stem(f"{out.stem}_offload")
        write_table(offloaded_frame(found), beside)
        print(f"\n{len(found)} of them in {beside}")


def _found(plan: Any, top: int) -> dict[str, Any]:
    """What `--json` prints; `row`: as --row takes it."""
    from hybridperf.training.plans.explain import NAIVE
    from hybridperf.training.plans.layout_text import layout_words
    from hybridperf.training.plans.report import memory_lines

    layouts, compared = plan.top(top), plan.compared()
    words = [layout_words(plan.layout(plan.choice(rank))) for rank in layouts.index]
    return {
        "layouts": layouts.assign(row=layouts.index + 1, layout=words)[["row", "layout", *layouts]],
        "compared": compared.rename_axis("what").reset_index(),
        "legal": plan.legal,
        "memory": memory_lines(plan),
        "naive": NAIVE,
        "notes": [*plan.notes, *plan.economy.notes],
    }


def _launched(found: Any, framework: str, row: int, folder: Path) -> None:
    """Write what starts a row of a plan."""
    from hybridperf.training.launch_files.write import write_launch

    files, remarks = write_launch(found, framework, row, folder)
    common.warn(*remarks)
    common.result(launch_files=[str(file) for file in files])
    print(f"\nrow {row} for {framework}: sbatch {files[0]}")


def _counts(option: str, text: str) -> list[int]:
    try:
        found = [int(float(one)) for one in common.names_in(text) if float(one) == int(float(one))]
    except (ValueError, OverflowError):
        found = []
    if len(found) != len(common.names_in(text)) or any(one < 1 for one in found):
        whole = f"expected whole numbers of 1 or more separated by commas in {option}"
        raise common.wrong(f"{whole}, got {text!r}")
    return found


def only_in(given: list[str]) -> dict[str, list[Any]]:
    """Values by field of a layout that --only words say."""

    def values(text: str) -> list[Any]:
        if not (listed := common.names_in(text)):
            raise ValueError
        return [int(value) if value.isdecimal() else value for value in listed]

    return common.named_in(given, "--only NAME=VALUE,VALUE", "tp=1,2,4", values)
