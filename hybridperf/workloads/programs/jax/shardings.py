"""A program whose arrays lie on a mesh (`jax.jit` with shardings), divided among its devices.

When XLA compiles, Shardy says how each value lies on the mesh (openxla.org/shardy, "Sharding
Propagation") and a partitioner divides the work. Here Shardy's own passes, which jaxlib carries, do
both: they say where values that do not fit have to be exchanged, and write the program of a single
device. XLA's partitioner may exchange at another place; `NOTE` says so.

The passes are C++ that ends its process over an operation that it cannot follow. So they run in a
process of their own, which hands back the program as text; what ends it is not divided.
"""

from __future__ import annotations

import contextlib
import math
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, cast
from unittest import mock

import numpy as np

NOTE = "divided among the devices of its mesh as Shardy divides it; XLA may do so in another way"
_PASSES = (
    "sdy-propagation-pipeline", "sdy-close-shardings",
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true},sdy-reshard-to-collectives)",
    "canonicalize", "sdy-convert-global-to-local", "canonicalize",
)  # fmt: skip
_CLOSED, _LOCAL = _PASSES[1], _PASSES[-2]
_SECONDS = 300.0
_TAKEN = {
    "stablehlo.gather": "slice_sizes", "stablehlo.dynamic_slice": "slice_sizes",
    "stablehlo.slice": "limit_indices",
}  # fmt: skip
_BARRIER, _MARK = "stablehlo.optimization_barrier", (5, 1)  # bits that no number format has
_EXCHANGES = ("stablehlo.all_gather", "stablehlo.all_to_all", "stablehlo.collective_permute")
_SUMS = "sdy.all_reduce"  # what the last pass leaves as it is


def is_sharded(text: str) -> bool:
    """Whether the compiler has yet to divide a program: shardings and no part by hand."""
    meshes = re.findall(r"sdy\.mesh @\S+ = <\[([^\]]*)\]", text)
    sizes = [math.prod(map(int, re.findall(r"=(\d+)", mesh))) for mesh in meshes]
    return max(sizes, default=1) > 1 and "sdy.manual_computation" not in text


@contextlib.contextmanager
def written_out() -> Iterator[None]:
    """Scans in full length, and nothing that was traced before."""
    import jax

    scan = jax.lax.scan

    def whole(*args: Any, **kwargs: Any) -> Any:
        return scan(*args, **{**kwargs, "unroll": True})

    jax.clear_caches()
    with mock.patch.object(jax.lax, "scan", whole):
        yield
    jax.clear_caches()


