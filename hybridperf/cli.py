"""The `hybridperf` command: a thin face on the library.

Exit status: 0 done; 2 input that cannot be used, one sentence on standard error says why; 3 some rows could not be predicted (their
`note` says why). No traceback without `--debug`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from hybridperf import cli_steps, cli_trace

# Everything heavy is imported inside the commands: `--help` and wrong options answer at once.

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(cli_trace.app, name="trace")
app.command()(cli_steps.steps)
SOME_ROWS_UNPREDICTED = 3

Out = Annotated[Path, typer.Option("--out", help="where to write")]
Cores = Annotated[str | None, typer.Option("--cores", help="cores to pin to, such as 0 or 0-3; one core if not given")]


def main(arguments: list[str] | None = None) -> None:
    """Entry point: run a command, turn errors into one sentence and an exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    if not debug:
        # XLA reports tuning flags of its own cached programs as missing machine features, kilobytes each; before jax is imported
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
    from hybridperf.here import AlreadySaid

    if isinstance(error, AlreadySaid):
        return 2
    message = getattr(error, "format_message", None)  # wrong words: typer's own errors, whose class is not public
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
        print(f"hybridperf: unexpected {type(error).__name__}: {first}; run again with --debug and report it", file=sys.stderr)
    return 2


@app.command()
def demo(out: Out = Path("demo-out"), cores: Cores = None) -> None:
    """Measure this machine, predict six real training steps, run them, show both numbers. At most five minutes."""
    from hybridperf import demo as main_job

    main_job.run(out, cores)


@app.command()
def calibrate(
    out: Out,
    quick: Annotated[bool, typer.Option("--quick", help="a minute or two instead of twenty")] = False,
    ops: Annotated[str, typer.Option("--ops", help="only these families of ops, separated by commas")] = "",
    cores: Cores = None,
    budget: Annotated[str | None, typer.Option("--budget", help="stop measuring ops after this long, such as 90s or 20m")] = None,
    device: Annotated[str | None, typer.Option("--device", help="device under JAX, where its name is not known")] = None,
    collectives: Annotated[
        bool, typer.Option("--collectives", help="collectives between processes instead of ops, one to six minutes")
    ] = False,
    processes: Annotated[int, typer.Option("--processes", help="of --collectives: how many, one device each")] = 2,
    cores_each: Annotated[int | None, typer.Option("--cores-each", help="of --collectives: cores that each process is pinned to")] = None,
) -> None:
    """Measure this machine through JAX and fit it. Resumes where it was stopped."""
    if collectives:
        _calibrate_collectives(out, processes, quick, _seconds(budget) if budget else None, cores_each)
        return
    import time

    from hybridperf.hardware import load_device
    from hybridperf.here import calibrate as calibrate_here
    from hybridperf.here import to_stderr
    from hybridperf.io import write_table
    from hybridperf.learning_curve import learning_curve
    from hybridperf.report import plots, text

    start_s = time.perf_counter()
    result = calibrate_here(
        out,
        setting="quick" if quick else "full",
        cores=cores,
        budget_s=_seconds(budget) if budget else None,
        only=_names(ops),
        device=load_device(device) if device else None,
    )
    print(text.fit_report(result.report))
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
    print(f"\nmodel of {result.model.device.name} in {out}, {time.perf_counter() - start_s:.0f} s in all:")
    print("\n".join(f"  {names:38}  {meaning}" for names, meaning in left.items()))


def _calibrate_collectives(out: Path, processes: int, quick: bool, budget_s: float | None, cores_each: int | None) -> None:
    from hybridperf.here import calibrate_collectives
    from hybridperf.report import collective_plots, text

    _compilation_cache()
    model, report = calibrate_collectives(
        out, processes=processes, setting="quick" if quick else "full", budget_s=budget_s, cores_each=cores_each
    )
    collective_plots.bus_bandwidth_plot(model, report.measured, out / "collectives.png")
    print(text.collective_report(report))
    print(f"collectives between {processes} processes of this machine in {out}: collectives.json, collectives.csv, collectives.png")


