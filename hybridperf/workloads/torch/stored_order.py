"""What eager kernels of a GPU pay for tensors that do not lie in the order in which they are read.

A loop goes in the order of its result (`TensorIterator` of PyTorch). A tensor of the same size
whose fastest dimension is another one (patches of an image, turned into words; channels last beside
channels first) is read number by number, each from a sector of its own. Norms and softmax read
rows: they copy such a tensor first (`contiguous` in aten/src/ATen/native/cuda/layer_norm_kernel.cu
and SoftMax.cu). Inductor chooses orders that avoid both.
"""

from __future__ import annotations

from hybridperf.ops import Copy, Elementwise, Fused, OpCall
from hybridperf.workloads.torch.calls import Tensor, TorchCall
from hybridperf.workloads.torch.loops import loop

# Of the 32 bytes of a sector, what is moved for one number: neighbours find a part in the caches.
# Copies and sums of a ViT in inference on an H100 and an H200 take 50 us for 9.7 million numbers
_SECTOR_BYTES = 16.0
_LINE = 32  # numbers from one to the next, from where on sectors are not shared
_COPIES = ("native_layer_norm", "native_layer_norm_backward", "_softmax", "_log_softmax")
_LARGE = 65536  # numbers; smaller tensors stay in the caches


def in_stored_order(call: TorchCall, calls: tuple[OpCall, ...]) -> tuple[OpCall, ...]:
    """An op's kernels with what the order of its tensors adds."""
    kind = call.kind.rpartition("::")[2].rstrip("_")
    if kind in _COPIES:
        x = max(call.read, key=lambda one: one.elements, default=None)
        turned = [one for one in call.read if x and one.shape == x.shape and not _in_order(one)]
        copies = [
            OpCall(op) for one in turned
            for op in loop(one, one.bytes + _SECTOR_BYTES * one.elements, 0, 0)
        ]  # fmt: skip
        return (*copies, *calls)
    if len(calls) != 1 or not isinstance(calls[0].op, Elementwise | Fused | Copy):
        return calls
    if not call.written or getattr(calls[0].op, "loop", "elementwise") != "elementwise":
        return calls
    result = call.written[0]
    crossed = sum(_crossed(one, result) for one in call.read)
    if not crossed:
        return calls
    work, n = calls[0].op.work(), result.elements
    read_bytes = float(work.bytes) - result.bytes + crossed * _SECTOR_BYTES * n
    each = float(work.flops) / n, float(work.transcendentals) / n
    return tuple(OpCall(op) for op in loop(result, read_bytes, *each))


def _crossed(one: Tensor, result: Tensor) -> bool:
    """Whether a loop in the order of `result` jumps from each number of `one` to the next."""
    if one.shape != result.shape or not one.strides or result.elements < _LARGE:
        return False
    wide = [at for at, size in enumerate(result.shape) if size > 1]
    if not wide or len(result.strides) != len(result.shape):
        return False
    fastest = min(wide, key=lambda at: result.strides[at])
    stride = one.strides[fastest]
    return stride >= _LINE and min(one.strides[at] for at in wide) == 1


def _in_order(one: Tensor) -> bool:
    """Whether a tensor lies row by row, or nothing tells."""
    if not one.strides or one.elements < _LARGE:
        return True
    expected = 1
    for size, stride in zip(reversed(one.shape), reversed(one.strides), strict=True):
        if size > 1 and stride != expected:
            return stride < _LINE
        expected *= size
    return True
