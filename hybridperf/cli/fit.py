"""`hybridperf fit`, `plan-measurements`, `calibrations`: models from measured rows, and which rows
to measure; `calibrate`: measure this machine and fit it; `share`: give that to others; `demo`: and
predict steps with it.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from hybridperf.cli import common
from hybridperf.cli.common import (
    Folder,
    Name,
    Out,
    compilation_cache,
    keep_files,
    names_in,
    seconds_in,
    warn,
    wrong,
)
from hybridperf.fields.columns import all_ours

if TYPE_CHECKING:
    from hybridperf.model.fit.device import FitReport
    from hybridperf.model.fit.shared import SharedRows


def fit(
    rows: Annotated[list[Path] | None, Argument()] = None,
    device: str = "",
    system: str = "",
    out: Folder = Path("model"),
    prior: str = "",
    curve: bool = False,
) -> None:
    """Fit a model of a device, or with --system of a system's collectives, to measured rows and
    what other GPUs showed.
    """
    if curve and (system or not rows):
        raise wrong("expected rows of ops with --curve, got none; give a table of them")
    if system:
        _fit_system(rows or [], device, system, out, prior)
        return
    from hybridperf.hardware import load_device
    from hybridperf.io import read_tables, replacing_in
    from hybridperf.model.fit.device import fit as fit_rows
    from hybridperf.report import fit_plots, fits
    from hybridperf.report.calibration import draw_learning_curve

    shared = None
    if rows and len(rows) == 1 and rows[0].suffix == ".json":
        from hybridperf.model.fit.shared import load_shared

        if device:
            raise wrong("expected no --device with a file of `hybridperf share`, which has its own")
        shared = load_shared(rows[0])
    elif not device:
        lists = "`hybridperf devices` and `hybridperf systems` list them"
        raise wrong(f"expected --device NAME or --system NAME, got neither; {lists}")
    compilation_cache()
    keep_files(common.inside(out, ("held_out.csv",)), rows or [])
    facts = _provenance("fit", rows or [])
    if shared:
        frame, spec, drift = shared.rows, shared.device, shared.drift
        facts["given"] = dict(shared.about)
    else:
        spec = load_device(device)  # a wrong name is reported before long tables are read
        frame, drift = read_tables(rows) if rows else None, ()
    model, report = fit_rows(frame, spec, prior=prior or None, drift=drift, provenance=facts)
    with replacing_in(out) as new:
        model.save(new)
        report.save(new)
        if report.rows:
            fit_plots.fit_plot(report, new / "fit.png")
    if not report.rows:
        (out / "fit.png").unlink(missing_ok=True)  # of an earlier fit
    print(fits.fit_report(report, prior=bool(model.families)))
    common.result(folder=out, errors=report.table)
    if shared:
        print(f"\nbeside the giver's own fit, errors of rows held out:\n{_judged(shared, report)}")
    errors = ", errors of held-out rows in report.json, held_out.csv, fit.png"
    print(f"model of {model.device.name} in {out}{errors if report.rows else ''}")
    if curve:
        common.result(curve=draw_learning_curve(frame, model.device, out, prior or None))
        print(f"what more rows would bring in {out}: learning_curve.csv, learning_curve.png")
    if shared:
        all_ours()


def _judged(shared: "SharedRows", report: "FitReport") -> str:
    """How a fit to rows that were given compares with the giver's."""
    from hybridperf.report import text

    beside = shared.beside(report.table)
    common.result(beside=beside)
    held = report.held_out
    ours, roofline = (
        abs(held[name] / held["measured_s"] - 1).median() for name in ("predicted_s", "roofline_s")
    )
    verdict = "nearer than" if ours < roofline else "NO nearer than"
    off = f"{text.percent(ours)} and {text.percent(roofline)} off in the median"
    return f"{text.frame_table(beside)}\nall rows: {verdict} the datasheet roofline, {off}"


def share(folder: Annotated[Path, Argument()], out: Out, name: str = "") -> None:
    """Give a calibration back: its measured rows as one file without names of hosts, people and
    folders, and the text of a pull request.
    """
    from hybridperf.model.fit.shared import share as given

    if out.suffix != ".json":
        raise wrong(f"expected an --out that ends in .json, got {out.name}")
    keep_files({"--out": out}, common.inside(folder, ("model.json", "report.json")).values())
    found = given(folder, name)
    found.save(out)
    words = found.pull_request(out.name)
    common.result(device=found.device.id, rows=len(found.rows), pull_request=words)
    print(words)


