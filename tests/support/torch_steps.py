"""Small PyTorch steps that several files of tests capture, and what to ask of them.

Without PyTorch, who imports this is skipped.
"""

import dataclasses

import pytest

from hybridperf.workloads.programs.torch.capture import capture
from hybridperf.workloads.programs.torch.on_gpu import fused_drops
from hybridperf.workloads.programs.torch.ops import kernels
from hybridperf.workloads.programs.torch.program import priced_ops

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
nn, functional = torch.nn, torch.nn.functional


def matrix_ops(captured, phase):
    """Products, convolutions and attention of a phase, in order."""
    calls = [call for one in captured.ops if one.phase == phase for call in kernels(one.call) or ()]
    return [call.op for call in calls if call.op.unit == "matrix"]


class Mlp(nn.Module):
    """Two layers and a loss."""

    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        self.first = nn.Linear(256, 1024, dtype=dtype)
        self.second = nn.Linear(1024, 16, dtype=dtype)

    def forward(self, x, target):
        return functional.cross_entropy(self.second(torch.relu(self.first(x))).float(), target)


X, TARGET = torch.zeros(64, 256, dtype=torch.bfloat16), torch.zeros(64, dtype=torch.long)


def works_of(step, *args, **options):
    """Of all kernels of a step, those of a forward pass alone unless told otherwise."""
    captured = capture(step, args, **({"train": False} | options))
    return [(op.phase, call.op.work()) for op, calls in priced_ops(captured, frozenset())
            for call in calls]  # fmt: skip


# which PyTorch's counter leaves out, or cannot count without numbers
NOT_COUNTED = ("aten::_grouped_mm", "aten::_scaled_dot_product_flash_attention_for_cpu")


def flops_of(step, *args):
    """(ours, PyTorch's) of products, convolutions and attention of a forward pass, but for the ops
    that it cannot count.
    """
    from torch.utils.flop_counter import FlopCounterMode

    forward = capture(step, args, train=False)
    counter = FlopCounterMode(display=False)
    with counter, fused_drops(), torch.no_grad():  # the ops of a GPU
        step(*args)
    ours = sum(
        as_counted(call) for one in forward.ops if one.call.kind not in NOT_COUNTED
        for call in kernels(one.call) or () if call.op.unit == "matrix"
    )  # fmt: skip
    counted = counter.get_flop_counts().get("Global", {})
    return ours, sum(n for op, n in counted.items() if str(op) != "aten._grouped_mm")


def as_counted(call):
    """Flops of a call as PyTorch counts them: attention of every query to every key, no biases."""
    op = call.op
    for field in ("causal", "bias"):
        if op.unit == "matrix" and hasattr(op, field):
            op = dataclasses.replace(op, **{field: 0.0})
    return op.work().flops * call.times
