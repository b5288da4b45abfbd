"""Kernels of an eager framework's layers, forward and backward, and what the host threads of a
step's ranks issue, in order: ops of a framework with their kernels, collectives, copies, waits.

b samples; a layer of i inputs and o outputs. Libraries of GPUs multiply either layout at one rate,
and add the bias as they write: products are plain ones. What old PyTorch (1.8, 2021) did besides is
a switch of `Eager`: a bias copied into the output before each product, gradients set to zero by a
fill and added to, not replaced. So are what its next versions and DLRM's own program do: where a
bias's gradient is summed and gradients are added up, and from where the indices of the
interaction's pairs come.

A framework's op costs its host, before, between and after its kernels' launches (`hardware.Host`,
Lin et al.'s T1 to T5):

    between_ops  before_launch  [launch_call  between_launches]  launch_call  after_launch

A kernel is marked as issued apart (`OpCall.issued_apart`): a GPU's model leaves out the launch that
its measurements held. Each kernel's launch holds the host's seconds before it; what follows the
last launch is added to what the rank issues next. Without a host all of this is free: what remains
is what the step takes when a CUDA graph of it is replayed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hybridperf.engine.graph import COMM, COMPUTE, GraphBuilder
from hybridperf.hardware import Host
from hybridperf.model.calls import Call, CollectiveCall, GivenSeconds
from hybridperf.ops import BatchedGemm, Copy, Elementwise, Gemm, OpCall, Reduction, Sort, op_by_name

COPY = "copy"
KERNEL_CALL, COPY_CALL = "cudaLaunchKernel", "cudaMemcpyAsync"
_COPY_NAMES = ("aten::to",)


@dataclass(frozen=True)
class HostOp:
    """An op of a framework and the kernels it launches."""

    names: tuple[str, ...]  # that its overheads may be kept under: versions differ
    kernels: tuple[Call, ...] = ()
    waits: tuple[int, ...] = ()  # kernels (copies from the host) whose end the host waits for


@dataclass
class StepIssuer:
    """Collects a step. Node ids are the graph's."""

    host: Host | None = None
    graph: GraphBuilder = field(default_factory=GraphBuilder)
    calls: dict[Call, int] = field(default_factory=dict)
    # host seconds after the last launch of each rank
    _owed_s: dict[int, float] = field(default_factory=dict)
    # last node of each rank's stream
    _last: dict[tuple[int, str], int] = field(default_factory=dict)

    def op(self, rank: int, op: HostOp) -> None:
        """An op with its kernels, on the compute stream."""
        self.spend(rank, self._between_ops_s())
        for at, kernel in enumerate(op.kernels):
            self.spend(rank, self._of("between_launches_s" if at else "before_launch_s", op.names))
            self.spend(rank, self._of("launch_call_s", (KERNEL_CALL,)))
            self._node(rank, COMPUTE, kernel, op.names[0], blocking=at in op.waits)
        last = "after_launch_s" if op.kernels else "without_launch_s"
        self.spend(rank, self._of(last, op.names))

    def copy(
        self, rank: int, seconds: float, label: str, *, stream: str = COPY, blocking: bool
    ) -> int:
        """A copy from the host to the device; a blocking one holds the host up."""
        self._spend_copy(rank)
        node = self._node(rank, stream, GivenSeconds(seconds, label), _COPY_NAMES[0], blocking)
        self.spend(rank, self._of("after_launch_s", _COPY_NAMES))
        return node

    def fetch(self, rank: int) -> None:
        """The host reads a number of the device's, after everything on its compute stream."""
        self._spend_copy(rank)
        launch = self._row(self._owed_s.pop(rank, 0.0))
        self._last[rank, COMPUTE] = self.graph.op(
            0, label=_COPY_NAMES[0], rank=rank, launch_row=launch, blocking=True
        )
        if self.host is not None and self.host.fetch_s is not None:
            self.spend(rank, max(self.host.fetch_s.mean_s - self._copy_s(), 0.0))

    def _spend_copy(self, rank: int) -> None:
        self.spend(rank, self._between_ops_s() + self._copy_s())

    def _copy_s(self) -> float:
        """Of the host, until a copy is launched."""
        before_s = self._of("before_launch_s", _COPY_NAMES)
        return before_s + self._of("launch_call_s", (COPY_CALL,))

    def collective(self, call: CollectiveCall, op: HostOp, ranks: Sequence[int]) -> dict[int, int]:
        """Nodes by rank on the communication streams; it begins when all `ranks` have issued it."""
        for rank in ranks:
            self.spend(rank, self._between_ops_s() + self._of("before_launch_s", op.names))
            self._settle(rank)
        launch = self._row(self._of("launch_call_s", (KERNEL_CALL,)))
        computed = [self._last[rank, COMPUTE] for rank in ranks if (rank, COMPUTE) in self._last]
        row = self.calls.setdefault(call, len(self.calls) + 1)
        nodes = self.graph.collective(
            row, label=op.names[0], ranks=list(ranks), stream=COMM, after=computed,
            launch_row=launch,
        )  # fmt: skip
        for rank in ranks:
            self.spend(rank, self._of("after_launch_s", op.names))
            self._last[rank, COMM] = nodes[rank]
        return nodes

    def wait(self, rank: int, node: int, label: str, *, blocking: bool = False) -> None:
        """What the rank computes next comes after `node`; `blocking`: its host too."""
        self._settle(rank)
        self._last[rank, COMPUTE] = self.graph.op(
            0, label=label, rank=rank, stream=COMPUTE, after=[node], blocking=blocking
        )

    def spend(self, rank: int, seconds: float) -> None:
        """The rank's host is busy for so long before what it issues next."""
        self._owed_s[rank] = self._owed_s.get(rank, 0.0) + seconds

    def load(self, rank: int, seconds: float) -> None:
        """The rank's host has its batch only after so long."""
        self.spend(rank, seconds)
        self._settle(rank, "loading")

    def finish(self) -> None:
        """Hosts are done with what they issued."""
        for rank in list(self._owed_s):
            self._settle(rank)

    def _node(self, rank: int, stream: str, call: Call, label: str, blocking: bool) -> int:
        if isinstance(call, OpCall):
            call = replace(call, issued_apart=True)
        row = self.calls.setdefault(call, len(self.calls) + 1)
        launch = self._row(self._owed_s.pop(rank, 0.0))
        node = self.graph.op(
            row, label=label, rank=rank, stream=stream, launch_row=launch, blocking=blocking
        )
        self._last[rank, stream] = node
        return node

    def _settle(self, rank: int, label: str = "host") -> None:
        if owed_s := self._owed_s.pop(rank, 0.0):
            self.graph.op(0, label=label, rank=rank, launch_row=self._row(owed_s))

    def _row(self, seconds: float) -> int:
        if seconds <= 0:
            return 0
        return self.calls.setdefault(GivenSeconds(round(seconds, 12)), len(self.calls) + 1)

    def _between_ops_s(self) -> float:
        if self.host is None or self.host.between_ops_s is None:
            return 0.0
        return self.host.between_ops_s.mean_s

    def _of(self, overhead: str, names: Sequence[str]) -> float:
        return 0.0 if self.host is None else self.host.seconds(overhead, names)


