"""Pieces that layers are made of, with their backward: products, loops, norms, attention, each
kernel by itself.

Notation: T tokens of a micro-batch, i inputs, o outputs of a linear layer. C[T,o] = A[T,i] B[i,o];
its backward is A's gradient [T,i] = [T,o] [o,i] and B's [o,i] = [o,T] [T,i]. GPU libraries multiply
any layout at one rate, so both are plain products.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.ops import (  # fmt: skip
    BatchedGemm,
    Copy,
    Elementwise,
    EncoderAttention,
    Gemm,
    Norm,
    OpCall,
    PrefillAttention,
    Reduction,
    RmsNorm,
    Softmax,
    op_by_name,
)
from hybridperf.workloads.transformer import ratios
from hybridperf.workloads.transformer.framework import Framework
from hybridperf.workloads.transformer.passes import Part, Passes, Piece, Step, Steps

Split = Literal[
    "", "outputs", "inputs"
]  # of a linear layer: which dimension of its weight tensor parallelism divides
_LAST_SUMS = 64.0  # partial sums per column that the second kernel of a sum over tokens adds up
MASK_BYTES = 1.0  # of a dropped element
# gradient x result per row, the products, the queries' gradient to the op's dtype
FUSED_ATTENTION_BACKWARD_KERNELS = 3
QUANTISED_KERNELS = 2  # an operand is made narrow, then multiplied
SOFTMAX, SOFTMAX_GRADIENT = "softmax", "softmax gradient"
SOFTMAX_KERNEL_BATCH = 4  # Megatron's fused softmax takes multiples of so many heads x samples


def _floats(counts: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in counts.items()}


@dataclasses.dataclass(frozen=True)
class Kernels:
    """Pieces of a layer in one number format, as one framework runs them."""

    dtype: str
    framework: Framework
    dropout: bool
    gradient_bytes: float  # of a number in the buffer that gradients are added to
    micro_batches: int = 1  # of a step: gradients are added up from the second on
    quant: str = ""  # scheme of `ops/quantise.py` that products with weights multiply in
    attention_kernel: str = ""  # generation of fused attention, `ops/attention_kernels.py`

    @property
    def element_bytes(self) -> float:
        return DTYPE_BYTES[self.dtype]

    @property
    def mask(self) -> float:
        """A mask's element as a share of a number."""
        return MASK_BYTES / self.element_bytes

    def loop(
        self, name: str, rows: float, cols: float, *, like: str = "add", moved: float | None = None,
        tensor: str = "", tokens: str = "rows", core: bool = False, weight_gradient: bool = False,
    ) -> Step:  # fmt: skip
        """One elementwise kernel over rows x cols: an op that tables know, of more rows where it
        moves more.

        `moved`: what is read and written per element, in numbers of the dtype; None: as the op
        does.
        """
        _, counts = op_by_name(like)
        tensors = counts["inputs"] + 1.0
        op = Elementwise(
            self.dtype, float(rows) * (moved or tensors) / tensors, float(cols), **_floats(counts)
        )
        return Step(
            OpCall(op),
            "memory",
            name,
            tensor=(tensor,) if tensor else (),
            tokens=tokens,
            core=core,
            weight_gradient=weight_gradient,
        )

    def column_sums(
        self, name: str, tokens: float, cols: float, tensor: bool = False, times: float = 1.0
    ) -> Step:
        """A vector of column sums over tokens: a bias' gradient."""
        call = OpCall(Reduction(self.dtype, float(cols), float(tokens)), times=times)
        return Step(
            call,
            "memory",
            name,
            tensor=("rows",) if tensor else (),
            tokens="cols",
            weight_gradient=True,
        )

    def keep(self, name: str, rows: float, cols: float, tensor: str = "") -> Steps:
        """A parameter's gradient is added to what earlier micro-batches left."""
        if self.framework.gradients == "never" or (
            self.framework.gradients == "repeated" and self.micro_batches == 1
        ):
            return ()
        # gradient read; sum read and written
        moved = 1 + 2 * self.gradient_bytes / self.element_bytes
        return (
            self.loop(
                f"{name} kept",
                rows,
                cols,
                moved=moved,
                tensor=tensor,
                tokens="",
                weight_gradient=True,
            ),
        )

    def linear(
        self,
        name: str,
        tokens: float,
        i: float,
        o: float,
        *,
        split: Split = "",
        bias: bool = False,
        part: Part = "gemm",
    ) -> Piece:
        """A linear layer, its bias added here."""
        by_outputs, by_inputs = split == "outputs", split == "inputs"

        def product(
            what: str,
            m: float,
            n: float,
            k: float,
            on: str,
            counts: str,
            weight_gradient: bool = False,
        ) -> Step:
            call = OpCall(Gemm(self.dtype, float(m), float(n), float(k), quant=self.quant))
            launched = QUANTISED_KERNELS if self.quant else 1
            return Step(
                call,
                part,
                what,
                launched,
                tensor=(on,) if on else (),
                tokens=counts,
                weight_gradient=weight_gradient,
            )

        def on(outputs: str, inputs: str) -> str:
            return outputs if by_outputs else inputs if by_inputs else ""

        columns = "cols" if by_outputs else ""
        added = (
            (self.loop(f"{name} bias", tokens, o, like="addu", tensor=columns),)
            if bias and self.framework.bias_apart
            else ()
        )
        kept = (
            *self.keep(name, o, i, on("rows", "cols")),
            *(self.keep(f"{name} bias", 1, o, columns) if bias else ()),
        )
        return Piece(
            (product(name, tokens, o, i, on("n", "k"), "m"), *added),
            (
                *(
                    (self.column_sums(f"{name} bias gradient", tokens, o, by_outputs),)
                    if bias
                    else ()
                ),
                product(f"{name} input gradient", tokens, i, o, on("k", "n"), "m"),
                product(
                    f"{name} weight gradient", o, i, tokens, on("m", "n"), "k", weight_gradient=True
                ),
                *kept,
            ),
        )

    def norm(self, name: str, kind: str, tokens: float, cols: float) -> Piece:
        """A norm over each token."""
        op = (RmsNorm if kind == "rmsnorm" else Norm)(self.dtype, float(tokens), float(cols))

        def of(what: str, ratio: float, weight_gradient: bool = False) -> Step:
            return Step(
                OpCall(op, times=ratio),
                "memory",
                what,
                tokens="rows",
                weight_gradient=weight_gradient,
            )

        parameters: tuple[Step, ...] = (
            of(f"{name} parameter gradients", ratios.NORM_PARAMETERS.value, weight_gradient=True),
        )
        if self.framework.norm_parameter_kernels > 1:
            last = OpCall(Reduction(self.dtype, float(cols), _LAST_SUMS))
            parameters += (Step(last, "memory", f"{name} parameter sums", weight_gradient=True),)
        kept = [
            *self.keep(f"{name} scale", 1, cols),
            *(self.keep(f"{name} shift", 1, cols) if kind != "rmsnorm" else ()),
        ]
        return Piece(
            (of(name, 1.0),),
            (*parameters, of(f"{name} input gradient", ratios.NORM_INPUT.value), *kept),
        )

    def branch(self, tokens: float, cols: float) -> Piece:
        """Where a residual leaves: two gradients meet there on the way back."""
        return Piece((), (self.loop("residual gradients added", tokens, cols),))

    def residual(self, name: str, tokens: float, cols: float, bias: bool) -> Piece:
        """Bias, dropout and what came past the block, added."""
        into = Piece(
            (),
            (
                *((self.column_sums(f"{name} bias gradient", tokens, cols),) if bias else ()),
                *self._bias_kept(name, cols, bias),
            ),
        )
        mask = self.mask if self.dropout else 0.0
        back = (
            (self.loop(f"{name} dropout gradient", tokens, cols, like="mulu", moved=2 + mask),)
            if self.dropout
            else ()
        )
        if self.framework.fused_residual:
            return into + Piece(
                (self.loop(f"{name} residual", tokens, cols, moved=3 + mask),), back
            )
        biases = (
            (self.loop(f"{name} bias", tokens, cols, like="addu"),)
            if bias and self.framework.bias_apart
            else ()
        )
        dropped = (
            (self.loop(f"{name} dropout", tokens, cols, like="mulu", moved=2 + mask),)
            if self.dropout
            else ()
        )
        return into + Piece((*biases, *dropped, self.loop(f"{name} residual", tokens, cols)), back)

    def activation(
        self, name: str, tokens: float, cols: float, *, gated: bool, bias: bool
    ) -> Piece:
        """What stands between the two products of an MLP, `cols` wide behind it, twice as wide
        before it if gated.
        """
        wide = cols * (2.0 if gated else 1.0)
        sums = (
            (self.column_sums(f"{name} bias gradient", tokens, wide, tensor=True),) if bias else ()
        )
        kept = self._bias_kept(name, wide, bias, tensor="cols")

        def loop(what: str, like: str, moved: float | None = None) -> Step:
            return self.loop(f"{name} {what}", tokens, cols, like=like, moved=moved, tensor="cols")

        if not gated:
            biases = (
                (loop("bias", "addu"),)
                if bias and self.framework.bias_apart and not self.framework.fused_activation
                else ()
            )
            return Piece(
                (*biases, loop("gelu", "gelu")), (loop("gelu gradient", "gelu", 3), *sums, *kept)
            )
        if (
            self.framework.fused_activation
        ):  # backward: gate, value and gradient read, two gradients written
            return Piece(
                (loop("gated", "silu_mul"),), (loop("gated gradient", "silu_mul", 5), *sums, *kept)
            )
        return Piece(
            (loop("silu", "sigmoid"), loop("gate", "mul")),
            (
                loop("gate gradient", "mul"),
                loop("value gradient", "mul"),
                loop("silu gradient", "silu_mul"),
                *sums,
                *kept,
            ),
        )

    def _bias_kept(self, name: str, cols: float, bias: bool, tensor: str = "") -> Steps:
        return self.keep(f"{name} bias", 1, cols, tensor) if bias else ()

    def rope(self, name: str, tokens: float, cols: float) -> Piece:
        """Queries or keys turned by their positions; back by the opposite angle."""
        count = self.framework.rope_kernels
        turned = tuple(
            self.loop(
                f"{name} turned", tokens, cols, like="rope" if at == 0 else "mulu", tensor="cols"
            )
            for at in range(count)
        )
        return Piece(turned, turned)

    def copy(self, name: str, tokens: float, cols: float) -> Piece:
        """Numbers put in order for what comes next, and their gradients on the way back."""
        return Piece(
            (self._copied(name, tokens, cols),), (self._copied(f"{name} back", tokens, cols),)
        )

    def split(self, name: str, tokens: float, cols: float) -> Piece:
        """Queries, keys and values are slices of one result; their gradients
        are put side by side.
        """
        return Piece((), (self._copied(f"{name} gradients joined", tokens, cols),))

    def _copied(self, name: str, rows: float, cols: float, tensor: bool = True) -> Step:
        call = OpCall(Copy(self.dtype, float(rows), float(cols)))
        return Step(call, "memory", name, tensor=("cols",) if tensor else (), tokens="rows")

    def moved(self, name: str, rows: float, cols: float) -> Piece:
        """Tokens sorted by where they go."""
        there = self._copied(name, rows, cols, tensor=False)
        return Piece((there,), (dataclasses.replace(there, name=f"{name} back"),))

    def weighted(self, name: str, tokens: float, cols: float, terms: float) -> Piece:
        """Each token's sum of so many results; backward: each result's
        gradient, and its weight's.
        """
        forward = self.loop(name, tokens, cols, moved=terms + 1)
        return Piece(
            (forward,), (self.loop(f"{name} back", tokens * terms, cols, moved=2 + 1 / terms),)
        )

    def head_norm(self, name: str, tokens: float, heads: float, dim: float) -> Piece:
        """A norm over each head of each token."""

        def of(what: str, ratio: float) -> Step:
            return Step(
                OpCall(RmsNorm(self.dtype, float(tokens * heads), float(dim)), times=ratio),
                "memory",
                what,
                tensor=("rows",),
            )

        back = ratios.NORM_INPUT.value + ratios.NORM_PARAMETERS.value
        return Piece(
            (of(name, 1.0),), (dataclasses.replace(of(f"{name} gradients", back), kernels=2),)
        )

    def repeated(
        self, name: str, tokens: float, heads: float, kv_heads: float, each: float
    ) -> Piece:
        """Vectors of `kv_heads` groups copied for each of `heads`, for products that know no
        groups; gradients of a group added up.
        """
        moved = 1 + kv_heads / heads

        def loop(what: str) -> Step:
            return self.loop(
                f"{name} {what}", tokens, heads * each, like="cast", moved=moved, tensor="cols"
            )

        return Piece((loop("repeated"),), (loop("gradients of a group added"),))

    def fused_attention(
        self,
        batch: float,
        seq: float,
        heads: float,
        head_dim: float,
        kv_heads: float,
        causal: bool,
        keys: float = 0.0,
    ) -> Piece:
        """Scores, softmax and weighted values in one kernel; `keys` of another sequence than the
        queries' own.
        """
        sizes = (float(batch), float(seq), float(heads), float(head_dim), float(kv_heads))
        op: PrefillAttention | EncoderAttention
        if keys:  # each query sees every key: the work is that of the longer of the two as keys
            few, many = sorted((float(seq), float(keys)))
            op = PrefillAttention(
                self.dtype, float(batch), few, *sizes[2:], kv_len=many, causal=0.0
            )
        else:
            op = (
                PrefillAttention(self.dtype, *sizes)
                if causal
                else EncoderAttention(self.dtype, *sizes)
            )
        call = OpCall(op, kernel=self.attention_kernel)
        forward = Step(
            call, "attention", "attention", tensor=("heads", "kv_heads"), tokens="q_len", core=True
        )
        back = dataclasses.replace(
            forward,
            call=dataclasses.replace(call, times=ratios.FUSED_ATTENTION.value),
            name="attention gradient",
            kernels=FUSED_ATTENTION_BACKWARD_KERNELS,
        )
        return Piece((forward,), (back,))

    def unfused_attention(
        self, batch: float, queries: float, keys: float, heads: float, head_dim: float
    ) -> Piece:
        """Scores, softmax, dropout and weighted values, each written to memory."""
        pairs = batch * heads

        def products(name: str, m: float, n: float, k: float) -> Piece:
            def one(what: str, m: float, n: float, k: float) -> Step:
                call = OpCall(BatchedGemm(self.dtype, float(pairs), float(m), float(n), float(k)))
                return Step(call, "attention", what, tensor=("batch",), core=True)

            return Piece(
                (one(name, m, n, k),),
                (one(f"{name} left gradient", m, k, n), one(f"{name} right gradient", k, n, m)),
            )

        def rows(name: str, like: str, moved: float | None = None) -> Step:
            return self.loop(
                name,
                pairs * queries,
                keys,
                like=like,
                moved=moved,
                tensor="rows",
                tokens="",
                core=True,
            )

        dropout = Piece()
        if self.dropout:
            dropout = Piece(
                (rows("attention dropout", "mulu", 2 + self.mask),),
                (rows("attention dropout gradient", "mulu", 2 + self.mask),),
            )
        scaled = tuple(
            self.loop(
                "scale gradient",
                pairs * length,
                head_dim,
                like="mulu",
                tensor="rows",
                tokens="",
                core=True,
            )
            for length in (queries, keys)
        )
        # a factor of the forward's product: free only there
        scale = Piece((), scaled) if self.framework.fused_softmax else Piece()
        return (
            scale
            + products("scores", queries, keys, head_dim)
            + self.softmax(pairs, queries, keys)
            + dropout
            + products("values", queries, head_dim, keys)
        )

    def softmax(self, pairs: float, queries: float, keys: float) -> Piece:
        """Of scores: one kernel with scale and mask, or three."""
        op = Softmax(self.dtype, float(pairs * queries), float(keys))

        def of(what: str, ratio: float) -> Step:
            return Step(OpCall(op, times=ratio), "memory", what, tensor=("rows",), core=True)

        if self.framework.fused_softmax:
            return Piece((of(SOFTMAX, 1.0),), (of(SOFTMAX_GRADIENT, ratios.SOFTMAX.value),))

        def rows(name: str, like: str) -> Step:
            return self.loop(
                name, pairs * queries, keys, like=like, tensor="rows", tokens="", core=True
            )

        alone = Piece((of(SOFTMAX, 1.0),), (of(SOFTMAX_GRADIENT, ratios.EAGER_SOFTMAX.value),))
        return (
            Piece((rows("scale", "mulu"), rows("mask", "addu")), (rows("scale gradient", "mulu"),))
            + alone
        )

    def fallback(self, passes: Passes, queries: float) -> Passes:
        """What runs where the fused softmax has no kernel for one rank's sizes: casts to fp32 and
        back, scale and mask by themselves.
        """

        def replaced(step: Step) -> Steps:
            if (
                step.name not in (SOFTMAX, SOFTMAX_GRADIENT)
                or not step.op.rows / queries % SOFTMAX_KERNEL_BATCH
            ):
                return (step,)
            back = step.name == SOFTMAX_GRADIENT
            before, after = ("mask", "scale") if back else ("scale", "mask")
            wide = dataclasses.replace(self, dtype="fp32")

            def rows(kernels: Kernels, what: str, like: str, moved: float | None = None) -> Step:
                name = f"{what} gradient" if back else what
                return kernels.loop(
                    name, step.op.rows, step.op.cols, like=like, moved=moved, tokens="", core=True
                )

            narrow = self.element_bytes / wide.element_bytes
            return (
                rows(wide, "softmax input in fp32", "cast", 1 + narrow),
                *((rows(wide, before, "mulu"), rows(wide, after, "addu")) if not back else ()),
                dataclasses.replace(
                    step,
                    call=dataclasses.replace(
                        step.call, op=dataclasses.replace(step.op, dtype="fp32")
                    ),
                ),
                *((rows(wide, before, "mulu"), rows(wide, after, "mulu")) if back else ()),
                rows(self, "softmax result narrowed", "cast", 1 + 1 / narrow),
            )

        def all_of(steps: Steps) -> Steps:
            return tuple(one for step in steps for one in replaced(step))

        return Passes(all_of(passes.forward), all_of(passes.backward), all_of(passes.recomputed))
