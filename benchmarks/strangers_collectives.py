"""Collectives of systems and sites that no fit has seen, nothing fitted, next to two baselines.

    python -m benchmarks.strangers_collectives [--data DIR] [--only WORDS] [--out FILE]

WORDS are some of, with commas:

    logs     logs of sites (DIR/added/collectives/published_logs)
    systems  measured systems of the second delivery that neither the prior nor a calibration is of
    racks    one NVLink domain and two of them, 8 to 144 ranks: bus bandwidth over the port's rate
    experts  tokens to their experts and back: kernels by knobs of all other systems, and of other
             numbers of nodes (`collectives/experts.py`)

A group is a system, collective, library and number of nodes. Errors are |predicted / measured - 1|;
`width` is high / low of the 90 % interval, its median.

    datasheet  latency + bytes at the datasheet's rates (alpha-beta)
    ring_tree  five numbers of a collective, fitted to all systems of the first delivery
               (`benchmarks/claims/collective_baselines.py`)
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pandas as pd

from benchmarks.claims import collective_baselines, collective_judge, collectives, harness
from hybridperf.collectives.fit import collectives_by_name
from hybridperf.collectives.model import find_collectives
from hybridperf.hardware import load_system, system_names
from hybridperf.io import InputError, read_table
from hybridperf.learning.prior.shipped import load_prior
from hybridperf_calibration.published.collectives import FOLDER, MEASURED

LOGS, MORE = "published_logs.csv.gz", "collectives.csv.gz"
PARTS = ("logs", "systems", "racks", "experts")
_MOST_ROWS = 400  # of a system
_RANKS, _BYTES = (8, 16, 36, 72, 144), 2.0**30
_MEASURED = ["time_min_s", "time_mean_s", "time_std_s", "busbw_log", "time_s"]
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")


def scored(rows: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Usable rows with what we and the baselines say of them."""
    usable, _ = collective_judge.usable(rows, "rows")
    parts = []
    tree = collective_baselines.fit_all(usable.iloc[:0], others, only=("ring_tree",))["ring_tree"]
    for system, part in usable.groupby("system"):
        asked = part.drop(columns=_MEASURED)
        said = collectives_by_name(str(system)).predict(asked)
        parts.append(said.assign(time_s=part["time_s"], ring_tree_s=np.exp(tree(part))))
    return pd.concat(parts, ignore_index=True)


def table(said: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """A line for each group, and one of all rows and groups."""
    time_s = said["time_s"]
    said = said.assign(
        error=(said["predicted_s"] / time_s - 1).abs(),
        datasheet=(said["roofline_s"] / time_s - 1).abs(),
        ring_tree=(said["ring_tree_s"] / time_s - 1).abs(),
        ratio=said["predicted_s"] / time_s,
        inside=time_s.between(said["low_s"], said["high_s"]),
        width=said["high_s"] / said["low_s"],
    )
    groups = said.groupby(keys).agg(
        rows=("error", "size"), median=("error", "median"), mean=("error", "mean"),
        ratio=("ratio", "median"), datasheet=("datasheet", "median"),
        ring_tree=("ring_tree", "median"), inside=("inside", "mean"), width=("width", "median"),
    ).reset_index()  # fmt: skip
    names = ("error", "datasheet", "ring_tree")
    rows = " / ".join(f"{name} {said[name].median():.1%} {said[name].mean():.1%}" for name in names)
    print(f"rows, median and mean: {rows}; inside {said['inside'].mean():.1%},"
          f" width {said['width'].median():.2f}")  # fmt: skip
    columns = ("median", "datasheet", "ring_tree")
    means = " / ".join(f"{name} {groups[name].mean():.1%}" for name in columns)
    print(f"mean of {len(groups)} groups' medians: {means}")
    print(groups.round(3).to_string(index=False))
    return said


def _racks() -> None:
    racks = [name for name in system_names() if load_system(name).domain_accelerators]
    print("share of the port's rate (a rank's NVLink inside a domain, its NIC's across):")
    for name in racks:
        model = collectives_by_name(name)
        spec = model.system
        rows = [(kind, n) for kind in _COLLECTIVES for n in _RANKS]
        frame = pd.DataFrame(rows, columns=["collective", "n_gpus"]).assign(bytes=_BYTES)
        said = model.predict(frame)
        port = np.array([spec.link_bytes_per_s(n) for n in said["n_gpus"]])
        said["share"] = said["bus_bytes_per_s"] / port
        print(name)
        print(said.pivot_table(index="collective", columns="n_gpus", values="share").round(2))


def _strangers(frame: pd.DataFrame) -> pd.DataFrame:
    met = load_prior("collectives_prior").families["collectives"].population.devices
    known = {name for name in frame["system"].unique() if name in met or find_collectives(name)}
    frame = frame[~frame["system"].isin(known)]
    shuffled = frame.sample(frac=1.0, random_state=0)
    return shuffled[shuffled.groupby("system").cumcount() < _MOST_ROWS].sort_index()


def _tables(data: Path, only: list[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    added = data / "added" / FOLDER
    if "logs" in only:
        yield "logs", read_table(added / LOGS)
    if "systems" in only:
        yield "systems", _strangers(read_table(added / MORE))


def main() -> None:
    """Print each part; data that is missing is one sentence."""
    try:
        _judge()
    except InputError as error:
        raise SystemExit(f"strangers_collectives: {error}") from error


def _judge() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    default = os.environ.get("HYBRIDPERF_DATA", "../shared/data")
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    only, kept = options.only.split(","), []
    if wrong := [name for name in only if name not in PARTS]:
        parser.error(f"expected --only of {', '.join(PARTS)}, got {wrong[0]!r}")
    others, _ = collective_judge.usable(read_table(options.data / FOLDER / MEASURED), MEASURED)
    for name, rows in _tables(options.data, only):
        print(f"\n== {name}")
        kept.append(table(scored(rows, others), ["system", "collective", "lib", "n_nodes"]))
    if "racks" in only:
        print("\n== racks")
        _racks()
    if "experts" in only:
        print("\n== experts")
        print(harness.lines_table(collectives.expert_lines(options.data), "rows"))
    if options.out and kept:
        pd.concat(kept).to_csv(options.out, index=False)


if __name__ == "__main__":
    main()
