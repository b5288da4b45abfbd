"""Kernels of devices and laboratories that no fit has seen, next to one constant.

    python benchmarks/strangers.py [--data DIR] [--way name|prior] [--rows 150] [--out FILE] [WORDS]
    python benchmarks/strangers.py --ablation [--out FILE] [WORDS]   parts of the price switched off

A group is what one laboratory measured of an op in one number format by one library on one device:
up to so many rows of the second delivery (DIR/added), of devices that neither a shipped calibration
nor the shipped prior is of, or of laboratories that none of ours is fitted to. WORDS keep groups
whose name has one of them.

    way name    by the device's name, as `hybridperf ops --model NAME`
        prior   by the shipped prior without rows, as `hybridperf fit --device NAME`
    constant    the median ratio to the datasheet's roofline over groups of the same op and format
                of all other devices (and, of a laboratory left out, of all others)

Eager rows under 1.5 times their launch (the 1 % quantile of a device's op) say nothing of a kernel
and are left out. Errors are |predicted / measured - 1|; half: median of sqrt(high / low).
"""

import argparse
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pandas as pd

from hybridperf.hardware import load_device
from hybridperf.io import InputError, read_table
from hybridperf.learning.prior import FamilyPrior
from hybridperf.learning.prior.shipped import DEFAULT_PRIOR, load_prior
from hybridperf.model import PerfModel, families, machine_facts
from hybridperf.model.files import is_shipped, model_or_datasheet
from hybridperf.model.fit.device import fit
from hybridperf.model.stages import borrowed, family
from hybridperf.ops import gemm, scores
from hybridperf.ops.rows import row_work
from hybridperf.report import text
from hybridperf_calibration.published.ops import FILES, read_rows, table_path

STRANGERS = "published_kernels"
_EAGER_FLOORS, _FLOOR_QUANTILE = 1.5, 0.01
_KEYS = ["laboratory", "device", "op", "format", "library"]
_TOLD = 5e-4  # of an error: less is no change
# other names of one op: rows of all tell of its constant
_SAME = {"linear": "gemm", "rmsnorm": "layernorm", "ln": "layernorm"}


def read_groups(data: Path, rows: int) -> pd.DataFrame:
    """Rows of all tables of a folder that `ops` reads, at most `rows` of a group."""
    found = []
    for name, table in FILES.items():
        if table.source != "ra-spmm" and table_path(data, name).is_file():
            frame, _ = read_rows(data, name)
            found.append(_named(frame.assign(laboratory=table.source)))
    path = data / "compute" / f"{STRANGERS}.csv.gz"
    if path.is_file():
        frame = read_table(path)
        frame = frame.assign(laboratory=frame["source"].map(lambda word: word.split("@")[0]))
        found.append(_named(frame))
    if not found:
        raise SystemExit(f"strangers: expected measured ops in {data}, found none; give --data DIR")
    every = pd.concat(found, ignore_index=True)
    return every.groupby(_KEYS, sort=False).sample(frac=1.0, random_state=0).groupby(
        _KEYS, sort=False
    ).head(rows).reset_index(drop=True)  # fmt: skip


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    words = {name: frame.get(name, pd.Series("", frame.index)).fillna("").astype(str)
             for name in ("quant", "kv_dtype", "framework")}  # fmt: skip
    quant = words["quant"].where(words["quant"] != "", frame["dtype"].astype(str))
    kept = words["kv_dtype"]
    formats = quant.where((kept == "") | (kept == quant), quant + " " + kept)
    frame = frame.assign(format=formats, library=words["framework"])
    if frame["laboratory"].iloc[0] == "neusight":
        floor = frame.groupby(["device", "op"])["time_s"].transform(
            lambda times: times.quantile(_FLOOR_QUANTILE)
        )
        frame = frame[frame["time_s"] > _EAGER_FLOORS * floor]
    return frame


