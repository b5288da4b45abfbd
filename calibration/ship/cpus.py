"""Makes the shipped priors over CPUs: what those that we calibrated show of a library's ops.

    hybridperf calibrations --only cpus --folder calibration/hardware

    calibration/measured/NAME/device.toml      facts of a CPU
    calibration/measured/NAME/LIBRARY.csv.gz   rows of `calibrate --seed 1 --library LIBRARY`

Knobs of each CPU are fitted to its rows, then networks of all CPUs to what knobs leave of each
group of ops. The rows are of sizes (`--seed 1`) that no other calibration measures: what it says of
rows held out is not said by rows that the prior has seen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import hybridperf
from hybridperf.hardware import DeviceSpec, load_device
from hybridperf.io import InputError, read_table
from hybridperf.learning.inputs import Inputs
from hybridperf.learning.prior.alone import LEAST_ROWS, prior_of
from hybridperf.learning.prior.shipped import CPU_PRIORS, Prior
from hybridperf.model.fit import rows as fit_rows
from hybridperf.model.fit.knobs import fit_theta
from hybridperf.model.perf_model import PerfModel
from hybridperf.ops import GROUPS


def run(measured: Path, out: Path, say: Callable[[str], None] = print) -> None:
    """Train the prior of each library of whose ops a CPU has rows.

    Raises:
        InputError: no CPU has any.
    """
    made = False
    for library, name in CPU_PRIORS.items():
        if not (found := sorted(measured.glob(f"*/{library}.csv.gz"))):
            continue
        made = True
        train_prior(found).save(out / name)
        say(f"{name}: {', '.join(path.parent.name for path in found)}")
    if not made:
        tables = " or ".join(f"NAME/{library}.csv.gz" for library in CPU_PRIORS)
        expected = f"expected tables {tables} in {measured}"
        raise InputError(f"{expected}, found none; `hybridperf calibrate --seed 1` measures one")


def train_prior(tables: list[Path]) -> Prior:
    """The prior of some CPUs; beside each table lies its `device.toml`."""
    knobs, of_group, rows = {}, dict[str, list[tuple[Inputs, np.ndarray]]](), {}
    for path in tables:
        device = load_device(path.parent / "device.toml")
        usable, _ = fit_rows.usable_rows(read_table(path), device)
        data = fit_rows.read_measurements(usable, device)
        machine = path.parent.name
        knobs[machine], log_error = fitted(data, device)
        rows[machine] = len(log_error)
        for group, inputs in data.inputs.items():
            mine = log_error[data.table.group == group]
            if len(mine) >= LEAST_ROWS:
                of_group.setdefault(GROUPS[group], []).append((inputs, mine))
    families = {group: prior_of(machines) for group, machines in sorted(of_group.items())}
    made_by = f"hybridperf {hybridperf.__version__} calibrations --only cpus"
    return Prior(families, {"made_by": made_by, "cores": 1, "measured": rows}, knobs)


def fitted(data: fit_rows.MeasuredOps, device: DeviceSpec) -> tuple[dict[str, float], np.ndarray]:
    """(logs of a machine's knobs by name, log(measured / closed form) of its rows [R])."""
    vector, (theta,) = fit_theta(data.table, data.measured_s, device)
    closed_s = PerfModel(device, vector.solved(theta)).op_seconds(data.table)
    named = dict(zip(vector.names(), map(float, theta), strict=True))
    return named, np.log(data.measured_s / closed_s)
