"""What a network between nodes does where nobody measured it: the share of its line rate that it
carries, the seconds of a step, and how far off both may be.

Measured networks tell it: 45.5 of 50 GB/s an accelerator on an NDR InfiniBand cluster of 10 nodes
(github.com/xxrjun/nccl-tests-cluster), 0.81 on AWS' EFA of 100 Gb/s (fitted to aws-samples' logs of
nccl-tests), 0.65 to 0.93 on DeepBench's InfiniBand servers. Virtual networks without RDMA are
assumed to carry less. Over many nodes paths collide: two per cent a doubling beyond 16 nodes is
assumed, too; published runs on thousands of GPUs are slower than the share of ten nodes says.

An all-reduce of 16 bytes among 16 ranks takes 161 us over two p4de on EFA (aws-samples' log), four
times of what InfiniBand takes: its messages pass a library on the host. Where they pass the
kernel's network stack (TCPX), steps are assumed to take eight times EFA's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hybridperf.hardware import SystemSpec
from hybridperf.io.namespace import Array


class _Kind(NamedTuple):
    """A kind of network, told by words of its card's name; the last, without any, is RDMA."""

    words: tuple[str, ...]
    share: float  # of its line rate
    step_s: float  # one way between nodes, at least
    log_widths: tuple[float, float]  # half of a 90 % interval: of what is fixed, and of bytes


RING_STEP_S = 4.5e-6  # of large messages: the middle of 3 to 6 us
# of a tree of an all-reduce, up and down: what NCCL expects of its quick protocol, 5 us each way
# (NVIDIA/nccl, src/graph/tuning.cc)
TREE_STEP_S = 10e-6
RDMA_STEP_S = TREE_STEP_S / 2
# What holds nine in ten of rows of three networks that all count alike, each by the rule as if
# nothing of it were known (AWS' p4de, MareNostrum 5, an InfiniBand cluster of 10 nodes): where what
# is fixed takes longer than bytes do, and where bytes do.
_TOLD = (0.69, 0.47)
_MOST_NODES = 64.0  # of these three
_NOTHING = (99.0, 99.0)  # is assumed
_KINDS = (
    _Kind(("gVNIC", "Ethernet"), 0.65, 5e-4, _NOTHING),
    _Kind(("EFA 100Gb/s",), 0.8, 6e-5, _TOLD),  # of the first generation, which was measured
    _Kind(("EFA",), 0.8, RDMA_STEP_S, _TOLD),
    _Kind(("",), 0.9, RDMA_STEP_S, _TOLD),
)
_UNTOLD = ("assumed", "unknown", "unstated", "TCP")  # words of a card that nobody told
_FEW_NODES, _PER_DOUBLING = 16.0, 0.98
# Over two nodes trees would carry twice a ring's buffer, if a library takes them and a node's
# links keep up. Eight A100s a node carried 0.40 of a buffer per second and rate (NCCL 2.7), 0.57
# (2.10, the mean over sizes) and 0.79 (AWS): in the mean 0.63 of what trees at `share` would
# (NVIDIA/nccl issues 495 and 837, aws-samples' logs). NCCL itself leaves them 0.92
# (src/graph/tuning.cc): with ten networks left out in turn, 0.63 was nearer in each median.
_OF_TWO = 0.63
WIDTH = 0.15  # in logs, of `share`, as those measured scatter


def all_reduce_share(system: SystemSpec, nodes: Array) -> np.ndarray:
    """`share` of all-reduces, whose trees fall short of it on two nodes [N]."""
    short = (1.0 - _OF_TWO) * np.clip(3.0 - np.asarray(nodes, float), 0.0, 1.0)
    return share(system, nodes) * (1.0 - short)


def share(system: SystemSpec, nodes: Array) -> np.ndarray:
    """Share of the rate of a system's network that collectives over so many nodes reach [N]."""
    doublings = np.maximum(np.log2(np.maximum(nodes, 1.0) / _FEW_NODES), 0.0)
    return np.asarray(_kind(system).share * _PER_DOUBLING**doublings)


def step_s(system: SystemSpec) -> float:
    """Seconds of a step between nodes, one way, at least."""
    return _kind(system).step_s


def log_widths(system: SystemSpec, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Halves of 90 % intervals of collectives over so many nodes [N] of a network that nobody
    measured, of what is fixed and of bytes [N, 1] each; beyond all others where its cards are not
    told either, and half as wide again for each doubling beyond the nodes that were measured.
    """
    untold = any(word in system.nic for word in _UNTOLD)
    fixed, bytes_ = _NOTHING if untold else _kind(system).log_widths
    beyond = np.maximum(np.log2(np.asarray(nodes, float) / _MOST_NODES), 0.0)[:, None]
    return fixed * (1 + beyond / 2), bytes_ * (1 + beyond / 2)


def _kind(system: SystemSpec) -> _Kind:
    return next(kind for kind in _KINDS if any(word in system.nic for word in kind.words))
