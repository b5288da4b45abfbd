"""What a network between nodes does where nobody measured it: the share of its line rate that it
carries, and the seconds of a ring's step.

Measured networks tell it: 45.5 of 50 GB/s an accelerator on an NDR InfiniBand cluster of 10 nodes
(github.com/xxrjun/nccl-tests-cluster), 0.81 on AWS' EFA of 100 Gb/s (fitted to aws-samples' logs of
nccl-tests), 0.65 to 0.93 on DeepBench's InfiniBand servers. Virtual networks without RDMA are
assumed to carry less. Over many nodes paths collide: two per cent a doubling beyond 16 nodes is
assumed, too; published runs on thousands of GPUs are slower than the share of ten nodes says.
"""

from __future__ import annotations

import numpy as np

from hybridperf.hardware import SystemSpec
from hybridperf.io.namespace import Array

_RDMA, _EFA, _VIRTUAL = 0.9, 0.8, 0.65
RING_STEP_S = 4.5e-6  # of large messages: the middle of 3 to 6 us
# of a tree of an all-reduce, up and down: what NCCL expects of its quick protocol, 5 us each way
# (NVIDIA/nccl, src/graph/tuning.cc)
TREE_STEP_S = 10e-6
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
    usual = _RDMA
    if "EFA" in system.nic:
        usual = _EFA
    elif "gVNIC" in system.nic or "Ethernet" in system.nic:
        usual = _VIRTUAL
    doublings = np.maximum(np.log2(np.maximum(nodes, 1.0) / _FEW_NODES), 0.0)
    return np.asarray(usual * _PER_DOUBLING**doublings)
