"""What XLA makes of a lowered program on a GPU: which of its loops run as one kernel.

After XLA's pipeline (xla/service/gpu/fusion_pipeline.cc, gpu_fusible.cc,
transforms/priority_fusion.cc, softmax_rewriter_triton.cc in openxla/xla):

    reshapes, slices, broadcasts    computed where they are read, unless a library reads them
    loops                           join what they read from, or what reads the same, over as many
                                    elements (`programs/fusion.py`): producers, multiple outputs
    sums of rows                    go on in their kernel (Triton's softmax and norms); of columns
                                    and of all end it; a kernel sums in one way only
    what several kernels read       is computed in each of them from what it was made of, if that
                                    is less to do than to write and to read it
    products, convolutions, sorts   kernels of libraries, which take in nothing (cuBLASLt's
                                    epilogues are off by default, debug_options_flags.cc); an
                                    operand that they cannot read as it lies is copied first
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from hybridperf.hardware import DeviceSpec
from hybridperf.ops import Copy, Fused, Gather, OpCall
from hybridperf.workloads.programs.fusion import Piece, joined
from hybridperf.workloads.programs.jax import hlo_collectives
from hybridperf.workloads.programs.jax.dataflow import CARRIED, CARRIED_OUT, Dataflow, Node, Value
from hybridperf.workloads.programs.jax.gpu_ops import kind_of, library_calls, number_format, relaid
from hybridperf.workloads.programs.jax.gpu_recompute import Settled, settled
from hybridperf.workloads.programs.jax.hlo import Module
from hybridperf.workloads.programs.jax.hlo_cost import ARITHMETIC, TRANSCENDENTAL, Costs, Count

_GIVEN = frozenset({"parameter", "shard", "constant", "iota"})
_ROUND = frozenset({CARRIED, CARRIED_OUT})
_VIEWS = frozenset({
    "reshape", "bitcast", "broadcast", "slice", "dynamic-slice", "transpose", "reverse", "iota",
})  # fmt: skip
# views that a library reads as they lie, by its opcode
_ALIASES = frozenset({"reshape", "bitcast"})
_READ_AS_THEY_LIE = {
    "dot": _ALIASES | {"transpose"}, "convolution": _ALIASES | {"transpose", "reverse"},
}  # fmt: skip
_EACH = ARITHMETIC | TRANSCENDENTAL | {"bitcast-convert", "concatenate", "pad", "copy", "map"}
_LOOPS = _EACH | {"reduce", "gather", "dynamic-update-slice"}
_IN_PLACE = frozenset({"dynamic-update-slice", "scatter"})
MESSAGES = hlo_collectives.OPCODES
# elements of the largest tensor of a Triton kernel: what one row may have
_LARGEST_ROW = 2**20


class Fuser:
    """The kernels of one program."""

    def __init__(
        self, flow: Dataflow, module: Module, device: DeviceSpec, ignored: frozenset[str],
        donated: frozenset[int],
    ):  # fmt: skip
        self.flow, self.device, self.ignored = flow, device, ignored
        self.costs = Costs(module)
        self.number = {node: at for at, node in enumerate((*flow.parameters, *flow.nodes), 1)}
        self.donated = {node for at, node in enumerate(flow.parameters) if at in donated}
        self.unknown: dict[str, str] = {}
        self.ignored_times: dict[str, int] = {}
        self.storage_of: dict[int, int] = {}  # what is updated in place lives in another's memory
        self.real = self._made_real()
        self.turned: set[Node] = set()  # copied as a product reads them
        self.balance = device.peak("fp32", "vector") / device.memory_bytes_per_s

    def kernels(self) -> list[Settled]:
        """In an order in which each comes after those that it reads from."""
        pieces = [one for node in self.flow.nodes for one in self._pieces(node)]
        ends = [node.result_of_loop for node in self.flow.nodes if node.result_of_loop is not None]
        kept = self.storages((*self.flow.outputs, *ends))

        def is_computed_again(piece: Piece) -> bool:
            return piece.what.opcode in _EACH or piece.what in self.real

        return settled(joined(pieces, wide=True), kept, is_computed_again, self.balance)

    def works(self, node: Node) -> bool:
        """Whether a node is a kernel, or a part of one, or a message."""
        return not (node.opcode in _GIVEN | _ROUND | _VIEWS and node not in self.real)

    def storages(self, values: Sequence[Value]) -> set[int]:
        """Where values lie, or what they are read from."""
        return set(self._reads(values))

    # --- what is in memory, and what is computed where it is read -----------------------------

    def _is_loop(self, node: Node) -> bool:
        return node.opcode in _LOOPS or node in self.real

    def _made_real(self) -> set[Node]:
        """Views that somebody reads who cannot compute them: each is a loop of its own."""
        found: set[Node] = set()
        readers = [node for node in self.flow.nodes if node.opcode not in _LOOPS | _VIEWS]
        for node in readers:
            free = _READ_AS_THEY_LIE.get(node.opcode, _ALIASES)
            for value in node.taken:
                found |= self._first_view(value, free)
        updated = [one.taken[0] for one in self.flow.nodes if one.opcode == "dynamic-update-slice"]
        for value in (*self.flow.outputs, *updated):
            found |= self._first_view(value, _ALIASES)
        return found

    def _first_view(self, value: Value, free: frozenset[str]) -> set[Node]:
        node = value.node
        while node.opcode in free or _costs_nothing(node):
            node = node.taken[0].node
        scalar = node.instruction.shapes[0].elements <= 1
        return {node} if node.opcode in _VIEWS and not scalar else set()

    def _read_of(self, value: Value, by_loop: bool = False) -> dict[int, float]:
        """Bytes that a value is read from, by storage: of a part as many as it has; a loop looks
        through what others need as a whole.
        """
        node, size = value.node, value.shape.bytes
        if node.opcode in _VIEWS and (by_loop or node not in self.real):
            return {
                one: min(bytes_, size) for source in node.taken
                for one, bytes_ in self._read_of(source, by_loop).items()
            }  # fmt: skip
        small = node.opcode == "constant" and node.instruction.shapes[0].elements <= 1
        return {} if small else {self.number[node]: size}

    def _reads(self, values: Sequence[Value], by_loop: bool = False) -> dict[int, float]:
        found: dict[int, float] = {}
        for value in values:
            for one, size in self._read_of(value, by_loop).items():
                found[one] = max(found.get(one, 0.0), size)
        return found

    # --- nodes as pieces ------------------------------------------------------------------------

    def _pieces(self, node: Node) -> list[Piece]:
        opcode = node.opcode
        if opcode in _GIVEN and node not in self.real:
            return []
        if kind_of(node) in self.ignored:
            self.ignored_times[kind_of(node)] = self.ignored_times.get(kind_of(node), 0) + 1
            return [self._other(node, ())]
        if self._is_loop(node):
            return [self._loop(node)]
        if opcode in _VIEWS:
            return []
        if opcode in _ROUND:
            return [self._other(node, self._copied_in(node))]
        if opcode in MESSAGES or opcode in hlo_collectives.HALVES_DONE:
            return [self._other(node, ())]
        calls = library_calls(node, self.costs, self.device)
        if calls is None:
            self.unknown.setdefault(kind_of(node), node.where)
            return []
        return [self._other(node, (*self._relaid(node), *self._copied_in(node), *calls))]

    def _other(self, node: Node, calls: tuple[OpCall, ...]) -> Piece:
        """What is no loop that can be fused."""
        me = self.number[node]
        if node.opcode in (*_IN_PLACE, *_ROUND):
            self._lives_in(me, node.taken[0])
        written = {me: node.instruction.bytes}
        return Piece(node, calls, self._reads(node.taken), written, "fp32", place=node.loop)

    def _lives_in(self, me: int, value: Value) -> None:
        for one in self._read_of(value):
            self.storage_of.setdefault(me, one)

    def _relaid(self, node: Node) -> tuple[OpCall, ...]:
        """Copies of operands that a product cannot read as they lie; a loop writes them so."""
        if node.opcode != "dot":
            return ()
        found = []
        for at, value in enumerate(node.taken[:2]):
            source = value.node
            while source.opcode in _READ_AS_THEY_LIE["dot"] and source not in self.real:
                source = source.taken[0].node
            if self._is_loop(source) or source in self.turned:
                continue
            if relaid(node, at):
                self.turned.add(source)
                dtype, each = number_format(value.shape)
                copy = Copy(dtype, rows=1.0, cols=value.shape.elements * each)
                found.append(OpCall(copy, node.times))
        return tuple(found)

    def _copied_in(self, node: Node) -> tuple[OpCall, ...]:
        """What is updated in place is copied first if it is an argument that the caller keeps."""
        if node.opcode not in (CARRIED, *_IN_PLACE):
            return ()
        value = node.taken[0]
        sources = {self.owner(one) for one in self._read_of(value)}
        if value.shape.elements <= 1 or not sources & self._arguments:
            return ()
        dtype, each = number_format(value.shape)
        return (OpCall(Copy(dtype, rows=1.0, cols=value.shape.elements * each), node.times),)

    @functools.cached_property
    def _arguments(self) -> set[int]:
        """Storages of what the caller keeps, whole or each device's part."""
        kept = {node for node in self.flow.parameters if node not in self.donated}
        parts = {
            one for one in self.flow.nodes if one.opcode == "shard" and one.taken[0].node in kept
        }
        return {self.number[node] for node in kept | parts}

    def owner(self, storage: int) -> int:
        """The storage that one lies in."""
        while storage in self.storage_of:
            storage = self.storage_of[storage]
        return storage

    def _loop(self, node: Node) -> Piece:
        shape, reads = node.instruction.shapes[0], self._reads(node.taken, True)
        written = {self.number[node]: node.instruction.bytes}
        elements, sums, cut, ends = shape.elements, frozenset[int](), None, False
        dtype, each = number_format(shape)
        extra: tuple[OpCall, ...] = ()
        if node.opcode == "reduce":
            source = node.taken[0].shape
            elements = source.elements
            if elements != shape.elements:
                cut = (source.elements, shape.elements, _of_rows(node))
                row = source.elements // max(shape.elements, 1)
                ends = not (_of_rows(node) and shape.elements > 1 and row <= _LARGEST_ROW)
                sums = frozenset() if ends else frozenset({shape.elements})
        elif node.opcode == "dynamic-update-slice":
            update = node.taken[1].shape
            elements, written = update.elements, {self.number[node]: update.bytes}
            extra = self._copied_in(node)
            reads = self._reads(node.taken[1:], True) | dict.fromkeys(
                self._read_of(node.taken[0]), 0.0
            )
            self._lives_in(self.number[node], node.taken[0])
        elif node.opcode == "gather":
            for one in self._read_of(node.taken[0], True):
                reads[one] = min(reads[one], shape.bytes)
        elif node.opcode in _VIEWS:
            reads = {one: min(size, shape.bytes) for one, size in reads.items()}
        elements = max(int(elements * each), 1)
        count = self.costs.instruction(node.instruction, node.within)
        if node.opcode in _VIEWS:
            count = Count()
        if node.opcode == "gather":
            sizes = node.instruction.dims("slice_sizes") or (1,)
            table, cols = node.taken[0].shape.elements, math.prod(max(size, 1) for size in sizes)
            op = Gather(dtype, max(shape.elements / cols, 1.0), cols * each, max(table / cols, 1.0))
            call = OpCall(op, node.times)
        else:
            fused = Fused(
                dtype, elements=float(elements), flops=count.flops * each,
                transcendentals=count.transcendentals * each, bytes_read=float(sum(reads.values())),
                bytes_written=float(max(sum(written.values()), 1.0)),
                loop="reduction" if cut else "elementwise",
                summed=float(cut[0] // max(cut[1], 1)) if cut else 0.0,
            )  # fmt: skip
            call = OpCall(fused, node.times)
        return Piece(
            node, (*extra, call), reads, written, dtype, 0 if extra else elements, node.loop,
            sums, cut, ends, alone=node.opcode == "dynamic-update-slice",
        )  # fmt: skip


def _costs_nothing(node: Node) -> bool:
    """Whether a view is the same numbers in the same order, or a library writes them so."""
    if node.opcode == "broadcast":
        return node.instruction.shape.elements == node.taken[0].shape.elements
    if node.opcode != "transpose":
        return False
    source = node.taken[0]
    while source.node.opcode in _ALIASES:
        source = source.node.taken[0]
    if source.node.opcode == "custom-call":  # which says how its results lie
        return node.instruction.dims("dimensions") == source.shape.layout[::-1]
    # either operand of a product can come first
    return source.node.opcode == "dot" and not source.node.instruction.dims("lhs_batch_dims")


def _of_rows(node: Node) -> bool:
    """Whether a sum runs along the fastest dimensions."""
    dims, summed = node.taken[0].shape.dims, node.instruction.dims("dimensions")
    kept = [d for d, size in enumerate(dims) if size > 1 and d not in summed]
    gone = [d for d in summed if dims[d] > 1]
    return not kept or not gone or max(kept) < min(gone)