def _fit_system(rows: list[Path], device: str, name: str, out: Path, prior: str) -> None:
    from hybridperf.collectives.fit import fit_collectives
    from hybridperf.collectives.model import find_collectives
    from hybridperf.hardware import load_system
    from hybridperf.io import replacing_in
    from hybridperf.report import collective_plots, fits
    from hybridperf.traces.collective_logs.files import read_collectives

    if device:
        both = "fit ops and collectives one after the other into one --folder"
        raise wrong(f"expected one of --device and --system, got both; {both}")
    keep_files(common.inside(out, ("collectives_held_out.csv", "collectives.json")), rows)
    spec = load_system(name)  # a wrong name is reported before long tables are read
    compilation_cache()
    frame, remarks = read_collectives(rows) if rows else (None, [])
    common.warn(*remarks)
    facts = _provenance("fit --system", rows)
    model, report = fit_collectives(frame, spec, prior or None, facts)
    with replacing_in(out) as new:
        model.save(new)
        report.save(new)
        if report.rows:
            collective_plots.bus_bandwidth_plot(model, report.measured, new / "collectives.png")
    if not report.rows:
        (out / "collectives.png").unlink(missing_ok=True)  # of an earlier fit
    if not rows and find_collectives(spec.id) is not None:
        print(f"a calibration of {spec.id} is shipped: `--model {spec.id}` predicts by it")
    print(fits.collective_report(report, prior=model.adapted is not None))
    common.result(folder=out, errors=report.by_collective())
    picture = ", measured and predicted in collectives.png" if report.rows else ""
    print(f"collectives of {spec.description} in {out}{picture}")


def _provenance(command: str, rows: list[Path]) -> dict[str, Any]:
    import hybridperf

    made_by = f"hybridperf {hybridperf.__version__} {command}"
    return {"made_by": made_by, "rows_from": [path.name for path in rows]}


def plan_measurements(
    device: Name,
    budget: Name,
    out: Out,
    ops: str = "",
    dtype: str = "fp32",
    model: str = "",
    workload: Path | None = None,
) -> int:
    """The most informative shapes to measure on a machine without JAX, as a table to fill in: of
    ops in general, or with --workload those that narrow its own interval most.
    """
    from hybridperf.explore.measurements.plans import DEFAULT_OPS, plan, plan_for
    from hybridperf.hardware import load_device
    from hybridperf.io import read_table, write_table
    from hybridperf.model import load_model
    from hybridperf.report import text

    budget_s, spec = common.seconds_in(budget), load_device(device)
    compilation_cache()
    if workload is not None and ops:
        raise wrong("expected one of --ops and --workload, got both; --workload has its ops")
    keep_files({"--out": out}, [workload] if workload else [])
    known = load_model(model) if model else None
    if workload is not None:
        made = plan_for(read_table(workload), spec, budget_s, model=known)
    else:
        chosen = names_in(ops) if ops else DEFAULT_OPS
        made = plan(spec, budget_s, ops=chosen, dtypes=names_in(dtype), model=known)
    write_table(made.table, out)
    curve = {} if made.curve is None else {"curve": made.curve}
    common.result(cases=made.table, summary=made.summary, **curve)
    print(text.frame_table(made.summary))
    if made.curve is not None:
        rate = -6000 * made.curve["half_width"].diff() / made.curve["measuring_s"].diff()
        print(text.frame_table(made.curve.assign(points_a_minute=rate)))
    first = "the most informative" if workload is None else "those that narrow most a second"
    taken = f"{made.seconds:.0f} of {budget_s:.0f} s"
    print(f"{len(made.table)} cases in {out}, {first} first: {taken}")
    short = made.summary.loc[made.summary["cases"] == 0, "op"].unique()
    if workload is None and short.size:
        print(f"the budget ends before any case of {', '.join(short)}")
    if made.other_share > 0.005:
        other = "messages, hosts and fused loops are not narrowed by measuring ops"
        print(f"{text.percent(made.other_share)} of the step is none of these ops: {other}")
    print(
        "put the lowest time of one op over its repeats, in seconds, into time_s (rows left empty"
        f" are skipped), then: hybridperf fit {out} --device {spec.id} --folder MODEL"
    )
    if workload is None or not made.unread:
        return 0
    rows = f"{len(made.unread)} rows of {workload.name} cannot be read"
    warn(f"{rows}; the first, {made.unread[0]}")
    return common.SOME_ROWS_UNPREDICTED


