"""Published measurements of ops, and why some rows cannot be used.

Each table of `data/compute` belongs to a source (`sources.toml`: who measured it, under which
license) and is read into rows that `ops` understands: `device, op, dtype`, the op's dimensions,
`time_s`, words of the implementation, and `split` where the authors had one. Every row that is left
out is counted under one sentence. Rows become `DeviceRows`: what a prior sees of one family of ops
on one GPU.

Shapes fall on one of two sides by a hash of their dimensions alone, so that a shape measured on
several devices, under two frameworks or in two number formats is on the same side everywhere: 40 %
are for tests, 60 % for training (the pool).

Convolutions of NeuSight were timed while something grew: in the order of its table the quickest of
each eighth rise in a line, from 0.15 ms to 0.8 ms on a P100, on all four GPUs, and no size goes
with the order. That line is taken off.
"""

from __future__ import annotations

import ast
import dataclasses
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hybridperf.hardware import DeviceSpec, load_device
from hybridperf.io import InputError, read_table, require_columns
from hybridperf.io.documents import shipped_toml
from hybridperf.io.provenance import origin
from hybridperf.learning.prior import FamilyRows, concatenate
from hybridperf.model.families import by_family, family_rows, gpu_of
from hybridperf.ops import Op
from hybridperf.ops.table import parse_ops
from hybridperf_calibration.published import sparse

TEST_PERCENT = 40
_LEAST_TICKS = 5  # of a source's clock: below, rounding alone makes an error of up to 10 %
# parts of a table and quantiles of their times by which a drift is found, and the least share of a
# time that may be left without it
_DRIFT_PARTS, _DRIFT_QUANTILES, _LEAST_WITHOUT = 8, (0.03, 0.1), 0.25
# of an op's dimensions, those that say which op or implementation it is rather than how large
_NOT_SHAPE = frozenset({
    "bias", "transposed_a", "transposed_b", "inputs", "element_flops", "element_transcendentals",
    "gated", "causal", "pooled",
})  # fmt: skip
_WORDS = ("framework", "quant", "kv_dtype")


_SHIPPED = shipped_toml("hybridperf_calibration.published", "sources.toml")


class Table(NamedTuple):
    """A table of `data/compute`."""

    source: str
    families: Sequence[str]  # that it holds rows of: only those asked for are read
    drifts: bool = False
    without_tf32: bool = False  # whether cuDNN was told to multiply its fp32 as such


CALIBRATED: tuple[str, ...] = tuple(_SHIPPED["calibrated"])  # devices of which enough is measured
FILES = {name: Table(**one) for name, one in _SHIPPED["tables"].items()}
MODEL_OPS = "neusight_model_ops"
ADDED = "added"  # folder of the data's second delivery
# whose kernels ran, of ops that libraries run by different plans (`ops/rows.toml`), where a table
# does not say
_LIBRARIES = {"ln": "pytorch", "softmax": "pytorch", "rmsnorm": "vllm_2023"}


def provenance(names: Iterable[str]) -> dict[str, Any]:
    """What a shipped calibration records of the sources that it was made from."""
    cited = ("repository", "commit", "license")
    every = {one: {word: _SHIPPED["sources"][one][word] for word in cited} for one in names}
    return {**origin(None), "made_by": "hybridperf calibrations", "sources": every}


@dataclasses.dataclass(frozen=True)
class DeviceRows:
    """Rows of one family on one device. N rows."""

    rows: FamilyRows
    time_s: np.ndarray  # [N]
    # [N] file, op, dtype, framework, quant, kv_dtype, split, shape (hash, uint64), test (its side),
    # row (of the table)
    about: pd.DataFrame

    def __len__(self) -> int:
        return len(self.time_s)

    def some(self, keep: np.ndarray) -> DeviceRows:
        """Some of the rows: a mask or positions."""
        at = np.flatnonzero(keep) if keep.dtype == bool else keep
        return DeviceRows(
            self.rows.rows(at), self.time_s[at], self.about.iloc[at].reset_index(drop=True)
        )


@dataclasses.dataclass(frozen=True)
class PublishedRows:
    """Everything usable of some families, and what was left out."""

    families: dict[str, dict[str, DeviceRows]]  # [family][device]
    left_out: dict[str, dict[str, int]]  # [file][reason] rows


def require_data(data: Path) -> None:
    """`InputError` where a folder is not the data folder."""
    if not (data / "compute").is_dir():
        raise InputError(
            f"expected the measured data in {data} (with a folder compute), found none; give"
            " --data DIR"
        )


def table_path(data: Path, name: str) -> Path:
    """Where a table lies in the data folder."""
    if name in FILES and FILES[name].source == sparse.SOURCE:
        return sparse.table_path(data, name)
    return data / "compute" / f"{name}.csv.gz"


