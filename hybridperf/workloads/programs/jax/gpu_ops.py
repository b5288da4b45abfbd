"""Which kernels of a GPU's libraries a node of a lowered program is: products, convolutions,
attention, sorts, scatters.

    product of fp32 numbers     tensor cores at TF32 where the device has them, JAX's default
                                (docs.jax.dev, "Matmul precision"); precision "highest": fp32
    convolution                 its gradients are found by what they look like: of weights, batch
                                and features change places; of inputs, the kernel is reversed or
                                the image dilated
    cuDNN's attention           as its custom call's settings say
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import hybridperf.ops as ops
from hybridperf.hardware import DTYPE_BYTES, DeviceSpec
from hybridperf.ops.loops import FOURIER_FLOPS
from hybridperf.workloads.programs import ratios
from hybridperf.workloads.programs.jax import hlo_cost, hlo_ops
from hybridperf.workloads.programs.jax.dataflow import Node, Value
from hybridperf.workloads.programs.jax.hlo import Shape
from hybridperf.workloads.programs.jax.hlo_cost import Costs

_COMPLEX = {"c64": "fp32", "c128": "fp64"}  # a complex number is two
_ALGORITHM = {"bf16": "bf16", "f16": "fp16", "tf32": "tf32", "f32": "fp32", "f64": "fp64"}
_BACKWARD = "Backward"
_ATTENTION, _KERNEL = "__cudnn$fmha", "sdpa"  # PyTorch runs the same
_TOP_K = ("mhlo.topk", "TopK", "__gpu$TopK")


def number_format(shape: Shape) -> tuple[str, float]:
    """Our name of a shape's number format, and how many such numbers each element is."""
    if shape.dtype in _COMPLEX:
        return _COMPLEX[shape.dtype], 2.0
    return (shape.dtype if shape.dtype in DTYPE_BYTES else "int8"), 1.0


def library_calls(node: Node, costs: Costs, device: DeviceSpec) -> tuple[ops.OpCall, ...] | None:
    """Kernels of a node that is no loop; None where nobody knows it."""
    rule = _RULES.get(node.opcode)
    if rule is None:
        return None
    found = rule(node, costs, device)
    if found is None:
        return None
    return tuple(
        ops.OpCall(one.op, one.times * node.times) if isinstance(one, ops.OpCall)
        else ops.OpCall(one, node.times)
        for one in found
    )  # fmt: skip


def kind_of(node: Node) -> str:
    """What people call it: its opcode, of a custom call its target."""
    target = node.instruction.word("custom_call_target") if node.opcode == "custom-call" else ""
    found = re.search(r'custom_call_target="([^"]*)"', node.instruction.attributes)
    return found.group(1) if found and target else target or node.opcode


_Found = tuple[ops.Op | ops.OpCall, ...] | None


def _shapes(node: Node) -> list[Shape]:
    return [one.shape for one in node.taken]


def product_format(node: Node, device: DeviceSpec) -> str:
    """In which format a product or convolution multiplies."""
    attributes = node.instruction.attributes
    if named := re.search(r"algorithm=dot_(bf16|f16|tf32|f32|f64)", attributes):
        return _ALGORITHM[named.group(1)]
    formats = [number_format(one)[0] for one in _shapes(node)[:2]]
    widest = max(formats, key=lambda one: (one[:2] in ("fp", "bf"), DTYPE_BYTES[one]))
    if widest != "fp32":
        return widest
    precise = "highest" in attributes.partition("operand_precision={")[2].partition("}")[0]
    return "fp32" if precise or "tf32" not in device.peak_flops_per_s else "tf32"


def _product(node: Node, _: Costs, device: DeviceSpec) -> _Found:
    sizes = hlo_cost.dot_sizes(node.instruction, _shapes(node)[0])
    batch, m, n, k = (float(max(size, 1)) for size in sizes)
    dtype = product_format(node, device)
    k *= 4.0 if node.instruction.shape.dtype in _COMPLEX else 1.0  # of real numbers, four
    return (ops.Gemm(dtype, m, n, k) if batch == 1 else ops.BatchedGemm(dtype, batch, m, n, k),)


