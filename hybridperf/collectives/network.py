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

import math
from typing import NamedTuple

import numpy as np

from hybridperf.hardware import SystemSpec
from hybridperf.io.namespace import Array


class _Kind(NamedTuple):
    """A kind of network, told by words of its card's name; the last, without any, is RDMA."""

    words: tuple[str, ...]
    share: float  # of its line rate
    step_s: float  # one way between nodes, at least
    log_width: float  # half of a 90 % interval


RING_STEP_S = 4.5e-6  # of large messages: the middle of 3 to 6 us
# of a tree of an all-reduce, up and down: what NCCL expects of its quick protocol, 5 us each way
# (NVIDIA/nccl, src/graph/tuning.cc)
TREE_STEP_S = 10e-6
RDMA_STEP_S = TREE_STEP_S / 2
_KINDS = (
    _Kind(("gVNIC", "Ethernet"), 0.65, 5e-4, math.inf),
    _Kind(("EFA 100Gb/s",), 0.8, 6e-5, 0.75),  # of the first generation, which was measured
    _Kind(("EFA",), 0.8, RDMA_STEP_S, 0.75),
    # four networks that the rule was not made of, each by the rule as if nothing of it were known,
    # are off by 0.21, 0.52, 0.54 and 0.78 nine times in ten
    _Kind(("",), 0.9, RDMA_STEP_S, 0.75),
)
_UNTOLD = ("assumed", "unknown", "unstated", "TCP")  # words of a card that nobody told
_FEW_NODES, _PER_DOUBLING = 16.0, 0.98
# Over two nodes trees would carry twice a ring's buffer, if a library takes them and a node's
# links keep up. Eight A100s a node carried 0.40 of a buffer per second and rate (NCCL 2.7), 0.57
# (2.10, the mean over sizes) and 0.79 (AWS): in the mean 0.63 of what trees at `share` would
# (NVIDIA/nccl issues 495 and 837, aws-samples' logs)
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


def log_width(system: SystemSpec) -> float:
    """Half of a 90 % interval of collectives over a network that nobody measured; infinite where
    its cards are not told either.
    """
    untold = any(word in system.nic for word in _UNTOLD)
    return math.inf if untold else _kind(system).log_width


def _kind(system: SystemSpec) -> _Kind:
    return next(kind for kind in _KINDS if any(word in system.nic for word in kind.words))
