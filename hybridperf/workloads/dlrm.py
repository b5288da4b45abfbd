"""One training step of a recommendation model (DLRM, Naumov et al. 2019) on any number of ranks, as
an eager framework runs it.

    dense features [b, dense] -> bottom MLP -> x [b, D]
    tables: lookups of all B samples where a table is held -> all-to-all -> bags e_t [b, D_t]
    interaction: x next to the dot products of all pairs among x, e_1 .. e_T, or all side by side
    -> top MLP -> loss
    backward: top MLP, interaction, all-to-all of the bags' gradients, bottom MLP, table update; the
    MLPs' gradients are all-reduced in buckets as they get ready; dense update

R ranks, B samples over all of them, b = B / R each. Streams of a rank: compute, comm (collectives,
in the same order on all), copy. An op that needs what a collective brings waits for it; the bottom
MLP runs while bags and their gradients travel. Sizes: `dlrm_config.py`; where tables may lie:
`placement.py`; how the framework cuts layers into kernels, and what issuing costs: `eager.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridperf.engine.workload import PeakMemory, Workload
from hybridperf.hardware import DTYPE_BYTES, Host, canonical_dtype
from hybridperf.io import InputError
from hybridperf.model.calls import CollectiveCall
from hybridperf.ops import OpCall
from hybridperf.ops.embedding import Table, table_bytes
from hybridperf.ops.embedding_bag import Direction, lookup_calls
from hybridperf.workloads.dlrm_config import DlrmConfig
from hybridperf.workloads.placement import Placement, plain, shards, traffic
from hybridperf.workloads.programs.eager import COMPUTE, Eager, HostOp, Parameter, StepIssuer, loop

_LOOKUP = (
    "LookupFunction", "fbgemm::split_embedding_codegen_lookup_sgd_function", "aten::embedding_bag",
)  # fmt: skip
_LOOKUP_BACKWARD = (
    "LookupFunctionBackward",
    "torch::autograd::CppNode<SplitLookupFunction_sgd_Op>",
    "EmbeddingBagBackward0",
)
_ALL_TO_ALL = ("All2All_Pooled_Req", "c10d::alltoall_base_", "nccl:all_to_all")


def dlrm(config: DlrmConfig, host: Host | None = None) -> Workload:
    """One training step of a recommendation model as a workload.

    Args:
        config: the model, its batch and where it runs.
        host: launch overheads of a traced host (`hp.load_model(folder).host`); None: launches cost
            nothing, as in a replayed CUDA graph.

    Raises:
        InputError: when the sizes make no model, or a table cannot be placed as asked.
    """
    if not isinstance(config, DlrmConfig):
        raise InputError(f"expected a DlrmConfig(...), got {config!r:.60}")
    if host is not None and not isinstance(host, Host):
        given = f"expected host as a Host(...) or None, got {host!r:.60}"
        raise InputError(f"{given}; load_host reads one from a model's folder")
    return _StepBuilder(config, host).build()


class _StepBuilder:
    """One step, part by part in the order in which ranks issue it."""

    def __init__(self, config: DlrmConfig, host: Host | None):
        config.check()
        self.c, self.b = config, config.batch / config.ranks
        self.all = range(config.ranks)
        self.eager = config.eager or Eager(config.dense_dtype)
        self.element_bytes = DTYPE_BYTES[canonical_dtype(config.dense_dtype)]
        whole = (Placement("table", (at % config.ranks,)) for at in range(len(config.tables)))
        placement = config.placement or tuple(whole)
        self.shards = shards(config.tables, placement, config.ranks, config.nodes)
        bag_bytes = None if config.dtype is None else self.element_bytes
        self.traffic = traffic(self.shards, config.batch, config.ranks, config.nodes, bag_bytes)
        self.issue = StepIssuer(host)
        self.dense_optimizer = "sgd" if config.optimizer == "sgd" else "adagrad"
        self.bottom = (config.dense_features, *config.bottom_mlp)
        self.top = (config.interaction_width, *config.top_mlp)
        self.bucket: list[Parameter] = []
        self.reduced: list[dict[int, int]] = []
        self.bags: dict[int, int] = {}

    def build(self) -> Workload:
        c = self.c
        self.read()
        if c.lookup_first:
            self.lookup()
        self.every([*self.eager.mark(), *self.eager.mlp(self.b, self.bottom, "relu")])
        if not c.lookup_first:
            self.lookup()
        self.await_bags()
        interact = [self.eager.concat(self.b, c.interaction_width)]
        interact_backward = list[HostOp]()  # slices of one tensor
        if c.interaction == "dot":
            pairs = self.b, len(c.tables) + 1, c.bottom_mlp[-1]
            interact, interact_backward = self.eager.dot(*pairs), self.eager.dot_backward(*pairs)
        self.every([*self.eager.mark(), *interact])
        self.every([*self.eager.mark(), *self.eager.mlp(self.b, self.top, "sigmoid")])
        self.every(self.eager.mark())
        self.read_labels()
        forward, *backward = self.eager.loss(self.b, c.loss)
        self.every([forward])
        if c.reads_loss:
            for rank in self.all:
                self.issue.fetch(rank)
        self.every([op for op in [self.eager.zero_grad(self.dense_parameters())] if op.kernels])
        self.every([*self.eager.mark(), *backward])
        self.backward(self.eager.mlp_backward(self.b, self.top, "sigmoid", inputs_too=True))
        self.every(interact_backward)
        self.return_bags()
        if not c.lookup_first:
            self.update_tables()
        self.backward(self.eager.mlp_backward(self.b, self.bottom, "relu", inputs_too=False))
        if c.lookup_first:
            self.update_tables()
        self.reduce(rest=True)
        for rank in self.all:
            for nodes in self.reduced[-1:]:  # collectives end in order: the last stands for all
                self.issue.wait(rank, nodes[rank], "gradients")
        self.every([self.eager.update(self.dense_parameters(), self.dense_optimizer)])
        self.issue.finish()
        return self.workload()

    def every(self, ops: Sequence[HostOp]) -> None:
        """Issues the same ops on all ranks."""
        for op in ops:
            for rank in self.all:
                self.issue.op(rank, op)

    def read(self) -> None:
        """The batch: its loading, and its copies to the devices."""
        c = self.c
        load_s = np.broadcast_to(np.asarray(c.load_s, float), c.ranks)
        for rank in self.all:
            if load_s[rank] > 0:
                self.issue.load(rank, float(load_s[rank]))
            if c.host_bytes_per_s is None:
                continue
            indices, offsets = self.index_bytes(rank)
            dense = self.b * c.dense_features * self.element_bytes
            copies = {"dense features": dense, "indices": indices, "offsets": offsets}
            nodes = [
                self.issue.copy(rank, size / c.host_bytes_per_s, label, blocking=c.blocking_copies)
                for label, size in copies.items()
                if size > 0
            ]
            if nodes:
                self.issue.wait(rank, nodes[-1], "batch")

    def index_bytes(self, rank: int) -> tuple[float, float]:
        """Bytes of the indices that a rank reads, and of where each bag begins."""
        c = self.c
        if c.exchange_indices:  # of its own samples
            bags = [(self.b, table) for table in c.tables]
        else:  # of all samples for the tables that it holds
            mine = (one for one in self.shards if one.rank == rank)
            bags = [(self.b if one.kind == "data" else c.batch, one.table) for one in mine]
        indices = sum(samples * table.pooling for samples, table in bags)
        return indices * c.index_bytes, sum(samples for samples, _ in bags) * c.index_bytes

    def read_labels(self) -> None:
        """In order with the kernels: a blocking copy makes the host wait for the forward pass."""
        if (rate := self.c.host_bytes_per_s) is not None:
            seconds, blocking = self.b * self.element_bytes / rate, self.c.blocking_copies
            for rank in self.all:
                self.issue.copy(rank, seconds, "labels", stream=COMPUTE, blocking=blocking)

    def lookup(self) -> None:
        """Indices to where the tables are, lookups, and bags on their way back."""
        c = self.c
        self.every(self.eager.mark())
        if c.exchange_indices and c.ranks > 1:
            self.exchange()
        for rank in self.all:
            for copied, samples in ((False, c.batch), (True, self.b)):
                for lookup in self.lookups(self.tables(rank, copied), samples, "forward"):
                    self.issue.op(rank, HostOp(_LOOKUP, (lookup,)))
        t = self.traffic
        self.bags = self.within_nodes("reduce_scatter", {})
        if t.scattered_bytes > 0 and c.ranks > 1:
            summed = CollectiveCall("reduce_scatter", t.scattered_bytes, c.ranks, c.nodes)
            self.bags = self.meet(summed, ("c10d::reduce_scatter_tensor",))
        if (call := self.all_to_all(t.pairs)) is not None:
            self.bags = self.meet(call, _ALL_TO_ALL)

    def tables(self, rank: int, copied: bool) -> list[Table]:
        """Tables that a rank holds, those that all ranks copy or the others."""
        mine = (one for one in self.shards if one.rank == rank)
        return [one.table for one in mine if (one.kind == "data") == copied]

    def lookups(
        self, tables: Sequence[Table], samples: float, direction: Direction, optimizer: str = ""
    ) -> list[OpCall]:
        """One fused op for each number format, of plain numbers; `optimizer` "": the tables'."""
        calls = []
        for dtype in dict.fromkeys(table.dtype for table in tables):
            together = [table for table in tables if table.dtype == dtype]
            others = [table for table in tables if table.dtype != dtype]
            call = lookup_calls(
                together, samples, direction, optimizer=optimizer or self.c.optimizer,
                duplicates=self.c.duplicates, beside=others, in_step=True,
            )  # fmt: skip
            calls.append(plain(call))
        return calls

    def exchange(self) -> None:
        """Lengths, which the hosts must see to know how many indices come; then the indices."""
        c = self.c
        each = np.zeros((c.ranks, c.ranks))
        tables = np.zeros((c.ranks, c.ranks))
        for shard in self.shards:
            if shard.kind != "data":
                each[:, shard.rank] += self.b * shard.table.pooling * c.index_bytes
                tables[:, shard.rank] += self.b * self.c.index_bytes
        for size, blocking in ((tables, True), (each, False)):
            if (call := self.all_to_all(size)) is not None:
                nodes = self.meet(call, ("c10d::alltoall_base_", "nccl:all_to_all"))
                for rank in self.all:
                    self.issue.wait(rank, nodes[rank], "indices", blocking=blocking)

    def await_bags(self) -> None:
        for rank in self.all:
            if rank in self.bags:
                self.issue.wait(rank, self.bags[rank], "bags")
        if self.traffic.summed_bytes > 0:
            numbers = self.traffic.summed_bytes / self.element_bytes
            self.every([HostOp(("aten::add",), (loop(self.c.dense_dtype, "add", 1, numbers),))])

    def return_bags(self) -> None:
        """Gradients of the bags to where the tables are, and of copied tables into the buckets."""
        c, t = self.c, self.traffic
        self.bags = {}
        if (call := self.all_to_all(t.pairs.T)) is not None:
            self.bags = self.meet(call, _ALL_TO_ALL)
        if t.scattered_bytes > 0 and c.ranks > 1:
            gathered = CollectiveCall("all_gather", t.scattered_bytes, c.ranks, c.nodes)
            self.bags = self.meet(gathered, ("c10d::all_gather_into_tensor",))
        self.bags = self.within_nodes("all_gather", self.bags)

    def update_tables(self) -> None:
        """Backward of the lookups and the sparse update, once the gradients are there."""
        copied = self.tables(0, copied=True)
        if copied:
            # lookups add to the dense gradient as SGD would to the rows; the optimizer comes after
            # the all-reduce
            calls = self.lookups(copied, self.b, "backward", "sgd")
            self.every([HostOp(_LOOKUP_BACKWARD, (call,)) for call in calls])
            for table in copied:
                self.ready(Parameter(float(table.rows), float(table.dim)))
        for rank in self.all:
            tables = self.tables(rank, copied=False)
            if not tables:
                continue
            if rank in self.bags:
                self.issue.wait(rank, self.bags[rank], "gradients of bags")
            for call in self.lookups(tables, self.c.batch, "backward"):
                self.issue.op(rank, HostOp(_LOOKUP_BACKWARD, (call,)))

    def backward(self, ops: Sequence[tuple[HostOp, tuple[Parameter, ...]]]) -> None:
        for op, parameters in ops:
            self.every([op])
            for parameter in parameters:
                self.ready(parameter)

    def ready(self, parameter: Parameter) -> None:
        """A gradient is there: into the bucket, which leaves when it is full."""
        if self.c.ranks == 1:
            return
        scaled = loop(self.c.dense_dtype, "mulu", parameter.rows, parameter.cols)
        self.every([HostOp(("aten::mul",), (scaled,))])
        self.bucket.append(parameter)
        self.reduce(rest=False)

    def reduce(self, rest: bool) -> None:
        size = sum(p.elements for p in self.bucket) * self.element_bytes
        if self.bucket and (rest or size >= self.c.bucket_bytes):
            call = CollectiveCall("all_reduce", size, self.c.ranks, self.c.nodes)
            self.reduced.append(self.meet(call, ("c10d::allreduce_", "nccl:all_reduce")))
            self.bucket = []

    def meet(self, call: CollectiveCall, names: tuple[str, ...]) -> dict[int, int]:
        return self.issue.collective(call, HostOp(names), self.all)

    def within_nodes(self, collective: str, bags: dict[int, int]) -> dict[int, int]:
        """`bags`, and those of tables dealt out over a node, after a collective in each."""
        per_node, op = self.c.ranks // self.c.nodes, HostOp((f"c10d::{collective}",))
        for node, size in enumerate(self.traffic.node_bytes):
            if size > 0 and per_node > 1:
                ranks = range(node * per_node, (node + 1) * per_node)
                call = CollectiveCall(collective, size, per_node)
                bags = bags | self.issue.collective(call, op, ranks)
        return bags

    def all_to_all(self, pairs: np.ndarray) -> CollectiveCall | None:
        """None where nobody sends anything to another."""
        if self.c.ranks == 1 or not pairs[~np.eye(len(pairs), dtype=bool)].any():
            return None
        if np.ptp(pairs) <= 1e-9 * pairs.max():
            return CollectiveCall("alltoall", float(pairs[0].sum()), self.c.ranks, self.c.nodes)
        return CollectiveCall.between(tuple(map(tuple, pairs.tolist())), self.c.nodes)

    def dense_parameters(self) -> list[Parameter]:
        copied = self.tables(0, copied=True)
        tables = [Parameter(float(table.rows), float(table.dim)) for table in copied]
        return [*self.eager.parameters(self.bottom), *self.eager.parameters(self.top), *tables]

    def workload(self) -> Workload:
        c = self.c
        nodes = f" of {c.nodes} nodes" if c.nodes > 1 else ""
        where = f", {c.ranks} ranks{nodes}" if c.ranks > 1 else ""
        notes = []
        if c.host_bytes_per_s is None:
            notes.append("the batch lies on the devices: no copies from the host")
        if self.issue.host is None:
            notes.append(
                "no host: launching kernels costs nothing, as when a CUDA graph of the step is"
                " replayed"
            )
        return Workload(
            name=f"dlrm batch {c.batch}, {len(c.tables)} tables{where}",
            graph=self.issue.graph.build(), calls=tuple(self.issue.calls), notes=tuple(notes),
            peak_memory=self.fullest(),
        )  # fmt: skip

    def fullest(self) -> PeakMemory:
        """The rank that must hold most, at least: tables and MLPs with gradients (of tables only
        all-reduced ones, dense) and optimizer state, the MLPs' activations, bags on both sides.
        """
        c, b = self.c, self.b
        layers = [*self.eager.parameters(self.bottom), *self.eager.parameters(self.top)]
        state_bytes = 0.0 if self.dense_optimizer == "sgd" else DTYPE_BYTES["fp32"]
        common = sum(p.elements for p in layers) * (2 * self.element_bytes + state_bytes)
        common += b * (sum(self.bottom) + sum(self.top)) * self.element_bytes
        common += b * sum(table.dim * self.bag_bytes(table) for table in c.tables)
        of_ranks: dict[int, list[tuple[float, str]]] = {rank: [] for rank in self.all}
        away = np.zeros(c.ranks)
        for shard in self.shards:
            size = table_bytes(shard.table, c.optimizer)
            if shard.kind == "data":  # updated as the MLPs are
                gradient = float(shard.table.rows * shard.table.dim) * self.element_bytes
                size = table_bytes(shard.table, self.dense_optimizer) + gradient
            elif c.ranks > 1:
                away[shard.rank] += c.batch * shard.table.dim * self.bag_bytes(shard.table)
            of_ranks[shard.rank].append((size, c.tables[shard.of].name))
        total = {
            rank: sum(size for size, _ in of_ranks[rank]) + away[rank] + common for rank in self.all
        }
        rank = max(total, key=lambda one: total[one])
        largest, name = max(of_ranks[rank], default=(0.0, ""))
        most = f"the largest table {name}, {largest / 1e9:.4g} GB" if name else ""
        return PeakMemory(total[rank], f"rank {rank} holds tables, MLPs and bags of", most)

    def bag_bytes(self, table: Table) -> float:
        """Of a number of its bags on their way."""
        return DTYPE_BYTES[table.dtype] if self.c.dtype is None else self.element_bytes
