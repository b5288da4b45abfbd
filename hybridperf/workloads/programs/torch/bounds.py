"""What an op takes that no rule answers: a bound from its operands, as one plain kernel of it goes.

    bytes   every operand and result once
    flops   of linear algebra the textbook's count (`[linalg]` of `ops.toml`); where the shapes are
            those of a product, [..., k] and a matrix of k and n to [..., n], its 2 m n k; else one
            for each number

on the vector units, not the matrix units. The price puts a share of that and a wide interval around
it (`model/stages/closed.py`), so that nothing unknown is free, or quicker than its arithmetic.
"""

from __future__ import annotations

import math

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.ops import BOUND, Fused, OpCall
from hybridperf.workloads.programs.torch.calls import NAMES, Tensor, TorchCall

_LINALG = NAMES["linalg"]


def bound(call: TorchCall) -> tuple[OpCall, ...] | None:
    """The kernel that stands for a call by its whole name; None where it has no tensors."""
    tensors = [one for one in (*call.read, *call.written) if one.elements]
    if not tensors:
        return None
    flops = _linalg_flops(call) or _product_flops(call) or 0.0
    largest = max(tensors, key=lambda one: one.elements)
    read, written = (sum(one.bytes for one in some) for some in (call.read, call.written))
    dtype = largest.dtype if largest.dtype[:2] in ("fp", "bf") else "fp32"
    op = Fused(
        dtype if DTYPE_BYTES[dtype] >= 2 else "fp32", elements=float(largest.elements),
        flops=max(flops, float(largest.elements)), transcendentals=0.0, bytes_read=read,
        bytes_written=written, inner=float(largest.shape[-1] if largest.shape else 1),
    )  # fmt: skip
    return (OpCall(op, variant=BOUND),)


def is_bound(call: OpCall) -> bool:
    """Whether a kernel stands for an op that has no rule."""
    return call.variant == BOUND


def as_bound(call: TorchCall, name: str) -> str:
    """By what an op without a rule is priced, in words."""
    by = "the flops of its textbook form" if _linalg(call) else "its operands"
    return f"{name} has no rule (hp.price_torch_op gives one): bounded by {by}"


def _linalg(call: TorchCall) -> dict[str, float] | None:
    space, _, kind = call.kind.rpartition("::")
    known: dict[str, float] | None = _LINALG.get(kind) if space == "aten" else None
    return known


def _linalg_flops(call: TorchCall) -> float | None:
    """m n^2, n^3 and n^2 k, as often as the table says, of each matrix of m x n, m >= n."""
    known = _linalg(call)
    if known is None:
        return None
    matrix, other = (call.tensor(int(known[at])) for at in ("matrix", "other"))
    if matrix is None or len(matrix.shape) < 2:
        return None
    n, m = sorted(matrix.shape[-2:])
    columns = other.elements / max(math.prod(other.shape[:-2]) * n, 1) if other else 0.0
    each = known.get("mnn", 0.0) * m * n**2 + known.get("nnn", 0.0) * n**3
    return math.prod(matrix.shape[:-2]) * (each + known.get("nnk", 0.0) * n**2 * columns)


def _product_flops(call: TorchCall) -> float | None:
    """Of the largest product that the shapes of a result, an operand and a matrix may be."""
    results, operands = (
        [one for one in some if len(one.shape) > 1] for some in (call.written, call.read)
    )
    found = [
        _joined(x, weight, out)
        for out in results for x in operands for weight in operands if weight is not x
    ]  # fmt: skip
    return max(found, default=0.0) or None


def _joined(x: Tensor, weight: Tensor, out: Tensor) -> float:
    """Flops by which a matrix takes rows of k numbers to rows of n; 0 where it cannot. A packed
    one, of 4 bits a number or more, has a shape of its own.
    """
    (rows, k), (kept, n) = x.shape[-2:], out.shape[-2:]
    if rows != kept:
        return 0.0
    if sorted(weight.shape[-2:]) == sorted((k, n)):
        windows = 1 if weight.shape[:-2] == x.shape[:-2] else math.prod(weight.shape[:-2])
        return 2.0 * x.elements * n * windows
    packed = x.shape[:-1] == out.shape[:-1] and k != n and 2 * weight.bytes >= k * n
    return 2.0 * x.elements * n if packed else 0.0
