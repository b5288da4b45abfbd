"""Small PyTorch steps that several files of tests capture, and what to ask of them.

Without PyTorch, who imports this is skipped.
"""

import pytest

from hybridperf.workloads.torch.capture import capture
from hybridperf.workloads.torch.ops import kernels
from hybridperf.workloads.torch.program import priced_ops

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
