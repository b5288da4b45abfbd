"""Lookups of GPUs left out, by what other GPUs' caches show (`model/lookup_prior.py`), next to what
Lin et al. measured.

    memory, L2    bandwidths of five GPUs, by microbenchmarks
    kernels       lookups of recorded sequences on a V100
    active        what DLRM_default's published active seconds leave besides other kernels and the
                  copy of the batch, on each GPU. Other kernels of the two DLRMs are of the same
                  kinds: those of one GPU and batch take as much longer than predicted in both.

A GPU is left out with those of its architecture; a row is inside where the 90 % interval of the
prior without them holds it. The baseline is the datasheet's roofline.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.claims import lin_data as lin
from benchmarks.claims import lin_single
from benchmarks.claims.harness import ResultLine
from benchmarks.claims.lin_kernels import KernelPrices
from hybridperf.hardware import DeviceSpec, load_device
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.model import lookup_prior as prior
from hybridperf.model.lookup_prior import MEASURED, LookupPrior
from hybridperf.ops.embedding_bag import Direction, EmbeddingBag, EmbeddingBagBackward, lookup_calls

DIRECTIONS: dict[str, Direction] = {
    "LookupFunction": "forward", "LookupFunctionBackward": "backward",
}  # fmt: skip
_GPUS = {"V100": "v100_sxm2", "P100": "p100_pcie_16g", "Xp": "titanxp"}
# of copies to the device, as their pipeline has it, over the V100's
_COPIES = {"V100": 1.0, "P100": 7.62 / 8.1, "Xp": 3.43 / 8.1}
_MODELS = "DLRM_default", "DLRM_MLPerf"


def held_out(data: Path, by_gpu: Mapping[str, KernelPrices], kernels: pd.DataFrame) -> pd.DataFrame:
    """One row a figure: `device, what, measured, predicted, low, high, roofline` (seconds; of
    bandwidths bytes per second).

    Args:
        data: the folder of measured data.
        by_gpu: prices of kernels of the published GPUs.
        kernels: of recorded sequences, from `lin_single.kernels`.
    """
    by_lin = [name for name, one in MEASURED.items() if np.isfinite(one.l2_bytes_per_s)]
    rows = [row for name in by_lin for row in _bandwidths(name)]
    device = _locked("v100_sxm2")
    found = kernels[kernels["op"].isin(DIRECTIONS)].drop_duplicates(["workload", "op"])
    for one in found.itertuples():
        ops = _lookups(one.workload, 2048, (DIRECTIONS[one.op],))
        what = f"{one.workload} {DIRECTIONS[one.op]} {2048}"
        rows.append(_row(device, what, one.measured_s, ops))
    for gpu, batch, seconds in _left_in_steps(data, by_gpu):
        ops = _lookups(_MODELS[0], batch, tuple(DIRECTIONS.values()))
        rows.append(_row(_locked(_GPUS[gpu]), f"{_MODELS[0]} active {batch}", seconds, ops))
    made = pd.DataFrame(rows)
    return made.assign(inside=made["measured"].between(made["low"], made["high"]))


def result_lines(found: pd.DataFrame) -> list[ResultLine]:
    """What was found of bandwidths and of lookups."""
    rates = found["what"].str.endswith("GB/s")
    lines = []
    for name, part in (("bandwidths", found[rates]), ("lookups", found[~rates])):
        errors = (part["predicted"] / part["measured"] - 1).abs()
        roofline = (part["roofline"] / part["measured"] - 1).abs().mean()
        width = np.sqrt(part["high"] / part["low"]).mean() - 1
        lines.append(ResultLine(
            f"GPUs left out: {name}", float(errors.mean()), len(part), None,
            {"roofline": None if np.isnan(roofline) else float(roofline)},
            coverage=float(part["inside"].mean()), half_width=float(width),
        ))  # fmt: skip
    return lines


def _bandwidths(name: str) -> list[dict[str, object]]:
    device, one = load_device(name), MEASURED[name]
    others = LookupPrior.of(_alike(device))
    unit = (device.memory_bytes_per_s, one.clock_hz * (device.multiprocessors or 0))
    measured = (one.memory_bytes_per_s, one.l2_bytes_per_s)
    roofline = (device.memory_bytes_per_s, np.nan)
    rows = []
    for at, what in enumerate(("memory, GB/s", "L2, GB/s")):
        about = {"device": name, "what": what, "measured": measured[at], "roofline": roofline[at]}
        half = NINE_OF_TEN * others.width[at]
        ends = (("predicted", 0.0), ("low", -half), ("high", half))
        rows.append(about | {
            key: unit[at] * np.exp(others.mean[at] + off) for key, off in ends
        })  # fmt: skip
    return rows


def _row(
    device: DeviceSpec, what: str, measured_s: float, ops: list[EmbeddingBag | EmbeddingBagBackward]
) -> dict[str, object]:
    of = LookupPrior.of(_alike(device))
    log_s, width = np.array([of.log_seconds(device, op) for op in ops]).T
    predicted_s = float(np.exp(log_s).sum())
    # ops of one device share its knobs: the error of one is that of the others
    wide = np.exp(NINE_OF_TEN * float(np.exp(log_s) @ width) / predicted_s)
    moved_s = sum(float(op.work().bytes) for op in ops) / device.memory_bytes_per_s
    return {
        "device": device.id, "what": what, "measured": measured_s, "predicted": predicted_s,
        "low": predicted_s / wide, "high": predicted_s * wide, "roofline": moved_s,
    }  # fmt: skip


def _left_in_steps(data: Path, by_gpu: Mapping[str, KernelPrices]) -> list[tuple[str, int, float]]:
    """(GPU, batch, seconds of lookups) of DLRM_default's cells (module docstring)."""
    cells, found = lin.cells(data), []
    keyed = cells.set_index(["gpu", "workload", "batch_size"])["active_s"]
    for gpu, prices in by_gpu.items():
        for batch in sorted(cells["batch_size"].unique()):
            active, copied, others = {}, {}, {}
            for workload in _MODELS:
                by_op = lin_single.published(data, prices, by_gpu["V100"], workload, batch).by_op()
                copied[workload] = by_op["aten::to"] / _COPIES[gpu]
                others[workload] = by_op.drop(["aten::to", *DIRECTIONS], errors="ignore").sum()
                active[workload] = keyed[gpu, workload, batch] - copied[workload]
            judged, other = _MODELS
            # of the other model lookups are a few hundredths
            ops = _lookups(other, batch, tuple(DIRECTIONS.values()))
            of, device = prior.lookup_prior(), _locked(_GPUS[gpu])
            lookups_s = sum(np.exp(of.log_seconds(device, op)[0]) for op in ops)
            longer = (active[other] - lookups_s) / others[other]
            found.append((gpu, int(batch), float(active[judged] - longer * others[judged])))
    return found


def _lookups(
    workload: str, batch: int, directions: tuple[Direction, ...]
) -> list[EmbeddingBag | EmbeddingBagBackward]:
    tables = lin.config(workload, batch).tables
    calls = [lookup_calls(tables, batch, way, duplicates="each") for way in directions]
    return [call.op for call in calls]  # type: ignore[misc]


def _locked(name: str) -> DeviceSpec:
    """A device at the clock that Lin et al. locked it to."""
    return load_device(name).model_copy(update={"clock_hz": MEASURED[name].clock_hz})


def _alike(device: DeviceSpec) -> list[str]:
    """Measured GPUs of a device's architecture, itself included."""
    return [name for name in MEASURED if load_device(name).arch == device.arch]