def divided(bytecode: bytes) -> str:
    """The program of one device as HLO, of a StableHLO module; "" where the passes cannot."""
    command = [sys.executable, "-c", f"from {__name__} import main; main()"]
    try:
        done = subprocess.run(
            command, input=bytecode, capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.decode() if done.returncode == 0 else ""


def main() -> None:
    """StableHLO from standard input, HLO to standard output."""
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax, xla_client
    from jax._src.lib.mlir import ir, passmanager

    with mlir.make_ir_context():
        module = ir.Module.parse(sys.stdin.buffer.read())
        (mesh,) = re.findall(r"sdy\.mesh @\S+ = <\[([^\]]*)\]", str(module))
        axes = {name: int(size) for name, size in re.findall(r'"([^"]+)"=(\d+)', mesh)}
        _called_in_place(ir, module)
        _barriers_marked(ir, module)
        for one in _PASSES:
            passes = passmanager.PassManager.parse(f"builtin.module({one})")
            passes.enable_verifier(one != _LOCAL)
            passes.run(module.operation)
            if one == _CLOSED:
                _whole(ir, module)
            if one == _LOCAL:
                _taken_fit(ir, module)
        _barriers_again(ir, module)
        _exchanged_once(ir, module)
        operations = list[Any]()

        def seen(operation: Any) -> Any:
            operations.append(operation)
            return ir.WalkResult.ADVANCE

        module.operation.walk(seen)
        for operation in operations:
            if operation.name == _SUMS:
                _summed(ir, operation, axes)
            else:
                _plain(ir, operation)
        for operation in operations:
            if operation.name in (_SUMS, "sdy.mesh"):
                operation.erase()
        made = _jax.mlir.mlir_module_to_xla_computation(
            mlir.module_to_bytecode(module), use_tuple_args=False
        )
        options = xla_client._xla.HloPrintOptions.short_parsable()
        options.print_metadata = True
        sys.stdout.write(made.as_hlo_module().to_string(options))


def _named(ir: ModuleType, within: Any, name: str) -> list[Any]:
    """All operations of a name."""
    found = list[Any]()

    def seen(operation: Any) -> Any:
        if operation.name == name:
            found.append(operation)
        return ir.WalkResult.ADVANCE

    within.operation.walk(seen)
    return found


def _called_in_place(ir: ModuleType, module: Any) -> None:
    """Functions where they are called: propagation ends over calls."""
    functions = {
        ir.StringAttr(one.attributes["sym_name"]).value: one
        for one in _named(ir, module, "func.func")
    }
    main = functions.pop("main")
    while calls := _named(ir, main, "func.call"):
        for call in calls:
            callee = functions[ir.FlatSymbolRefAttr(call.attributes["callee"]).value]
            (block,) = callee.regions[0].blocks
            known = dict(zip(block.arguments, call.operands, strict=True))
            *body, last = block.operations
            with ir.InsertionPoint(call):
                for one in body:
                    copied = one.operation.clone()
                    for at, operand in enumerate(one.operation.operands):
                        copied.operands[at] = known[operand]
                    known |= zip(one.operation.results, copied.results, strict=True)
            for made, given in zip(call.results, last.operation.operands, strict=True):
                made.replace_all_uses_with(known[given])
            call.erase()
    for one in functions.values():
        one.erase()


def _barriers_marked(ir: ModuleType, module: Any) -> None:
    """Barriers, which keep what is computed twice apart and which propagation ends over, as an
    operation of each value that it follows; of whole numbers none.
    """
    from jax._src.lib.mlir.dialects import hlo

    for one in _named(ir, module, _BARRIER):
        with ir.InsertionPoint(one), one.location:
            for made, given in zip(one.results, one.operands, strict=True):
                real = isinstance(ir.RankedTensorType(given.type).element_type, ir.FloatType)
                made.replace_all_uses_with(hlo.reduce_precision(given, *_MARK) if real else given)
        one.erase()


def _barriers_again(ir: ModuleType, module: Any) -> None:
    from jax._src.lib.mlir.dialects import hlo

    for one in _named(ir, module, "stablehlo.reduce_precision"):
        mark = [
            ir.IntegerAttr(one.attributes[key]).value for key in ("exponent_bits", "mantissa_bits")
        ]
        if tuple(mark) == _MARK:
            with ir.InsertionPoint(one), one.location:
                (made,) = hlo.OptimizationBarrierOp(list(one.operands)).results
            one.results[0].replace_all_uses_with(made)
            one.erase()


def _exchanged_once(ir: ModuleType, module: Any) -> None:
    """A value that is exchanged alike for several readers: once, as XLA joins what is the same."""
    known: dict[Any, Any] = {}
    for name in _EXCHANGES:
        for one in _named(ir, module, name):
            how = [str(one.attributes[key]) for key in sorted(map(_name, one.attributes))
                   if key != "channel_handle"]  # fmt: skip
            first = known.setdefault((name, one.operands[0], str(one.results[0].type), *how), one)
            if first is not one:
                one.results[0].replace_all_uses_with(first.results[0])
                one.erase()


def _taken_fit(ir: ModuleType, module: Any) -> None:
    """What is taken of a divided array, all along a dimension, is no more than it has."""
    for name, key in _TAKEN.items():
        for one in _named(ir, module, name):
            sizes = [*ir.DenseI64ArrayAttr(one.attributes[key])]
            held = ir.RankedTensorType(one.operands[0].type).shape
            fit = [min(pair) for pair in zip(sizes, held, strict=True)]
            one.attributes[key] = ir.DenseI64ArrayAttr.get(fit)


def _whole(ir: ModuleType, module: Any) -> None:
    """What nobody wants to divide lies whole on each device: arguments and results are told so."""
    (mesh,) = re.findall(r"sdy\.mesh @(\S+) =", str(module))
    for operation in module.body.operations:
        if operation.operation.name != "func.func":
            continue
        kinds = ir.FunctionType(ir.TypeAttr(operation.attributes["function_type"]).value)
        for key, types in (("arg_attrs", kinds.inputs), ("res_attrs", kinds.results)):
            given = list[Any]()
            if key in operation.attributes:
                given = [ir.DictAttr(one) for one in ir.ArrayAttr(operation.attributes[key])]
            given = given or [ir.DictAttr.get({})] * len(types)
            made = []
            for one, kind in zip(given, types, strict=True):
                held = {name: one[name] for name in map(_name, one)}
                if "sdy.sharding" not in held:
                    dims = ", ".join(["{}"] * ir.RankedTensorType(kind).rank)
                    held["sdy.sharding"] = ir.Attribute.parse(f"#sdy.sharding<@{mesh}, [{dims}]>")
                made.append(ir.DictAttr.get(held))
            if made:
                operation.attributes[key] = ir.ArrayAttr.get(made)


def _summed(ir: ModuleType, operation: Any, axes: Mapping[str, int]) -> None:
    """An all-reduce in Shardy's words as one of StableHLO."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir.dialects import hlo

    among = re.findall(r'"([^"]+)"', str(operation.attributes["reduction_axes"]))
    devices = np.arange(math.prod(axes.values())).reshape(*axes.values())
    last = [[*axes].index(name) for name in among]
    groups = np.moveaxis(devices, last, range(-len(last), 0))
    groups = groups.reshape(-1, math.prod(axes[name] for name in among))
    value, handle = operation.operands[0], cast(Any, hlo.ChannelHandle)
    with ir.InsertionPoint(operation), operation.location:
        made = hlo.AllReduceOp(
            [value.type], [value],
            replica_groups=ir.DenseIntElementsAttr.get(np.ascontiguousarray(groups)),
            channel_handle=handle.get(mlir.COLLECTIVE_CHANNEL_ID, mlir.DEVICE_TO_DEVICE_TYPE),
            use_global_device_ids=ir.BoolAttr.get(True),
        )  # fmt: skip
        scalar = ir.RankedTensorType.get([], ir.RankedTensorType(value.type).element_type)
        block = made.regions[0].blocks.append(scalar, scalar)
        with ir.InsertionPoint(block):
            hlo.return_([hlo.add(*block.arguments)])
    operation.results[0].replace_all_uses_with(made.results[0])


def _plain(ir: ModuleType, operation: Any) -> None:
    """An operation without what it said of shardings."""
    for name in map(_name, [*operation.attributes]):
        if name.startswith("sdy."):
            del operation.attributes[name]
    for key in ("arg_attrs", "res_attrs"):
        if key in operation.attributes:
            given = [ir.DictAttr(one) for one in ir.ArrayAttr(operation.attributes[key])]
            kept = [[name for name in map(_name, one) if name[:4] != "sdy."] for one in given]
            operation.attributes[key] = ir.ArrayAttr.get([
                ir.DictAttr.get({name: one[name] for name in names})
                for one, names in zip(given, kept, strict=True)
            ])  # fmt: skip


def _name(attribute: Any) -> str:
    """Of an attribute; iterating gives names alone in some versions of MLIR."""
    return attribute if isinstance(attribute, str) else str(attribute.name)
