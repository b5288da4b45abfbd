"""A program that `torch.export.save` wrote -> `Workload`, without PyTorch.

The file lists the program's ops with the sizes of all tensors, so that it goes the way of a
captured program (`program.py`): the same rules for ops, the same kernels. What a capture sees by
running it is told from the graph here: a view shares its input's storage, a tensor lives until its
last reader (a program that runs keeps what its variables name), and ops that PyTorch makes of
others come apart (`composites.py`).

A joint graph (torch.export.experimental) has the backward pass behind the loss, all of it taken
apart into PyTorch's core ops, which are more loops than a step that runs. No program of
torch.export has an optimizer.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hybridperf.engine.workload import Workload
from hybridperf.hardware import FLOAT_DTYPES
from hybridperf.io import InputError
from hybridperf.workloads.own import is_foreign
from hybridperf.workloads.programs.in_program import lives, most_alive_bytes
from hybridperf.workloads.programs.torch.calls import NAMES, Argument, Tensor, TorchCall, flat
from hybridperf.workloads.programs.torch.capture import Captured
from hybridperf.workloads.programs.torch.composites import is_view, parts
from hybridperf.workloads.programs.torch.products import CAUSAL_AT, PRODUCTS
from hybridperf.workloads.programs.torch.program import workload_of
from hybridperf.workloads.programs.torch.pt2 import Graph, Meta, Node, Size, Value, read_program
from hybridperf.workloads.programs.torch.record import BACKWARD, FORWARD, CapturedOp, block_bytes

# codes of torch/_export/serde/schema.py; a complex number is two real ones
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32",
    8: "float64", 9: "float16", 10: "float32", 11: "float64", 12: "bool", 13: "bfloat16",
    28: "uint16", 29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz", 34: "uint32", 35: "uint64",
}  # fmt: skip
_COMPLEX, _STRIDED = (9, 10, 11), 7
_OP = re.compile(r"torch\.ops\.(\w+)\.(\w+)(?:\.\w+)?")
_LINE = re.compile(r'File "([^"]+)", line (\d+)')
_CONVERSIONS = ("aten::to", "aten::_to_copy", "aten::type_as")
_WRAPPERS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")  # which run what they hold
_JOINT = (
    "a joint graph has no optimizer, and its loops are taken apart: a step that runs has fewer"
    " (`--torch` sees them)"
)
_LARGEST = 2**62  # elements


def from_exported(
    path: str | os.PathLike, *, compiled: bool = False, ignore: Any = (), name: str | None = None,
    backend: str = "gpu",
) -> Workload:  # fmt: skip
    """A program that `torch.export.save` wrote (.pt2), on a GPU that is not here, or on a CPU.

    The file's list of ops is read, no weights and no pickle; PyTorch need not be installed.

    Args:
        path: the file; of a training step, one of a joint graph.
        compiled: by `torch.compile`, as a whole; else op by op.
        ignore: ops to leave out, by name ("aten::svd").
        name: of the workload; None: the file's.
        backend: kind of device, "gpu" or "cpu"; a CPU runs op by op.

    Raises:
        InputError: the file is something else, or holds an op that nobody can price, which is named
            with its line.
    """
    captured = exported(path, name=name)
    return workload_of(captured, compiled=compiled, ignore=ignore, backend=backend)


def exported(path: str | os.PathLike, *, name: str | None = None) -> Captured:
    """What a saved program calls, in order."""
    program = read_program(path)
    signature = program.graph_module.signature
    graph = program.graph_module.graph
    reader = _Reader(graph, str(path))
    losses = [
        at for at, one in enumerate(signature.output_specs) if one.get("loss_output") is not None
    ]
    loss = None
    if losses and losses[0] < len(graph.outputs) and (held := graph.outputs[losses[0]].as_tensor):
        loss = held.name
    ops = tuple(reader.ops(graph, loss))
    peak_bytes, kept_bytes = _memory(ops, reader.inputs(graph), reader.results(graph))
    notes = [*reader.notes(), *([_JOINT] if loss else [])]
    return Captured(name or Path(path).stem, ops, peak_bytes, kept_bytes, tuple(notes))


class _Reader:
    """Names of a graph's tensors -> `Tensor`s, with the storages they share."""

    def __init__(self, graph: Graph, source: str):
        self.source = source
        self.known: dict[str, Tensor] = {}
        self.varying: dict[str, int] = {}
        self.storages = 0
        for value in graph.inputs:
            if value.as_tensor:
                self.add(value.as_tensor.name, graph, None)
        self.given = frozenset(range(1, self.storages + 1))
        self.autocast = False
        self.converted: dict[tuple[int, str], Tensor] = {}

    def notes(self) -> list[str]:
        """Sentences on what the reader assumed."""
        if not self.varying:
            return []
        told = ", ".join(f"{name} = {size}" for name, size in sorted(self.varying.items())[:8])
        return [f"sizes that may vary are those it was exported with: {told}"]

    def inputs(self, graph: Graph) -> list[Tensor]:
        return flat([self.argument(one) for one in graph.inputs])

    def results(self, graph: Graph) -> list[Tensor]:
        return flat([self.argument(one) for one in graph.outputs])

    def ops(self, graph: Graph, loss: str | None = None) -> Iterator[CapturedOp]:
        """Calls in order; behind the one that makes the loss those of the backward pass."""
        phase = FORWARD
        for node in graph.nodes:
            space_kind = _OP.fullmatch(node.target)
            if space_kind and space_kind[1] == "higher_order":
                yield from self.inside(node, graph, space_kind[2])
                continue
            names = _tensor_names(node.outputs)
            if not space_kind or not names:  # arithmetic on sizes, marks
                if names:
                    raise self.wrong(f"{node.target} is no op of PyTorch that is known")
                continue
            call = self.call(node, graph, f"{space_kind[1]}::{space_kind[2]}")
            where = _where(node)
            casts, call = self.cast(call) if self.autocast else ((), call)
            for part in (*casts, *parts(call)):
                yield CapturedOp(part, phase, "" if phase == BACKWARD else where)
            if loss in names:
                phase = BACKWARD

    def inside(self, node: Node, graph: Graph, kind: str) -> Iterator[CapturedOp]:
        """What an op that runs a graph runs: its inputs are the arguments behind the graph."""
        at = next((at for at, one in enumerate(node.inputs) if one.arg.as_graph), None)
        held = node.inputs[at].arg.as_graph if at is not None else None
        if kind not in _WRAPPERS or held is None or at is None:
            where = _where(node) or self.source
            raise InputError(
                f"{where}: what {kind} runs depends on numbers; expected a program without it"
                " (of attention: scaled_dot_product_attention), or predict it by `--torch`"
            )
        inner = held.graph
        for inside, outside in zip(inner.inputs, node.inputs[at + 1 :], strict=False):
            given = self.argument(outside.arg)
            if inside.as_tensor and isinstance(given, Tensor):
                self.known[inside.as_tensor.name] = given
        outside_casts, self.autocast = self.autocast, self.autocast or kind == "wrap_with_autocast"
        yield from self.ops(inner)
        self.autocast = outside_casts
        made = self.results(inner)
        for name, tensor in zip(_tensor_names(node.outputs), made, strict=False):
            self.known[name] = tensor

    def cast(self, call: TorchCall) -> tuple[tuple[TorchCall, ...], TorchCall]:
        """(conversions to the format that autocast has an op run in, the op on what they make)."""
        made = call.written[0]
        floats = [one for one in call.read if one.dtype in FLOAT_DTYPES]
        differ = [one for one in floats if one.dtype != made.dtype]
        is_product = call.kind.removeprefix("aten::") in PRODUCTS
        if made.dtype not in FLOAT_DTYPES or call.kind in _CONVERSIONS:
            return (), call
        if not (differ and (is_product or len(differ) == len(floats))):
            return (), call  # a loop that takes both converts as it goes
        casts, converted = [], dict[int, Tensor]()
        for one in differ:
            key = one.storage, made.dtype
            if key not in self.converted:
                self.storages += 1
                to = dataclasses.replace(one, dtype=made.dtype, storage=self.storages)
                casts.append(TorchCall("aten::_to_copy", (one,), (to,)))
                if one.storage in self.given:  # autocast keeps converted weights
                    self.converted[key] = to
            converted[one.storage] = self.converted.get(key) or casts[-1].made
        given = tuple(
            converted.get(one.storage, one) if isinstance(one, Tensor) else one
            for one in call.given
        )
        return tuple(casts), call._replace(given=given)

    def call(self, node: Node, graph: Graph, kind: str) -> TorchCall:
        """A node's call; its results are known from now on."""
        given = tuple(self.argument(one.arg) for one in node.inputs)
        values: tuple[Any, ...] = tuple(self.plain(one.arg, graph) for one in node.inputs)
        bare = kind.removeprefix("aten::")
        if (place := CAUSAL_AT.get(bare)) is not None:  # of arguments with defaults few are written
            flags = {one.name: one.arg.as_bool for one in node.inputs}
            values = (*[None] * place, flags.get("is_causal") or False)
        first = next(iter(flat(given)), None)
        names = _tensor_names(node.outputs)
        in_place = kind.endswith("_") and not kind.endswith("__")
        metas = [self.meta(name, graph) for name in names]
        shares = first and (in_place or is_view(TorchCall(kind, given, tuple(metas), values)))
        for name in names:
            self.add(name, graph, first.storage if shares and first else None)
        results = tuple(self.argument(one) for one in node.outputs)
        return TorchCall(kind, given, results, values)

    def add(self, name: str, graph: Graph, storage: int | None) -> None:
        self.storages += storage is None
        made = self.meta(name, graph)
        self.known[name] = dataclasses.replace(made, storage=storage or self.storages)

    def meta(self, name: str, graph: Graph) -> Tensor:
        meta = graph.tensor_values.get(name)
        if meta is None:
            raise self.wrong(f"it does not say what {name} is")
        return self.tensor(name, meta)

    def tensor(self, name: str, meta: Meta) -> Tensor:
        dtype = NAMES["dtypes"].get(_DTYPES.get(meta.dtype, ""))
        if dtype is None or meta.layout != _STRIDED:
            what = "sparse" if dtype else f"of number format {meta.dtype}"
            raise self.wrong(f"{name} is {what}, and expected are dense tensors of known formats")
        shape = tuple(map(self.size, meta.sizes))
        strides = list(map(self.size, meta.strides))
        if math.prod(shape) > _LARGEST or len(strides) != len(shape):
            raise self.wrong(f"sizes of {name} cannot be")
        if meta.dtype in _COMPLEX:
            shape = (*shape[:-1], 2 * (shape or (1,))[-1])
            strides = [*(2 * one for one in strides[:-1]), *strides[-1:]]
        turned = len(strides) > 1 and strides[-1] > 1 and strides[-2] == 1
        return Tensor(shape, dtype, transposed=turned, strides=tuple(strides))

    def size(self, size: Size) -> int:
        found = size.as_int
        if size.as_expr is not None:
            found = size.as_expr.hint.as_int if size.as_expr.hint else None
            if found is None:
                raise self.wrong(f"how large {size.as_expr.expr_str} is depends on numbers")
            symbol = re.fullmatch(r"Symbol\('(\w+)'.*\)", size.as_expr.expr_str)
            if symbol:
                self.varying[symbol[1]] = found
        if found is None or not 0 <= found <= _LARGEST:
            raise self.wrong(f"expected a size, got {found}")
        return found

    def argument(self, value: Value) -> Argument:
        """The tensors that an argument of a call holds, nested as it is."""
        if value.as_tensor:
            return self.named(value.as_tensor.name)
        if value.as_optional_tensor:
            return self.argument(value.as_optional_tensor)
        if value.as_tensors is not None:
            return tuple(self.named(one.name) for one in value.as_tensors) or None
        if value.as_optional_tensors is not None:
            return tuple(flat([self.argument(one) for one in value.as_optional_tensors])) or None
        return None

    def named(self, name: str) -> Tensor:
        if name not in self.known:
            raise self.wrong(f"{name} is read before it is made")
        return self.known[name]

    def plain(self, value: Value, graph: Graph) -> Any:
        """A number, flag, word or list of them; None for all else."""
        if value.as_sym_int or value.as_sym_ints is not None:
            listed = [self.named_size(one, graph) for one in value.as_sym_ints or ()]
            return self.named_size(value.as_sym_int, graph) if value.as_sym_int else listed
        held = (
            value.as_int, value.as_ints, value.as_float, value.as_floats, value.as_bool,
            value.as_bools, value.as_string,
        )  # fmt: skip
        return next((one for one in held if one is not None), None)

    def named_size(self, size: Size, graph: Graph) -> int | None:
        known: Mapping[str, Size] = graph.sym_int_values
        found = known.get(size.as_name or "")
        return self.size(found) if found else size.as_int

    def wrong(self, what: str) -> InputError:
        return InputError(f"{self.source}: {what}; export and save the program again")


