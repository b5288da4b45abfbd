"""Whether growing work is never cheaper: pairs of ops of which one has twice as much of one size.

    python benchmarks/doublings.py [--models NAME ...] [--ops WORD ...] [--out FILE]
    python benchmarks/doublings.py --measured [--data DIR]

Every shipped calibration of a GPU prices products, attention, experts, norms and loops over a grid
of sizes; each op stands next to the one with a size doubled, which does all that the first does. A
line per device, op, number format and size tells how many of the pairs come out cheaper by more
than 0.1 % and by more than 5 %, and how many of the latter lie wholly within what was measured,
where the rows themselves may say so.

They do: kernels are chosen by size, and the next larger one may be the better. `--measured` counts
the pairs of rows that differ in nothing but a doubled size, by op and size.
"""

import argparse
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pandas as pd

from hybridperf.io import InputError
from hybridperf.model.files import shipped
from hybridperf.report import text
from hybridperf_calibration.published.ops import FILES, read_rows, table_path

_SLIGHT, _LARGE = 1e-3, 0.05
# op: (number formats and schemes, sizes that grow with their values, what goes with them)
_PRODUCT = {"m": [1, 16, 96, 512, 4096], "n": [256, 1536, 4096, 16384], "k": [256, 2048, 8192]}
_ROWS = {"rows": [32, 1000, 8192, 131072], "cols": [64, 768, 4096, 16384]}
_PREFILL = {"batch": [1, 4, 16], "q_len": [64, 1024, 8192], "heads": [4, 16, 48]}
GRIDS: dict[str, tuple[list[dict[str, str]], dict[str, list[int]], dict[str, int]]] = {
    "gemm": (
        [{"dtype": "fp32"}, {"dtype": "bf16"}, {"dtype": "fp8"},
         {"dtype": "bf16", "quant": "fp8_block"}],
        _PRODUCT, {},
    ),
    "linear": ([{"dtype": "fp32"}], _PRODUCT, {}),
    "bmm": ([{"dtype": "fp32"}, {"dtype": "bf16"}], {"batch": [2, 24, 96], **_PRODUCT}, {}),
    "generation_attention": (
        [{"dtype": "bf16"}],
        {"batch": [1, 8, 64], "kv_len": [128, 2048, 16384], "heads": [8, 32, 64],
         "kv_heads": [1, 2, 4]},
        {"head_dim": 128, "q_len": 1},
    ),
    "context_attention": ([{"dtype": "bf16"}], _PREFILL, {"head_dim": 128}),
    "encoder_attention": ([{"dtype": "bf16"}], _PREFILL, {"head_dim": 64}),
    "moe": (
        [{"dtype": "bf16"}, {"dtype": "bf16", "quant": "fp8_block"}],
        {"tokens": [1, 16, 256, 4096], "hidden": [2048, 6144], "inter": [768, 2048],
         "topk": [2, 4], "experts": [8, 64]},
        {"moe_tp": 1, "moe_ep": 1},
    ),
    "softmax": ([{"dtype": "fp32"}], _ROWS, {}),
    "ln": ([{"dtype": "fp32"}, {"dtype": "bf16"}], _ROWS, {}),
    "rmsnorm": ([{"dtype": "bf16"}], _ROWS, {}),
    "add": ([{"dtype": "fp32"}, {"dtype": "bf16"}], _ROWS, {}),
    "scale_matrix": ([{"dtype": "bf16", "quant": "fp8"}], _ROWS, {}),
}  # fmt: skip


