"""Collectives of a table as the prior sees them: what each carries over which link, and which
implementation it is of.

A slot is collective, implementation and link, and the library's version where it is known
(`all_reduce|nccl|nvlink#2.27.3`): its knobs are its own. Runs of one library that differ only in
their environment (`variant`) share a slot; what else a row says is a flag, silent where the prior
never met it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from hybridperf.collectives.form import ALPHA_BETA
from hybridperf.collectives.links import Links, link_of
from hybridperf.collectives.traffic import shares
from hybridperf.hardware import SystemSpec
from hybridperf.learning.prior.form import ClosedForm
from hybridperf.learning.prior.implementation import CollectiveImplementation, unversioned
from hybridperf.learning.residual import Inputs

DEFAULT_IMPLEMENTATION = "nccl"
_SIZES = ("log2_bytes", "log2_ranks_per_node", "log2_nodes")
_OF_BYTES = ("log2_bytes", "log2_bytes_per_rank")  # inputs that grow by one where bytes double
_DTYPES = {
    "float16": "half",
    "fp16": "half",
    "float32": "float",
    "fp32": "float",
    "float64": "double",
    "bf16": "bfloat16",
}
_BY_ENVIRONMENT = (
    "nccl",
    "rccl",
    "gloo",
)  # libraries whose `variant` says where they ran, not which kernel


@dataclasses.dataclass(frozen=True)
class CollectiveRows:
    """Some collectives on one system. N rows."""

    seconds: np.ndarray  # [N, 2] of traffic inside nodes and across them at the datasheet's rates
    bytes: np.ndarray  # [N]
    ranks_per_node: np.ndarray  # [N]
    nodes: np.ndarray  # [N]
    implementation: np.ndarray  # object [N]
    inputs: Inputs  # [N, f]
    sizes: tuple[str, ...] = _SIZES

    def __len__(self) -> int:
        return len(self.implementation)

    @property
    def form(self) -> ClosedForm:
        return ALPHA_BETA

    def work(self) -> np.ndarray:
        return np.concatenate([self.seconds, self.ranks_per_node[:, None], self.nodes[:, None]], 1)

    def rows(self, keep: np.ndarray) -> CollectiveRows:
        return CollectiveRows(
            self.seconds[keep], self.bytes[keep], self.ranks_per_node[keep], self.nodes[keep],
            self.implementation[keep], self.inputs.rows(keep), self.sizes,
        )  # fmt: skip

    def resized(self, bytes_: np.ndarray) -> CollectiveRows:
        """The same collectives with other bytes [N]."""
        values = self.inputs.values.copy()
        grown = np.log2(bytes_ / self.bytes)
        for name in _OF_BYTES:
            values[:, self.inputs.names.index(name)] += grown
        return dataclasses.replace(
            self,
            seconds=self.seconds * (bytes_ / self.bytes)[:, None],
            bytes=bytes_,
            inputs=Inputs(self.inputs.names, values),
        )

    @functools.cached_property
    def alike(self) -> tuple[np.ndarray, np.ndarray]:
        """(one row of each kind that differs in more than its bytes, the kind of each row):
        positions [kinds], kinds [N].
        """
        apart = [i for i, name in enumerate(self.inputs.names) if name not in _OF_BYTES]
        _, slot = np.unique(self.implementation.astype(str), return_inverse=True)
        kind = np.column_stack(
            [self.inputs.values[:, apart], slot, self.ranks_per_node, self.nodes]
        )
        hashed = pd.util.hash_pandas_object(
            pd.DataFrame(kind), index=False
        ).to_numpy()  # 64 bits tell millions of kinds apart
        _, first, of = np.unique(hashed, return_index=True, return_inverse=True)
        return first, of


def collective_rows(
    frame: pd.DataFrame, system: SystemSpec, versions: Mapping[str, str] | None = None
) -> CollectiveRows:
    """The rows of a checked table (see `table.checked`) on a system; `versions`: by group, of rows
    that name none.
    """
    n = len(frame)
    names = frame["collective"].to_numpy(object)
    bytes_, ranks, nodes = (
        frame[column].to_numpy(np.float64) for column in ("bytes", "n_gpus", "n_nodes")
    )
    g = ranks / nodes
    inside, across, talking = shares(names, g, nodes)
    seconds = Links.of(system).seconds(bytes_ * inside, bytes_ * across, talking)
    link = np.where(nodes > 1, "network", link_of(system)).astype(object)
    implementation, version = implementations(frame), _text(frame, "lib_version", "")
    group = np.array(
        [
            str(CollectiveImplementation(*words))
            for words in zip(names, implementation, link, strict=True)
        ],
        object,
    )
    if versions:
        version = np.where(
            version == "", np.array([versions.get(one, "") for one in group], object), version
        )
    sizes = {
        "log2_bytes": np.log2(bytes_),
        "log2_ranks_per_node": np.log2(g),
        "log2_nodes": np.log2(nodes),
        "log2_bytes_per_rank": np.log2(bytes_ / ranks),
        "three_or_more": ranks > 2,
        "in_network_reduction": np.full(n, system.in_network_reduction) & (ranks > 2),
        "log2_link_rate": np.full(n, np.log2(system.intra_bytes_per_s)),
        "log2_network_rate": np.full(
            n, np.log2(system.node_bytes_per_s / system.accelerators_per_node)
        ),
    }
    flags = {
        "collective": names, "implementation": implementation, "link": link, "version": version,
        "dtype": _dtypes(frame), "in_place": _text(frame, "in_place", "0"),
    }  # fmt: skip
    values = {
        **sizes,
        **{
            f"{label}={word}": of == word
            for label, of in flags.items()
            for word in dict.fromkeys(of)
            if word
        },
    }
    return CollectiveRows(
        seconds, bytes_, g, nodes, np.where(version == "", group, group + "#" + version),
        Inputs(tuple(values), np.stack([np.asarray(v, np.float64) for v in values.values()], 1)),
    )  # fmt: skip


def implementations(frame: pd.DataFrame) -> np.ndarray:
    """[N] the library of each row, or where it offers several kernels, which of them."""
    lib, variant = _text(frame, "lib", DEFAULT_IMPLEMENTATION), _text(frame, "variant", "")
    plain = {
        word: word.lower().split()[0]
        for word in dict.fromkeys(lib)
        if word.lower().startswith(_BY_ENVIRONMENT)
    }
    pairs = {
        pair: plain.get(pair[0], (pair[1] or pair[0]).lower())
        for pair in dict.fromkeys(zip(lib, variant, strict=True))
    }
    return np.array([pairs[pair] for pair in zip(lib, variant, strict=True)], object)


def known(rows: CollectiveRows, slots: Sequence[str]) -> np.ndarray:
    """Whether knobs of each row's collective, implementation and link were
    met, in any version [N].
    """
    met = {unversioned(slot) for slot in slots}
    return np.array([unversioned(slot) in met for slot in rows.implementation])


def usual_versions(rows: CollectiveRows) -> dict[str, str]:
    """The library's version that most rows of each group are of; groups whose rows mostly name none
    are left out.
    """
    counts = Counter(rows.implementation.astype(str))
    usual = {
        unversioned(slot): slot.partition("#")[2]
        for slot, _ in sorted(counts.items(), key=lambda item: item[1])
    }
    return {group: version for group, version in usual.items() if version}


def _dtypes(frame: pd.DataFrame) -> np.ndarray:
    words = _text(frame, "dtype", "")
    return np.array([_DTYPES.get(word.lower(), word.lower()) for word in words], object)


def _text(frame: pd.DataFrame, column: str, absent: str) -> np.ndarray:
    if column not in frame:
        return np.full(len(frame), absent, object)
    return (
        frame[column]
        .astype(object)
        .where(frame[column].notna(), absent)
        .astype(str)
        .to_numpy(object)
    )