def read_rows(data: Path, name: str) -> tuple[pd.DataFrame, dict[str, int]]:
    """(usable rows of one table as `ops` reads them, rows left out by reason)."""
    source, _, drifts, _ = FILES[name]
    frame = _whole_table(data, name)
    frame = sparse.spmm_rows(frame) if source == sparse.SOURCE else frame
    require_columns(frame, ["device", "op", "dtype", "time_s"], f"{name} of {source}")
    frame = frame.rename(columns={"neusight_split": "split"})
    known = frame["op"].map(_LIBRARIES).fillna("")
    frame = frame.assign(framework=known) if known.any() else frame
    left_out: Counter[str] = Counter()
    if "throttled" in frame.columns:
        frame = _keep(frame, frame["throttled"] != 1, "the card was thermally throttled", left_out)
    if drifts:
        kept_s = frame["time_s"] - frame.groupby("device")["time_s"].transform(_drift_s)
        most = kept_s >= _LEAST_WITHOUT * frame["time_s"]
        reason = "most of the time is the drift of the table's timer"
        frame = _keep(frame.assign(time_s=kept_s), most, reason, left_out)
    if tick_s := _SHIPPED["sources"][source].get("resolution_s"):
        long_enough = frame["time_s"] >= (_LEAST_TICKS - 0.5) * tick_s
        reason = f"less than {_LEAST_TICKS * tick_s * 1e6:g} µs by a clock of {tick_s * 1e6:g} µs"
        frame = _keep(frame, long_enough, reason, left_out)
    positive = np.isfinite(frame["time_s"]) & (frame["time_s"] > 0)
    frame = _keep(frame, positive, "the time is no number above zero", left_out)
    for device in frame["device"].unique():
        if why := _no_gpu(str(device)):
            frame = _keep(frame, frame["device"] != device, why, left_out)
    return frame.reset_index(drop=True), dict(left_out)


def _whole_table(data: Path, name: str) -> pd.DataFrame:
    """A table, and of its second delivery the devices that the first one lacks."""
    frame = read_table(table_path(data, name))
    path = table_path(data / ADDED, name)
    if "device" not in frame or not path.is_file():
        return frame
    added = read_table(path)
    new = ~added["device"].isin(frame["device"].unique())
    return pd.concat([frame, added[new]], ignore_index=True) if new.any() else frame


def _drift_s(time_s: pd.Series) -> np.ndarray:
    """Seconds [N] that a device's timer added by the time it came to each row of a table: a line
    through the quickest of its parts, zero at the first row.
    """
    at = np.arange(len(time_s)) / len(time_s)
    parts = time_s.groupby((at * _DRIFT_PARTS).astype(int).tolist())
    centres = (np.arange(parts.ngroups) + 0.5) / _DRIFT_PARTS
    slopes = [np.polyfit(centres, parts.quantile(one), 1)[0] for one in _DRIFT_QUANTILES]
    return np.asarray(max(float(np.mean(slopes)), 0.0) * at)


def read_families(data: Path, families: Iterable[str]) -> PublishedRows:
    """Rows of some families on every GPU of the data folder; missing tables are listed by name."""
    wanted = set(families)
    parts: dict[tuple[str, str], list[DeviceRows]] = {}
    left_out: dict[str, dict[str, int]] = {}
    for name, table in FILES.items():
        if not wanted & set(table.families):
            continue
        if not table_path(data, name).is_file():
            left_out[name] = {"the table is not there": 0}
            continue
        frame, left_out[name] = read_rows(data, name)
        for device, rows in frame.groupby("device"):
            counted, spec = Counter(left_out[name]), load_device(str(device))
            for family, part in device_rows(rows.reset_index(drop=True), spec, name, counted):
                if family in wanted:
                    parts.setdefault((family, str(device)), []).append(part)
            left_out[name] = dict(counted)
    found: dict[str, dict[str, DeviceRows]] = {}
    for (family, device_id), some in parts.items():
        found.setdefault(family, {})[device_id] = DeviceRows(
            concatenate([part.rows for part in some]),
            np.concatenate([part.time_s for part in some]),
            pd.concat([part.about for part in some], ignore_index=True),
        )
    return PublishedRows(found, left_out)


def device_rows(
    frame: pd.DataFrame, device: DeviceSpec, name: str, left_out: Counter[str]
) -> list[tuple[str, DeviceRows]]:
    """(family, rows) of one table and device; counts in `left_out` what no op or family fits."""
    in_fp32 = name in FILES and FILES[name].without_tf32
    try:
        parsed = parse_ops(frame, _without_tf32(device) if in_fp32 else device)
    except InputError as error:  # not one row can be read
        left_out[_reason(str(error))] += len(frame)
        return []
    left_out.update(Counter(_reason(text) for text in parsed.problem if text))
    out = []
    for part in parsed.parts:
        for family, keep in by_family(part):
            at = part.rows[keep]
            if not family:
                left_out["no family of ops knows it"] += len(at)
                continue
            given = frame.iloc[at]
            shape = shape_hash(family, part.op, len(part.rows))[keep]
            about = pd.DataFrame({
                "file": name, "op": part.name, "dtype": part.op.dtype,
                **{word: _text(given, word) for word in (*_WORDS, "split")}, "shape": shape,
                "test": is_test(shape), "row": at,
            })  # fmt: skip
            time_s = given["time_s"].to_numpy(np.float64)
            out.append((family, DeviceRows(family_rows(part, keep, device), time_s, about)))
    return out


