"""Published measurements of collectives: all rows of some systems, twenty each of others."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from hybridperf.hardware import load_system
from hybridperf.io import InputError, read_table

FOLDER = "collectives"
MEASURED, FEW_SHOT = "collectives_dev.csv.gz", "fewshot_calibration.csv.gz"


def read_measured(data: Path) -> dict[str, pd.DataFrame]:
    """All rows that may be fitted and judged on, by system."""
    return _by_system(data / FOLDER / MEASURED)


def read_few_shot(data: Path) -> dict[str, pd.DataFrame]:
    """Some twenty rows a collective of systems whose other rows are kept aside, by system."""
    return _by_system(data / FOLDER / FEW_SHOT)


def _by_system(path: Path) -> dict[str, pd.DataFrame]:
    if not path.is_file():
        raise InputError(
            f"expected measured collectives at {path}, found nothing; give the folder that holds"
            f" {FOLDER}/ as --data"
        )
    frame = read_table(path)
    parts = frame.groupby("system", sort=True)
    return {str(system): rows.reset_index(drop=True) for system, rows in parts}


EXPERTS = ("deepep_ll.csv.gz", "deepep_normal.csv.gz", "trtllm_alltoall.csv.gz")
_FORMAT_BYTES = {"bfloat16": 2.0, "fp8": 1 + 4 / 128, "nvfp4": 0.5 + 1 / 16}  # with scales
_TRTLLM = {"NVLinkTwoSided": "trtllm", "NVLinkOneSided": "trtllm_one_sided"}


def read_experts(folder: Path) -> pd.DataFrame:
    """Tokens to experts and back, as rows of a table of collectives, from all tables of a folder.

    Experts are balanced. Dispatch goes in the format the experts multiply (fp8 with a float32 scale
    for 128 values, nvfp4 with a byte for 16), all combine in bfloat16. Systems have 8 GPUs in a
    node (H100 and its like) or 4 (GB200, one NVLink domain: TensorRT-LLM's up to 64 ranks lie on
    one). DeepEP's normal kernels count with their notification. Rows of H200 by SGLang 0.5.0 repeat
    H100's and are left out, as is what low precision combines.
    """
    parts = []
    for name in EXPERTS:
        if (folder / name).is_file():
            table = read_table(folder / name)
            if name.startswith("trtllm"):
                parts.append(_of_trtllm(table))
            else:
                copied = (table["system"] == "aic_h200_sxm") & (table["version"] == "0.5.0")
                parts.append(_of_deepep(table[~copied], "normal" if "normal" in name else "ll"))
    if not parts:
        raise InputError(f"expected one of {', '.join(EXPERTS)} in {folder}, found none")
    rows = pd.concat(parts, ignore_index=True)
    return rows[rows["time_s"] > 0].drop_duplicates(ignore_index=True)


def _of_deepep(table: pd.DataFrame, kind: str) -> pd.DataFrame:
    per_node = table["system"].map(lambda name: load_system(name).accelerators_per_node)
    rows = pd.DataFrame({
        "system": table["system"], "n_nodes": table["node_num"],
        "n_gpus": per_node * table["node_num"], "topk": table["num_topk"],
        "experts": table["num_experts"], "tokens": table["num_token"],
        "lib": "deepep" if kind == "normal" else "deepep_low_latency",
    })  # fmt: skip
    ways = []
    for way, of in (("dispatch", "fp8"), ("combine", "bfloat16")):
        time_s, sms = table.get(f"{way}_avg_t_s"), 0.0
        if kind == "normal":
            time_s = table[f"{way}_transmit_s"] + table[f"{way}_notify_s"]
            sms = table[f"{way}_sms"]
        size = table["num_token"] * table["hidden_size"] * _FORMAT_BYTES[of]
        ways.append(rows.assign(collective=way, bytes=size, sms=sms, dtype=of, time_s=time_s))
    return pd.concat(ways)


def _of_trtllm(table: pd.DataFrame) -> pd.DataFrame:
    table = table[table["op_name"].isin(["alltoall_dispatch", "alltoall_combine"])]
    word = table["op_name"].str.removeprefix("alltoall_")
    dtype = table["moe_dtype"].where(word == "dispatch", "bfloat16")
    return pd.DataFrame({
        "system": table["system"], "n_nodes": 1, "n_gpus": table["moe_ep_size"],
        "topk": table["topk"], "experts": table["num_experts"], "tokens": table["num_tokens"],
        "lib": table["kernel_source"].map(_TRTLLM), "collective": word, "sms": 0.0, "dtype": dtype,
        "bytes": table["num_tokens"] * table["hidden_size"] * dtype.map(_FORMAT_BYTES),
        "time_s": table["time_s"],
    })  # fmt: skip
