"""Measured collectives as they are judged: rows of the data folder that can be used, why the others
cannot, and their groups.

A group is a system, collective, link and implementation. Tables have the columns of the schema (see
`collectives.table`).
"""

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.collectives.algorithms import COLLECTIVES
from hybridperf.collectives.rows import checked, collective_rows, implementations
from hybridperf.hardware import load_system
from hybridperf.io import InputError, read_table, require_columns
from hybridperf.model.published.collectives import FEW_SHOT, FOLDER, MEASURED

GROUP = ("system", "collective", "link", "implementation")
_LEAST_SECONDS = 1e-9  # where no link that is counted carries a byte


@dataclasses.dataclass(frozen=True)
class MeasuredCollectives:
    """Usable rows: the schema's columns, and

    row             the row's place in its file
    implementation  as `collectives.rows.implementations` names it
    datasheet_s     bytes at the datasheet's rates, no latency
    latency_s       the datasheet's
    bus_factor      bus bandwidth over bytes / seconds
    """

    sweeps: pd.DataFrame  # whole sweeps of systems
    few: pd.DataFrame  # about 20 rows per collective of further systems; the others are kept aside
    left_out: dict[str, dict[str, int]]  # [file][reason] rows

    def of(self, system: str, few: bool) -> pd.DataFrame:
        """Rows of one system, of those with about 20 rows or of the others."""
        table = self.few if few else self.sweeps
        return table[table["system"] == system].reset_index(drop=True)


def read_groups(data: Path) -> MeasuredCollectives:
    """Both tables; the second may be missing (no rows), the first may not (`InputError`)."""
    sweeps_at, few_at = (data / FOLDER / name for name in (MEASURED, FEW_SHOT))
    if not sweeps_at.is_file():
        raise InputError(
            f"expected measured collectives at {sweeps_at}, found none; give --data DIR"
        )
    sweeps, left_out = usable(read_table(sweeps_at), MEASURED)
    few, reasons = sweeps.iloc[:0], {"the table is not there": 0}
    if few_at.is_file():
        few, reasons = usable(read_table(few_at), FEW_SHOT)
    return MeasuredCollectives(sweeps, few, {MEASURED: left_out, FEW_SHOT: reasons})


def usable(frame: pd.DataFrame, name: str) -> tuple[pd.DataFrame, dict[str, int]]:
    """(rows with the columns above, how many others by reason) of a table of several systems."""
    wanted = ["system", "link", "collective", "bytes", "n_gpus", "n_nodes", "time_s"]
    require_columns(frame, wanted, name)
    frame = frame.assign(row=np.arange(len(frame)))
    left_out: Counter[str] = Counter()
    time_s = pd.to_numeric(frame["time_s"], errors="coerce")
    timed = np.isfinite(time_s) & (time_s > 0)
    if not timed.all():
        left_out["the time is no number above zero"] += int((~timed).sum())
    frame = frame.assign(time_s=time_s)[timed]
    parts = []
    for system_id, rows in frame.groupby("system", sort=True):
        try:
            system = load_system(str(system_id))
        except InputError:
            left_out[f"no facts of the system {system_id} are known"] += len(rows)
            continue
        good, problem, _ = checked(rows, system)
        # without the values of its row and the remedy
        left_out.update(text.split(", got ")[0].split(";")[0] for text in problem if text)
        if len(good):
            seconds = collective_rows(good, system).seconds.sum(1)
            factor = [
                COLLECTIVES[kind].bus_factor(n)
                for kind, n in zip(good["collective"], good["n_gpus"], strict=True)
            ]
            good = good.assign(implementation=implementations(good), latency_s=system.latency_s)
            datasheet_s = np.maximum(seconds, _LEAST_SECONDS)
            parts.append(good.assign(datasheet_s=datasheet_s, bus_factor=factor))
    if not parts:
        raise InputError(
            f"no row of {name} can be used ({'; '.join(left_out) or 'it has none'}); check the file"
        )
    return pd.concat(parts, ignore_index=True), dict(left_out)
