"""One training step of a graph network (GCN, GraphSAGE, GIN) on any number of ranks, as an eager
framework runs it.

    GCN          y = A (x W)                      transformed, then aggregated over neighbours
    GraphSAGE    y = x W1 + (A x) W2              aggregated as it comes in
    GIN          y = MLP(x + A x)                 two products

A is the adjacency matrix of a layer, a sparse product (`ops.sparse`); backward it is transposed.
Inputs of the first layer need no gradient, so what is aggregated as it comes in costs no second
product there. b nodes of a layer's output, B of its input, E edges between them:

    full graph   b = B = V / R, E of all edges / R: every rank holds a part of one graph
    sampled      each of `batch` nodes of a rank draws `fanouts[k]` neighbours a layer, and they
                 theirs: E_k = b_k fanout, B_k = b_k + the different ones among E_k uniform draws of
                 V nodes. Every rank a batch of its own
    snapshots    T graphs over time, T / R a rank, then a recurrent layer over time at each node: an
                 all-to-all turns time-split into node-split, 1 / R of what all hold together

A partitioned graph. Edges are dealt out (`cut="vertex"`, DistGNN) and a node is on every rank with
an edge of it, RF ranks in the mean; each aggregation sends the partial sums of (RF - 1) V clones to
their nodes' owners and the sums back. Or nodes are dealt out (`cut="edge"`) and the features of
(RF - 1) V neighbours are fetched, which is one message. For random cuts

    RF = (1 / V) sum over v of R (1 - (1 - 1 / R)^degree(v))

by the degrees of a log-normal distribution where none are given. With `delay` r (DistGNN's cd-r) a
step sends 1 / r of the clones and waits for none of them; `delay` inf (0c) sends nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hybridperf.engine.workload import Workload
from hybridperf.hardware import DTYPE_BYTES, Host, canonical_dtype
from hybridperf.io import InputError
from hybridperf.model.calls import CollectiveCall, GivenSeconds
from hybridperf.ops import Gather, Gemm, OpCall, OptimizerUpdate, Reduction, Softmax, SpMM
from hybridperf.ops.embedding import uniform_unique_rows
from hybridperf.workloads.gnn_config import GnnConfig, GraphShape
from hybridperf.workloads.programs.eager import Eager, HostOp, Parameter, StepIssuer, loop

_LOSS_THREADS = 32.0
# of the log of `loss_wait_s`, believed: memory of GPUs answers in 0.3 to 0.9 us
_WAIT_SPREAD = 0.35
_GATES = 4  # of an LSTM
_QUANTILES = 512
_ALL_TO_ALL = ("c10d::alltoall_base_", "nccl:all_to_all")


class Exchange(NamedTuple):
    """Rows of this rank's clones to and from other ranks."""

    columns: float


@dataclasses.dataclass(frozen=True)
class Block:
    """What one layer of a step aggregates on a rank."""

    rows: float  # nodes that come out
    cols: float  # nodes that go in
    edges: float
    cv_degree: float = 0.0
    max_degree: float = 0.0


def replication(
    ranks: int, degrees: Sequence[float] | np.ndarray | None = None, *,
    graph: GraphShape | None = None,
) -> float:  # fmt: skip
    """RF of a random cut: on how many of `ranks` ranks a node is in the mean (module docstring).

    Args:
        ranks: ranks that edges are dealt out to.
        degrees: of every node.
        graph: its mean degree and their spread, where no degrees are given.

    Raises:
        InputError: no rank, neither degrees nor a graph, or a degree below zero.
    """
    if not (isinstance(ranks, int | np.integer) and ranks >= 1):
        raise InputError(f"ranks must be a whole number of 1 or more, got {ranks!r}")
    if degrees is None:
        if graph is None:
            raise InputError("expected degrees or a graph, got neither; give degrees=[...]")
        degrees = graph.degrees(_QUANTILES)
    degrees = np.asarray(degrees, float)
    if degrees.size == 0 or not ((degrees >= 0) & np.isfinite(degrees)).all():
        given = "none" if degrees.size == 0 else f"{degrees.min():g} to {degrees.max():g}"
        raise InputError(f"expected a degree of zero or more for every node, got {given}")
    each = -np.expm1(degrees * np.log1p(-1.0 / ranks)) if ranks > 1 else 1.0
    return float(np.mean(ranks * each)) if ranks > 1 else 1.0


