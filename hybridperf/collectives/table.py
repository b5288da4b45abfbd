"""Tables of collectives: which rows can be priced, and what the others lack."""

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
    """(rows that can be priced, with canonical names and whole numbers; why the others cannot [N];
    what was assumed [N]).

    The rows keep their index, which is their place in `frame`. `n_nodes` may be left to
    `gpus_per_node`, both to one node.
    """
    require_columns(frame, ["collective", "bytes", "n_gpus"], "a table of collectives")
    frame = frame.reset_index(drop=True)
    n = len(frame)
    problem, assumed = np.full(n, "", object), np.full(n, "", object)

    def refuse(where: np.ndarray, text: str, *values: Any) -> None:
        """`text` with the row's `values` [n] in its places, for rows that
        nothing was said of yet.
        """
        for at in np.flatnonzero(where & (problem == "")):
            problem[at] = text.format(*(value[at] for value in values))

    known: dict[object, str] = {}
    for name in frame["collective"].unique():
        try:
            known[name] = canonical_collective(name)
        except InputError as error:
            refuse(
                (frame["collective"] == name).to_numpy()
                | (frame["collective"].isna().to_numpy() & pd.isna(name)),
                "{}",
                [str(error)] * n,
            )
    bytes_, ranks = (
        pd.to_numeric(frame[column], errors="coerce").to_numpy(np.float64)
        for column in ("bytes", "n_gpus")
    )
    refuse(
        ~(np.isfinite(bytes_) & (bytes_ > 0)),
        "expected bytes above zero, got {!r}; mend or drop the row",
        frame["bytes"].tolist(),
    )
    refuse(
        ~(_whole(ranks) & (ranks >= 2)),
        "expected n_gpus of 2 or more, a whole number, got {!r}; mend the row",
        frame["n_gpus"].tolist(),
    )
    nodes = _nodes(frame, ranks, assumed)
    refuse(
        ~(_whole(nodes) & (nodes >= 1)),
        "expected n_nodes of 1 or more, a whole number; mend n_nodes or gpus_per_node",
    )
    with np.errstate(invalid="ignore"):
        uneven = ranks % np.where(nodes >= 1, nodes, 1) != 0
    refuse(uneven, "{:g} ranks do not divide into {:g} nodes; mend n_gpus or n_nodes", ranks, nodes)
    if "gpus_per_node" in frame:
        g = pd.to_numeric(frame["gpus_per_node"], errors="coerce").to_numpy(np.float64)
        refuse(
            np.isfinite(g) & (g * nodes != ranks),
            "n_gpus is not n_nodes times gpus_per_node; mend one of them",
        )
    if system is not None and "system" in frame:
        others = frame["system"].notna() & (frame["system"].astype(str) != system.id)
        assumed[others.to_numpy()] = f"the row is of another system, predicted for {system.id}"
    good = frame.assign(
        collective=frame["collective"].map(known), bytes=bytes_, n_gpus=ranks, n_nodes=nodes
    )[problem == ""]
    return good, problem, assumed


def joined(remarks: Sequence[tuple[str, np.ndarray]]) -> np.ndarray:
    """Texts [N] of those remarks whose mask [N] holds, joined by semicolons."""
    code = sum(
        (mask.astype(np.int64) << at for at, (_, mask) in enumerate(remarks)),
        np.zeros(len(remarks[0][1]), np.int64),
    )
    found, of = np.unique(code, return_inverse=True)
    texts = [
        "; ".join(text for at, (text, _) in enumerate(remarks) if one >> at & 1) for one in found
    ]
    return np.array(texts, object)[of]


def _nodes(frame: pd.DataFrame, ranks: np.ndarray, assumed: np.ndarray) -> np.ndarray:
    if "n_nodes" in frame:
        return pd.to_numeric(frame["n_nodes"], errors="coerce").to_numpy(np.float64)
    if "gpus_per_node" in frame:
        return ranks / pd.to_numeric(frame["gpus_per_node"], errors="coerce").to_numpy(np.float64)
    assumed[:] = "no n_nodes given: one node"
    return np.ones(len(frame))


def _whole(values: np.ndarray) -> np.ndarray:
    return np.isfinite(values) & (values == np.floor(values))