@app.command()
def fit(
    rows: Annotated[list[Path] | None, typer.Argument(help="tables of measured ops; none: the datasheet alone")] = None,
    device: Annotated[str, typer.Option("--device", help="device name, or a .toml file that describes one")] = "",
    system: Annotated[str, typer.Option("--system", help="fit collectives of a system instead: its name or a .toml file")] = "",
    out: Out = Path("model"),
    prior: Annotated[str, typer.Option("--prior", help="folder or name of a prior, or none; the shipped one for GPUs if not given")] = "",
) -> None:
    """Fit a model of a device to measured rows, starting from what other GPUs showed; with --system, of a system's collectives."""
    if system:
        _fit_system(rows or [], device, system, out, prior)
        return
    import hybridperf
    from hybridperf.calibrate import fit as fit_rows
    from hybridperf.hardware import load_device
    from hybridperf.io import InputError, read_tables
    from hybridperf.report import plots, text

    if not device:
        raise InputError("expected --device NAME or --system NAME, got neither; `hybridperf devices` and `hybridperf systems` list them")
    _compilation_cache()
    load_device(device)  # a wrong name is said before long tables are read
    provenance = {"made_by": f"hybridperf {hybridperf.__version__} fit", "rows_from": [p.name for p in rows or []]}
    model, report = fit_rows(read_tables(rows) if rows else None, device, prior=prior or None, provenance=provenance)
    model.save(out)
    report.save(out)
    if report.rows:
        plots.fit_plot(report, out / "fit.png")
    else:
        (out / "fit.png").unlink(missing_ok=True)  # of an earlier fit
    print(text.fit_report(report, prior=bool(model.families)))
    print(
        f"model of {model.device.name} in {out}"
        + (", errors of held-out rows in report.json, held_out.csv, fit.png" if report.rows else "")
    )


def _fit_system(rows: list[Path], device: str, name: str, out: Path, prior: str) -> None:
    import hybridperf
    from hybridperf.collectives.fit import fit_collectives
    from hybridperf.collectives.model import find_collectives
    from hybridperf.hardware import load_system
    from hybridperf.importers.collective_files import read_collectives
    from hybridperf.io import InputError
    from hybridperf.report import collective_plots, text

    if device:
        raise InputError("expected one of --device and --system, got both; fit ops and collectives one after the other into one --out")
    spec = load_system(name)  # a wrong name is said before long tables are read
    _compilation_cache()
    frame, remarks = read_collectives(rows) if rows else (None, [])
    for remark in remarks:
        print(f"hybridperf: {remark}", file=sys.stderr)
    provenance = {"made_by": f"hybridperf {hybridperf.__version__} fit --system", "rows_from": [p.name for p in rows]}
    model, report = fit_collectives(frame, spec, prior or None, provenance)
    model.save(out)
    report.save(out)
    if report.rows:
        collective_plots.bus_bandwidth_plot(model, report.measured, out / "collectives.png")
    else:
        (out / "collectives.png").unlink(missing_ok=True)  # of an earlier fit
    if not rows and find_collectives(spec.id) is not None:
        print(f"a calibration of {spec.id} is shipped: `--model {spec.id}` predicts by it")
    print(text.collective_report(report, prior=model.adapted is not None))
    print(f"collectives of {spec.description} in {out}" + (", measured and predicted in collectives.png" if report.rows else ""))


