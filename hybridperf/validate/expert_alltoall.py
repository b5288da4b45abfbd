"""Tokens on their way to experts and back, as DeepEP's and TensorRT-LLM's own kernels carry them,
next to what a system's calibrated all-to-all says of the same bytes. Nothing is fitted to them.

A rank sends tokens x copies x width x bytes of an element. Copies are one for each rank that holds
some of a token's experts, one for each node where there are several (`parallel.distinct`), and one
for each expert in DeepEP's low-latency kernels, as the bytes that its table states show. Experts
are balanced in all three tables. Dispatch goes in the format the experts multiply, fp8 with a
float32 scale for 128 values, nvfp4 with a byte for 16; all combine in bfloat16. Of DeepEP's normal
kernels the run on most SMs counts, with its notification.

The tables' systems have 8 GPUs in a node (H100) and 4 (GB200, one NVLink domain: TensorRT-LLM's up
to 64 ranks lie on one node of it).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.collectives.fit import collectives_by_name
from hybridperf.hardware import load_system
from hybridperf.io import read_table
from hybridperf.model.published.collectives import FOLDER
from hybridperf.validate.harness import Columns, ResultLine
from hybridperf.workloads.transformer.parallel import distinct

_COLUMNS = Columns("time_s", baselines={"datasheet": "roofline_s"})
_BYTES = {"bfloat16": 2.0, "fp8": 1 + 4 / 128, "nvfp4": 0.5 + 1 / 16}
_LOW_LATENCY, _NORMAL, _TRTLLM = (
    f"{name}.csv.gz" for name in ("deepep_ll", "deepep_normal", "trtllm_alltoall")
)


def lines(data: Path) -> list[ResultLine]:
    """A line for each kernel and number of nodes whose table is there."""
    found = []
    for name, rows in _tables(data / FOLDER):
        judged = pd.concat([_judged(str(system), part) for system, part in rows.groupby("system")])
        for nodes, part in judged.groupby("n_nodes"):
            where = "one node" if nodes == 1 else f"{nodes:.0f} nodes"
            found.append(_COLUMNS.line(f"experts: {name}, {where}", part, measure="median APE"))
    return found


def _judged(system: str, rows: pd.DataFrame) -> pd.DataFrame:
    columns = ["collective", "bytes", "n_gpus", "n_nodes"]
    said = collectives_by_name(system).predict(rows[columns].reset_index(drop=True))
    return said.assign(time_s=rows["time_s"].to_numpy())


def _tables(folder: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """(kernel and direction, rows `system, collective, bytes, n_gpus, n_nodes, time_s`)."""
    if (folder / _LOW_LATENCY).is_file():
        rows = _placed(read_table(folder / _LOW_LATENCY))
        copies = rows["num_topk"].to_numpy(np.float64)
        for way, dtype in (("dispatch", "fp8"), ("combine", "bfloat16")):
            yield f"DeepEP low latency, {way}", _sent(rows, copies, dtype, rows[f"{way}_avg_t_s"])
    if (folder / _NORMAL).is_file():
        rows = _placed(read_table(folder / _NORMAL))
        places = np.where(rows["n_nodes"] > 1, rows["n_nodes"], rows["n_gpus"])
        copies = np.array(list(map(distinct, rows["num_topk"], places)))
        for way, dtype in (("dispatch", "fp8"), ("combine", "bfloat16")):
            time_s = rows[f"{way}_transmit_s"] + rows[f"{way}_notify_s"]
            sent = _sent(rows, copies, dtype, time_s).assign(sms=rows[f"{way}_sms"])
            same = ["system", "n_nodes", "bytes", "num_experts"]
            yield f"DeepEP, {way}", sent.sort_values("sms").groupby(same).tail(1)
    if (folder / _TRTLLM).is_file():
        rows = read_table(folder / _TRTLLM)
        rows = rows.assign(n_gpus=rows["moe_ep_size"], n_nodes=1, num_token=rows["num_tokens"])
        copies = np.array(list(map(distinct, rows["topk"], rows["n_gpus"])))
        for way in ("dispatch", "combine"):
            for dtype, at in rows.groupby("moe_dtype").indices.items():
                part = rows.iloc[at]
                here = (part["op_name"] == f"alltoall_{way}").to_numpy()
                carried = str(dtype) if way == "dispatch" else "bfloat16"
                sent = _sent(part[here], copies[at][here], carried, part["time_s"][here])
                if way == "dispatch" or dtype == "bfloat16":  # all combine alike
                    yield f"TensorRT-LLM, {way} in {carried}", sent


def _placed(rows: pd.DataFrame) -> pd.DataFrame:
    per_node = rows["system"].map(lambda name: load_system(name).accelerators_per_node)
    return rows.assign(n_nodes=rows["node_num"], n_gpus=per_node * rows["node_num"])


def _sent(rows: pd.DataFrame, copies: np.ndarray, dtype: str, time_s: pd.Series) -> pd.DataFrame:
    """Rows that were timed, with the bytes that a rank sends."""
    sent = rows["num_token"] * copies * rows["hidden_size"] * _BYTES[dtype]
    timed = rows.assign(collective="alltoall", bytes=sent, time_s=time_s)
    return timed[(timed["time_s"] > 0) & (timed["bytes"] > 0)]
