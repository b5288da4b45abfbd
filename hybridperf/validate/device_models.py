"""Ops inside whole models (BERT-large, GPT-2-large in single precision): our sum over a model's ops
next to NeuSight's published one.

The ops of each model are measured rows that no fit has seen. Ours come from a prior of the other
devices adapted to the device's rows of NeuSight's training tables, the rows NeuSight itself was
trained on. Errors are |sum of predictions / sum of measured times - 1|, with and without the output
head: the product with a vocabulary of columns, which alone takes half of a small model's time.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.hardware import load_device
from hybridperf.learning.prior import Adapted
from hybridperf.model.published.ops import MODEL_OPS, device_rows, read_model_ops, table_path
from hybridperf.report import text

FAMILIES = ("matmul_fp32", "elementwise", "softmax", "norm")
DEVICES = {  # and the split that leaves them out
    "v100_pcie_32g": "v100", "p100_pcie_16g": "p100", "t4": "t4", "a100_pcie_40g": "a100",
}  # fmt: skip
_MODEL = ["device", "model", "mode", "seqlen", "model_batch"]
_LEAST_VOCABULARY = 20_000
_ERRORS = [f"{whose}{of}" for of in ("", "_without_head", "_ops_median") for whose in
           ("ours", "neusight")]  # fmt: skip

Adapts = Callable[[str], Adapted | None]  # family -> what predicts it on the device


def there(data: Path) -> bool:
    """Whether the data folder has the table."""
    return table_path(data, MODEL_OPS).is_file()


def judge(data: Path, device: str, adapted: Adapts) -> list[dict[str, Any]]:
    """A dict per model run on a device, of its ops that can be predicted."""
    frame, _ = read_model_ops(data)
    frame = frame[frame["device"] == device].reset_index(drop=True)
    if frame.empty:
        return []
    timed = frame.assign(time_s=frame["label_fw_s"])
    frame["ours_s"] = np.nan
    for family, rows in device_rows(timed, load_device(device), MODEL_OPS, Counter()):
        if (model := adapted(family)) is not None:
            seconds = np.exp(model.predict(rows.rows).log_s)
            frame.loc[rows.about["row"].to_numpy(), "ours_s"] = seconds
    return summed(frame[frame["ours_s"].notna()])


def summed(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A dict per model: measured seconds, and errors of both with and without the output head."""
    out = []
    for key, rows in frame.groupby(_MODEL, sort=False):
        head = (rows["op"] == "linear") & (rows["n"].fillna(0) >= _LEAST_VOCABULARY)
        measured = rows["label_fw_s"]
        plain = [part.item() if hasattr(part, "item") else part for part in key]
        line: dict[str, Any] = dict(zip(_MODEL, plain, strict=True))
        line |= {
            "ops": len(rows),
            "measured_s": float(measured.sum()),
            "has_head": bool(head.any()),
        }
        for name, column in (("ours", "ours_s"), ("neusight", "pred_fw_neusight_s")):
            predicted = rows[column]
            without_head = predicted[~head].sum() / measured[~head].sum()
            line[name] = float(predicted.sum() / measured.sum() - 1)
            line[f"{name}_without_head"] = float(without_head - 1)
            line[f"{name}_ops_median"] = float((predicted / measured - 1).abs().median())
        out.append(line)
    return out


def table(lines: list[dict[str, Any]]) -> str:
    """Mean errors of a model's ops together per device, and of V100 and P100 together."""
    if not lines:
        return "no ops inside models were judged"
    frame = pd.DataFrame(lines)
    frame[_ERRORS] = frame[_ERRORS].abs()
    both = frame[frame["device"].isin(["v100_pcie_32g", "p100_pcie_16g"])]
    groups = pd.concat([frame, both.assign(device="V100 and P100")])
    means = groups.groupby("device", sort=False)[_ERRORS].mean().add_suffix("_error")
    return text.frame_table(means.reset_index())