def calibrations(
    data: Annotated[Path | None, Option()] = None,
    out: Folder = Path("calibration/hardware"),
    families: str = "",
    devices: str = "",
    only: str = "",
) -> None:
    """Make the shipped priors and calibrations of all measured GPUs and systems; resumes. With
    --only cpus the priors over CPUs, from the tables beside them (`calibration/measured`).
    """
    from hybridperf.io import unknown
    from hybridperf.model.fit.programs import run_program

    if only not in ("", "ops", "collectives", "cpus"):
        known = ["ops", "collectives", "cpus"]
        raise unknown("part", only, known, "known are ops, collectives and cpus")
    if data is None and only != "cpus":
        raise wrong("expected --data FOLDER of published measurements, got none")
    data = data or out.parent / "measured"
    keep_files({"--folder": out}, [data])
    asked = {"data": data, "folder": out, "families": families, "devices": devices, "only": only}
    run_program(
        "hybridperf_calibration.ship", [f"--{name}={value}" for name, value in asked.items()],
        "fitting", f"what is finished is kept in {out}, the same command goes on from there",
    )  # fmt: skip


def calibrate(
    out: Folder,
    quick: bool = False,
    ops: str = "",
    cores: str | None = None,
    budget: str | None = None,
    device: str | None = None,
    library: str | None = None,
    seed: int = 0,
    collectives: bool = False,
    processes: int = 2,
    cores_each: int | None = None,
) -> None:
    """Measure this machine, its CPU or its GPU, through JAX or PyTorch and fit it. Resumes where it
    was stopped.
    """
    setting, budget_s = "quick" if quick else "full", seconds_in(budget) if budget else None
    if collectives:
        from hybridperf.model.fit.this_machine import calibrate_collectives
        from hybridperf.report import collective_plots, fits

        compilation_cache()
        model, report = calibrate_collectives(
            out, processes=processes, setting=setting, budget_s=budget_s, cores_each=cores_each,
            library=library, device=device,
        )  # fmt: skip
        collective_plots.bus_bandwidth_plot(model, report.measured, out / "collectives.png")
        print(fits.collective_report(report))
        common.result(folder=out, errors=report.by_collective())
        files = "collectives.json, collectives.csv, collectives.png"
        print(f"collectives between {processes} processes of this machine in {out}: {files}")
        all_ours()
        return
    import time

    from hybridperf.io import progress, read_table
    from hybridperf.model.fit.this_machine import calibrate
    from hybridperf.report import calibration

    start_s = time.perf_counter()
    made = calibrate(
        out, setting, cores=cores, budget_s=budget_s, only=names_in(ops), device=device,
        library=library, seed=seed,
    )  # fmt: skip
    print(calibration.calibration_report(made))
    bags = made.rows["op"].str.startswith("embedding_bag").any()
    if bags and made.model.provenance["library"] == "torch":
        warn("embedding bags are PyTorch's own kernels; FBGEMM's fused lookups are not measured")
    common.result(folder=out, errors=made.report.table, careful=calibration.careful_about(made))
    if not quick:
        progress.say("fitting parts of the rows for the learning curve, up to a minute")
    written = calibration.FILES | calibration.calibration_pictures(made, curve=not quick)
    if made.notes:
        written |= {
            "host.json, system.toml": "its host's launches; its links, for --system",
            "launches.csv, copies.csv, memory.csv": "what was measured besides ops",
        }
    if not quick:
        common.result(curve=read_table(out / "learning_curve.csv"))
    took = f"{time.perf_counter() - start_s:.0f} s in all"
    print(f"\nmodel of {made.model.device.name} in {out}, {took}:")
    print("\n".join(f"  {names:38}  {meaning}" for names, meaning in written.items()))
    all_ours()


def demo(out: Folder = Path("demo-out"), cores: str | None = None) -> None:
    """Measure this machine, predict six real training steps, run them, show both numbers. At most
    five minutes. Exit status 4: what needs no calibration was better.
    """
    from hybridperf.validate import demo as main_job

    better = main_job.run(out, cores)["beats_baselines"]
    all_ours()
    if better is False:
        raise Exit(common.WORSE_THAN_BASELINE)