@app.command("plan-measurements")
def plan_measurements(
    device: Annotated[str, typer.Option("--device", help="device name, or a .toml file that describes one")],
    budget: Annotated[str, typer.Option("--budget", help="how long measuring may take, such as 60m")],
    out: Out,
    ops: Annotated[str, typer.Option("--ops", help="only these ops, separated by commas")] = "",
    dtype: Annotated[str, typer.Option("--dtype", help="number formats, separated by commas")] = "fp32",
    model: Annotated[str, typer.Option("--model", help="model of the device so far: measure what it is unsure of")] = "",
) -> None:
    """The most informative shapes to measure on a machine without JAX, as a table to fill in."""
    from hybridperf.hardware import load_device
    from hybridperf.io import write_table
    from hybridperf.measurement_plan import DEFAULT_OPS, plan
    from hybridperf.model import load_model
    from hybridperf.report import text

    budget_s, spec = _seconds(budget), load_device(device)
    _compilation_cache()
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
            [[r.op, r.dtype, str(r.cases), f"{r.measuring_s:.0f} s", text.percent(r.removed)] for r in made.summary.itertuples()],
        )
    )
    print(f"{len(made.table)} cases in {out}, the most informative first: {made.seconds:.0f} of {budget_s:.0f} s")
    if (short := made.summary.loc[made.summary["cases"] == 0, "op"].unique()).size:
        print(f"the budget ends before any case of {', '.join(short)}")
    print(
        "put the least time of one op over its repeats, in seconds, into time_s (rows left empty are skipped), then:"
        f" hybridperf fit {out} --device {device} --out MODEL"
    )


@app.command()
def ops(
    rows: Annotated[Path, typer.Argument(help="table of ops (.csv, .csv.gz, .parquet)")],
    model: Annotated[str, typer.Option("--model", help="model folder, shipped calibration, or device name")],
    out: Out,
) -> int:
    """Predict each row of a table: adds predicted_s, low_s, high_s, roofline_s, in_range, note."""
    from hybridperf.io import read_table, write_table

    _compilation_cache()
    frame = read_table(rows)
    predicted = _model(model).predict_ops(frame)
    write_table(predicted, out)
    return _say_predicted(predicted, out)


def _say_predicted(predicted, out: Path) -> int:  # type: ignore[no-untyped-def]  # a DataFrame, imported late
    """How many rows of a table were predicted; the exit status."""
    missing = int(predicted["predicted_s"].isna().sum())
    print(f"{len(predicted) - missing} of {len(predicted)} rows predicted, written to {out}")
    if missing:
        first = predicted.loc[predicted["predicted_s"].isna(), "note"].iloc[0]
        print(f"hybridperf: {missing} rows not predicted, their note says why; the first: {first}", file=sys.stderr)
        return SOME_ROWS_UNPREDICTED
    return 0


@app.command()
def collectives(
    rows: Annotated[list[Path], typer.Argument(help="tables of collectives, or logs of nccl-tests or PARAM's comms benchmark")],
    out: Out,
    model: Annotated[
        str, typer.Option("--model", help="folder, shipped calibration, or system name; none: only read logs into a table")
    ] = "",
    collective: Annotated[str, typer.Option("--collective", help="what a log ran, where it does not say")] = "",
    n_gpus: Annotated[int | None, typer.Option("--n-gpus", help="ranks of a log that does not list them")] = None,
    n_nodes: Annotated[int | None, typer.Option("--n-nodes", help="nodes of a log that does not list them")] = None,
) -> int:
    """Predict each row: adds predicted_s, low_s, high_s, roofline_s, bus_bytes_per_s, in_range, note."""
    from hybridperf.collectives.fit import collectives_by_name
    from hybridperf.importers.collective_files import read_collectives
    from hybridperf.io import write_table

    loaded = collectives_by_name(model) if model else None
    frame, remarks = read_collectives(rows, collective or None, n_gpus, n_nodes)
    for remark in remarks:
        print(f"hybridperf: {remark}", file=sys.stderr)
    if loaded is None:
        write_table(frame, out)
        print(f"{len(frame)} rows read, written to {out}")
        return 0
    _compilation_cache()
    predicted = loaded.predict(frame)
    write_table(predicted, out)
    return _say_predicted(predicted, out)


