"""Layers by class, as far as a choice of strategies needs them: sizes per sample, and what ranks
that share a layer have to exchange.

    embedding     tables; looks up `read_bytes`, hands on `output_bytes` of pooled rows
    dense         a stack of matrices; ranks that share one gather its outputs, and add up its
                  inputs' gradients
    transformer   a stack of blocks; ranks that share one add up two outputs forward and two
                  gradients backward

A layer is `units` equal ones in a row; all sizes are of one unit.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Literal

from hybridperf.hardware import DTYPE_BYTES, canonical_dtype
from hybridperf.io import InputError
from hybridperf.ops import Gemm, Op, lookup_calls
from hybridperf.ops.embedding import Access, Table, Uniform
from hybridperf.ops.embedding_bag import Direction
from hybridperf.workloads.transformer.shape import TransformerShape

Kind = Literal["embedding", "dense", "transformer"]
KINDS = ("embedding", "dense", "transformer")
_FP32_BYTES = 4.0


@dataclasses.dataclass(frozen=True)
class Layer:
    """A stack of equal layers as strategies see it. Sizes are of one unit; * marks per sample."""

    name: str
    kind: Kind
    parameters: float
    units: int = 1
    needs: tuple[str, ...] = ()  # layers whose output it reads; those of the input wait for nothing
    flops: float = 0.0  # * forward
    read_bytes: float = 0.0  # * looked up
    output_bytes: float = 0.0  # *
    # ops of a unit: of samples, GPUs that share it by parts, and whether backward; None: a paper's
    # law prices it alone
    ops: Callable[[float, int, bool], tuple[Op, ...]] | None = None
    # outputs per forward pass that ranks with a part of the unit each must add up; 0: they gather
    # one
    summed: int = 0
    weight_bytes: float = 4.0  # per parameter
    gradient_bytes: float = 4.0  # per parameter that is reduced
    state_bytes: float = 16.0  # per parameter that lies in memory: weight, gradient, optimizer
    kept_bytes: float = 0.0  # * from forward to backward

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.units < 1:
            layer = f"a layer is one of {', '.join(KINDS)} and has 1 or more units"
            raise InputError(f"{layer}, got {self.kind!r}, {self.units} units")


def check_layers(layers: Sequence[Layer]) -> None:
    """`InputError` unless each layer reads only from those before it."""
    known: set[str] = set()
    for layer in layers:
        missing = [name for name in layer.needs if name not in known]
        if missing or layer.name in known:
            what = f"reads {missing[0]!r}, which is not before it" if missing else "is there twice"
            got = f"got {layer.name!r} that {what}; mend the list"
            raise InputError(f"layers are listed in their order, each once, {got}")
        known.add(layer.name)
    if not layers:
        raise InputError("a model needs one or more layers, got none")


def embedding_tables(
    name: str, tables: int, rows: float, dim: float, pooling: float, *, dtype: str = "fp16",
    state_bytes: float | None = None, access: Access | None = None,
) -> Layer:  # fmt: skip
    """Equal embedding tables whose looked-up rows are summed, as one layer.

    Args:
        name: of the layer.
        tables: how many tables.
        rows: rows of each table.
        dim: numbers per row.
        pooling: rows of each table that a sample sums.
        dtype: number format of the rows.
        state_bytes: bytes of memory per parameter; None: the rows alone (plain SGD).
        access: how lookups spread over a table's rows; None: evenly.
    """
    dtype = canonical_dtype(dtype)
    size = DTYPE_BYTES[dtype]
    table = Table(name, rows, dim, pooling=pooling, dtype=dtype, access=access or Uniform())

    @functools.lru_cache(maxsize=64)
    def ops(samples: float, parts: int, backward: bool) -> tuple[Op, ...]:
        direction: Direction = "backward" if backward else "forward"
        batch, mine = samples * parts, tables / parts
        return (lookup_calls([table], batch, direction, in_step=backward, alike=mine).op,)

    return Layer(
        name, "embedding", tables * rows * dim, read_bytes=tables * dim * pooling * size,
        output_bytes=tables * dim * size, ops=ops, weight_bytes=size, gradient_bytes=size,
        state_bytes=size if state_bytes is None else state_bytes,
    )  # fmt: skip


def dense_layers(
    name: str, units: int, width: float, *, needs: Sequence[str] = (), dtype: str = "fp32"
) -> Layer:
    """A stack of square matrices without biases, trained by Adam.

    Args:
        name: of the stack.
        units: how many matrices.
        width: rows and columns of each.
        needs: names of layers whose output it reads.
        dtype: number format of weights and outputs; fp32 multiplies as TF32.
    """
    dtype = canonical_dtype(dtype)
    size = DTYPE_BYTES[dtype]
    numbers = "tf32" if dtype == "fp32" else dtype

    def ops(samples: float, parts: int, backward: bool) -> tuple[Op, ...]:
        m, n, k = samples * parts, width / parts, width
        forward = Gemm(numbers, m, n, k)
        return (Gemm(numbers, m, k, n), Gemm(numbers, k, n, m)) if backward else (forward,)

    states = 2 * size + 2 * _FP32_BYTES + (_FP32_BYTES if size < _FP32_BYTES else 0)
    return Layer(
        name, "dense", width**2, units, tuple(needs), flops=2 * width**2, output_bytes=width * size,
        ops=ops, weight_bytes=size, gradient_bytes=size, state_bytes=states,
        kept_bytes=width * size,
    )  # fmt: skip


def transformer_layers(shape: TransformerShape, *, checkpoints: bool = False) -> tuple[Layer, ...]:
    """A Transformer's layers, in 16 bits with Adam: embedding, blocks, and LM head if any.

    A sample is one sequence; attention is fused.

    Args:
        shape: the model.
        checkpoints: whether only a block's input is kept, and its forward pass is computed again.
    """
    size, h, blocks = 2.0, shape.hidden, shape.depth
    tokens = float(shape.decoder_seq or shape.seq)
    hidden = tokens * h * size
    in_blocks = sum(block.count * block.parameters.total for block in shape.layer_kinds)
    heads_flops = {"none": 0.0, "classes": 2.0 * h * shape.vocab}
    head_flops = heads_flops.get(shape.head, 2.0 * tokens * h * shape.vocab)
    flops = shape.forward_flops(1.0) - head_flops
    per_block = flops / blocks * (4 / 3 if checkpoints else 1)
    words = Layer(
        "words", "embedding", shape.embedding_parameters, read_bytes=hidden, output_bytes=hidden,
        weight_bytes=size, gradient_bytes=size, kept_bytes=hidden,
    )  # fmt: skip
    body = Layer(
        "blocks", "transformer", in_blocks / blocks, blocks, ("words",), flops=per_block,
        output_bytes=hidden, summed=2, weight_bytes=size, gradient_bytes=size,
        kept_bytes=hidden if checkpoints else 17 * hidden,
    )  # fmt: skip
    if shape.head == "none":
        return words, body
    head = Layer(
        "head", "dense", max(shape.head_parameters, shape.vocab * h), 1, ("blocks",),
        flops=head_flops, output_bytes=head_flops / (2 * h) * size, weight_bytes=size,
        gradient_bytes=size, kept_bytes=hidden,
    )  # fmt: skip
    return words, body, head
