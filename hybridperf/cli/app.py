"""The `hybridperf` command: a thin face on the library.

Exit status: 0 done; 2 input that cannot be used, one sentence on standard error says why; 3 some
rows could not be predicted (their `note` says why). No traceback without `--debug`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from hybridperf.cli import ask as cli_ask
from hybridperf.cli import choose as cli_choose
from hybridperf.cli import plan as cli_plan
from hybridperf.cli import steps as cli_steps
from hybridperf.cli import trace as cli_trace
from hybridperf.cli import validate as cli_validate
from hybridperf.cli.common import (
    Cores,
    HtmlPage,
    Out,
    compilation_cache,
    inside,
    keep_files,
    model_named,
    names_in,
    say_predicted,
    seconds_in,
)
from hybridperf.cli.program import code_of, jax_program

# Everything heavy is imported inside the commands: `--help` and wrong options answer at once.

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(cli_ask.app)
app.add_typer(cli_validate.app)
app.add_typer(cli_trace.app, name="trace")
app.add_typer(cli_plan.app)
app.add_typer(cli_choose.app, name="choose")
app.command()(cli_steps.steps)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: run a command, turn errors into one sentence and an exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    if not debug:
        # XLA reports tuning flags of its own cached programs as missing machine features, kilobytes
        # each; before jax is imported
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from hybridperf.io import InputError

    try:
        status = app(arguments, standalone_mode=False)
    except Exception as error:
        if debug:
            raise
        status = _failed(error, InputError)
    except KeyboardInterrupt:
        print("hybridperf: interrupted; what was measured is kept", file=sys.stderr)
        status = 130
    sys.exit(status if isinstance(status, int) else 0)


def _failed(error: Exception, input_error: type[Exception]) -> int:
    from hybridperf.model.fit.programs import AlreadyReported

    if isinstance(error, AlreadyReported):
        return 2
    message = getattr(
        error, "format_message", None
    )  # wrong words: typer's own errors, whose class is not public
    if message is not None:
        said = message().strip()
        if "\n" in said:  # no command at all: the help text
            print(said)
        else:
            print(f"hybridperf: {said.rstrip('.')}; see --help", file=sys.stderr)
    elif isinstance(error, input_error):
        print(f"hybridperf: {' '.join(str(error).split())}", file=sys.stderr)
    else:
        first = (str(error).splitlines() or [""])[0]
        print(
            f"hybridperf: unexpected {type(error).__name__}: {first}; run again with --debug and"
            " report it",
            file=sys.stderr,
        )
    return 2


@app.command()
def demo(out: Out = Path("demo-out"), cores: Cores = None) -> None:
    """Measure this machine, predict six real training steps, run them, show both numbers. At most
    five minutes.
    """
    from hybridperf.validate import demo as main_job

    main_job.run(out, cores)


@app.command()
def calibrate(
    out: Out,
    quick: Annotated[
        bool, typer.Option("--quick", help="a minute or two instead of twenty")
    ] = False,
    ops: Annotated[
        str, typer.Option("--ops", help="only these families of ops, separated by commas")
    ] = "",
    cores: Cores = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", help="stop measuring ops after this long, such as 90s or 20m"),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="device under JAX, where its name is not known")
    ] = None,
    collectives: Annotated[
        bool,
        typer.Option(
            "--collectives", help="collectives between processes instead of ops, one to six minutes"
        ),
    ] = False,
    processes: Annotated[
        int, typer.Option("--processes", help="of --collectives: how many, one device each")
    ] = 2,
    cores_each: Annotated[
        int | None,
        typer.Option("--cores-each", help="of --collectives: cores that each process is pinned to"),
    ] = None,
) -> None:
    """Measure this machine through JAX and fit it. Resumes where it was stopped."""
    if collectives:
        _calibrate_collectives(
            out, processes, quick, seconds_in(budget) if budget else None, cores_each
        )
        return
    import time

    from hybridperf.hardware import load_device
    from hybridperf.io import write_table
    from hybridperf.model.fit.learning_curve import learning_curve
    from hybridperf.model.fit.this_machine import calibrate as calibrate_here
    from hybridperf.model.fit.this_machine import to_stderr
    from hybridperf.report import fits, plots

    start_s = time.perf_counter()
    result = calibrate_here(
        out,
        setting="quick" if quick else "full",
        cores=cores,
        budget_s=seconds_in(budget) if budget else None,
        only=names_in(ops),
        device=load_device(device) if device else None,
    )
    print(fits.fit_report(result.report))
    plots.fit_plot(result.report, out / "fit.png")
    left = {
        "model.json, residual.npz": "the model",
        "report.json, held_out.csv, fit.png": "how it errs on rows it has not seen",
        "ops.csv, host.csv, ops.machine.json": "what was measured, and on what",
    }
    if not quick:
        to_stderr("fitting parts of the rows for the learning curve, up to a minute")
        curve = learning_curve(result.rows, result.model.device)
        write_table(curve, out / "learning_curve.csv")
        plots.learning_curve_plot(curve, out / "learning_curve.png")
        left["learning_curve.png, learning_curve.csv"] = "what more rows would bring"
    print(
        f"\nmodel of {result.model.device.name} in {out}, {time.perf_counter() - start_s:.0f} s in"
        " all:"
    )
    print("\n".join(f"  {names:38}  {meaning}" for names, meaning in left.items()))


def _calibrate_collectives(
    out: Path, processes: int, quick: bool, budget_s: float | None, cores_each: int | None
) -> None:
    from hybridperf.model.fit.this_machine import calibrate_collectives
    from hybridperf.report import collective_plots, fits

    compilation_cache()
    model, report = calibrate_collectives(
        out,
        processes=processes,
        setting="quick" if quick else "full",
        budget_s=budget_s,
        cores_each=cores_each,
    )
    collective_plots.bus_bandwidth_plot(model, report.measured, out / "collectives.png")
    print(fits.collective_report(report))
    print(
        f"collectives between {processes} processes of this machine in {out}: collectives.json,"
        " collectives.csv, collectives.png"
    )


@app.command()
def fit(
    rows: Annotated[
        list[Path] | None, typer.Argument(help="tables of measured ops; none: the datasheet alone")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="device name, or a .toml file that describes one")
    ] = "",
    system: Annotated[
        str,
        typer.Option(
            "--system", help="fit collectives of a system instead: its name or a .toml file"
        ),
    ] = "",
    out: Out = Path("model"),
    prior: Annotated[
        str,
        typer.Option(
            "--prior",
            help="folder or name of a prior, or none; the shipped one for GPUs if not given",
        ),
    ] = "",
) -> None:
    """Fit a model of a device to measured rows, starting from what other GPUs showed; with
    --system, of a system's collectives.
    """
    if system:
        _fit_system(rows or [], device, system, out, prior)
        return
    import hybridperf
    from hybridperf.hardware import load_device
    from hybridperf.io import InputError, read_tables
    from hybridperf.model.fit.device import fit as fit_rows
    from hybridperf.report import fits, plots

    if not device:
        raise InputError(
            "expected --device NAME or --system NAME, got neither; `hybridperf devices` and"
            " `hybridperf systems` list them"
        )
    compilation_cache()
    keep_files(inside(out, ("held_out.csv",)), rows or [])
    load_device(device)  # a wrong name is said before long tables are read
    provenance = {
        "made_by": f"hybridperf {hybridperf.__version__} fit",
        "rows_from": [p.name for p in rows or []],
    }
    model, report = fit_rows(
        read_tables(rows) if rows else None, device, prior=prior or None, provenance=provenance
    )
    model.save(out)
    report.save(out)
    if report.rows:
        plots.fit_plot(report, out / "fit.png")
    else:
        (out / "fit.png").unlink(missing_ok=True)  # of an earlier fit
    print(fits.fit_report(report, prior=bool(model.families)))
    print(
        f"model of {model.device.name} in {out}"
        + (", errors of held-out rows in report.json, held_out.csv, fit.png" if report.rows else "")
    )


def _fit_system(rows: list[Path], device: str, name: str, out: Path, prior: str) -> None:
    import hybridperf
    from hybridperf.collectives.fit import fit_collectives
    from hybridperf.collectives.logs.files import read_collectives
    from hybridperf.collectives.model import find_collectives
    from hybridperf.hardware import load_system
    from hybridperf.io import InputError
    from hybridperf.report import collective_plots, fits

    if device:
        raise InputError(
            "expected one of --device and --system, got both; fit ops and collectives one after the"
            " other into one --out"
        )
    keep_files(inside(out, ("collectives_held_out.csv", "collectives.json")), rows)
    spec = load_system(name)  # a wrong name is said before long tables are read
    compilation_cache()
    frame, remarks = read_collectives(rows) if rows else (None, [])
    for remark in remarks:
        print(f"hybridperf: {remark}", file=sys.stderr)
    provenance = {
        "made_by": f"hybridperf {hybridperf.__version__} fit --system",
        "rows_from": [p.name for p in rows],
    }
    model, report = fit_collectives(frame, spec, prior or None, provenance)
    model.save(out)
    report.save(out)
    if report.rows:
        collective_plots.bus_bandwidth_plot(model, report.measured, out / "collectives.png")
    else:
        (out / "collectives.png").unlink(missing_ok=True)  # of an earlier fit
    if not rows and find_collectives(spec.id) is not None:
        print(f"a calibration of {spec.id} is shipped: `--model {spec.id}` predicts by it")
    print(fits.collective_report(report, prior=model.adapted is not None))
    print(
        f"collectives of {spec.description} in {out}"
        + (", measured and predicted in collectives.png" if report.rows else "")
    )


@app.command("plan-measurements")
def plan_measurements(
    device: Annotated[
        str, typer.Option("--device", help="device name, or a .toml file that describes one")
    ],
    budget: Annotated[
        str, typer.Option("--budget", help="how long measuring may take, such as 60m")
    ],
    out: Out,
    ops: Annotated[str, typer.Option("--ops", help="only these ops, separated by commas")] = "",
    dtype: Annotated[
        str, typer.Option("--dtype", help="number formats, separated by commas")
    ] = "fp32",
    model: Annotated[
        str,
        typer.Option("--model", help="model of the device so far: measure what it is unsure of"),
    ] = "",
) -> None:
    """The most informative shapes to measure on a machine without JAX, as a table to fill in."""
    from hybridperf.hardware import load_device
    from hybridperf.io import write_table
    from hybridperf.model import load_model
    from hybridperf.model.fit.measurement_plan import DEFAULT_OPS, plan
    from hybridperf.report import text

    budget_s, spec = seconds_in(budget), load_device(device)
    compilation_cache()
    made = plan(
        spec,
        budget_s,
        ops=[name for name in ops.split(",") if name] if ops else DEFAULT_OPS,
        dtypes=[name for name in dtype.split(",") if name],
        model=load_model(model) if model else None,
    )
    write_table(made.table, out)
    print(
        text.table(
            ["op", "dtype", "cases", "time", "variance removed"],
            [
                [r.op, r.dtype, str(r.cases), f"{r.measuring_s:.0f} s", text.percent(r.removed)]
                for r in made.summary.itertuples()
            ],
        )
    )
    print(
        f"{len(made.table)} cases in {out}, the most informative first: {made.seconds:.0f} of"
        f" {budget_s:.0f} s"
    )
    if (short := made.summary.loc[made.summary["cases"] == 0, "op"].unique()).size:
        print(f"the budget ends before any case of {', '.join(short)}")
    print(
        "put the least time of one op over its repeats, in seconds, into time_s (rows left empty"
        f" are skipped), then: hybridperf fit {out} --device {device} --out MODEL"
    )


@app.command()
def ops(
    rows: Annotated[Path, typer.Argument(help="table of ops (.csv, .csv.gz, .parquet)")],
    model: Annotated[
        str, typer.Option("--model", help="model folder, shipped calibration, or device name")
    ],
    out: Out,
) -> int:
    """Predict each row of a table: adds predicted_s, low_s, high_s, roofline_s, in_range, note."""
    from hybridperf.io import read_table, write_table

    keep_files({"--out": out}, [rows])
    compilation_cache()
    frame = read_table(rows)
    predicted = model_named(model).predict_ops(frame)
    write_table(predicted, out)
    return say_predicted(predicted, out)


@app.command()
def collectives(
    rows: Annotated[
        list[Path],
        typer.Argument(
            help="tables of collectives, or logs of nccl-tests or PARAM's comms benchmark"
        ),
    ],
    out: Out,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="folder, shipped calibration, or system name; none: only read logs into a table",
        ),
    ] = "",
    collective: Annotated[
        str, typer.Option("--collective", help="what a log ran, where it does not say")
    ] = "",
    n_gpus: Annotated[
        int | None, typer.Option("--n-gpus", help="ranks of a log that does not list them")
    ] = None,
    n_nodes: Annotated[
        int | None, typer.Option("--n-nodes", help="nodes of a log that does not list them")
    ] = None,
) -> int:
    """Predict each row: adds predicted_s, low_s, high_s, roofline_s, bus_bytes_per_s, in_range,
    note.
    """
    from hybridperf.collectives.fit import collectives_by_name
    from hybridperf.collectives.logs.files import read_collectives
    from hybridperf.io import write_table

    keep_files({"--out": out}, rows)
    loaded = collectives_by_name(model) if model else None
    frame, remarks = read_collectives(rows, collective or None, n_gpus, n_nodes)
    for remark in remarks:
        print(f"hybridperf: {remark}", file=sys.stderr)
    if loaded is None:
        write_table(frame, out)
        print(f"{len(frame)} rows read, written to {out}")
        return 0
    compilation_cache()
    predicted = loaded.predict(frame)
    write_table(predicted, out)
    return say_predicted(predicted, out)


@app.command()
def predict(
    jax: Annotated[
        str,
        typer.Option(
            "--jax", help="module:function returning (fn, args) or (fn, args, donate_argnums)"
        ),
    ] = "",
    program: Annotated[
        Path | None, typer.Option("--program", help="program file written by hybridperf instead")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", help="recorded step instead: a PyTorch execution trace or Chakra graph"
        ),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", help="model folder, shipped calibration, or device name")
    ] = "here",
    ignore: Annotated[
        str, typer.Option("--ignore", help="instructions or ops to leave out, separated by commas")
    ] = "",
    timeline: Annotated[
        Path | None, typer.Option("--timeline", help="write a Perfetto timeline here")
    ] = None,
    html: HtmlPage = None,
) -> None:
    """Time of one step of a JAX program, or of one that a trace recorded op by op."""
    from hybridperf.engine.prediction import predict as predict_step
    from hybridperf.io import InputError
    from hybridperf.report import perfetto
    from hybridperf.report.prediction import prediction_report
    from hybridperf.traces.readers.graphs import recorded_step
    from hybridperf.workloads.jax.program import compile_program, from_program, load_program

    given = bool(jax) + bool(program) + bool(trace)
    if given != 1:
        raise InputError(
            "expected one of --jax module:function, --program FILE and --trace FILE, got"
            f" {given or 'none'} of them"
        )
    keep_files({"--timeline": timeline, "--html": html}, [program, trace])
    compilation_cache()
    loaded = model_named(model)
    skip = [name for name in ignore.split(",") if name]
    if program:
        workload = load_program(program, ignore=skip)
    elif trace:
        workload = recorded_step(trace, ignore=skip)
    else:
        _run_like(loaded)
        fn, args, donate = jax_program(jax)
        with code_of(jax):
            compiled = compile_program(fn, *args, donate_argnums=donate, name=jax)
        workload = from_program(compiled, ignore=skip)
    result = predict_step(loaded, workload)
    print(prediction_report(result))
    if timeline:
        perfetto.write_timeline(result, timeline)
        print(f"timeline in {timeline} (open it at https://ui.perfetto.dev)")
    if html:
        from hybridperf.report.html import prediction_page, write_page

        write_page(prediction_page(result), html)
        print(f"page in {html} (open it in a browser)")


@app.command()
def calibrations(
    data: Annotated[Path, typer.Option("--data", help="the folder of measured data")],
    out: Out = Path("calibration/hardware"),
    families: Annotated[
        str,
        typer.Option(
            "--families", help="families of ops to train, separated by commas; all if not given"
        ),
    ] = "",
    devices: Annotated[
        str,
        typer.Option(
            "--devices", help="devices to calibrate, separated by commas; all if not given"
        ),
    ] = "",
    only: Annotated[str, typer.Option("--only", help="ops or collectives; both if not given")] = "",
) -> None:
    """Make what is shipped: priors over all measured GPUs and systems, a calibration of each. What
    an earlier run finished is kept.
    """
    from hybridperf.io import unknown
    from hybridperf.model.families import FAMILIES
    from hybridperf.model.ship import devices as of_devices
    from hybridperf.model.ship import systems as of_systems

    keep_files({"--out": out}, [data])
    if only not in ("", "ops", "collectives"):
        raise unknown("part", only, ["ops", "collectives"], "known are ops and collectives")
    compilation_cache()
    if only != "collectives":
        of_devices.run(
            data,
            out,
            families=names_in(families) or FAMILIES,
            devices=names_in(devices) or of_devices.DEVICES,
        )
    if only != "ops" and not (families or devices):
        of_systems.run(data, out)


@app.command()
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


@app.command()
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


@app.command()
def models() -> None:
    """Transformers whose sizes are known, for `plan`, `choose` and `steps`; `show NAME` says all of
    one.
    """
    from hybridperf.report import shapes

    print(shapes.shapes_table())


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="device, system, Transformer, model folder, or `ops`")
    ],
    other: Annotated[
        str, typer.Argument(help="a second model or device: show what the two differ in")
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


def _run_like(model) -> None:  # type: ignore[no-untyped-def]
    """Compile for as many cores as the model was measured on: XLA splits
    work by the cores it sees.
    """
    cores = model.device.multiprocessors
    if model.device.kind == "cpu" and cores and hasattr(os, "sched_setaffinity"):
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, usable[: min(cores, len(usable))])