def _without_tf32(device: DeviceSpec) -> DeviceSpec:
    """A GPU whose library does not choose TF32 for single precision."""
    peaks = {name: peak for name, peak in device.peak_flops_per_s.items() if name != "tf32"}
    return device.model_copy(update={"peak_flops_per_s": peaks})


def shape_hash(family: str, op: Op, rows: int) -> np.ndarray:
    """A number per row [rows], uint64, of the family and the op's sizes; alike on every machine."""
    out = np.full(rows, zlib.crc32(family.encode()), np.uint64)
    for name in sorted(op.dimensions()):
        if name in _NOT_SHAPE:
            continue
        size = np.asarray(getattr(op, name), np.float64)
        values = np.broadcast_to(size, (rows,)) + 0.0  # no negative zero
        out = _mixed(out ^ np.uint64(zlib.crc32(name.encode())))
        out = _mixed(out ^ np.ascontiguousarray(values).view(np.uint64))
    return out


def is_test(shape: np.ndarray) -> np.ndarray:
    """Which shapes are for tests."""
    return (shape >> np.uint64(11)) % np.uint64(100) < TEST_PERCENT


def _mixed(x: np.ndarray) -> np.ndarray:
    """Bits stirred: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _keep(
    frame: pd.DataFrame, keep: pd.Series, reason: str, left_out: Counter[str]
) -> pd.DataFrame:
    if dropped := int((~keep).sum()):
        left_out[reason] += dropped
    return frame[keep]


def _no_gpu(name: str) -> str | None:
    """Why nothing measured on a device can be used; None where it can."""
    try:
        device = load_device(name)
    except InputError:
        return f"no facts of the device {name} are known"
    if device.kind != "gpu":
        return "the device is no GPU"
    return None if gpu_of(device) else f"the multiprocessors or the L2 size of {name} are not known"


def _reason(problem: str) -> str:
    """A problem without the values of its row."""
    first = problem.removeprefix("no row of the table can be read; the first one: ")
    return first.split(", got ")[0]


def _text(frame: pd.DataFrame, column: str) -> np.ndarray:
    if column not in frame.columns:
        return np.full(len(frame), "", object)
    return frame[column].fillna("").astype(str).to_numpy(object)


# --- ops inside models ----------------------------------------------------------------------------

_UNARY = {"add": "addu", "mul": "mulu", "div": "divu", "pow": "powu"}


def read_model_ops(data: Path) -> tuple[pd.DataFrame, dict[str, int]]:
    """(NeuSight's table of ops inside models with our columns added, rows left out by reason).

    Ops come with the shapes of their inputs and result instead of dimensions. A second operand that
    is smaller than the result is broadcast and costs no traffic of its own: such an op is the one
    with a scalar operand.
    """
    frame = read_table(table_path(data, MODEL_OPS))
    rows, left_out, kept = [], Counter[str](), []
    columns = (frame[name] for name in ("op", "InputShapes", "OutputShape"))
    for at, (name, inputs, result) in enumerate(zip(*columns, strict=True)):
        try:
            shapes = [tuple(shape) for shape in ast.literal_eval(inputs)]
            rows.append(_model_op(str(name), shapes, tuple(ast.literal_eval(result))))
            kept.append(at)
        except (InputError, ValueError, SyntaxError, TypeError, IndexError):
            left_out[f"the shapes of {name} fit no op of ours"] += 1
    given = frame.iloc[kept].rename(columns={"op": "neusight_op"}).reset_index(drop=True)
    return pd.concat([given, pd.DataFrame(rows)], axis=1), dict(left_out)


def _model_op(
    name: str, inputs: list[tuple[int, ...]], result: tuple[int, ...]
) -> dict[str, object]:
    """One op's name and dimensions."""
    rows = float(np.prod(result[:-1]))
    if name == "Linear":
        matrices = [shape for shape in inputs if len(shape) > 1]  # `addmm` names its bias first
        return {"op": "linear", "m": rows, "n": float(result[-1]), "k": float(matrices[0][-1])}
    if name == "BMM":
        left, right = inputs
        if left[-1] != right[-2]:
            raise InputError("the matrices do not fit")
        batch, m, n, k = np.prod(left[:-2]), left[-2], right[-1], left[-1]
        return {"op": "bmm", "batch": float(batch), "m": float(m), "n": float(n), "k": float(k)}
    if not name.startswith("VEC"):
        raise InputError(f"unknown op {name}")
    kind = name.removeprefix("VEC")
    if kind in _UNARY and min(np.prod(shape) for shape in inputs) < np.prod(result):
        kind = _UNARY[kind]
    library = {"framework": _LIBRARIES[kind]} if kind in _LIBRARIES else {}
    return {"op": kind, "rows": rows, "cols": float(result[-1]), **library}