def priced(rows: pd.DataFrame, way: str) -> pd.DataFrame:
    """Rows with what a way says of them."""
    out = []
    for device, of_device in rows.groupby("device", sort=False):
        spec = load_device(str(device))
        if way == "datasheet":
            model = PerfModel.datasheet(spec)
        elif way == "prior":
            model = fit(None, spec)[0]
        else:
            model = model_or_datasheet(str(device))
        for _, part in of_device.groupby("op", sort=False):
            known = part.dropna(axis=1, how="all")
            try:
                told = model.predict_ops(known.reset_index(drop=True))
            except InputError:
                continue
            columns = ["predicted_s", "low_s", "high_s", "roofline_s", "note"]
            out.append(part.assign(**{one: told[one].to_numpy() for one in columns}))
    return pd.concat(out, ignore_index=True)


def constants(judged: pd.DataFrame, measured: pd.DataFrame) -> pd.Series:
    """Of judged rows, the median ratio to the roofline of the groups left in [R]."""
    measured = measured[measured["roofline_s"] > 0]
    ratio = measured["time_s"] / measured["roofline_s"]
    groups = ratio.groupby([measured[key] for key in _KEYS]).median().reset_index(name="ratio")
    groups["op"] = groups["op"].replace(_SAME)
    known = {one for one in groups["laboratory"] if one in {t.source for t in FILES.values()}}

    def constant(row: pd.Series) -> float:
        left_in = groups[groups["device"] != row["device"]]
        if row["laboratory"] not in known:
            left_in = groups[groups["laboratory"] != row["laboratory"]]
        op = _SAME.get(row["op"], row["op"])
        for keep in (
            (left_in["op"] == op) & (left_in["format"] == row["format"]), left_in["op"] == op,
        ):  # fmt: skip
            if keep.any():
                return float(left_in["ratio"][keep].median())
        return np.nan

    keys = judged[_KEYS].drop_duplicates()
    values = {tuple(row[_KEYS]): constant(row) for _, row in keys.iterrows()}
    return judged["roofline_s"] * [values[tuple(row)] for row in judged[_KEYS].to_numpy()]


# parts of the price: what each stands for, and what takes its place where it is off
PARTS: dict[str, list[tuple[Any, str, Any]]] = {
    "networks of other devices": [
        (FamilyPrior, "trunk", lambda self, rows, on, params=None: _no_trunk(self, rows, on)),
    ],
    "bounds": [(family, "_bounds", lambda *arguments: [])],
    "products no quicker than those inside": [(family, "_short_of_contained", lambda *_: 0.0)],
    "products between whole tiles": [(gemm, "_TILED_BYTES", 0.0)],
    "libraries of attention": [(families, "library_of", lambda word, arch: None)],
    "libraries of loops over rows": [
        (families, "row_work", lambda op, machine, library="": row_work(op, machine)),
    ],
    "power": [(machine_facts, "held_share", lambda device: 1.0),
              (scores, "held_share", lambda device: 1.0)],
    "doubled lanes": [(machine_facts, "lanes_share", lambda device: 1.0),
                      (borrowed, "lanes_share", lambda device: 1.0)],
    "share of AMD's": [(machine_facts, "_OF_NVIDIAS_SHARE", 1.0),
                       (machine_facts, "_OF_NVIDIAS_MEMORY", 1.0)],
}  # fmt: skip


def _no_trunk(prior: FamilyPrior, rows: Any, on: Any) -> tuple[Any, Any, Any]:
    x = prior.standard.inputs(rows, on)
    return x, np.zeros(len(x)), np.zeros(len(x))