def _grouped(node: Node, _: Costs, device: DeviceSpec) -> _Found:
    """Groups of rows, each times its own matrix; of the matrices' gradients, groups of what is
    summed over. Rows are spread evenly.
    """
    (left, right), made = _shapes(node)[:2], node.instruction.shape
    if len(left.dims) != 2 or len(right.dims) + len(made.dims) != 5:
        return None
    groups = (right if len(right.dims) == 3 else made).dims[0]
    (summed,) = node.instruction.dims("lhs_contracting_dims")
    m, k = float(left.dims[1 - summed]), float(left.dims[summed])
    if len(made.dims) == 3:
        k = max(k / groups, 1.0)
    else:
        m = max(m / groups, 1.0)
    dtype = product_format(node, device)
    return (ops.BatchedGemm(dtype, float(groups), m, float(made.dims[-1]), k),)


def _convolution(node: Node, _: Costs, device: DeviceSpec) -> _Found:
    attributes, shapes = node.instruction.attributes, _shapes(node)
    labels = re.search(r"dim_labels=(\w+)_", attributes)
    image = labels.group(1) if labels else "bf"
    kernel = node.taken[1]
    while kernel.node.opcode in ("reshape", "transpose", "convert"):
        kernel = kernel.node.taken[0]
    direction = "fwd"
    if image.index("f") < image.index("b"):
        direction = "bwd_params"
    elif "lhs_dilate=" in attributes or kernel.node.opcode == "reverse":
        direction = "bwd_inputs"
    dtype = product_format(node, device)
    shapes = [Shape(dtype, one.dims, one.layout) for one in shapes]
    return (hlo_ops.convolution(node.instruction, shapes, direction),)


def _sort(node: Node, *_: object) -> _Found:
    shape = _shapes(node)[0]
    along = node.instruction.dims("dimensions") or (len(shape.dims) - 1,)
    cols = float(max(shape.dims[along[0]] if shape.dims else 1, 1))
    return (ops.Sort(number_format(shape)[0], max(shape.elements / cols, 1.0), cols),)


def _scatter(node: Node, costs: Costs, _: DeviceSpec) -> _Found:
    return (hlo_ops.standalone(costs, node.instruction, _shapes(node), node.within),)


def _window(node: Node, costs: Costs, _: DeviceSpec) -> _Found:
    """Pooling, its gradient, or a running sum."""
    return tuple(hlo_ops.windowed(costs, node.instruction, _shapes(node), node.within))


def _running(node: Node, *_: object) -> _Found:
    """A running sum, product or maximum as JAX 0.12 lowers it; None of any other scan."""
    source, along = _shapes(node)[0], node.instruction.dims("dimensions")[0]
    if "is_associative=true" not in node.instruction.attributes:
        return None
    cols = float(max(source.dims[along], 1))
    return (ops.Cumulative(number_format(source)[0], max(source.elements / cols, 1.0), cols),)


def _random(node: Node, *_: object) -> _Found:
    made = node.instruction.shapes[-1]
    return (ops.Random(number_format(made)[0], 1.0, float(max(made.elements, 1))),)


def _fourier(node: Node, *_: object) -> _Found:
    """A pass along each dimension."""
    shape = max((node.instruction.shape, _shapes(node)[0]), key=lambda one: one.bytes)
    dtype, each = number_format(shape)
    n = shape.elements * each
    sizes = node.instruction.dims("fft_length")
    return tuple(
        ops.Fused(
            dtype, elements=n, flops=FOURIER_FLOPS * math.log2(max(size, 2)) * n,
            transcendentals=0.0, bytes_read=shape.bytes, bytes_written=shape.bytes,
        )
        for size in sizes
    )  # fmt: skip