def gnn(config: GnnConfig, host: Host | None = None) -> Workload:
    """One training step of a graph network as a workload.

    Args:
        config: the graph, the model, and where it runs.
        host: launch overheads of a traced host (`hp.load_model(folder).host`); None: launches cost
            nothing, as in a replayed CUDA graph.

    Raises:
        InputError: when the sizes make no model.
    """
    if not isinstance(config, GnnConfig):
        raise InputError(f"expected a GnnConfig(...), got {config!r:.60}")
    config.check()
    return _Step(config, host).build()


class _Step:
    """One step, in the order in which ranks issue it."""

    def __init__(self, config: GnnConfig, host: Host | None):
        self.c, self.dtype = config, canonical_dtype(config.dtype)
        self.eager, self.issue = Eager(self.dtype), StepIssuer(host)
        self.all = range(config.ranks)
        self.widths = list(itertools.pairwise(config.widths))
        self.blocks = blocks(config)
        clones = max(_replication(config) - 1.0, 0.0) * config.graph.nodes
        self.clones = clones / config.ranks / max(config.delay, 1.0)

    def build(self) -> Workload:
        c = self.c
        if c.fanouts:
            self.sample()
        for at, (i, o) in enumerate(self.widths):
            self.every(*self.layer(at, i, o))
            if at < len(self.widths) - 1:
                self.every(self.eager.activation("relu", self.blocks[at].rows, o))
        if c.snapshots:
            self.over_time("forward")
        self.loss()
        if c.snapshots:
            self.over_time("backward")
        for at, (i, o) in reversed(list(enumerate(self.widths))):
            if at < len(self.widths) - 1:
                self.every(self.relu_backward(self.blocks[at].rows, o))
            self.every(*self.layer_backward(at, i, o))
        self.update()
        self.issue.finish()
        free = "no host: launching kernels costs nothing, as in a replayed CUDA graph"
        notes = () if self.issue.host is not None else (free,)
        return Workload(
            name=c.name(), graph=self.issue.graph.build(), calls=tuple(self.issue.calls),
            notes=notes,
        )  # fmt: skip

    def every(self, *ops: HostOp | Exchange) -> None:
        """Issues the same ops and exchanges on all ranks."""
        for op in ops:
            if isinstance(op, Exchange):
                size = self.clones * op.columns * DTYPE_BYTES[self.dtype]
                self.meet("alltoall", size, _ALL_TO_ALL, waits=self.c.delay <= 0)
                continue
            for rank in self.all:
                self.issue.op(rank, op)

    # --- layers -----------------------------------------------------------------------------------

    def layer(self, at: int, i: float, o: float) -> list[HostOp | Exchange]:
        """A layer of i inputs and o outputs, messages between ranks included."""
        of = self.blocks[at]
        if self.c.model == "gcn":
            return [self.linear(of.cols, i, o), *self.aggregate(of, o), self.add(of.rows, o)]
        come = self.aggregate(of, i)
        if self.c.model == "graphsage":
            own, theirs = self.linear(of.rows, i, o), self.linear(of.rows, i, o)
            return [*come, theirs, own, self.add(of.rows, o)]
        inner = self.linear(of.rows, i, o), self.eager.activation("relu", of.rows, o)
        return [*come, self.add(of.rows, i), *inner, self.linear(of.rows, o, o)]

    def layer_backward(self, at: int, i: float, o: float) -> list[HostOp | Exchange]:
        of, first = self.blocks[at], at == 0
        ops: list[HostOp | Exchange]
        if self.c.model == "gcn":
            return [*self.aggregate(of, o, back=True), *self.linear_backward(of.cols, i, o, first)]
        if self.c.model == "graphsage":
            ops = [*self.linear_backward(of.rows, i, o, first) * 2]
        else:
            relu, inner = self.relu_backward(of.rows, o), self.linear_backward(of.rows, i, o, first)
            ops = [*self.linear_backward(of.rows, o, o, False), relu, *inner]
        if first:
            return ops
        return [*ops, *self.aggregate(of, i, back=True), self.add(of.cols, i)]

    def linear(self, b: float, i: float, o: float) -> HostOp:
        return HostOp(("aten::linear",), (OpCall(Gemm(self.dtype, b, o, i)),))

    def linear_backward(self, b: float, i: float, o: float, first: bool) -> list[HostOp]:
        ops = self.eager.linear_backward(b, i, o, inputs_too=not first)
        return [op for op, _ in ops]

    def relu_backward(self, rows: float, cols: float) -> HostOp:
        return HostOp(("ReluBackward0",), (loop(self.dtype, "mul", rows, cols),))

    def add(self, rows: float, cols: float) -> HostOp:
        return HostOp(("aten::add",), (loop(self.dtype, "add", rows, cols),))

    def aggregate(self, of: Block, n: float, back: bool = False) -> list[HostOp | Exchange]:
        """Sums over neighbours, with the messages of a partitioned graph."""
        rows, cols = (of.cols, of.rows) if back else (of.rows, of.cols)
        sparse = SpMM(
            self.c.aggregate_dtype or self.dtype, rows, cols, of.edges, float(n), of.cv_degree,
            of.max_degree, kernel=self.c.kernel,
        )  # fmt: skip
        call = HostOp(("torch_sparse::spmm",), (OpCall(sparse, framework=self.c.framework),))
        if self.clones == 0:
            return [call]
        message = Exchange(float(n))
        # of clones, partial sums and then the sums of all
        return [message, call] if self.c.cut == "edge" else [call, message, message]

    # --- messages ---------------------------------------------------------------------------------

    def meet(self, name: str, size: float, names: tuple[str, ...], waits: bool = True) -> None:
        call = CollectiveCall(name, size, self.c.ranks, self.c.nodes)
        nodes = self.issue.collective(call, HostOp(names), self.all)
        for rank in self.all if waits else ():
            self.issue.wait(rank, nodes[rank], name)

    def sample(self) -> None:
        """Neighbours drawn at random places of the edge list, and the features of all nodes met."""
        c = self.c
        for block in self.blocks if c.samples_on_device else ():
            drawn = Gather("int32", block.edges, 1.0, c.graph.edges)
            self.every(HostOp(("neighbor_sample",), (OpCall(drawn),)))
        features = Gather(self.dtype, self.blocks[0].cols, float(c.widths[0]), float(c.graph.nodes))
        if c.host_bytes_per_s is None:
            self.every(HostOp(("aten::index_select",), (OpCall(features),)))
            return
        size = self.blocks[0].cols * c.widths[0] * DTYPE_BYTES[self.dtype]
        for rank in self.all:
            seconds = size / c.host_bytes_per_s
            node = self.issue.copy(rank, seconds, "features", blocking=False)
            self.issue.wait(rank, node, "features")

    def over_time(self, direction: str) -> None:
        """A recurrent layer over all snapshots at each node, between two all-to-alls."""
        c, width = self.c, float(self.c.widths[-1])
        each = c.graph.nodes / c.ranks
        for _ in range(2 if c.ranks > 1 else 0):
            self.meet("alltoall", c.snapshots / c.ranks * c.graph.nodes * width
                      * DTYPE_BYTES[self.dtype], _ALL_TO_ALL)  # fmt: skip
        product = Gemm(self.dtype, each, _GATES * width, 2 * width)
        back = Gemm(self.dtype, each, 2 * width, _GATES * width)
        weight = Gemm(self.dtype, _GATES * width, 2 * width, each)
        products = (product,) if direction == "forward" else (back, weight)
        calls = tuple(OpCall(one, times=float(c.snapshots)) for one in products)
        gates = loop(self.dtype, "sigmoid", each * c.snapshots, _GATES * width)
        self.every(HostOp(("aten::lstm",), (*calls, gates)))

    # --- ends -------------------------------------------------------------------------------------

    def loss(self) -> None:
        """Cross entropy of the output nodes, and its gradient.

        PyTorch's kernels of it (`nll_loss_forward_reduce_cuda_kernel_2d` and its backward, of
        aten/src/ATen/native/cuda/Loss.cu) go through all rows with one block of 32 threads: forward
        a thread waits for a label and then for that label's number, backward for a label.
        """
        rows, classes = self.blocks[-1].rows, float(self.c.widths[-1])
        forward = (
            OpCall(Softmax(self.dtype, rows, classes)),
            OpCall(Reduction(self.dtype, 1.0, rows)),
        )
        wait_s = self.c.loss_wait_s * rows / _LOSS_THREADS
        picked = (GivenSeconds(2 * wait_s, "nll_loss", _WAIT_SPREAD),) if wait_s > 0 else ()
        kept = (GivenSeconds(wait_s, "nll_loss backward", _WAIT_SPREAD),) if wait_s > 0 else ()
        self.every(HostOp(("aten::cross_entropy_loss",), (*forward, *picked)))
        softmax_back = loop(self.dtype, "mul", rows, classes)
        self.every(HostOp(("NllLossBackward0",), (*kept, softmax_back)))

    def update(self) -> None:
        """Gradients of all weights in one message, and Adam."""
        numbers = sum(p.elements for p in self.parameters())
        if self.c.ranks > 1:
            self.meet("all_reduce", numbers * DTYPE_BYTES[self.dtype], ("nccl:all_reduce",))
        adam = OptimizerUpdate(self.dtype, numbers, 4.0, 3.0, 12.0, 1.0)
        self.every(HostOp(("Optimizer.step#Adam.step",), (OpCall(adam),)))

    def parameters(self) -> list[Parameter]:
        each = []
        for i, o in self.widths:
            shapes = {"gcn": [(o, i)], "graphsage": [(o, i)] * 2, "gin": [(o, i), (o, o)]}
            each += [Parameter(*shape) for shape in (*shapes[self.c.model], (1, o))]
        return each


