"""The links that a set of GPUs of a topology has to itself, as a system that is priced.

Inside a node a library sends round rings or down trees; the slowest link on the way decides:

    ring rate = 2 max over cycles of min over its links
                then the same again on what the ring left of the links, until no cycle of own links
                is left; 1 in place of 2 for two GPUs, and through the host, which all share
    tree rate = 2 (n - 1) / n max over trees of min over its links
                S goes up and S down a link's two ways at once, where a ring carries
                2 (n - 1) / n S; half of it through a host

The better of both is the rate of a rank in its node: `intra_bytes_per_s` of the system. The best
cycle is found by dynamic programming over sets of GPUs (Held and Karp's, with min in place of sum),
the best tree is a spanning tree of the widest links.

Between nodes a ring enters and leaves a leaf switch once, all of a node's rails together: one
stream. Ranks at other places of their nodes than their neighbours, where each rail has a leaf, meet
in the spine: a stream for each node. Streams of all jobs share a leaf's uplinks alike; jobs that go
through one host share its links alike. How long a collective takes at these rates says
`CollectiveModel` alone.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hybridperf.collectives.fit import fit_collectives
from hybridperf.collectives.model import CollectiveModel, find_collectives, load_collectives
from hybridperf.hardware.topology import Topology

_Nodes = dict[int, tuple[int, ...]]  # places of GPUs by node
_MOST_BY_SETS = 14  # GPUs of a ring that is found by dynamic programming: 8,192 sets


@dataclasses.dataclass(frozen=True)
class Share:
    """What links a set of GPUs has: all that the time of its collectives depends on."""

    ranks: int
    nodes: int
    inside_bytes_per_s: float  # of a rank in its node
    through_host: bool  # its slowest link is a way through the host
    node_bytes_per_s: float  # of a node to others


@dataclasses.dataclass(frozen=True)
class Ring:
    """The best ring of some GPUs of a node."""

    bytes_per_s: float  # of a rank
    through_host: bool


def share(topology: Topology, gpus: Sequence[int], others: Iterable[Sequence[int]] = ()) -> Share:
    """The links of a set of GPUs beside other sets that are busy.

    Args:
        topology: of the cluster.
        gpus: numbered from 0, node by node.
        others: sets of GPUs that communicate at the same time.
    """
    mine = by_node(topology, gpus)
    busy = [by_node(topology, one) for one in others]
    slowest = Ring(topology.system.intra_bytes_per_s, False)
    for at, (node, local) in enumerate(mine.items()):
        found = ring(topology, local)
        if found.through_host:
            beside = sum(
                ring(topology, one[node]).through_host for one in busy if len(one.get(node, ())) > 1
            )
            found = Ring(found.bytes_per_s / (1 + beside), True)
        if len(local) > 1 and (not at or found.bytes_per_s < slowest.bytes_per_s):
            slowest = found
    network = _network(topology, mine, busy) if len(mine) > 1 else topology.system.node_bytes_per_s
    return Share(len(gpus), len(mine), slowest.bytes_per_s, slowest.through_host, network)


def by_node(topology: Topology, gpus: Sequence[int]) -> _Nodes:
    """Places of GPUs in each of their nodes."""
    found: _Nodes = {}
    for gpu in sorted(gpus):
        node = topology.node_of(gpu)
        found[node] = (*found.get(node, ()), gpu % topology.gpus_per_node)
    return found


def _streams(topology: Topology, nodes: _Nodes) -> Mapping[int, int]:
    """Streams through each leaf's uplinks of one set of GPUs."""
    leaves = Counter(map(topology.leaf_of, nodes))
    if topology.rails and len(set(nodes.values())) > 1:
        return leaves
    return dict.fromkeys(leaves, 1) if len(leaves) > 1 else {}


def _network(topology: Topology, mine: _Nodes, others: Sequence[_Nodes]) -> float:
    """Bytes/s of each node of a set, sharing uplinks with other sets."""
    rate, own = topology.system.node_bytes_per_s, _streams(topology, mine)
    those = [_streams(topology, one) for one in others if len(one) > 1]
    for leaf, streams in own.items():
        all_of_them = streams + sum(one.get(leaf, 0) for one in those)
        rate = min(rate, topology.uplink_bytes_per_s / all_of_them)
    return rate


def ring(topology: Topology, local: Sequence[int]) -> Ring:
    """The rate of a rank of some GPUs of one node, by the better of rings and trees."""
    if topology.switched:
        pair = topology.rates[local[0], local[-1]] if len(local) > 1 else np.inf
        host = bool(topology.through_host[local[0], local[-1]])
        return Ring(float(min(pair, topology.rates.max(initial=np.inf))), host)
    at = np.ix_(sorted(local), sorted(local))
    return _best_ring(topology.rates[at].tobytes(), topology.through_host[at].tobytes())


