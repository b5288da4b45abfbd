"""What NCCL itself expects of its algorithms and protocols, and which it takes: the least seconds.

    seconds    = latency + bytes / bandwidth, of each (algorithm, protocol)
    ring       base + (steps - steps over nodes) hop + (steps over nodes) network hop
    tree       base + 2 ((g - 1) hop + log2 N network hops)
    NVLS       one hop, its switch reduces; over nodes trees of them

    protocol   LL: quick, half of a ring's bandwidth or a quarter of a tree's; LL128: 120 of 128
               bytes carry data, NVLink alone; Simple: all, behind a slow start

All numbers are the library's (NVIDIA/nccl, src/graph/tuning.cc as of 2026, one file for all; they
change between versions), for all-reduce, all-gather and reduce-scatter of g ranks on each of N
nodes. Links carry 0.82 of NVLink's and 0.75 of PCIe's datasheet rate, as its search of a topology
assumes, on 16 channels. CollNet needs a network that reduces and PAT one rank a node: neither was
measured.

A baseline, no part of the price: on six systems left out it errs by 14 to 32 % as it stands, by 12
to 24 % (one: 102 %) with factors of each algorithm and protocol from other systems, the price by 4
to 29 % (`docs/accuracy.md`). It is nearer on two of them: one whose host times it, and one of
networks that nobody measured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from hybridperf.collectives.traffic import link_of
from hybridperf.hardware import load_device, load_system

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
PROTOCOLS = ("LL", "LL128", "Simple")
_CHANNELS, _NVLINK_SHARE, _PCIE_SHARE, _NETWORK_SHARE = 16, 0.82, 0.75, 0.97
_POST_US = 1.0  # of a message over a network by its host
# microseconds by algorithm, of each protocol
_BASE_US = {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4), "nvls": (0.0, 0.0, 0.0)}
_HOP_US = {
    "nvlink": {"ring": (0.6, 1.9, 3.4), "tree": (0.6, 1.25, 4.0), "nvls": (0.0, 0.0, 25.0)},
    "pcie": {"ring": (1.0, 2.5, 5.7), "tree": (1.0, 1.9, 4.0), "nvls": (0.0, 0.0, 0.0)},
    "network": {"ring": (2.7, 4.0, 14.0), "tree": (5.0, 8.5, 14.0), "nvls": (0.0, 0.0, 20.9)},
}
# GB/s on 1, 2, and more nodes: of LL in all; of a channel of the others
_LIMITS = {
    "volta": ((39.0, 39.0, 20.4), (20.0,) * 3, (20.0,) * 3, (26.5, 18.5, 10.0), 0.0),
    "ampere": ((87.7, 22.5, 19.0), (20.0,) * 3, (20.0,) * 3, (24.0, 23.6, 17.8), 0.0),
    "hopper": ((141.0, 45.0, 35.0), (36.7,) * 3, (36.7, 36.7, 29.0), (38.7, 41.4, 36.0), 0.85),
    "blackwell": ((282.0, 90.0, 70.0), (40.0,) * 3, (55.6, 31.67, 20.0), (70.0, 42.8, 24.0), 0.74),
}
# what a tree reaches of its bandwidth at 64 bytes, and twice as many each time
_TREE_REACHES = np.array([
    [1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1],
    [1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1],
    [.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9],
])  # fmt: skip
_LEAST_ROWS = 3


def estimate(rows: pd.DataFrame) -> pd.DataFrame:
    """Of rows of collectives (system, collective, bytes, n_gpus, n_nodes) [N]: `seconds` of what
    NCCL takes, and `taken`, its words; NaN and "" where it estimates nothing.
    """
    seconds, taken = np.full(len(rows), np.nan), np.full(len(rows), "", object)
    keys = ["system", "collective", "n_gpus", "n_nodes"]
    for (system, name, ranks, nodes), at in rows.groupby(keys, sort=False).indices.items():
        if name in COLLECTIVES:
            size = rows["bytes"].to_numpy(float)[at]
            ways = _ways(str(system), name, int(ranks), int(nodes), size)
            every = np.stack(list(ways.values()))
            seconds[at] = every.min(axis=0)
            taken[at] = np.array(list(ways), object)[every.argmin(axis=0)]
    return pd.DataFrame({"seconds": seconds, "taken": taken}, index=rows.index)


def _ways(
    system: str, name: str, ranks: int, nodes: int, size: np.ndarray
) -> dict[str, np.ndarray]:
    """Seconds of each algorithm and protocol that there is, at sizes [N]."""
    spec = load_system(system)
    arch = load_device(spec.device).arch.lower() if spec.device else ""
    arch = next((one for one in _LIMITS if one in arch), "ampere")
    most_ll, ring_128, tree_128, tree_simple, nvls_share = _LIMITS[arch]
    nvlink = "nvlink" in link_of(spec)
    hop = _HOP_US["nvlink" if nvlink else "pcie"]
    scale, g, reduces = min(nodes, 3) - 1, ranks // nodes, name == "all_reduce"
    own = spec.intra_bytes_per_s * (_NVLINK_SHARE if nvlink else _PCIE_SHARE) / 1e9 / _CHANNELS
    out = spec.share_bytes_per_s * _NETWORK_SHARE * g / 1e9 / _CHANNELS if nodes > 1 else own
    channel = min(own, out)
    steps, across = (1 + reduces) * (ranks - 1), (1 + reduces) * (nodes - 1)
    ways: dict[str, np.ndarray] = {}

    def add(way: str, at: int, gb_per_s: float, latency_us: float | np.ndarray) -> None:
        reaches = 1.0
        if way == "tree":
            place = np.log2(np.maximum(size, 64.0) / 64.0).astype(int)
            reaches = _TREE_REACHES[at][np.minimum(place, _TREE_REACHES.shape[1] - 1)]
        ways[f"{way} {PROTOCOLS[at]}"] = 1e-6 * latency_us + size / (1e9 * gb_per_s * reaches)

    for at in range(3):
        if PROTOCOLS[at] == "LL128" and not nvlink:
            continue
        bus = _CHANNELS * channel
        ring = (min(most_ll[scale], bus / 2), min(0.92 * bus, _CHANNELS * ring_128[scale]), bus)[at]
        late = _HOP_US["network"]["tree" if g == 1 else "ring"][at]
        post_us = _POST_US * (3 if PROTOCOLS[at] == "Simple" else 1) if nodes > 1 else 0.0
        latency = _BASE_US["ring"][at] + (steps - across) * max(hop["ring"][at], post_us)
        latency_us = np.full(len(size), latency + across * late)
        if PROTOCOLS[at] == "Simple" and nodes > 1 and reduces:  # its plateau
            latency_us[size >= 64 * _CHANNELS * ranks] *= 1.4
        add("ring", at, ring * ranks / steps, latency_us)
        if not reduces:
            continue
        bus = min(0.92 * bus, _CHANNELS * tree_simple[scale])
        part = 7 / 9 if nodes == 1 else 120 / 128
        tree = (min(bus / 3.8, most_ll[scale]), min(bus * part, _CHANNELS * tree_128[scale]), bus)
        over = int(np.log2(nodes)) * _HOP_US["network"]["tree"][at]
        latency = _BASE_US["tree"][at] + 2 * ((g - 1) * hop["tree"][at] + over)
        add("tree", at, tree[at] / 2, latency)
    if nvls_share and spec.in_network_reduction and ranks > 2:
        inside = own * nvls_share * (_CHANNELS - 1) / _CHANNELS * (2 if reduces else (g - 1) / g)
        if nodes == 1:
            share = ranks / steps if reduces else 1.0
            add("nvls", 2, _CHANNELS * inside * share, hop["nvls"][2])
        elif reduces:
            over = 2 * int(np.log2(nodes)) * _HOP_US["network"]["nvls"][2]
            bus = _CHANNELS * min(inside, out * (2 if nodes == 2 else 1))
            add("nvls", 2, bus * ranks / steps, hop["nvls"][2] + over)
    return ways


def fitted(
    own: pd.DataFrame, others: pd.DataFrame, references: Sequence[str]
) -> Callable[[pd.DataFrame], np.ndarray]:
    """Log seconds [N] by the estimate, times what own rows, else those of references, else of all
    others measured over it, by collective, algorithm and protocol. NaN for another library.
    """
    near = others[others["system"].isin(references)]
    tables = [_ratios(rows) for rows in (own, near if len(near) else others, others)]

    def predicts(rows: pd.DataFrame) -> np.ndarray:
        found = estimate(rows)
        out = np.log(found["seconds"].to_numpy())
        for i, key in enumerate(zip(rows["collective"], found["taken"], strict=True)):
            out[i] += next((table[key] for table in tables if key in table), 0.0)
        out[~_is_nccl(rows)] = np.nan
        return out

    return predicts


def _ratios(rows: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Median log of measured over estimated, by collective and what was taken."""
    rows = rows[_is_nccl(rows) & rows["collective"].isin(COLLECTIVES).to_numpy()]
    if rows.empty:
        return {}
    found = estimate(rows)
    ratio = np.log(rows["time_s"] / found["seconds"])
    by = ratio.groupby([rows["collective"], found["taken"]]).agg(["median", "size"])
    return by.loc[by["size"] >= _LEAST_ROWS, "median"].to_dict()


def _is_nccl(rows: pd.DataFrame) -> np.ndarray:
    @functools.cache
    def one(name: str) -> bool:
        return name.lower().startswith("nccl")

    return np.array([one(str(name)) for name in rows["implementation"]], bool)
