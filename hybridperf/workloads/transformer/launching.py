"""What a host needs to launch a step's kernels, by the names under which a framework's overheads
are kept.
"""

from __future__ import annotations

from hybridperf.hardware import Host
from hybridperf.ops import (
    BatchedGemm,
    Copy,
    Gather,
    Gemm,
    Norm,
    OptimizerUpdate,
    Reduction,
    RmsNorm,
    ScatterAdd,
    Softmax,
)
from hybridperf.workloads.transformer.passes import Step

LAUNCH_S, LAUNCH_WIDTH = (
    45e-6,
    0.5,
)  # of a host that nobody measured, and how sure that is in logs; from where: `steps/knobs.py`
KERNEL_CALL = "cudaLaunchKernel"
_NAMES: dict[
    type, tuple[tuple[str, ...], tuple[str, ...]]
] = {  # forward and backward; versions differ in names
    Gemm: (
        ("aten::linear", "aten::addmm", "aten::mm"),
        ("AddmmBackward0", "MmBackward0", "AddmmBackward", "MmBackward"),
    ),
    BatchedGemm: (("aten::bmm", "aten::baddbmm"), ("BmmBackward0", "BmmBackward")),
    Norm: (("aten::layer_norm", "aten::native_layer_norm"), ("NativeLayerNormBackward0",)),
    RmsNorm: (("aten::layer_norm", "aten::native_layer_norm"), ("NativeLayerNormBackward0",)),
    Softmax: (("aten::softmax", "aten::_softmax"), ("SoftmaxBackward0",)),
    Gather: (("aten::embedding", "aten::index"), ("EmbeddingBackward0",)),
    ScatterAdd: (("aten::embedding",), ("EmbeddingBackward0",)),
    Reduction: (("aten::sum",), ("aten::sum",)),
    Copy: (("aten::copy_", "aten::cat"), ("aten::copy_", "aten::cat")),
    OptimizerUpdate: (("Optimizer.step#Adam.step", "aten::add_"),) * 2,
}
_OTHERS: tuple[tuple[str, ...], tuple[str, ...]] = (
    ("aten::mul", "aten::add"),
    ("MulBackward0", "MulBackward"),
)
_COLLECTIVES = {
    "all_reduce": ("c10d::allreduce_", "nccl:all_reduce"),
    "all_gather": ("c10d::_allgather_base_", "nccl:all_gather"),
    "reduce_scatter": ("c10d::_reduce_scatter_base_", "nccl:reduce_scatter"),
    "alltoall": ("c10d::alltoall_base_", "nccl:all_to_all"),
    "sendrecv": ("c10d::send", "nccl:send"),
}


def launch_s(host: Host | float, step: Step, backward: bool) -> float:
    """Seconds the host spends on a step: between ops, before, in and after each launch; a number:
    so many for each launch.
    """
    if not isinstance(host, Host):
        return host * step.kernels
    names = (
        _NAMES.get(type(step.op), _OTHERS)[backward]
        if step.is_op
        else _COLLECTIVES[step.collective.collective]
    )
    between_s = 0.0 if host.between_ops_s is None else host.between_ops_s.mean_s
    call_s = host.seconds("launch_call_s", (KERNEL_CALL,))
    more_s = (step.kernels - 1) * (host.seconds("between_launches_s", names) + call_s)
    return (
        between_s
        + host.seconds("before_launch_s", names)
        + call_s
        + more_s
        + host.seconds("after_launch_s", names)
    )