@functools.lru_cache(100_000)
def _best_ring(rates_kept: bytes, host_kept: bytes) -> Ring:
    """Of n GPUs, by their links' rates [n, n] and which go through the host, as bytes."""
    host = np.frombuffer(host_kept, bool)
    n = math.isqrt(len(host))
    rates, host = np.frombuffer(rates_kept).reshape(n, n), host.reshape(n, n)
    if n == 1:
        return Ring(np.inf, False)
    if n == 2:
        return Ring(float(rates[0, 1]), bool(host[0, 1]))
    widest, cycle = widest_cycle(rates)
    tree = widest_tree(rates)
    tree_host = any(host[i, j] for i, j in tree)
    tree_rate = (1 if tree_host else 2) * (n - 1) / n * min(rates[i, j] for i, j in tree)
    if host[cycle, np.roll(cycle, -1)].any():  # all ways through the host are one
        if tree_rate > widest:
            return Ring(float(tree_rate), tree_host)
        return Ring(float(widest), True)
    rate, own = 0.0, np.where(host, 0.0, rates)
    while widest > 0:
        rate += 2 * widest
        after = np.roll(cycle, -1)
        own[cycle, after] -= widest
        own[after, cycle] -= widest
        widest, cycle = widest_cycle(own)
    return Ring(float(max(rate, tree_rate)), False)


def widest_cycle(rates: np.ndarray) -> tuple[float, np.ndarray]:
    """The largest least rate of a cycle through all of 3 GPUs or more, and one such cycle [n].

    `rates` [n, n] are symmetric.
    """
    n = len(rates)
    if n > _MOST_BY_SETS:
        return _grown_cycle(rates)
    # best[set, last]: of paths from GPU 0 through a set of the others, ending at `last`
    best, before = np.zeros((1 << (n - 1), n - 1)), np.zeros((1 << (n - 1), n - 1), int)
    inner = rates[1:, 1:]
    for last in range(n - 1):
        best[1 << last, last] = rates[0, last + 1]
    members = np.arange(n - 1)
    for some in range(1, 1 << (n - 1)):
        inside = (some >> members) & 1
        for last in members[inside == 1]:
            rest = some & ~(1 << last)
            if rest:
                narrow = np.minimum(best[rest], inner[:, last])
                before[some, last] = narrow.argmax()
                best[some, last] = narrow.max()
    some = (1 << (n - 1)) - 1
    closed = np.minimum(best[some], rates[0, 1:])
    last = int(closed.argmax())
    rate, cycle = float(closed[last]), [last]
    if rate <= 0:  # there is none
        return 0.0, np.arange(n)
    while some & ~(1 << last):
        some, last = some & ~(1 << last), int(before[some, last])
        cycle.append(last)
    return rate, np.array([0, *(one + 1 for one in reversed(cycle))])


def _grown_cycle(rates: np.ndarray) -> tuple[float, np.ndarray]:
    """As `widest_cycle`, for many GPUs: the nearest next from each start, then swaps that help."""
    n, starts = len(rates), []
    for start in range(n):
        path, left = [start], set(range(n)) - {start}
        while left:
            path.append(max(left, key=rates[path[-1]].__getitem__))
            left.remove(path[-1])
        starts.append(np.array(path))
    found = max(starts, key=lambda one: _width(rates, one))
    better = True
    while better:
        better = False
        for i in range(1, n - 1):
            for j in range(i + 1, n):
                turned = np.concatenate([found[:i], found[i : j + 1][::-1], found[j + 1 :]])
                if _width(rates, turned) > _width(rates, found):
                    found, better = turned, True
    return _width(rates, found), found


def _width(rates: np.ndarray, cycle: np.ndarray) -> float:
    return float(rates[cycle, np.roll(cycle, -1)].min())


def widest_tree(rates: np.ndarray) -> list[tuple[int, int]]:
    """Links of a spanning tree whose least rate is the largest (Prim's, widest link first)."""
    inside, found = [0], []
    while len(inside) < len(rates):
        outside = [i for i in range(len(rates)) if i not in inside]
        part = rates[np.ix_(inside, outside)]
        i, j = np.unravel_index(part.argmax(), part.shape)
        found.append((inside[i], outside[j]))
        inside.append(outside[j])
    return found


def share_model(topology: Topology, found: Share) -> CollectiveModel:
    """Collectives of a set of GPUs with such links.

    Where all of a node talk alike, the system's own measurements count, moved to other rates by the
    closed form; where links differ, a calibration of whole nodes says nothing of a part, and the
    prior does.
    """
    of_all = topology.system
    link = f"PCIe, through the host of {of_all.id}" if found.through_host else of_all.intra_link
    system = of_all.model_copy(
        update={
            "intra_bytes_per_s": min(found.inside_bytes_per_s, 1e24), "intra_link": link,
            "node_bytes_per_s": found.node_bytes_per_s,
            "nic_bytes_per_s": min(of_all.nic_bytes_per_s, found.node_bytes_per_s),
        }
    )  # fmt: skip
    if not topology.switched or find_collectives(system.id) is None:
        return _prior(None, system)[0]
    measured = _measured(system.id)
    return measured if system == of_all else measured.on(system)


_measured = functools.lru_cache(1_000)(load_collectives)
_prior = functools.lru_cache(1_000)(fit_collectives)