@app.command()
def predict(
    jax: Annotated[str, typer.Option("--jax", help="module:function returning (fn, args) or (fn, args, donate_argnums)")] = "",
    program: Annotated[Path | None, typer.Option("--program", help="program file written by hybridperf instead")] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="recorded step instead: a PyTorch execution trace or Chakra graph")] = None,
    model: Annotated[str, typer.Option("--model", help="model folder, shipped calibration, or device name")] = "here",
    ignore: Annotated[str, typer.Option("--ignore", help="instructions or ops to leave out, separated by commas")] = "",
    timeline: Annotated[Path | None, typer.Option("--timeline", help="write a Perfetto timeline here")] = None,
) -> None:
    """Time of one step of a JAX program, or of one that a trace recorded op by op."""
    from hybridperf.importers.jax_program import compile_program, from_program, load_program
    from hybridperf.importers.recorded_graphs import recorded_step
    from hybridperf.io import InputError
    from hybridperf.prediction import predict as predict_step
    from hybridperf.report import perfetto, text

    given = bool(jax) + bool(program) + bool(trace)
    if given != 1:
        raise InputError(f"expected one of --jax module:function, --program FILE and --trace FILE, got {given or 'none'} of them")
    _compilation_cache()
    loaded = _model(model)
    skip = [name for name in ignore.split(",") if name]
    if program:
        workload = load_program(program, ignore=skip)
    elif trace:
        workload = recorded_step(trace, ignore=skip)
    else:
        _run_like(loaded)
        fn, args, donate = _jax_program(jax)
        with _code_of(jax):
            compiled = compile_program(fn, *args, donate_argnums=donate, name=jax)
        workload = from_program(compiled, ignore=skip)
    result = predict_step(loaded, workload)
    print(text.prediction(result))
    if timeline:
        perfetto.write_timeline(result, timeline)
        print(f"timeline in {timeline} (open it at https://ui.perfetto.dev)")


@app.command()
def sweep(
    spec: Annotated[Path, typer.Argument(help="what to sweep: a .toml file, or the name of one that is shipped")],
    out: Out,
    top: Annotated[int | None, typer.Option("--top", help="also write the K points with the least time")] = None,
    by: Annotated[
        str | None, typer.Option("--by", help="needs --top: the K points least in this column, a number; time_s if not given")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="share the work among this many local processes (Dask)")] = None,
    scheduler: Annotated[str | None, typer.Option("--scheduler", help="share the work among the workers of a Dask scheduler")] = None,
    restart: Annotated[bool, typer.Option("--restart", help="throw away what an earlier run did, and another sweep in --out")] = False,
) -> int:
    """Evaluate a grid or sample of configurations into a Parquet file. Stopped at any moment, it goes on where it was."""
    from hybridperf.report import best_rows
    from hybridperf.sweeps import sweep as run_sweep

    _compilation_cache()
    done = run_sweep(spec, out, top=top, by=by, workers=workers, scheduler=scheduler, restart=restart)
    rate = f", {done.computed / done.seconds:,.0f} points/s" if done.computed else ", all done before"
    if done.computed and done.seconds / 2 < done.compiling_s < done.seconds:
        at_work_s = done.seconds - done.compiling_s
        rate += f" (of which compiling {done.compiling_s:.1f} s; without it {done.computed / at_work_s:,.0f} points/s)"
    print(f"{done.rows:,} rows of {done.points:,} points in {done.out}, {done.seconds:.1f} s{rate}")
    for path, what in ((done.top, "top points"), (done.front, "Pareto front")):
        if path:
            best_rows.print_table(path, f"{what} in {path}")
    if done.empty_because:
        print(f"hybridperf: {done.empty_because}; the file has its columns and no row", file=sys.stderr)
    if done.unpredicted:
        print(f"hybridperf: {done.unpredicted:,} rows not predicted, their note says why", file=sys.stderr)
        return SOME_ROWS_UNPREDICTED
    return 0


@app.command()
def search(
    spec: Annotated[
        str, typer.Argument(help="what to search: a .toml file, or a shipped example: cheapest_platform, best_batch, next_dollar")
    ],
    out: Annotated[Path | None, typer.Option("--out", help="folder for search.json and convergence.png")] = None,
    starts: Annotated[int | None, typer.Option("--starts", help="points to descend from")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="of the starts")] = None,
) -> None:
    """Find the best point within bounds: least cost, most throughput, under constraints. Says what holds it back."""
    from hybridperf.io import check_folder_writable
    from hybridperf.report import search as reports
    from hybridperf.searches.run import search as run_search

    if out:
        check_folder_writable(out)  # before minutes of work
    _compilation_cache()
    result = run_search(spec, starts=starts, seed=seed, quiet=False)
    print(reports.search_report(result))
    if out:
        written = result.save(out)
        reports.convergence_plot(result, out / "convergence.png")
        print(f"result in {written}, how it was found in {out / 'convergence.png'}")


