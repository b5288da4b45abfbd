"""One training step of a recommendation model (DLRM, Naumov et al. 2019) on any number of ranks, as
an eager framework runs it.

    dense features [b, dense] -> bottom MLP -> x [b, D] tables: lookups of all B samples where a
    table is held -> all-to-all -> bags e_t [b, D_t] where a sample is interaction: dot products of
    all pairs among x, e_1 .. e_T beside x, or all of them side by side -> top MLP -> loss backward:
    top MLP, interaction, all-to-all of the bags' gradients, bottom MLP, table update; the MLPs'
    gradients are all-reduced in buckets as they get ready; dense update

R ranks, B samples over all of them, b = B / R each. Streams of a rank: compute, comm (collectives,
in the same order on all), copy. An op that needs what a collective brings waits for it; the bottom
MLP runs while bags and their gradients travel. Where tables may lie: `placement.py`; how the
framework cuts layers into kernels: `eager.py`; what issuing costs: `issue.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from hybridperf.engine.workload import CollectiveCall, PeakMemory, Workload
from hybridperf.hardware import DTYPE_BYTES, FLOAT_DTYPES, Host, canonical_dtype
from hybridperf.io import InputError, unknown
from hybridperf.ops import OpCall
from hybridperf.ops.embedding import Table, check_names, table_bytes
from hybridperf.ops.embedding_bag import lookup_calls
from hybridperf.workloads.eager import Eager, Parameter, loop
from hybridperf.workloads.issue import COMPUTE, HostOp, Issue
from hybridperf.workloads.placement import Placement, Shard, Traffic, shards, traffic

_LOOKUP = (
    "LookupFunction",
    "fbgemm::split_embedding_codegen_lookup_sgd_function",
    "aten::embedding_bag",
)
_LOOKUP_BACKWARD = (
    "LookupFunctionBackward",
    "torch::autograd::CppNode<SplitLookupFunction_sgd_Op>",
    "EmbeddingBagBackward0",
)
_ALL_TO_ALL = ("All2All_Pooled_Req", "c10d::alltoall_base_", "nccl:all_to_all")
_WORDS = {
    "interaction": ("dot", "cat"),
    "loss": ("bce", "mse"),
    "optimizer": ("sgd", "adagrad", "rowwise_adagrad"),
}


@dataclasses.dataclass(frozen=True)
class DlrmConfig:
    """Sizes of the model, its batch and where it runs.

    batch              samples of all ranks together
    dense_features     numbers that a sample brings beside its lookups
    bottom_mlp         widths after the dense features; dot products need the tables' `dim` as the
                       last
    top_mlp            widths after the interaction; the last is 1
    tables             `Table`s, whose `access` says how lookups fall: `Uniform()`, `Zipf(...)`,
                       `Histogram(...)`, `Indices(...)`
    interaction        "dot": dot products of all pairs of bags and the bottom MLP's result, beside
                       it; "cat": side by side
    loss               "bce" or "mse"
    optimizer          of the tables: "sgd", "adagrad" or "rowwise_adagrad"; MLPs and copied tables
                       take SGD or Adagrad
    duplicates         how the tables' update treats a row looked up twice: "merged" first or "each"
                       added where it falls (SGD)
    dtype              of MLPs, interaction and bags on their way; None: fp32, each table's bags as
                       its rows
    ranks, nodes       in all; ranks are dealt out to nodes in order, as many to each
    placement          a `Placement` of each table; empty: whole tables, dealt out to the ranks in
                       turn
    bucket_bytes       gradients that are all-reduced together
    load_s             seconds until a rank's host has its batch, of all ranks or of each
    host_bytes_per_s   rate at which batches are copied to devices; None: they lie there
    index_bytes        of an index: 8 for int64
    blocking_copies    the host waits for each copy
    lookup_first       before the bottom MLP, which then hides the all-to-all
    exchange_indices   each rank reads its own samples' indices and sends them to where the tables
                       are
    reads_loss         the host waits for the loss before it goes on
    eager              how the framework cuts layers into kernels; None: as today's PyTorch

        clicks = Table("clicks", rows=1e7, dim=64, pooling=20, access=Zipf(0.9, 5.0))
        users = Table("users", rows=1e6, dim=64, pooling=1, access=Indices(recorded))  # or Histogram(shares, mean_reuse, lookups)
        config = DlrmConfig(
            batch=8192, dense_features=13, bottom_mlp=(512, 64), top_mlp=(512, 1), tables=(clicks,
            users), ranks=8, placement=(Placement("row"), Placement("table", (3,))), load_s=1e-3,
            host_bytes_per_s=20e9,
        )
        predict(model, dlrm(config, host=model.host))  # host: what launching costs; None where it
                                                       was not learned
    """

    batch: int
    dense_features: int
    bottom_mlp: tuple[int, ...]
    top_mlp: tuple[int, ...]
    tables: tuple[Table, ...]
    interaction: Literal["dot", "cat"] = "dot"
    loss: Literal["bce", "mse"] = "bce"
    optimizer: Literal["sgd", "adagrad", "rowwise_adagrad"] = "sgd"
    duplicates: Literal["merged", "each"] = "merged"
    dtype: str | None = None
    ranks: int = 1
    nodes: int = 1
    placement: tuple[Placement, ...] = ()
    bucket_bytes: float = 25e6
    load_s: float | tuple[float, ...] = 0.0
    host_bytes_per_s: float | None = None
    index_bytes: float = 8.0
    blocking_copies: bool = True
    lookup_first: bool = True
    exchange_indices: bool = False
    reads_loss: bool = False
    eager: Eager | None = None

    @property
    def local_batch(self) -> float:
        return self.batch / self.ranks

    @property
    def dense_dtype(self) -> str:
        """Of MLPs and interaction."""
        return "fp32" if self.dtype is None else self.dtype

    @property
    def interaction_width(self) -> int:
        """Width of the top MLP's input."""
        if self.interaction == "cat":
            return self.bottom_mlp[-1] + sum(table.dim for table in self.tables)
        return self.bottom_mlp[-1] + (len(self.tables) + 1) * len(self.tables) // 2

    def check(self) -> None:
        """`InputError` for sizes that make no model."""
        for name in ("batch", "dense_features", "ranks", "nodes"):
            value = getattr(self, name)
            if not _is_count(value):
                raise InputError(f"{name} must be a whole number of 1 or more, got {value!r}")
        for name, kind in (("tables", Table), ("placement", Placement)):
            value = getattr(self, name)
            if not isinstance(value, Sequence) or not all(isinstance(one, kind) for one in value):
                raise InputError(f"{name} must be a tuple of {kind.__name__}(...), got {value!r}")
        for name, allowed in _WORDS.items():
            if getattr(self, name) not in allowed:
                raise unknown(
                    name, str(getattr(self, name)), allowed, f"known are {', '.join(allowed)}"
                )
        for name, widths in (("bottom_mlp", self.bottom_mlp), ("top_mlp", self.top_mlp)):
            if not isinstance(widths, Sequence) or not widths or not all(map(_is_count, widths)):
                raise InputError(
                    f"{name} needs at least one width, each a whole number of 1 or more, got"
                    f" {widths!r}"
                )
        if self.top_mlp[-1] != 1:
            raise InputError(f"top_mlp must end in 1, the logit of a sample, got {self.top_mlp!r}")
        if canonical_dtype(self.dense_dtype) not in FLOAT_DTYPES:
            raise InputError(
                f"dtype must be a floating-point format ({', '.join(FLOAT_DTYPES)}), got"
                f" {self.dtype!r}"
            )
        if not self.tables:
            raise InputError(
                "expected at least one table, got none; a model without tables is an MLP"
            )
        check_names(self.tables)
        if self.batch % self.ranks or self.ranks % self.nodes:
            raise InputError(
                "expected a batch of whole samples per rank and whole ranks per node, got"
                f" {self.batch} on {self._where}"
            )
        if self.interaction == "dot":
            for table in self.tables:
                if table.dim != self.bottom_mlp[-1]:
                    raise InputError(
                        f"table {table.name} has {table.dim} columns and the bottom MLP ends in"
                        f' {self.bottom_mlp[-1]}; dot products need as many, interaction="cat"'
                        " does not"
                    )
        each = not isinstance(self.load_s, str) and (
            isinstance(self.load_s, Sequence) or np.ndim(self.load_s) > 0
        )
        load_s: Any = self.load_s if each else (self.load_s,)
        for one in load_s:
            if not _is_number(one) or not 0 <= one < np.inf:
                raise InputError(
                    f"load_s must be seconds of 0 or more, of all ranks or of each, got {one!s:.40}"
                )
        if each and len(load_s) != self.ranks:
            raise InputError(
                f"expected load_s of one number or of each of {self.ranks} ranks, got {len(load_s)}"
            )
        for name in ("host_bytes_per_s", "bucket_bytes", "index_bytes"):
            value = getattr(self, name)
            if value is None and name == "host_bytes_per_s":
                continue
            if (
                not _is_number(value)
                or not value > 0
                or (name == "index_bytes" and value == np.inf)
            ):
                raise InputError(
                    f"{name} must be above zero{' or None' if name == 'host_bytes_per_s' else ''},"
                    f" got {value!r}"
                )
        for name in ("blocking_copies", "lookup_first", "exchange_indices", "reads_loss"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise InputError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if self.eager is not None and not isinstance(self.eager, Eager):
            raise InputError(f"eager must be an Eager(...) or None, got {self.eager!r}")

    @property
    def _where(self) -> str:
        return f"{self.ranks} ranks of {self.nodes} nodes"


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


def _is_number(value: Any) -> bool:
    value = (
        value.item()
        if isinstance(value, np.ndarray | np.generic) and np.ndim(value) == 0
        else value
    )
    return isinstance(value, int | float) and not isinstance(value, bool)


def dlrm(config: DlrmConfig, host: Host | None = None) -> Workload:
    """The step as a workload. `host`: what issuing costs, of a device's framework
    (`load_host(FOLDER)`); None: nothing, as a replayed CUDA graph.
    """
    if not isinstance(config, DlrmConfig):
        raise InputError(f"expected a DlrmConfig(...), got {config!r:.60}")
    if host is not None and not isinstance(host, Host):
        raise InputError(
            f"expected host as a Host(...) or None, got {host!r:.60}; load_host reads one from a"
            " model's folder"
        )
    return _Step(config, host).build()


class _Step:
    """One step, part by part in the order in which ranks issue it."""

    def __init__(self, config: DlrmConfig, host: Host | None):
        config.check()
        self.c, self.b = config, config.local_batch
        self.all = range(config.ranks)
        self.eager = config.eager or Eager(config.dense_dtype)
        self.element_bytes = DTYPE_BYTES[canonical_dtype(config.dense_dtype)]
        placement = config.placement or tuple(
            Placement("table", (at % config.ranks,)) for at in range(len(config.tables))
        )
        self.held: list[Shard] = shards(config.tables, placement, config.ranks, config.nodes)
        self.traffic: Traffic = traffic(
            self.held,
            config.batch,
            config.ranks,
            config.nodes,
            None if config.dtype is None else self.element_bytes,
        )
        self.issue = Issue(host)
        self.dense_optimizer = "sgd" if config.optimizer == "sgd" else "adagrad"
        self.bottom = (config.dense_features, *config.bottom_mlp)
        self.top = (config.interaction_width, *config.top_mlp)
        self.bucket: list[Parameter] = []
        self.reduced: list[dict[int, int]] = []

    def build(self) -> Workload:
        c = self.c
        self.read()
        if c.lookup_first:
            self.lookup()
        self.every([*self.eager.mark(), *self.eager.mlp(self.b, self.bottom, "relu")])
        if not c.lookup_first:
            self.lookup()
        self.await_bags()
        self.every([*self.eager.mark(), *self.interact()])
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
        self.every(self.interact_backward())
        if c.lookup_first:
            self.return_bags()
            self.backward(self.eager.mlp_backward(self.b, self.bottom, "relu", inputs_too=False))
            self.update_tables()
        else:
            self.return_bags()
            self.update_tables()
            self.backward(self.eager.mlp_backward(self.b, self.bottom, "relu", inputs_too=False))
        self.reduce(rest=True)
        for rank in self.all:
            for nodes in self.reduced[-1:]:  # collectives end in order: the last stands for all
                self.issue.wait(rank, nodes[rank], "gradients")
        self.every([self.eager.update(self.dense_parameters(), self.dense_optimizer)])
        self.issue.finish()
        return self.workload()

    def every(self, ops: Sequence[HostOp]) -> None:
        """All ranks do the same."""
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
            last = None
            indices, offsets = self.index_bytes(rank)
            dense = self.b * c.dense_features * self.element_bytes
            for label, size in (
                ("dense features", dense),
                ("indices", indices),
                ("offsets", offsets),
            ):
                if size > 0:
                    last = self.issue.copy(
                        rank, size / c.host_bytes_per_s, label, blocking=c.blocking_copies
                    )
            if last is not None:
                self.issue.wait(rank, last, "batch")

    def index_bytes(self, rank: int) -> tuple[float, float]:
        """Of the indices that a rank reads, and of where each bag begins: of its own samples, or of
        all for the tables that it holds.
        """
        c = self.c
        if c.exchange_indices:
            bags = [(self.b, table) for table in c.tables]
        else:
            bags = [
                (self.b if s.kind == "data" else c.batch, s.table)
                for s in self.held
                if s.rank == rank
            ]
        return (
            sum(n * table.pooling for n, table in bags) * c.index_bytes,
            sum(n for n, _ in bags) * c.index_bytes,
        )

    def read_labels(self) -> None:
        """In order with the kernels: a blocking copy lets the host wait for
        the whole forward pass.
        """
        if (rate := self.c.host_bytes_per_s) is not None:
            for rank in self.all:
                self.issue.copy(
                    rank,
                    self.b * self.element_bytes / rate,
                    "labels",
                    stream=COMPUTE,
                    blocking=self.c.blocking_copies,
                )

    def lookup(self) -> None:
        """Indices to where the tables are, lookups, and bags on their way back."""
        c = self.c
        self.every(self.eager.mark())
        if c.exchange_indices and c.ranks > 1:
            self.exchange()
        for rank in self.all:
            for kind, samples in (("away", c.batch), ("data", self.b)):
                tables = [
                    s.table
                    for s in self.held
                    if s.rank == rank and (s.kind == "data") == (kind == "data")
                ]
                for lookup in self.lookups(tables, samples, "forward"):
                    self.issue.op(rank, HostOp(_LOOKUP, (lookup,)))
        self.bags: dict[int, int] | None = None
        t = self.traffic
        for node, size in enumerate(t.node_bytes):
            if size > 0 and c.ranks > c.nodes:
                self.bags = (self.bags or {}) | self.within_node("reduce_scatter", node, size)
        if t.scattered_bytes > 0 and c.ranks > 1:
            self.bags = self.meet(
                CollectiveCall("reduce_scatter", t.scattered_bytes, c.ranks, c.nodes),
                ("c10d::reduce_scatter_tensor",),
            )
        if (call := self.all_to_all(t.pairs)) is not None:
            self.bags = self.meet(call, _ALL_TO_ALL)

    def lookups(
        self,
        tables: Sequence[Table],
        samples: float,
        direction: Literal["forward", "backward"],
        optimizer: str | None = None,
    ) -> list[OpCall]:
        """One fused op for each number format, of plain numbers: equal ones are one row of the
        duration table. `optimizer` None: the tables'.
        """
        calls = []
        for dtype in dict.fromkeys(table.dtype for table in tables):
            together, beside = (
                [t for t in tables if (t.dtype == dtype) == same] for same in (True, False)
            )
            call = lookup_calls(
                together, samples, direction, optimizer=optimizer or self.c.optimizer,
                duplicates=self.c.duplicates, beside=beside, in_step=True,
            )  # fmt: skip
            numbers: dict[str, Any] = {
                name: float(getattr(call.op, name)) for name in call.op.dimensions()
            }
            calls.append(dataclasses.replace(call, op=dataclasses.replace(call.op, **numbers)))
        return calls

    def exchange(self) -> None:
        """Lengths, which the hosts must see to know how many indices come; then the indices."""
        c = self.c
        each = np.zeros((c.ranks, c.ranks))
        tables = np.zeros((c.ranks, c.ranks))
        for shard in self.held:
            if shard.kind != "data":
                each[:, shard.rank] += self.b * shard.table.pooling * self.c.index_bytes
                tables[:, shard.rank] += self.b * self.c.index_bytes
        for size, blocking in ((tables, True), (each, False)):
            if (call := self.all_to_all(size)) is not None:
                nodes = self.meet(call, ("c10d::alltoall_base_", "nccl:all_to_all"))
                for rank in self.all:
                    self.issue.wait(rank, nodes[rank], "indices", blocking=blocking)

    def await_bags(self) -> None:
        for rank in self.all:
            if self.bags is not None and rank in self.bags:
                self.issue.wait(rank, self.bags[rank], "bags")
        if self.traffic.summed_bytes > 0:
            self.every(
                [
                    HostOp(
                        ("aten::add",),
                        (
                            loop(
                                self.c.dense_dtype,
                                "add",
                                1,
                                self.traffic.summed_bytes / self.element_bytes,
                            ),
                        ),
                    )
                ]
            )

    def interact(self) -> list[HostOp]:
        c = self.c
        if c.interaction == "cat":
            return [self.eager.concat(self.b, c.interaction_width)]
        return self.eager.dot(self.b, len(c.tables) + 1, c.bottom_mlp[-1])

    def interact_backward(self) -> list[HostOp]:
        c = self.c
        if c.interaction == "cat":
            return []  # slices of one tensor
        return self.eager.dot_backward(self.b, len(c.tables) + 1, c.bottom_mlp[-1])

    def return_bags(self) -> None:
        """Gradients of the bags to where the tables are, and of copied tables into the buckets."""
        c, t = self.c, self.traffic
        self.bags = None
        if (call := self.all_to_all(t.pairs.T)) is not None:
            self.bags = self.meet(call, _ALL_TO_ALL)
        if t.scattered_bytes > 0 and c.ranks > 1:
            self.bags = self.meet(
                CollectiveCall("all_gather", t.scattered_bytes, c.ranks, c.nodes),
                ("c10d::all_gather_into_tensor",),
            )
        for node, size in enumerate(t.node_bytes):
            if size > 0 and c.ranks > c.nodes:
                self.bags = (self.bags or {}) | self.within_node("all_gather", node, size)

    def update_tables(self) -> None:
        """Backward of the lookups and the sparse update, once the gradients are there."""
        c = self.c
        copied = [s.table for s in self.held if s.kind == "data" and s.rank == 0]
        if copied:
            # lookups add to the dense gradient as SGD would to the rows; the optimizer comes after
            # the all-reduce
            self.every(
                [
                    HostOp(_LOOKUP_BACKWARD, (call,))
                    for call in self.lookups(copied, self.b, "backward", "sgd")
                ]
            )
            for table in copied:
                self.ready(Parameter(float(table.rows), float(table.dim)))
        for rank in self.all:
            tables = [s.table for s in self.held if s.rank == rank and s.kind != "data"]
            if not tables:
                continue
            if self.bags is not None and rank in self.bags:
                self.issue.wait(rank, self.bags[rank], "gradients of bags")
            for call in self.lookups(tables, c.batch, "backward"):
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
        self.every(
            [
                HostOp(
                    ("aten::mul",),
                    (loop(self.c.dense_dtype, "mulu", parameter.rows, parameter.cols),),
                )
            ]
        )
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

    def within_node(self, collective: str, node: int, size: float) -> dict[int, int]:
        per_node = self.c.ranks // self.c.nodes
        ranks = range(node * per_node, (node + 1) * per_node)
        return self.issue.collective(
            CollectiveCall(collective, size, per_node), HostOp((f"c10d::{collective}",)), ranks
        )

    def all_to_all(self, pairs: np.ndarray) -> CollectiveCall | None:
        """None where nobody sends anything to another."""
        if self.c.ranks == 1 or not pairs[~np.eye(len(pairs), dtype=bool)].any():
            return None
        if np.ptp(pairs) <= 1e-9 * pairs.max():
            return CollectiveCall("alltoall", float(pairs[0].sum()), self.c.ranks, self.c.nodes)
        return CollectiveCall.between(tuple(map(tuple, pairs.tolist())), self.c.nodes)

    def dense_parameters(self) -> list[Parameter]:
        copied = [
            Parameter(float(s.table.rows), float(s.table.dim))
            for s in self.held
            if s.kind == "data" and s.rank == 0
        ]
        return [*self.eager.parameters(self.bottom), *self.eager.parameters(self.top), *copied]

    def workload(self) -> Workload:
        c, calls = self.c, tuple(self.issue.calls)
        where = (
            f", {c.ranks} ranks" + (f" of {c.nodes} nodes" if c.nodes > 1 else "")
            if c.ranks > 1
            else ""
        )
        notes = (
            []
            if c.host_bytes_per_s is not None
            else ["the batch lies on the devices: no copies from the host"]
        )
        notes += (
            []
            if self.issue.host is not None
            else [
                "no host: launching kernels costs nothing, as when a CUDA graph of the step is"
                " replayed"
            ]
        )
        return Workload(
            name=f"dlrm batch {c.batch}, {len(c.tables)} tables{where}",
            graph=self.issue.graph.build(),
            calls=calls,
            notes=tuple(notes),
            peak_memory=self.fullest(),
        )

    def fullest(self) -> PeakMemory:
        """The rank that must hold most, at least: tables and MLPs with gradients (of tables only
        those that are all-reduced, dense) and the optimizer's state, activations of the MLPs, and
        bags before and after they travel.
        """
        c, b = self.c, self.b
        layers = [*self.eager.parameters(self.bottom), *self.eager.parameters(self.top)]
        state_bytes = 0.0 if self.dense_optimizer == "sgd" else DTYPE_BYTES["fp32"]
        common = sum(p.elements for p in layers) * (2 * self.element_bytes + state_bytes)
        common += b * (sum(self.bottom) + sum(self.top)) * self.element_bytes
        common += b * sum(table.dim * self.bag_bytes(table) for table in c.tables)
        of_ranks: dict[int, list[tuple[float, str]]] = {rank: [] for rank in self.all}
        away = np.zeros(c.ranks)
        for shard in self.held:
            size = table_bytes(shard.table, c.optimizer)
            if shard.kind == "data":  # updated as the MLPs are
                size = (
                    table_bytes(shard.table, self.dense_optimizer)
                    + float(shard.table.rows * shard.table.dim) * self.element_bytes
                )
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
