"""`hybridperf fit`: a model from measured rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hybridperf.cli.common import Out, compilation_cache, inside, keep_files


def fit(
    rows: Annotated[
        list[Path] | None, Argument(help="tables of measured ops; none: the datasheet alone")
    ] = None,
    device: Annotated[str, Option(help="device name, or a .toml file that describes one")] = "",
    system: Annotated[
        str, Option(help="fit collectives of a system instead: its name or a .toml file")
    ] = "",
    out: Out = Path("model"),
    prior: Annotated[
        str,
        Option(help="folder or name of a prior, or none; the shipped one for GPUs if not given"),
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