def pairs(op: str, words: dict[str, str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """(size that doubles, rows before and after in turn) of an op."""
    _, sizes, beside = GRIDS[op]
    for grown in sizes:
        rows = []
        for values in itertools.product(*sizes.values()):
            before = {"op": op, **words, **beside, **dict(zip(sizes, values, strict=True))}
            if op.endswith("attention"):
                before.setdefault("kv_len", before["q_len"])
                before.setdefault("kv_heads", before["heads"])
            after = before | {grown: 2 * before[grown]}
            if grown == "q_len" and op != "generation_attention":
                after["kv_len"] = 2 * before["kv_len"]
            if grown == "heads" and op != "generation_attention":
                after["kv_heads"] = 2 * before["kv_heads"]
            rows += [before, after]
        yield grown, pd.DataFrame(rows)


def counted(model: Any, op: str, words: dict[str, str]) -> Iterator[dict[str, Any]]:
    """A line per size of an op on a device; none where the device has no such op."""
    for grown, rows in pairs(op, words):
        try:
            told = model.predict_ops(rows)
        except InputError:
            return
        before_s, after_s = told["predicted_s"].to_numpy(float).reshape(-1, 2).T
        within = told["in_range"].to_numpy(bool).reshape(-1, 2).all(1)
        fall = 1 - after_s / before_s
        yield {
            "device": model.device.id, "op": op, "format": " ".join(words.values()), "size": grown,
            "pairs": int(np.isfinite(fall).sum()), "cheaper": int((fall > _SLIGHT).sum()),
            "by_5_percent": int((fall > _LARGE).sum()),
            "within_measured": int(((fall > _LARGE) & within).sum()),
            "most": round(float(np.nanmax(fall)), 3),
        }  # fmt: skip


def measured(data: Path) -> pd.DataFrame:
    """A line per op and size of how many pairs of measured rows come out cheaper, of tables whose
    ops are among `GRIDS`.
    """
    found = []
    for name in FILES:
        if not table_path(data, name).is_file():
            continue
        rows, _ = read_rows(data, name)
        rows = rows[rows["op"].isin(GRIDS)]
        for op, of_op in rows.groupby("op"):
            told = of_op.dropna(axis=1, how="all").drop(columns=[*_COUNTED & {*of_op}])
            for size in GRIDS[str(op)][1]:
                if size in told:
                    pairs, cheaper, large = _falls(told, size)
                    found.append((op, size, pairs, cheaper, large))
    lines = pd.DataFrame(found, columns=["op", "size", "pairs", "cheaper", "by_5_percent"])
    return lines.groupby(["op", "size"], sort=False).sum().reset_index()


_COUNTED = {"flops", "bytes", "split", "source"}  # columns of a row that its sizes give


def _falls(rows: pd.DataFrame, size: str) -> tuple[int, int, int]:
    """(pairs of rows one of which has twice as much of a size, those that are cheaper, by 5 %)."""
    beside = {"q_len": "kv_len", "heads": "kv_heads"}.get(size, "")
    if beside in rows and rows["op"].iloc[0] != "generation_attention":
        rows = rows[rows[beside] == rows[size]].drop(columns=beside)  # they grow together
    alike = [name for name in rows if name != "time_s"]
    rows = rows.astype({size: float}).fillna(dict.fromkeys(alike, -1))
    times = rows.groupby(alike, sort=False)["time_s"].median().reset_index()
    half = times.assign(**{size: times[size] / 2})
    pairs = times.merge(half, on=alike, suffixes=("", "_after"))
    fall = 1 - pairs["time_s_after"] / pairs["time_s"]
    return len(pairs), int((fall > _SLIGHT).sum()), int((fall > _LARGE).sum())


def main() -> None:
    """Print the classes with the most pairs, and how many there are of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", help="shipped calibrations; all if not given")
    parser.add_argument("--ops", nargs="*", choices=sorted(GRIDS), help="all if not given")
    parser.add_argument("--out", help="csv of every line")
    parser.add_argument("--measured", action="store_true", help="pairs of measured rows instead")
    parser.add_argument("--data", default=os.environ.get("HYBRIDPERF_DATA", "../shared/data"))
    asked = parser.parse_args()
    if asked.measured:
        lines = measured(Path(asked.data))
        print(lines.to_string(index=False))
        counts = lines[["pairs", "cheaper", "by_5_percent"]].sum()
        shares = (text.percent(counts[name] / counts["pairs"]) for name in counts.index[1:])
        print("\n{:,} pairs: {} cheaper by over 0.1 %, {} by over 5 %".format(
            counts["pairs"], *shares
        ))  # fmt: skip
        return
    models = [one for one in shipped() if one.device.kind == "gpu"]
    if unknown := {*(asked.models or ())} - {one.device.id for one in models}:
        raise SystemExit(f"doublings: no calibration of {sorted(unknown)[0]} is shipped")
    lines = pd.DataFrame([
        line
        for model in models if not asked.models or model.device.id in asked.models
        for op in asked.ops or GRIDS
        for words in GRIDS[op][0]
        for line in counted(model, op, words)
    ])  # fmt: skip
    if asked.out:
        lines.to_csv(asked.out, index=False)
    worst = lines[lines["cheaper"] > 0].sort_values(["by_5_percent", "cheaper"], ascending=False)
    print(worst.head(40).to_string(index=False))
    counts = lines[["pairs", "cheaper", "by_5_percent", "within_measured"]].sum()
    print(f"\n{counts['pairs']:,} pairs: {counts['cheaper']:,}"
          f" ({text.percent(counts['cheaper'] / counts['pairs'])}) cheaper by over 0.1 %,"
          f" {counts['by_5_percent']:,} by over 5 %, {counts['within_measured']:,} of these within"
          " what was measured")  # fmt: skip


if __name__ == "__main__":
    main()