def blocks(config: GnnConfig) -> list[Block]:
    """What each layer aggregates on one rank, the first layer first."""
    graph, layers = config.graph, len(config.widths) - 1
    if config.fanouts:
        return _sampled(config)
    copies = config.snapshots / config.ranks if config.snapshots else 1.0
    parts = 1.0 if config.snapshots else float(config.ranks)
    here = graph.nodes / parts
    if parts > 1:
        here *= _replication(config)
    edges = graph.edges + (graph.nodes if config.model == "gcn" else 0.0)  # loops to itself
    longest = graph.max_degree if parts == 1 else 0.0
    of = Block(here * copies, here * copies, edges / parts * copies, graph.cv_degree, longest)
    return [of] * layers


def _sampled(config: GnnConfig) -> list[Block]:
    """From the output back: each node draws its fanout of neighbours."""
    out, rows = [], float(config.batch)
    for fanout in config.fanouts:
        edges = rows * min(float(fanout), config.graph.mean_degree)
        met = float(uniform_unique_rows(edges, config.graph.nodes))
        cols = min(rows + met, float(config.graph.nodes))
        out.append(Block(rows, cols, edges))
        rows = cols
    return out[::-1]


def _replication(config: GnnConfig) -> float:
    """As given, or of a random cut."""
    if config.fanouts or config.snapshots or config.ranks == 1:
        return 1.0
    return config.replication or replication(config.ranks, graph=config.graph)
