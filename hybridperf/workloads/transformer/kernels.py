"""Pieces that layers are made of, with their backward: products, loops, norms, attention, each
kernel by itself.

Notation: T tokens of a micro-batch, i inputs, o outputs of a linear layer. C[T,o] = A[T,i] B[i,o];
its backward is A's gradient [T,i] = [T,o] [o,i] and B's [o,i] = [o,T] [T,i]. GPU libraries multiply
any layout at one rate, so both are plain products.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import hybridperf.ops as ops
from hybridperf.hardware import DTYPE_BYTES
from hybridperf.ops.quantise import scheme_dtype
from hybridperf.workloads.programs import ratios
from hybridperf.workloads.transformer.framework import Framework
from hybridperf.workloads.transformer.passes import Passes, PassStep, Steps

# of a linear layer: which dimension of its weight tensor parallelism divides
Split = Literal["", "outputs", "inputs"]
_STATE_BYTES = 4.0  # of a number in the state of a scan
_LAST_SUMS = 64.0  # partial sums per column that the second kernel of a sum over tokens adds up
MASK_BYTES = 1.0  # of a dropped element
# gradient x result per row, the products, the queries' gradient to the op's dtype
FUSED_ATTENTION_BACKWARD_KERNELS = 3
SOFTMAX, SOFTMAX_GRADIENT = "softmax", "softmax gradient"
SOFTMAX_KERNEL_BATCH = 4  # Megatron's fused softmax takes multiples of so many heads x samples


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
    ) -> PassStep:  # fmt: skip
        """One elementwise kernel over rows x cols.

        Args:
            like: op in tables whose arithmetic it has.
            moved: numbers read and written per element, which scale the rows; None: as the op does.
            tensor, tokens, core, weight_gradient: as in `PassStep`.
        """
        _, counts = ops.op_by_name(like)
        numbers = {key: float(value) for key, value in counts.items()}
        tensors = counts["inputs"] + 1.0
        op = ops.Elementwise(
            self.dtype, float(rows) * (moved or tensors) / tensors, float(cols), **numbers
        )
        fields = (tensor,) if tensor else ()
        return PassStep(ops.OpCall(op), "memory", name, 1, fields, tokens, core, weight_gradient)

    def column_sums(self, name: str, tokens: float, cols: float, tensor: bool = False) -> PassStep:
        """A vector of column sums over tokens: a bias' gradient."""
        call = ops.OpCall(ops.Reduction(self.dtype, float(cols), float(tokens)))
        fields = ("rows",) if tensor else ()
        return PassStep(call, "memory", name, tensor=fields, tokens="cols", weight_gradient=True)

    def keep(self, name: str, rows: float, cols: float, tensor: str = "") -> Steps:
        """A parameter's gradient is added to what earlier micro-batches left."""
        mode = self.framework.gradients
        if mode == "never" or (mode == "repeated" and self.micro_batches == 1):
            return ()
        # gradient read; sum read and written
        moved = 1 + 2 * self.gradient_bytes / self.element_bytes
        kept = self.loop(f"{name} kept", rows, cols, moved=moved, tensor=tensor, tokens="")
        return (dataclasses.replace(kept, weight_gradient=True),)

    @property
    def narrow_attention(self) -> bool:
        """Whether attention runs in the number format of products."""
        return bool(self.quant) and self.framework.narrow_attention

    @property
    def narrow_gelu(self) -> bool:
        """Whether GELU and its gradient are narrow where they are made."""
        return bool(self.quant) and not self.framework.gelu_apart

    def linear(
        self, name: str, tokens: float, i: float, o: float, *, split: Split = "",
        bias: bool = False, comes: float | None = None, returns: float | None = None,
    ) -> Passes:  # fmt: skip
        """A linear layer of i inputs and o outputs.

        Args:
            name, tokens, i, o: its name and sizes.
            split: what tensor parallelism divides.
            bias: whether its bias is added here.
            comes, returns: numbers moved for each input, and for each gradient of an output, until
                they are narrow and in both orders: 0: they come so, 1: narrow, None: wide.
        """

        def product(what: str, m: float, n: float, k: float, on: str, counts: str) -> PassStep:
            op = ops.Gemm(self.dtype, float(m), float(n), float(k), quant=self.quant)
            call = ops.OpCall(op, framework=self.framework.products)
            return PassStep(call, "gemm", what, 1, (on,) if on else (), counts)

        def on(outputs: str, inputs: str) -> str:
            return {"outputs": outputs, "inputs": inputs}.get(split, "")

        columns = on("cols", "")
        apart = self.framework.narrows_apart
        if split == "outputs" and not apart:  # the norm before it writes narrow numbers itself
            comes = 0.0
        narrowed = self._narrowed(name, tokens, i, on("", "cols"), comes)
        if apart:
            weight = self._narrowed(f"{name} weight", o, i, on("rows", "cols"))
            narrowed += tuple(dataclasses.replace(step, tokens="") for step in weight)
        forward: Steps = (*narrowed, product(name, tokens, o, i, on("n", "k"), "m"))
        if bias and self.framework.bias_apart:
            forward += (self.loop(f"{name} bias", tokens, o, like="addu", tensor=columns),)
        sums: Steps = ()
        if bias and self._sums_apart:
            sums = (self.column_sums(f"{name} bias gradient", tokens, o, split == "outputs"),)
        to_weight = product(f"{name} weight gradient", o, i, tokens, on("m", "n"), "k")
        backward = (
            *sums,
            *self._narrowed(f"{name} gradient", tokens, o, columns, returns),
            product(f"{name} input gradient", tokens, i, o, on("k", "n"), "m"),
            dataclasses.replace(to_weight, weight_gradient=True),
            *self.keep(name, o, i, on("rows", "cols")),
            *self._bias_kept(name, o, bias, columns),
        )
        return Passes(forward, backward)

    @property
    def _sums_apart(self) -> bool:
        """Whether a kernel of its own sums a bias' gradient: in 8 bits it comes with the narrow one
        (Transformer Engine's cast_transpose_dbias).
        """
        return not self.quant and self.framework.bias_sums_apart

    def _narrowed(
        self, name: str, tokens: float, cols: float, tensor: str, moved: float | None = None
    ) -> Steps:
        """A tensor made narrow, as it is and transposed, for the products that read it."""
        if not self.quant or moved == 0:
            return ()
        if moved:
            return (self.loop(f"{name} transposed", tokens, cols, moved=moved, tensor=tensor),)
        op = ops.Quantise(self.dtype, float(tokens), float(cols), quant=self.quant)
        call = ops.OpCall(op, times=ratios.CAST_AND_TRANSPOSED)
        on = (tensor,) if tensor else ()
        return (PassStep(call, "memory", f"{name} narrowed", tensor=on, tokens="rows"),)

    def adapter(
        self, name: str, tokens: float, i: float, o: float, rank: int, split: Split
    ) -> Passes:
        """A product of low rank beside a linear layer, its result added in the second product."""
        narrow = dataclasses.replace(self, quant="")
        down = narrow.linear(
            f"{name} adapter, down", tokens, i, rank, split=split if split == "inputs" else ""
        )
        up = narrow.linear(
            f"{name} adapter, up", tokens, rank, o, split=split if split == "outputs" else ""
        )
        found = down + up
        trained = (dataclasses.replace(one, weight_gradient=False) for one in found.backward)
        return Passes(found.forward, tuple(trained))

    def norm(self, name: str, kind: str, tokens: float, cols: float) -> Passes:
        """Forward and backward kernels of a norm over each token's columns."""
        if kind == "rmsnorm" and self.framework.composite_norms:
            return self._composite_norm(name, tokens, cols)
        op = (ops.RmsNorm if kind == "rmsnorm" else ops.Norm)(
            self.dtype, float(tokens), float(cols)
        )

        def of(what: str, ratio: float, weight_gradient: bool = False) -> PassStep:
            call = ops.OpCall(op, times=ratio)
            return PassStep(call, "memory", what, tokens="rows", weight_gradient=weight_gradient)

        parameters: Steps = (
            of(f"{name} parameter gradients", ratios.NORM_PARAMETERS, weight_gradient=True),
        )
        if self.framework.norm_parameter_kernels > 1:
            last = ops.OpCall(ops.Reduction(self.dtype, float(cols), _LAST_SUMS))
            sums = PassStep(last, "memory", f"{name} parameter sums", weight_gradient=True)
            parameters += (sums,)
        kept = self.keep(f"{name} scale", 1, cols)
        if kind != "rmsnorm":
            kept += self.keep(f"{name} shift", 1, cols)
        back = of(f"{name} input gradient", ratios.NORM_INPUT)
        return Passes((of(name, 1.0),), (*parameters, back, *kept))

    def _composite_norm(self, name: str, tokens: float, cols: float) -> Passes:
        """A root mean square norm op by op in fp32: bytes that each reads and writes of a 2-byte
        number.

            forward   widened 6, squared 8, mean 4, times its root 8, times weights 8, narrowed 6
            backward  widened 6, times weights 8, times root 8, root's gradient 12 + 4, square's 24,
                      both added 12, narrowed 6; weights' gradients 12 + 4
        """

        def loop(what: str, moved: float, launches: int, of_weights: bool = False) -> PassStep:
            step = self.loop(what, tokens, cols, moved=moved, weight_gradient=of_weights)
            return dataclasses.replace(step, kernels=launches)

        back = (
            loop(f"{name} parameter gradients", 8.0, 2, of_weights=True),
            loop(f"{name} input gradient", 40.0, 14),
            *self.keep(f"{name} scale", 1, cols),
        )
        return Passes((loop(name, 20.0, 8),), back)

    def branch(self, tokens: float, cols: float) -> Passes:
        """Where a residual leaves: two gradients meet there on the way back."""
        return Passes((), (self.loop("residual gradients added", tokens, cols),))

    def residual(self, name: str, tokens: float, cols: float, bias: bool) -> Passes:
        """Bias, dropout and what came past the block, added."""

        def loop(what: str, like: str = "add", moved: float | None = None) -> PassStep:
            return self.loop(f"{name} {what}", tokens, cols, like=like, moved=moved)

        apart = bias and self.framework.bias_sums_apart
        sums = (self.column_sums(f"{name} bias gradient", tokens, cols),) if apart else ()
        into = Passes((), (*sums, *self._bias_kept(name, cols, bias)))
        mask = self.mask if self.dropout else 0.0
        dropped, back = (
            (loop(what, "mulu", 2 + mask),) if self.dropout else ()
            for what in ("dropout", "dropout gradient")
        )
        if self.framework.fused_residual:
            return into + Passes((loop("residual", moved=3 + mask),), back)
        biases = (loop("bias", "addu"),) if bias and self.framework.bias_apart else ()
        return into + Passes((*biases, *dropped, loop("residual")), back)

    def activation(
        self, name: str, tokens: float, cols: float, *, gated: bool, bias: bool
    ) -> Passes:
        """Between an MLP's products: `cols` wide behind it, twice as wide before it if gated."""
        wide = cols * (2.0 if gated else 1.0)
        sums = self.column_sums(f"{name} bias gradient", tokens, wide, tensor=True)
        apart = (sums,) if bias and self._sums_apart else ()
        kept = (*apart, *self._bias_kept(name, wide, bias, tensor="cols"))

        def loop(what: str, like: str, moved: float | None = None) -> PassStep:
            return self.loop(f"{name} {what}", tokens, cols, like=like, moved=moved, tensor="cols")

        fused = self.framework.fused_activation
        if not gated:
            biased = bias and self.framework.bias_apart and not fused
            biases = (loop("bias", "addu"),) if biased else ()
            back = loop("gelu gradient", "gelu", 3)
            if not self.framework.gelu_apart:
                return Passes((), ((back,) if self.quant else ()) + kept)
            return Passes((*biases, loop("gelu", "gelu")), (back, *kept))
        if fused:  # backward: gate, value and gradient read, two gradients written
            back = loop("gated gradient", "silu_mul", 5)
            return Passes((loop("gated", "silu_mul"),), (back, *kept))
        products = loop("gate gradient", "mul"), loop("value gradient", "mul")
        return Passes(
            (loop("silu", "sigmoid"), loop("gate", "mul")),
            (*products, loop("silu gradient", "silu_mul"), *kept),
        )

    def _bias_kept(self, name: str, cols: float, bias: bool, tensor: str = "") -> Steps:
        return self.keep(f"{name} bias", 1, cols, tensor) if bias else ()

    def rope(self, name: str, tokens: float, cols: float) -> Passes:
        """Queries or keys turned by their positions; back by the opposite angle."""
        likes = ("rope", *["mulu"] * (self.framework.rope_kernels - 1))
        turned = tuple(
            self.loop(f"{name} turned", tokens, cols, like=like, tensor="cols") for like in likes
        )
        return Passes(turned, turned)

    def copy(self, name: str, tokens: float, cols: float) -> Passes:
        """Numbers put in order for what comes next, and their gradients on the way back."""
        there, back = (self._copied(what, tokens, cols) for what in (name, f"{name} back"))
        return Passes((there,), (back,))

    def split(self, name: str, tokens: float, cols: float) -> Passes:
        """Slices of one result, as queries, keys and values: their gradients are joined."""
        return Passes((), (self._copied(f"{name} gradients joined", tokens, cols),))

    def _copied(self, name: str, rows: float, cols: float, tensor: bool = True) -> PassStep:
        call = ops.OpCall(ops.Copy(self.dtype, float(rows), float(cols)))
        return PassStep(call, "memory", name, tensor=("cols",) if tensor else (), tokens="rows")

    def moved(self, name: str, rows: float, cols: float) -> Passes:
        """Tokens sorted by where they go."""
        there = self._copied(name, rows, cols, tensor=False)
        return Passes((there,), (dataclasses.replace(there, name=f"{name} back"),))

    def weighted(self, name: str, tokens: float, cols: float, terms: float) -> Passes:
        """Each token's sum of so many results; back: gradients of results and weights."""
        back = self.loop(f"{name} back", tokens * terms, cols, moved=2 + 1 / terms)
        return Passes((self.loop(name, tokens, cols, moved=terms + 1),), (back,))

    def head_norm(self, name: str, tokens: float, heads: float, dim: float) -> Passes:
        """A norm over each head of each token."""
        op = ops.RmsNorm(self.dtype, float(tokens * heads), float(dim))
        ratio = ratios.NORM_INPUT + ratios.NORM_PARAMETERS
        forward = PassStep(ops.OpCall(op), "memory", name, tensor=("rows",))
        call = ops.OpCall(op, times=ratio)
        back = PassStep(call, "memory", f"{name} gradients", kernels=2, tensor=("rows",))
        return Passes((forward,), (back,))

    def whole_norm(self, name: str, tokens: float, queries: float, keys: float) -> Passes:
        """Norms over all heads of queries and of keys; sums over ranks are not counted."""
        return self.head_norm(name, tokens, 1.0, queries) + self.head_norm(name, tokens, 1.0, keys)

    def repeated(
        self, name: str, tokens: float, heads: float, kv_heads: float, each: float
    ) -> Passes:
        """Vectors of each group copied for all its heads, for products that know no groups."""
        moved, cols = 1 + kv_heads / heads, heads * each
        there, back = (
            self.loop(f"{name} {what}", tokens, cols, like="cast", moved=moved, tensor="cols")
            for what in ("repeated", "gradients of a group added")
        )
        return Passes((there,), (back,))

    def fused_attention(
        self, batch: float, seq: float, heads: float, head_dim: float, kv_heads: float,
        causal: bool, keys: float = 0.0, window: float = 0.0,
    ) -> Passes:  # fmt: skip
        """Scores, softmax and weighted values in one kernel.

        Args:
            batch, seq, heads, head_dim, kv_heads: sizes of the queries.
            causal: whether a query sees only keys before it.
            keys: length of another sequence that the queries attend to; 0: their own.
            window: keys that a query sees at most; 0: any number.
        """
        dtype = scheme_dtype(self.dtype, self.quant) if self.narrow_attention else self.dtype
        op = ops.attention_of(dtype, batch, seq, keys, heads, head_dim, kv_heads, causal, window)
        call, tensor = ops.OpCall(op, kernel=self.attention_kernel), ("heads", "kv_heads")
        forward = PassStep(call, "attention", "attention", 1, tensor, tokens="q_len", core=True)
        back = dataclasses.replace(
            forward, call=dataclasses.replace(call, times=ratios.FUSED_ATTENTION),
            name="attention gradient", kernels=FUSED_ATTENTION_BACKWARD_KERNELS,
        )  # fmt: skip
        return Passes((forward,), (back,))

    def state_product(self, name: str, batch: float, m: float, n: float, k: float) -> Passes:
        """A product within chunks of a sequence, of so many chunks and heads."""

        def one(what: str, m: float, n: float, k: float) -> PassStep:
            op = ops.BatchedGemm(self.dtype, float(batch), m, n, k)
            call = ops.OpCall(op, framework=self.framework.products, variant="chunk_scan")
            return PassStep(call, "attention", what, tensor=("batch",), tokens="batch")

        gradients = one(f"{name}, left gradient", m, k, n), one(f"{name}, right gradient", k, n, m)
        return Passes((one(name, m, n, k),), gradients)

    def handed_on(self, name: str, rows: float, cols: float) -> Passes:
        """States in 4 bytes, each added to what the chunks before left, and back."""
        moved = 3 * _STATE_BYTES / self.element_bytes
        step = self.loop(name, rows, cols, moved=moved, tensor="rows")
        return Passes((step,), (dataclasses.replace(step, name=f"{name} back"),))

    def _core_loop(
        self, name: str, rows: float, cols: float, like: str, moved: float | None = None
    ) -> PassStep:
        """A loop of unfused attention."""
        return self.loop(
            name, rows, cols, like=like, moved=moved, tensor="rows", tokens="", core=True
        )

    def unfused_attention(
        self, batch: float, queries: float, keys: float, heads: float, head_dim: float
    ) -> Passes:
        """Scores, softmax, dropout and weighted values, each written to memory."""
        pairs = batch * heads

        def products(name: str, m: float, n: float, k: float) -> Passes:
            def one(what: str, m: float, n: float, k: float) -> PassStep:
                op = ops.BatchedGemm(self.dtype, float(pairs), float(m), float(n), float(k))
                call = ops.OpCall(op, framework=self.framework.products)
                return PassStep(call, "attention", what, tensor=("batch",), core=True)

            left = one(f"{name} left gradient", m, k, n)
            return Passes((one(name, m, n, k),), (left, one(f"{name} right gradient", k, n, m)))

        attention = Passes()
        if self.framework.fused_softmax:
            # a factor of the forward's product: free only there
            scaled = (
                self._core_loop("scale gradient", pairs * length, head_dim, "mulu")
                for length in (queries, keys)
            )
            attention = Passes((), tuple(scaled))
        attention += products("scores", queries, keys, head_dim)
        attention += self.softmax(pairs, queries, keys)
        if self.dropout:
            dropped, back = (
                self._core_loop(name, pairs * queries, keys, "mulu", 2 + self.mask)
                for name in ("attention dropout", "attention dropout gradient")
            )
            attention += Passes((dropped,), (back,))
        return attention + products("values", queries, head_dim, keys)

    def softmax(self, pairs: float, queries: float, keys: float) -> Passes:
        """Of scores: one kernel with scale and mask, or three."""
        rows = pairs * queries
        op = ops.Softmax(self.dtype, float(rows), float(keys))
        fused = self.framework.fused_softmax
        ratio = ratios.SOFTMAX if fused else ratios.EAGER_SOFTMAX
        there, back = (
            PassStep(ops.OpCall(op, times=times), "memory", name, tensor=("rows",), core=True)
            for name, times in ((SOFTMAX, 1.0), (SOFTMAX_GRADIENT, ratio))
        )
        alone = Passes((there,), (back,))
        if fused:
            return alone
        scale = self._core_loop("scale", rows, keys, "mulu")
        mask = self._core_loop("mask", rows, keys, "addu")
        return Passes((scale, mask), (dataclasses.replace(scale, name="scale gradient"),)) + alone

    def fallback(self, passes: Passes, queries: float) -> Passes:
        """Casts to fp32, scale and mask apart where the fused softmax has no kernel for a rank."""
        wide = dataclasses.replace(self, dtype="fp32")
        narrow = self.element_bytes / wide.element_bytes

        def replaced(step: PassStep) -> Steps:
            plain = step.name not in (SOFTMAX, SOFTMAX_GRADIENT)
            if plain or not step.op.rows / queries % SOFTMAX_KERNEL_BATCH:
                return (step,)
            back = step.name == SOFTMAX_GRADIENT

            def rows(
                kernels: Kernels, what: str, like: str, moved: float | None = None
            ) -> PassStep:
                name = f"{what} gradient" if back else what
                sizes = (step.op.rows, step.op.cols)
                return kernels.loop(name, *sizes, like=like, moved=moved, tokens="", core=True)

            widened = rows(wide, "softmax input in fp32", "cast", 1 + narrow)
            softmax = step.with_op(dtype="fp32")
            narrowed = rows(self, "softmax result narrowed", "cast", 1 + 1 / narrow)
            if back:
                loops = rows(wide, "mask", "mulu"), rows(wide, "scale", "mulu")
                return (widened, softmax, *loops, narrowed)
            loops = rows(wide, "scale", "mulu"), rows(wide, "mask", "addu")
            return (widened, *loops, softmax, narrowed)

        def all_of(steps: Steps) -> Steps:
            return tuple(one for step in steps for one in replaced(step))

        return Passes(all_of(passes.forward), all_of(passes.backward), all_of(passes.recomputed))