def _tensor_names(values: list[Value]) -> list[str]:
    names = []
    for one in values:
        names += [one.as_tensor.name] if one.as_tensor else []
        names += [held.name for held in one.as_tensors or ()]
        names += _tensor_names([*(one.as_optional_tensors or ())])
    return names


def _where(node: Node) -> str:
    """`FILE line N` of the user's program; "" if the file does not say."""
    found = _LINE.findall(node.metadata.get("stack_trace", ""))
    own = [f"{file} line {line}" for file, line in found if not is_foreign(file)]
    return own[-1] if own else ""


def _memory(
    ops: tuple[CapturedOp, ...], inputs: list[Tensor], results: list[Tensor]
) -> tuple[float, float]:
    """(most bytes alive at once, those of weights and inputs)."""
    last = max(len(ops), 1) - 1
    used = [[*op.call.read, *op.call.written] for op in ops]
    sizes = {  # as they are used first
        one.storage: block_bytes(one.bytes) for tensors in (*reversed(used), inputs)
        for one in tensors
    }  # fmt: skip
    given, kept = _storages(inputs), _storages([*inputs, *results])
    found = dict.fromkeys(given, (0, last)) | lives(map(_storages, used))
    spans = [
        (sizes[one], 0 if one in given else first, last if one in kept else until)
        for one, (first, until) in found.items()
    ]
    return most_alive_bytes(spans, last + 1), sum(sizes[one] for one in given)


def _storages(tensors: Iterable[Tensor]) -> set[int]:
    return {one.storage for one in tensors}