@app.command()
def shard(
    tables: Annotated[Path, typer.Argument(help="embedding tables: name, rows, dim, pooling; dtype, exponent, shift where known")],
    ranks: Annotated[int, typer.Option("--ranks", help="how many devices")],
    batch: Annotated[float, typer.Option("--batch", help="samples of a step, over all ranks together")],
    model: Annotated[str, typer.Option("--model", help="model folder, shipped calibration, or device name")] = "here",
    system: Annotated[str, typer.Option("--system", help="whose collectives: system name or folder; the model's own if not given")] = "",
    memory_bytes: Annotated[float | None, typer.Option("--memory-bytes", help="of each rank for tables; 80 % of the device's")] = None,
    nodes: Annotated[int, typer.Option("--nodes", help="over which the ranks stand")] = 1,
    method: Annotated[str, typer.Option("--method", help="best tries all; naive, lookup, relaxed, exact, ... only one")] = "best",
    optimizer: Annotated[str, typer.Option("--optimizer", help="sgd, adagrad or rowwise_adagrad")] = "sgd",
    split: Annotated[list[str] | None, typer.Option("--split", help="cut a table: NAME=row, NAME=column or NAME=row:4; repeatable")] = None,
    seed: Annotated[int, typer.Option("--seed", help="of random and relaxed placements")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="folder for shard.json, placement, ranks and candidates .csv, shard.png")
    ] = None,
) -> None:
    """Which rank should hold which embedding table: least predicted step under a memory limit, and why."""
    from hybridperf.io import InputError
    from hybridperf.report import sharding as reports
    from hybridperf.sharding.run import shard as run_shard

    _compilation_cache()
    splits = {}
    for one in split or []:
        name, equals, kind = one.rpartition("=")
        if not equals:
            raise InputError(f"expected --split NAME=row or NAME=column, got {one!r}")
        splits[name] = kind
    result = run_shard(
        tables, ranks, model=model, batch=batch, memory_bytes=memory_bytes, nodes=nodes, method=method, seed=seed, system=system,
        optimizer=optimizer, splits=splits,
    )  # fmt: skip
    print(reports.shard_report(result))
    if out:
        written = result.save(out)
        reports.shard_plot(result, out / "shard.png")
        print(f"\nresult in {written}, tables and ranks in placement.csv and ranks.csv there, picture in {out / 'shard.png'}")


