"""What a host needs to launch a step's kernels, by the names of a framework's overheads."""

from __future__ import annotations

import hybridperf.ops as ops
from hybridperf.hardware import Host
from hybridperf.workloads.transformer.passes import PassStep

KERNEL_CALL = "cudaLaunchKernel"
_Names = tuple[tuple[str, ...], tuple[str, ...]]  # forward and backward; versions differ in names
_LINEAR = ("aten::linear", "aten::addmm", "aten::mm")
_LINEAR_BACKWARD = ("AddmmBackward0", "MmBackward0", "AddmmBackward", "MmBackward")
_NORM: _Names = (("aten::layer_norm", "aten::native_layer_norm"), ("NativeLayerNormBackward0",))
_NAMES: dict[type, _Names] = {
    ops.Gemm: (_LINEAR, _LINEAR_BACKWARD),
    ops.BatchedGemm: (("aten::bmm", "aten::baddbmm"), ("BmmBackward0", "BmmBackward")),
    ops.Norm: _NORM,
    ops.RmsNorm: _NORM,
    ops.Softmax: (("aten::softmax", "aten::_softmax"), ("SoftmaxBackward0",)),
    ops.Gather: (("aten::embedding", "aten::index"), ("EmbeddingBackward0",)),
    ops.ScatterAdd: (("aten::embedding",), ("EmbeddingBackward0",)),
    ops.Reduction: (("aten::sum",), ("aten::sum",)),
    ops.Copy: (("aten::copy_", "aten::cat"), ("aten::copy_", "aten::cat")),
    ops.OptimizerUpdate: (("Optimizer.step#Adam.step", "aten::add_"),) * 2,
}
_OTHERS: _Names = (("aten::mul", "aten::add"), ("MulBackward0", "MulBackward"))
_COLLECTIVES = {
    "all_reduce": ("c10d::allreduce_", "nccl:all_reduce"),
    "all_gather": ("c10d::_allgather_base_", "nccl:all_gather"),
    "reduce_scatter": ("c10d::_reduce_scatter_base_", "nccl:reduce_scatter"),
    "alltoall": ("c10d::alltoall_base_", "nccl:all_to_all"),
    "sendrecv": ("c10d::send", "nccl:send"),
}


def launch_s(host: Host | float, step: PassStep, backward: bool) -> float:
    """Seconds the host spends on a step: between ops, before, in and after each launch.

    Args:
        host: a traced host, or the seconds of each launch.
        step: what is launched.
        backward: by the thread of the backward pass, whose ops have other names.
    """
    if not isinstance(host, Host):
        return host * step.kernels
    if step.is_op:
        names = _NAMES.get(type(step.op), _OTHERS)[backward]
    else:
        names = _COLLECTIVES[step.collective.collective]
    between_s = 0.0 if host.between_ops_s is None else host.between_ops_s.mean_s
    call_s = host.seconds("launch_call_s", (KERNEL_CALL,))
    more_s = (step.kernels - 1) * (host.seconds("between_launches_s", names) + call_s)
    before_s = host.seconds("before_launch_s", names)
    return between_s + before_s + call_s + more_s + host.seconds("after_launch_s", names)
