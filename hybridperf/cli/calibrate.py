"""`hybridperf calibrate`: measure this machine and fit it; `demo`: and predict steps with it."""

from pathlib import Path

from hybridperf.cli import common
from hybridperf.cli.common import Folder, compilation_cache, names_in, seconds_in


def calibrate(
    out: Folder,
    quick: bool = False,
    ops: str = "",
    cores: str | None = None,
    budget: str | None = None,
    device: str | None = None,
    library: str = "jax",
    collectives: bool = False,
    processes: int = 2,
    cores_each: int | None = None,
) -> None:
    """Measure this machine through JAX or PyTorch and fit it. Resumes where it was stopped."""
    setting, budget_s = "quick" if quick else "full", seconds_in(budget) if budget else None
    if collectives:
        _calibrate_collectives(out, processes, setting, budget_s, cores_each, library)
        return
    import time

    from hybridperf.cli.fit import learning_curve_in
    from hybridperf.hardware import load_device
    from hybridperf.model.fit import this_machine
    from hybridperf.report import fits, plots

    start_s = time.perf_counter()
    spec = load_device(device) if device else None
    only = names_in(ops)
    measured = this_machine.measure(
        out, setting=setting, cores=cores, budget_s=budget_s, only=only, device=spec,
        library=library,
    )  # fmt: skip
    result = measured.fit()
    print(fits.fit_report(result.report))
    common.result(folder=out, errors=result.report.table)
    plots.fit_plot(result.report, out / "fit.png")
    written = {
        "model.json, residual.npz": "the model",
        "report.json, held_out.csv, fit.png": "how it errs on rows it has not seen",
        "ops.csv, host.csv, ops.machine.json": "what was measured, and on what",
    }
    if not quick:
        this_machine.to_stderr("fitting parts of the rows for the learning curve, up to a minute")
        learning_curve_in(out, result.rows, result.model.device)
        written["learning_curve.png, learning_curve.csv"] = "what more rows would bring"
    took = f"{time.perf_counter() - start_s:.0f} s in all"
    print(f"\nmodel of {result.model.device.name} in {out}, {took}:")
    print("\n".join(f"  {names:38}  {meaning}" for names, meaning in written.items()))


def _calibrate_collectives(
    out: Path, processes: int, setting: str, budget_s: float | None, cores_each: int | None,
    library: str,
) -> None:  # fmt: skip
    from hybridperf.model.fit.this_machine import calibrate_collectives
    from hybridperf.report import collective_plots, fits

    compilation_cache()
    model, report = calibrate_collectives(
        out, processes=processes, setting=setting, budget_s=budget_s, cores_each=cores_each,
        library=library,
    )  # fmt: skip
    collective_plots.bus_bandwidth_plot(model, report.measured, out / "collectives.png")
    print(fits.collective_report(report))
    common.result(folder=out, errors=report.by_collective())
    files = "collectives.json, collectives.csv, collectives.png"
    print(f"collectives between {processes} processes of this machine in {out}: {files}")


def demo(out: Folder = Path("demo-out"), cores: str | None = None) -> None:
    """Measure this machine, predict six real training steps, run them, show both numbers. At most
    five minutes.
    """
    from hybridperf.validate import demo as main_job

    main_job.run(out, cores)
