"""MAD-Max's own arithmetic (Hsia et al., ISCA 2024), to compare with: DLRM-A on 8 and 128 GPUs
comes out as the paper's artifact prints it.

    inside         NVLinks x (bytes/s / 2) x share
    across         ports x (bytes/s / 2) x share / GPUs per node
    all-reduce     S / B; across several nodes B = 0.2746 inside + 0.7254 across, a fit to ZionEX
    all-gather, reduce-scatter     twice the all-reduce's bandwidth
    all-to-all     2 (bytes looked up per GPU) / (GPUs) / B, across the network as soon as there are
                   several nodes

A mean of bandwidths is no physics, and bytes looked up are not the pooled bytes that travel:
`Priced` prices both as they move.
"""

import dataclasses

from hybridperf.ops.embedding import Zipf
from hybridperf.studies.strategies.cluster import ACROSS, Cluster, Collective, Levels
from hybridperf.studies.strategies.layer import Layer, dense_layers, embedding_tables
from hybridperf.studies.strategies.mapping import LayerStrategies, mapping
from hybridperf.studies.strategies.timeline import Iteration, iteration

ZIONEX_INSIDE_SHARE = 0.2746  # of the inside's bandwidth in an all-reduce over nodes
LOOKUPS_SENT = 2  # times the bytes looked up over the number of GPUs

# MAD-Max says nothing of which rows are looked up. These are pooled ranks and frequencies of the
# tables that its authors' company published (facebookresearch/dlrm_datasets, 2021).
META_2021 = Zipf(0.89, 156.0)

# 20 matrices of 3994 x 3994 in fp32, half of them before the interaction: the artifact's iteration
# times tell where it is
DLRM_A: tuple[Layer, ...] = (
    embedding_tables("tables", 4096, 2.08e6, 94, 15, dtype="fp16", access=META_2021),
    dense_layers("bottom", 10, 3994),
    dense_layers("top", 10, 3994, needs=("tables", "bottom")),
)
DLRM_A_LOCAL_BATCH = 512
ZIONEX = "zionex"  # the same cluster by the facts of its parts, among `hybridperf systems`


@dataclasses.dataclass(frozen=True)
class MadMax:
    """The cost model of MAD-Max (Hsia et al., ISCA 2024), for comparison with `Priced`."""

    cluster: Cluster
    # weight of the bandwidth inside nodes in an all-reduce over several nodes
    inside_share: float = ZIONEX_INSIDE_SHARE

    def compute_s(self, layer: Layer, samples: float, backward: bool, parts: int = 1) -> float:
        del parts
        matrices_s = (2 if backward else 1) * layer.flops * samples / self.cluster.flops_per_s
        return matrices_s + layer.read_bytes * samples / self.cluster.memory_bytes_per_s

    def collective_s(self, kind: Collective, size: float, levels: Levels) -> float:
        if self.cluster.ranks(levels) == 1:
            return 0.0
        if kind == "all_to_all":
            return size / self._slowest(levels)
        return size / self._reduced(levels) / (1 if kind == "all_reduce" else 2)

    def exchange_s(self, layer: Layer, samples: float, levels: Levels) -> float:
        ranks = self.cluster.ranks(levels)
        if ranks == 1:
            return 0.0
        return LOOKUPS_SENT * layer.read_bytes * samples / ranks / self._slowest(levels)

    def _slowest(self, levels: Levels) -> float:
        over_nodes = ACROSS in levels and self.cluster.nodes > 1
        return self.cluster.across_bytes_per_s if over_nodes else self.cluster.inside_bytes_per_s

    def _reduced(self, levels: Levels) -> float:
        """Bandwidth of an all-reduce."""
        inside, across = self.cluster.inside_bytes_per_s, self.cluster.across_bytes_per_s
        if len(levels) == 2 and self.cluster.nodes > 1 and self.cluster.gpus_per_node > 1:
            return self.inside_share * inside + (1 - self.inside_share) * across
        return self._slowest(levels)


def zionex(nodes: int = 16, capacity_bytes: float = 40e9) -> Cluster:
    """MAD-Max's ZionEX cluster: nodes of 8 A100-40GB at the efficiencies of the paper's artifact.

    Args:
        nodes: how many.
        capacity_bytes: memory of a GPU.
    """
    nvlinks, ports = 12 * 50e9 / 2 * 0.6667, 8 * 25e9 / 2 * 0.56 / 8  # 12 links, 8 x 200 Gb/s
    return Cluster(8, nodes, 156e12 * 0.705, 1555e9 * 0.836, nvlinks, ports, capacity_bytes)


def dlrm_a(gpus: int = 128) -> Iteration:
    """MAD-Max's published case DLRM-A: tables over all GPUs, matrices on each, 512 samples each."""
    cost_model = MadMax(zionex(gpus // 8))
    return iteration(DLRM_A, dlrm_a_mapping(), cost_model, DLRM_A_LOCAL_BATCH * gpus)


def dlrm_a_mapping() -> LayerStrategies:
    return mapping(DLRM_A, {"embedding": ("mp", "mp"), "dense": ("ddp", "ddp")})
