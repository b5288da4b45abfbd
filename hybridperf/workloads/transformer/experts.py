"""Experts as training multiplies them, product by product (grouped layers of Transformer Engine and
Megatron-Core): of n experts with work on a rank n (rows/n x hidden x inputs of the MLP) and n
(rows/n x inter x hidden), of the rank that has most to do. What tables of expert layers measure,
and `Moe` prices, is the one kernel of a server.

A grouped layer launches them one by one, on some streams (TransformerEngine pull request 853, issue
1386); by its developers' table of 8 products of a few us each (pull request 3134: 0.27 ms) that
takes its host some 33 us apiece, about as long as any launch (`launching.py`). PyTorch's
grouped_mm, which torchtitan calls (its pull request 3308), is one launch for all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from hybridperf.ops import Gemm, Moe, OpCall, Softmax
from hybridperf.workloads.programs import ratios
from hybridperf.workloads.transformer.counts import LayerKind
from hybridperf.workloads.transformer.kernels import Kernels
from hybridperf.workloads.transformer.parallel import rewritten
from hybridperf.workloads.transformer.passes import Passes, PassStep, Steps
from hybridperf.workloads.transformer.shape import TransformerShape

# of each expert; what stands between the products is one kernel for all: Transformer Engine
# multiplies expert by expert, on some streams
EXPERT_PRODUCTS, EXPERT_BACKWARD_PRODUCTS = 2, 4


def expert_products(
    shape: TransformerShape, kernels: Kernels, kind: LayerKind, tokens: float, cut: bool,
    routing: str,
) -> Passes:  # fmt: skip
    """All that a layer does of whose experts are spread over ranks.

    Args:
        shape, kernels, kind, tokens: of the layer.
        cut: whether tensor parallelism divides each expert.
        routing: distribution of tokens over experts.
    """
    op = Moe(
        kernels.dtype, float(tokens), float(shape.expert_hidden or shape.hidden),
        float(kind.ffn), float(kind.topk),
        float(kind.experts), gated=float(shape.gated), quant=kernels.quant, distribution=routing,
    )  # fmt: skip

    def product(name: str, times: float, products: int) -> PassStep:
        launches, tensor = 1 + products * kind.experts, ("moe_tp",) if cut else ()
        call = OpCall(op, times=times)
        return PassStep(call, "experts", name, launches, tensor=tensor, tokens="tokens")

    forward = product("experts", 1.0, EXPERT_PRODUCTS)
    back = product("experts gradient", ratios.EXPERTS, EXPERT_BACKWARD_PRODUCTS)
    return Passes((forward,), (back,))


def routed(kernels: Kernels, tokens: float, kind: LayerKind) -> Passes:
    """Probabilities of the experts and the best of them."""
    op = Softmax(kernels.dtype, float(tokens), float(kind.experts))
    forward = PassStep(OpCall(op), "memory", "router softmax", tokens="rows")
    best = kernels.loop("experts chosen", tokens, kind.experts, like="cast")
    call = OpCall(op, times=ratios.SOFTMAX)
    back = PassStep(call, "memory", "router softmax gradient", tokens="rows")
    return Passes((forward, best), (back,))


def handled(kernels: Kernels, rows: float, hidden: float) -> Passes:
    """Routed tokens [rows] on their way through the buffers of a dispatch: permuted, padded to
    tiles, narrowed in both orders, put back. That two of five passes are the forward's is assumed;
    steps tell of both together.
    """
    passes = kernels.framework.expert_passes
    there, back = (
        kernels.loop(f"tokens to and from experts{way}", rows, hidden, moved=share * passes)
        for way, share in (("", 0.4), (" back", 0.6))
    )
    return Passes((there,), (back,))


def without_experts(passes: Passes) -> Passes:
    """Passes of an MLP without its `expert_products`."""
    return rewritten(passes, lambda steps: (step for step in steps if not isinstance(step.op, Moe)))


def grouped(
    passes: Passes, kernels: Kernels, together: bool = False, biased: bool = False
) -> Passes:
    """Experts as products, launched one by one or `together`, and an activation between them; after
    everything that divides experts or their tokens. `biased`: as `_expert_biases`.
    """

    def split(steps: Steps) -> Iterator[PassStep]:
        for step in steps:
            if step.is_op and isinstance(step.op, Moe):
                each = int(step.op.experts // step.op.moe_ep) if together else 1
                launches = 1 + (step.kernels - 1) // each
                yield from _products(dataclasses.replace(step, kernels=launches), kernels, biased)
            else:
                yield step

    return rewritten(passes, split)


def _products(step: PassStep, kernels: Kernels, biased: bool) -> Steps:
    """Into the experts, the activation of all of them, and out of them."""
    assert isinstance(step.call, OpCall)
    op: Moe = step.op
    routing = op.routing()
    inter, active = float(op.inter / op.moe_tp), float(routing.active)
    rows = float(routing.rows) / active
    wide = inter * (2.0 if op.gated else 1.0)
    into = Gemm(op.dtype, rows, wide, float(op.hidden), quant=op.quant)
    out = Gemm(op.dtype, rows, float(op.hidden), inter, quant=op.quant)
    times = step.call.times * active

    def product(what: str, of: Gemm) -> PassStep:
        library = kernels.framework.products
        call = OpCall(of, times=times, framework=library, variant=kernels.framework.expert_kernels)
        name = f"{step.name}, {what}"
        launches = (step.kernels - 1) // 2
        return dataclasses.replace(
            step, call=call, name=name, kernels=launches, tensor=(), tokens="m"
        )

    name, gated = f"{step.name}, inner", bool(op.gated)
    piece, behind = (
        kernels.activation(name, float(routing.rows), inter, gated=gated, bias=False), Passes()
    )  # fmt: skip
    if biased:
        clamped, behind = _expert_biases(
            kernels, step.name, float(routing.rows), wide, float(op.hidden),
            int(op.experts // op.moe_ep),
        )  # fmt: skip
        piece += clamped
    if "gradient" in step.name:
        return *behind.backward, product("in", into), *piece.backward, product("out", out)
    return product("in", into), *piece.forward, product("out", out), *behind.forward


def _expert_biases(
    kernels: Kernels, name: str, rows: float, wide: float, hidden: float, experts: int
) -> tuple[Passes, Passes]:
    """What biases of experts and a limit on what they gate add in Megatron-Core (GPT-OSS, the one
    published mixture that has them): between the experts' products, and behind them.

    Both halves are clamped and joined again by kernels of their own
    (`fusions/fused_bias_geglu.py`). Biases of the first product are its epilogue, their gradients
    sums. `_apply_bias` (`transformer/moe/experts.py`) adds those of the second one, times each
    token's fp32 weight, expert by expert, joins all and narrows them: 28 bytes for each 2-byte
    number forward, and 40 back, where the sums for biases and weights are made as well.

    Args:
        kernels: of layers.
        name: of the pass.
        rows: tokens of all experts of a rank.
        wide, hidden: numbers of a token behind the first and the second product.
        experts: of a rank.
    """

    def loop(what: str, cols: float, moved: float, launches: int) -> PassStep:
        step = kernels.loop(f"{name}, {what}", rows, cols, moved=moved)
        return dataclasses.replace(step, kernels=launches)

    sums = kernels.column_sums(f"{name}, bias gradient", rows, wide)
    clamped = Passes(
        (loop("clamped", wide, 4.0, 3),), (loop("clamped gradient", wide, 5.0, 3), sums)
    )
    added = loop("biases", hidden, 14.0, 2 * experts + 2)
    back = loop("biases gradient", hidden, 20.0, 5 * experts + 2)
    return clamped, Passes((added,), (back,))