# of some hundred bytes to the device, in the sequences that Lin et al. recorded
SMALL_COPY_S = 1e-6


def loop(dtype: str, name: str, rows: float, cols: float) -> OpCall:
    """An elementwise op by its name in tables, over rows x cols elements."""
    _, counts = op_by_name(name)
    return OpCall(Elementwise(dtype, float(rows), float(cols), **counts))


def _backward(*names: str) -> tuple[str, ...]:
    """Names of a step of the backward pass in several versions."""
    return tuple(f"{name}{version}" for name in names for version in ("", "0", "1"))


@dataclass(frozen=True)
class Parameter:
    """A tensor to be trained, and the host op after which its gradient is there."""

    rows: float
    cols: float

    @property
    def elements(self) -> float:
        return self.rows * self.cols


@dataclass(frozen=True)
class Eager:
    """How an eager framework (PyTorch) cuts a model's layers into kernels, forward and backward."""

    dtype: str  # number format of activations and weights
    bias_copy: bool = False  # a product's bias is copied into its result first
    accumulates: bool = False  # gradients are filled with zeros and added to
    # ops that launch nothing (views, marks) are issued, too: they cost a host its time
    views: bool = False
    # sums and additions of a backward step are launched within its op, not by ops of their own
    # (PyTorch of 2022)
    grouped: bool = False
    # the interaction's pairs lie on the host: copied at each use, and the host waits for it
    host_pairs: bool = False

    def linear(self, b: float, i: float, o: float) -> HostOp:
        product = OpCall(Gemm(self.dtype, float(b), float(o), float(i)))
        copy = (loop(self.dtype, "addu", b, o),) if self.bias_copy else ()
        return HostOp(("aten::linear", "aten::addmm"), (*copy, product))

    def activation(self, kind: str, b: float, o: float) -> HostOp:
        """A loop by its name, "relu" or "sigmoid"."""
        return HostOp((f"aten::{kind}",), (loop(self.dtype, kind, b, o),))

    def mlp(self, b: float, widths: Sequence[float], last: str) -> list[HostOp]:
        """Layers with ReLUs between them; `last`: "relu" or "sigmoid" or "" after the last."""
        ops = []
        for at, (i, o) in enumerate(itertools.pairwise(widths)):
            kind = last if at == len(widths) - 2 else "relu"
            ops += [self.linear(b, i, o), *([self.activation(kind, b, o)] if kind else [])]
        return ops

    def linear_backward(
        self, b: float, i: float, o: float, inputs_too: bool
    ) -> list[tuple[HostOp, tuple[Parameter, ...]]]:
        """Host ops with the parameters whose gradients each leaves behind."""
        back = (OpCall(Gemm(self.dtype, float(b), float(i), float(o))),) if inputs_too else ()
        weight = OpCall(Gemm(self.dtype, float(o), float(i), float(b)))
        bias = OpCall(Reduction(self.dtype, float(o), float(b)))
        names = _backward("AddmmBackward")
        ops = [HostOp(names, (*back, weight)), HostOp(("aten::sum",), (bias,))]
        if self.grouped:
            ops = [HostOp(names, (*back, weight, bias))]
        kept = [(self.keep(p), (p,)) for p in (Parameter(1, o), Parameter(o, i))]
        silent = [(op, ()) for op in self.silent("TBackward")]
        return [*((op, ()) for op in ops), *kept, *silent]

    def silent(self, *names: str) -> list[HostOp]:
        """Ops that launch nothing, where they are asked for."""
        return [HostOp((name, f"{name}0")) for name in names] if self.views else []

    def mark(self) -> list[HostOp]:
        """What a profiler's mark around a part of the model issues."""
        return self.silent("aten::zeros", "aten::empty")

    def keep(self, parameter: Parameter) -> HostOp:
        """A gradient is put where the optimizer finds it."""
        added = loop(self.dtype, "add", parameter.rows, parameter.cols)
        kernels = (added,) if self.accumulates else ()
        return HostOp(("torch::autograd::AccumulateGrad",), kernels)

    def mlp_backward(
        self, b: float, widths: Sequence[float], last: str, inputs_too: bool
    ) -> list[tuple[HostOp, tuple[Parameter, ...]]]:
        """The layers from last to first; `inputs_too`: gradients of the first one's inputs, too."""
        ops: list[tuple[HostOp, tuple[Parameter, ...]]] = []
        layers = list(itertools.pairwise(widths))
        for at in reversed(range(len(layers))):
            i, o = layers[at]
            kind = last if at == len(layers) - 1 else "relu"
            if kind:
                names = _backward("ReluBackward" if kind == "relu" else "SigmoidBackward")
                ops.append((HostOp(names, (loop(self.dtype, "mul", b, o),)), ()))
            ops += self.linear_backward(b, i, o, inputs_too or at > 0)
        return ops

    def parameters(self, widths: Sequence[float]) -> list[Parameter]:
        layers = itertools.pairwise(widths)
        return [one for i, o in layers for one in (Parameter(o, i), Parameter(1, o))]

    def concat(self, b: float, width: float) -> HostOp:
        return HostOp(("aten::cat",), (OpCall(Copy(self.dtype, float(b), float(width))),))

    def dot(self, b: float, vectors: int, dim: float) -> list[HostOp]:
        """Products of all pairs of a sample's vectors, the lower triangle and the first vector."""
        pairs = vectors * (vectors - 1) // 2
        sizes = (float(b), float(vectors), float(vectors), float(dim))
        product = OpCall(BatchedGemm(self.dtype, *sizes))
        return [
            *self.silent("aten::view", "aten::view"),
            self.concat(b, vectors * dim),
            *self.silent("aten::transpose"),
            HostOp(("aten::bmm",), (product,)),
            *self.silent("aten::zeros", "aten::unbind", "aten::slice"),
            HostOp(
                ("aten::index",),
                (*self.pairs(), loop(self.dtype, "addu", b, pairs)),
                waits=tuple(range(len(self.pairs()))),
            ),
            self.concat(b, dim + pairs),
        ]

    def dot_backward(self, b: float, vectors: int, dim: float) -> list[HostOp]:
        pairs = vectors * (vectors - 1) // 2
        whole = loop(self.dtype, "fill", b, vectors * vectors)
        copied = self.pairs()
        waits = tuple(range(1, 1 + len(copied)))
        # arithmetic on the lists is the host's where they lie there
        small = (loop(self.dtype, "addu", 1, pairs),) * (4 if copied else 6)
        slots = (*small, OpCall(Sort("int64", 1.0, float(pairs)))) if self.accumulates else ()
        copy = OpCall(Copy(self.dtype, float(b), float(vectors * vectors)))
        first = HostOp(_backward("SliceBackward"), (whole, copy))
        sizes = (float(b), float(vectors), float(dim), float(vectors))
        product = OpCall(BatchedGemm(self.dtype, *sizes))
        all_added, first_added = (
            (loop(self.dtype, "add", b, width),) for width in (vectors * dim, dim)
        )
        add = ("aten::add", "aten::add_")
        if self.grouped:
            rest = [
                HostOp((*_backward("TransposeBackward"), *add), all_added),
                *self.silent("CatBackward"),
                HostOp((*_backward("ViewBackward"), *add), first_added),
                *self.silent("ViewBackward", "ViewBackward"),
            ]
        else:
            silent = self.silent("TransposeBackward", "CatBackward", *["ViewBackward"] * 3)
            rest = [*silent, HostOp(add, all_added), HostOp(add, first_added)]
        indexed: tuple[Call, ...] = (whole, *copied, *slots, loop(self.dtype, "add", b, pairs))
        return [
            *self.silent("CatBackward"),
            HostOp(_backward("IndexBackward"), indexed, waits=waits),
            *((first,) if self.accumulates else ()),
            HostOp(_backward("BmmBackward"), (product, product)),
            *rest,
        ]

    def pairs(self) -> tuple[GivenSeconds, ...]:
        """Copies of the two lists of vectors that the interaction pairs."""
        return (GivenSeconds(SMALL_COPY_S, "pairs"),) * 2 if self.host_pairs else ()

    def loss(self, b: float, kind: str) -> list[HostOp]:
        squared = kind == "mse"
        forward = "aten::mse_loss" if squared else "aten::binary_cross_entropy"
        each = loop(self.dtype, "sub" if squared else "pow", 1, b)
        backward = _backward("MseLossBackward" if squared else "BinaryCrossEntropyBackward")
        return [
            HostOp((forward,), (each, OpCall(Reduction(self.dtype, 1.0, float(b))))),
            HostOp(("aten::ones_like",), (loop(self.dtype, "fill", 1, 1),)),
            HostOp(backward, (loop(self.dtype, "addcmul", 1, b),)),
        ]

    def update(self, parameters: Sequence[Parameter], optimizer: str) -> HostOp:
        """Dense update of all parameters."""
        # of Adagrad: squares added up, root, epsilon, quotient
        loops = ("add",) if optimizer == "sgd" else ("addcmul", "sqrt", "addu", "addcmul")
        kernels = [loop(self.dtype, one, p.rows, p.cols) for p in parameters for one in loops]
        name = "SGD" if optimizer == "sgd" else "Adagrad"
        return HostOp((f"Optimizer.step#{name}.step",), tuple(kernels))

    def zero_grad(self, parameters: Sequence[Parameter]) -> HostOp:
        zeroed = parameters if self.accumulates else ()
        kernels = tuple(loop(self.dtype, "fill", p.rows, p.cols) for p in zeroed)
        return HostOp(("Optimizer.zero_grad#SGD.zero_grad",), kernels)