@app.command()
def validate(
    what: Annotated[
        str,
        typer.Argument(help="whose accuracy: here (steps on this machine), sharded (on two cores), ops (held-out rows), collectives, lin"),
    ],
    model: Annotated[str, typer.Option("--model", help="model folder, shipped calibration, or device name")] = "",
    out: Out = Path("validate-out"),
    cores: Annotated[str | None, typer.Option("--cores", help="cores to pin to; those of the calibration if not given")] = None,
    steps: Annotated[str, typer.Option("--steps", help="how many of the twelve steps, or all")] = "all",
    ops: Annotated[bool, typer.Option("--ops", help="also compare the steps op by op")] = False,
    data: Annotated[Path | None, typer.Option("--data", help="folder of measured data: judges devices or systems left out")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="of `--data`: a small part, a minute")] = False,
    families: Annotated[str, typer.Option("--families", help="of `ops --data`: families of ops, separated by commas")] = "",
    leave: Annotated[str, typer.Option("--leave", help="of `ops --data`: which devices are left out, separated by commas")] = "",
    tasks: Annotated[
        str, typer.Option("--tasks", help="of `collectives`: which of its tasks, separated by commas; of `sharded`: how many models")
    ] = "",
    placements: Annotated[int, typer.Option("--placements", help="of `sharded`: models whose placements compete", min=0)] = 28,
    passes: Annotated[int, typer.Option("--passes", help="of `sharded`: times that the models are measured", min=1)] = 2,
) -> None:
    """Predict what a calibration has not seen, show it beside the measurement and beside null models."""
    from hybridperf.io import InputError, unknown

    if what not in (known := ["here", "sharded", "ops", "collectives", "lin"]):
        raise unknown("claim", what, known, f"known are {', '.join(known)}")
    if what == "lin":
        from hybridperf.validate import lin

        if data is None:
            raise InputError("expected --data FOLDER, got none; `validate lin` judges on what Lin et al. published")
        _compilation_cache()
        lin.run(data, out, model or lin.MODEL)
        return
    if what == "collectives":
        from hybridperf.validate import collectives as of_collectives

        if data is None:
            raise InputError("expected --data FOLDER, got none; `validate collectives` judges on measured collectives")
        _compilation_cache()
        of_collectives.run(data, out, quick=quick, tasks=_names(tasks) or None)
        return
    if what == "ops" and data is not None:
        from hybridperf.families import FAMILIES
        from hybridperf.validate import gpu_ops

        _compilation_cache()
        gpu_ops.run(data, out, quick=quick, families=_names(families) or FAMILIES, splits=_names(leave) or None)
        return
    if not model:
        raise InputError("expected --model FOLDER, got none; `hybridperf calibrate --quick --out FOLDER` makes one")
    if what == "ops":
        from hybridperf.validate import ops as held_out

        loaded = _model(model)
        _compilation_cache()
        held_out.run(loaded, Path(model), out)
        return
    if what == "sharded":
        from hybridperf.validate import sharded_here

        if tasks and not tasks.isdecimal():
            raise InputError(f"expected --tasks as a number of models, such as 30, got {tasks!r}")
        _compilation_cache()
        sharded_here.run(_model(model), out, tasks=int(tasks or 30), to_shard=placements, passes=passes)
        return
    from hybridperf.validate import here

    if steps != "all" and not (steps.isdecimal() and 1 <= int(steps) <= len(here.STEPS)):
        raise InputError(f"expected --steps from 1 to {len(here.STEPS)} or all, got {steps!r}")
    _compilation_cache()
    chosen = here.STEPS if steps == "all" else here.STEPS[: int(steps)]
    here.run(_model(model), out, cores=cores, steps=chosen, ops=ops)


@app.command()
def calibrations(
    data: Annotated[Path, typer.Option("--data", help="the folder of measured data")],
    out: Out = Path("calibration/hardware"),
    families: Annotated[str, typer.Option("--families", help="families of ops to train, separated by commas; all if not given")] = "",
    devices: Annotated[str, typer.Option("--devices", help="devices to calibrate, separated by commas; all if not given")] = "",
    only: Annotated[str, typer.Option("--only", help="ops or collectives; both if not given")] = "",
) -> None:
    """Make what is shipped: priors over all measured GPUs and systems, a calibration of each. What an earlier run finished is kept."""
    from hybridperf.calibrations import devices as of_devices
    from hybridperf.calibrations import systems as of_systems
    from hybridperf.families import FAMILIES
    from hybridperf.io import unknown

    if only not in ("", "ops", "collectives"):
        raise unknown("part", only, ["ops", "collectives"], "known are ops and collectives")
    _compilation_cache()
    if only != "collectives":
        of_devices.run(data, out, families=_names(families) or FAMILIES, devices=_names(devices) or of_devices.DEVICES)
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
                    s.id, s.name, text.quantity(s.peak_flops_per_s.get("fp32"), "FLOP/s"),
                    text.quantity(s.peak_flops_per_s.get("bf16", s.peak_flops_per_s.get("fp16")), "FLOP/s"),
                    text.quantity(s.memory_bytes, "B"), text.quantity(s.memory_bytes_per_s, "B/s"),
                ]
                for s in specs
            ],
        )
    )  # fmt: skip


