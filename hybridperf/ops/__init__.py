"""What each op computes and moves, written for one op; `op_by_name` leads from a table's name to its class."""

from hybridperf.ops import convolution, gemm, loops, movement  # register their ops
from hybridperf.ops.base import GROUPS, Op, OpCall, columns, op_by_name, op_names
from hybridperf.ops.convolution import Convolution
from hybridperf.ops.gemm import BatchedGemm, Gemm
from hybridperf.ops.loops import Cumulative, Elementwise, Fused, Norm, OptimizerUpdate, Random, Reduction, Softmax, Sort
from hybridperf.ops.movement import Allocation, Call, Copy, Gather, LoopTrip, ScatterAdd, Transpose

__all__ = [
    "GROUPS", "Allocation", "BatchedGemm", "Call", "Convolution", "Copy", "Cumulative", "Elementwise", "Fused", "Gather", "Gemm",
    "LoopTrip", "Norm", "Op", "OpCall", "OptimizerUpdate", "Random", "Reduction", "ScatterAdd", "Softmax", "Sort", "Transpose", "columns",
    "convolution", "gemm", "loops", "movement", "op_by_name", "op_names",
]  # fmt: skip
