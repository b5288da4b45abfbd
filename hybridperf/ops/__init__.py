"""What each op computes and moves, written for one op; `op_by_name` leads from a table's name to
its class.
"""

from hybridperf.ops.attention import (
    DecodeAttention,
    EncoderAttention,
    LatentAttention,
    PrefillAttention,
    attention_of,
)
from hybridperf.ops.base import (
    BOUND,
    FUSED,
    GROUPS,
    Op,
    OpCall,
    columns,
    columns_of,
    op_by_name,
    op_names,
    run_on,
)
from hybridperf.ops.convolution import Convolution
from hybridperf.ops.embedding_bag import EmbeddingBag, EmbeddingBagBackward, lookup_calls
from hybridperf.ops.gemm import BatchedGemm, Gemm
from hybridperf.ops.inputs import Gpu
from hybridperf.ops.loops import (
    Cumulative,
    Elementwise,
    Fused,
    Norm,
    OptimizerUpdate,
    Random,
    Reduction,
    RmsNorm,
    Softmax,
    Sort,
)
from hybridperf.ops.moe import Moe
from hybridperf.ops.movement import (
    Allocation,
    Call,
    Copy,
    EagerOp,
    Gather,
    LoopTrip,
    ScatterAdd,
    Transpose,
)
from hybridperf.ops.quantise import Quantise
from hybridperf.ops.sparse import SDDMM, NMGemm, SpMM

__all__ = [
    "BOUND", "FUSED", "GROUPS", "SDDMM", "Allocation", "BatchedGemm", "Call", "Convolution", "Copy",
    "Cumulative", "DecodeAttention", "EagerOp", "Elementwise", "EmbeddingBag",
    "EmbeddingBagBackward", "EncoderAttention", "Fused", "Gather", "Gemm", "Gpu",
    "LatentAttention", "LoopTrip", "Moe", "NMGemm", "Norm", "Op", "OpCall", "OptimizerUpdate",
    "PrefillAttention", "Quantise", "Random", "Reduction", "RmsNorm", "ScatterAdd", "Softmax",
    "Sort", "SpMM", "Transpose", "attention_of", "columns", "columns_of", "lookup_calls",
    "op_by_name", "op_names", "run_on",
]  # fmt: skip
