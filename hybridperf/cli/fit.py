"""`hybridperf fit`: a model from measured rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hybridperf.cli.common import DeviceName, Out, compilation_cache, inside, keep_files, warn

_PRIOR = "folder or name of a prior, or none; the shipped one for GPUs if not given"


def fit(
    rows: Annotated[
        list[Path] | None, Argument(help="tables of measured ops; none: the datasheet alone")
    ] = None,
    device: DeviceName = "",
    system: Annotated[
        str, Option(help="fit collectives of a system instead: its name or a .toml file")
    ] = "",
    out: Out = Path("model"),
    prior: Annotated[str, Option(help=_PRIOR)] = "",
) -> None:
    """Fit a model of a device, or with --system of a system's collectives, to measured rows and
    what other GPUs showed.
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
    load_device(device)  # a wrong name is reported before long tables are read
    made_by = f"hybridperf {hybridperf.__version__} fit"
    provenance = {"made_by": made_by, "rows_from": [path.name for path in rows or []]}
    frame = read_tables(rows) if rows else None
    model, report = fit_rows(frame, device, prior=prior or None, provenance=provenance)
    model.save(out)
    report.save(out)
    if report.rows:
        plots.fit_plot(report, out / "fit.png")
    else:
        (out / "fit.png").unlink(missing_ok=True)  # of an earlier fit
    print(fits.fit_report(report, prior=bool(model.families)))
    errors = ", errors of held-out rows in report.json, held_out.csv, fit.png"
    print(f"model of {model.device.name} in {out}{errors if report.rows else ''}")


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
    spec = load_system(name)  # a wrong name is reported before long tables are read
    compilation_cache()
    frame, remarks = read_collectives(rows) if rows else (None, [])
    for remark in remarks:
        warn(remark)
    made_by = f"hybridperf {hybridperf.__version__} fit --system"
    provenance = {"made_by": made_by, "rows_from": [path.name for path in rows]}
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
    picture = ", measured and predicted in collectives.png" if report.rows else ""
    print(f"collectives of {spec.description} in {out}{picture}")