@app.command()
def systems() -> None:
    """Systems (nodes and their links) whose facts are known."""
    from hybridperf.hardware import load_system, system_names
    from hybridperf.report import text

    specs = [load_system(name) for name in system_names()]
    print(
        text.table(
            ["system", "description", "per node", "inside a node", "of a node"],
            [
                [
                    s.id, s.description, str(s.accelerators_per_node), text.quantity(s.intra_bytes_per_s, "B/s"),
                    text.quantity(s.node_bytes_per_s, "B/s"),
                ]
                for s in specs
            ],
        )
    )  # fmt: skip


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="device, system, model folder, or `ops`")],
    other: Annotated[str, typer.Argument(help="a second model or device: show what the two differ in")] = "",
) -> None:
    """What is known of a device, a system, a model, or which ops tables may name; of two models, what differs."""
    from hybridperf.model import check_folder
    from hybridperf.report import text

    for one in filter(None, (name, other)):
        check_folder(one)
    print(text.difference(name, other) if other else text.known(name))


def _model(name: str):  # -> PerfModel, imported late
    from hybridperf.model import model_or_datasheet

    return model_or_datasheet(name)


def _jax_program(reference: str) -> tuple:
    """`module:function` called without arguments: (fn, args, donate_argnums)."""
    import importlib
    import inspect

    from hybridperf.io import InputError

    module_name, _, function_name = reference.partition(":")
    if not function_name:
        raise InputError(f"expected --jax module:function, got {reference!r}")
    sys.path.insert(0, os.getcwd())
    try:
        with _code_of(reference):
            module = importlib.import_module(module_name)
    except InputError as error:
        missing = getattr(error.__cause__, "name", None) if isinstance(error.__cause__, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):  # the module itself, not one that it imports
            raise InputError(f"cannot import {module_name!r} for --jax ({error.__cause__}); run where Python finds it") from error
        raise
    make = getattr(module, function_name, None)
    if not callable(make):
        raise InputError(f"{module_name} has no function {function_name!r}; --jax takes module:function")
    try:
        inspect.signature(make).bind()
    except (TypeError, ValueError) as error:  # ValueError: something built in, which tells no signature
        raise InputError(f"{reference} must take no arguments and return (fn, args) or (fn, args, donate_argnums): {error}") from error
    with _code_of(reference):
        made = make()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not callable(made[0]):
        raise InputError(f"{reference} must return (fn, args) or (fn, args, donate_argnums), got {type(made).__name__}")
    return made if len(made) == 3 else (*made, ())


@contextlib.contextmanager
def _code_of(reference: str) -> Iterator[None]:
    """What the user's own code raises is theirs to mend: a sentence that names it and its line."""
    from hybridperf.io import InputError

    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        said = (str(error).splitlines() or [""])[0]
        raise InputError(f"{reference} raised {type(error).__name__}: {said}{_line_of(error)}; --debug shows all of it") from error


def _line_of(error: BaseException) -> str:
    """` (in FILE line N)`: the innermost line that is neither ours nor an installed package's."""
    import sysconfig
    import traceback

    if isinstance(error, SyntaxError):
        return f" (in {error.filename} line {error.lineno})"
    installed = (
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        str(Path(__file__).parent),
        "<",
    )
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(installed):
            return f" (in {frame.filename} line {frame.lineno})"
    return ""


def _run_like(model) -> None:  # type: ignore[no-untyped-def]
    """Compile for as many cores as the model was measured on: XLA splits work by the cores it sees."""
    cores = model.device.multiprocessors
    if model.device.kind == "cpu" and cores and hasattr(os, "sched_setaffinity"):
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, usable[: min(cores, len(usable))])


def _compilation_cache() -> None:
    """Keep compiled functions from run to run: the second prediction starts in a fraction of the time."""
    import jax

    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hybridperf" / f"jax-{jax.__version__}"
    folder = Path(os.environ.get("HYBRIDPERF_CACHE", default))
    with contextlib.suppress(OSError):  # a place that cannot be written costs time, nothing else
        folder.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _names(text: str) -> list[str]:
    """Names separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _seconds(text: str) -> float:
    from hybridperf.io import InputError

    scale = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:])
    number = text[:-1] if scale else text
    try:
        value = float(number) * (scale or 1.0)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e7:
        raise InputError(f"expected a time such as 90s, 20m or 1h, got {text!r}")
    return value


if __name__ == "__main__":
    main()