def _custom(node: Node, *_: object) -> _Found:
    kind = kind_of(node)
    if kind in _TOP_K:
        return _sort(node)
    return _attention(node, kind) if kind.startswith(_ATTENTION) else None


def _attention(node: Node, kind: str) -> _Found:
    """cuDNN's; its settings say which scores there are and which of them count."""
    attributes = node.instruction.attributes.replace('\\"', '"')
    scores = re.search(
        r'"intermediate_tensor_shape":.*?"dimensions": *\[([^\]]*)\]', attributes, re.S
    )
    mask = re.search(r'"mask_type": *"(\w+)"', attributes)
    window = re.search(r'"sliding_window_length": *(\d+)', attributes)
    if scores is None or mask is None:
        return None
    batch, heads, queries, keys = map(int, re.findall(r"\d+", scores.group(1)))
    q, k = _shapes(node)[:2]
    size = q.elements / (batch * heads * queries)
    kv_heads = k.elements / (batch * keys * size)
    length = float(window.group(1)) if window else 0.0
    causal = "CAUSAL" in mask.group(1)
    others = 0 if keys == queries and (length or not causal) else keys
    op = ops.attention_of(
        number_format(q)[0], batch, queries, others, heads, size, kv_heads, causal, length
    )
    times = ratios.FUSED_ATTENTION if _BACKWARD in kind else 1.0
    return (ops.OpCall(op, times, kernel=_KERNEL),)


_RULES: dict[str, Callable[[Node, Costs, DeviceSpec], _Found]] = {
    "dot": _product, "ragged-dot": _grouped, "convolution": _convolution, "sort": _sort,
    "topk": _sort, "scatter": _scatter, "reduce-window": _window, "select-and-scatter": _window,
    "scan": _running, "rng": _random, "rng-bit-generator": _random, "fft": _fourier,
    "custom-call": _custom,
}  # fmt: skip


def relaid(node: Node, at: int) -> bool:
    """Whether a product's library cannot read an operand where it lies: its dimensions of batch, of
    rows and of the sum are not each in one piece, or the batch is the fastest of them.
    """
    side, value = ("lhs", "rhs")[at], node.taken[at]
    batch = node.instruction.dims(f"{side}_batch_dims")
    summed = node.instruction.dims(f"{side}_contracting_dims")
    dims = range(len(value.shape.dims))
    kinds = ["batch" if d in batch else "sum" if d in summed else "rows" for d in dims]
    found = _as_stored(value, kinds)
    runs = [kind for at, kind in enumerate(found) if not at or found[at - 1] != kind]
    return len(runs) != len(set(runs)) or (len(runs) > 1 and runs[-1] == "batch")


def _as_stored(value: Value, kinds: list[str]) -> list[str]:
    """Kinds of a value's dimensions in the order in which they lie in memory, slowest first."""
    while value.node.opcode in ("reshape", "transpose"):
        source = value.node.taken[0]
        if value.node.opcode == "transpose":
            order = value.node.instruction.dims("dimensions")
            kinds = [kinds[order.index(d)] for d in range(len(order))]
        else:
            through = _reshaped(kinds, value.shape.dims, source.shape.dims)
            if through is None:
                break
            kinds = through
        value = source
    return [kind for kind, size in zip(kinds, value.shape.dims, strict=True) if size > 1]


def _reshaped(kinds: list[str], dims: tuple[int, ...], source: tuple[int, ...]) -> list[str] | None:
    """Kinds of the dimensions that were reshaped; None where one holds several kinds."""
    found, at, left = list[str](), 0, 1
    for size in source:
        inside, covered = set[str](), left
        while covered < size and at < len(dims):
            covered *= dims[at]
            left = covered
            inside |= {kinds[at]} if dims[at] > 1 else set()
            at += 1
        last = kinds[at - 1] if at else "rows"
        if left % size or (len(inside | ({last} if size > 1 else set())) > 1 and inside):
            return None
        found.append(next(iter(inside), last))
        left //= size
    return found