def ablation(judged: pd.DataFrame, way: str) -> pd.DataFrame:
    """Means over groups of median errors by op, with all of the price and with a part off; parts
    that change nothing of an op are left out.
    """

    def errors() -> pd.Series:
        told = priced(judged, way)
        told["error"] = (told["predicted_s"] / told["time_s"] - 1).abs()
        return told.groupby(_KEYS, sort=False)["error"].median()

    whole, lines = errors(), []
    for part, replaced in PARTS.items():
        before = [(where, name, getattr(where, name)) for where, name, _ in replaced]
        for where, name, value in replaced:
            setattr(where, name, value)
        try:
            without = errors()
        finally:
            for where, name, value in before:
                setattr(where, name, value)
        for op in ["all", *dict.fromkeys(whole.index.get_level_values("op"))]:
            keep = whole.index.get_level_values("op") == op if op != "all" else slice(None)
            both = whole[keep].mean(), without[keep].mean()
            if op == "all" or abs(both[0] - both[1]) > _TOLD:
                lines.append((part, op, len(whole[keep]), *(round(float(one), 4) for one in both)))
    return pd.DataFrame(lines, columns=["part", "op", "groups", "error", "error_without"])


def main() -> None:
    """Print a line per group, and medians over groups by op."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = os.environ.get("HYBRIDPERF_DATA", "../shared/data")
    parser.add_argument("--data", default=default)
    parser.add_argument("--way", default="name", choices=("name", "prior"))
    parser.add_argument("--rows", type=int, default=150)
    parser.add_argument("--out", help="csv of the judged rows")
    parser.add_argument("--ablation", action="store_true", help="each part switched off in turn")
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args()
    data = Path(asked.data)
    first, second = (read_groups(folder, asked.rows) for folder in (data, data / "added"))
    known = {table.source for table in FILES.values()}
    priors = load_prior(DEFAULT_PRIOR).families.values()
    seen = {device for one in priors for device in one.population.devices}
    new = ~second["device"].map(lambda name: name in seen or is_shipped(name))
    stranger = ~second["laboratory"].isin(known) | new
    judged = second[stranger]
    names = judged[_KEYS].agg(" ".join, axis=1)
    if asked.words:
        judged = judged[names.map(lambda name: any(word in name for word in asked.words))]
    if asked.ablation:
        lines = ablation(judged, asked.way)
        if asked.out:
            lines.to_csv(asked.out, index=False)
        print(lines.to_string(index=False))
        return
    judged = priced(judged, asked.way)
    measured = priced(pd.concat([first, second]), "datasheet")
    judged["constant_s"] = constants(judged, measured)
    judged["error"] = (judged["predicted_s"] / judged["time_s"] - 1).abs()
    judged["constant"] = (judged["constant_s"] / judged["time_s"] - 1).abs()
    judged["bias"] = np.log(judged["predicted_s"] / judged["time_s"])
    inside = judged["time_s"].between(judged["low_s"], judged["high_s"])
    judged["inside"] = inside.where(judged["low_s"].notna()).astype(float)
    judged["half"] = np.sqrt(judged["high_s"] / judged["low_s"])
    if asked.out:
        judged.to_csv(asked.out, index=False)
    print(table(judged, _KEYS).to_string(index=False))
    groups = judged.groupby(_KEYS, sort=False)
    of_groups = groups[["error", "constant", "half", "bias"]].median()
    of_groups["inside"] = groups["inside"].mean()
    print("\nmeans over groups of medians, by op")
    summary = of_groups.groupby("op").mean()
    summary.loc["all"] = of_groups.mean()
    summary["groups"] = [*of_groups.groupby("op").size(), len(of_groups)]
    print(summary.to_string(float_format=lambda one: f"{one:.3f}"))
    print(f"median of all groups {text.percent(of_groups['error'].median())}, constant"
          f" {text.percent(of_groups['constant'].median())}; of all {len(judged)} rows"
          f" {text.percent(judged['error'].median())}, {text.percent(judged['constant'].median())};"
          f" inside {text.percent(judged['inside'].mean())}")  # fmt: skip


def table(judged: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """A line per group."""
    groups = judged.groupby(keys, sort=False)
    lines = groups[["error", "constant", "bias", "half"]].median()
    lines = lines.assign(inside=groups["inside"].mean(), rows=groups.size()).round(3)
    return lines.reset_index()


if __name__ == "__main__":
    main()
