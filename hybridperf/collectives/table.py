"""Tables of collectives: which rows can be priced, and why the others cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.collectives.traffic import canonical_collective
from hybridperf.hardware import SystemSpec
from hybridperf.io import InputError, require_columns


def checked(
    frame: pd.DataFrame, system: SystemSpec | None = None
) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """(usable rows with canonical names, why others cannot be priced [N], what was assumed [N]).

    The usable rows keep their position in `frame` as their index. A table without `n_nodes` is read
    by its `gpus_per_node`; without either, each row is taken to run inside one node.
    """
    require_columns(frame, ["collective", "bytes", "n_gpus"], "a table of collectives")
    frame = frame.reset_index(drop=True)
    n = len(frame)
    problem, assumed = np.full(n, "", object), np.full(n, "", object)

    def refuse(where: np.ndarray, text: str, *values: Any) -> None:
        """Note `text`, with the rows' `values` filled in, for rows that have no problem yet."""
        for at in np.flatnonzero(where & (problem == "")):
            problem[at] = text.format(*(value[at] for value in values))

    canonical: dict[object, str] = {}
    for name in frame["collective"].unique():
        try:
            canonical[name] = canonical_collective(name)
        except InputError as error:
            missing = frame["collective"].isna() & pd.isna(name)
            named = ((frame["collective"] == name) | missing).to_numpy()
            refuse(named, "{}", [str(error)] * n)
    bytes_, ranks = _numbers(frame, "bytes"), _numbers(frame, "n_gpus")
    text = "expected bytes above zero, got {!r}; mend or drop the row"
    refuse(~(np.isfinite(bytes_) & (bytes_ > 0)), text, frame["bytes"].tolist())
    text = "expected n_gpus of 2 or more, a whole number, got {!r}; mend the row"
    refuse(~(_whole(ranks) & (ranks >= 2)), text, frame["n_gpus"].tolist())
    nodes = _nodes(frame, ranks, assumed)
    text = "expected n_nodes of 1 or more, a whole number; mend n_nodes or gpus_per_node"
    refuse(~(_whole(nodes) & (nodes >= 1)), text)
    with np.errstate(invalid="ignore"):
        uneven = ranks % np.where(nodes >= 1, nodes, 1) != 0
    refuse(uneven, "{:g} ranks do not divide into {:g} nodes; mend n_gpus or n_nodes", ranks, nodes)
    if "gpus_per_node" in frame:
        g = _numbers(frame, "gpus_per_node")
        text = "n_gpus is not n_nodes times gpus_per_node; mend one of them"
        refuse(np.isfinite(g) & (g * nodes != ranks), text)
    if system is not None and "system" in frame:
        others = frame["system"].notna() & (frame["system"].astype(str) != system.id)
        assumed[others.to_numpy()] = f"the row is of another system, predicted for {system.id}"
    names = frame["collective"].map(canonical)
    good = frame.assign(collective=names, bytes=bytes_, n_gpus=ranks, n_nodes=nodes)
    return good[problem == ""], problem, assumed


def join_remarks(remarks: Sequence[tuple[str, np.ndarray]]) -> np.ndarray:
    """Texts [N] of those remarks whose mask [N] holds, joined by semicolons."""
    bits = [mask.astype(np.int64) << at for at, (_, mask) in enumerate(remarks)]
    combination = sum(bits, np.zeros(len(remarks[0][1]), np.int64))
    found, of_row = np.unique(combination, return_inverse=True)
    joined = [
        "; ".join(text for at, (text, _) in enumerate(remarks) if one >> at & 1) for one in found
    ]
    return np.array(joined, object)[of_row]


def _nodes(frame: pd.DataFrame, ranks: np.ndarray, assumed: np.ndarray) -> np.ndarray:
    if "n_nodes" in frame:
        return _numbers(frame, "n_nodes")
    if "gpus_per_node" in frame:
        return ranks / _numbers(frame, "gpus_per_node")
    assumed[:] = "no n_nodes given: one node"
    return np.ones(len(frame))


def _numbers(frame: pd.DataFrame, column: str) -> np.ndarray:
    return pd.to_numeric(frame[column], errors="coerce").to_numpy(np.float64)


def _whole(values: np.ndarray) -> np.ndarray:
    return np.isfinite(values) & (values == np.floor(values))
