"""Experts as training multiplies them: product by product (grouped layers of Transformer Engine and
Megatron-Core). What tables of expert layers measure, and `Moe` prices, is the one kernel of a
server.

n experts with work on a rank: n (rows/n x hidden x inputs of the MLP) and n (rows/n x inter x
hidden), of the rank that has most to do.

A grouped layer launches them one by one, on some streams (TransformerEngine pull request 853, issue
1386); by its developers' table of 8 products of a few us each (pull request 3134: 0.27 ms) that
takes its host some 33 us apiece, about as long as any launch (`launching.py`). PyTorch's
grouped_mm, which torchtitan calls (its pull request 3308), is one launch for all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from hybridperf.ops import Gemm, Moe, OpCall
from hybridperf.workloads.transformer.kernels import Kernels
from hybridperf.workloads.transformer.parallel import rewritten
from hybridperf.workloads.transformer.passes import Passes, PassStep, Steps


def grouped(passes: Passes, kernels: Kernels, together: bool = False) -> Passes:
    """Experts as products, launched one by one or `together`, and an activation between them; after
    everything that divides experts or their tokens.
    """

    def split(steps: Steps) -> Iterator[PassStep]:
        for step in steps:
            if step.is_op and isinstance(step.op, Moe):
                each = int(step.op.experts // step.op.moe_ep) if together else 1
                launches = 1 + (step.kernels - 1) // each
                yield from _products(dataclasses.replace(step, kernels=launches), kernels)
            else:
                yield step

    return rewritten(passes, split)


def _products(step: PassStep, kernels: Kernels) -> Steps:
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
        call, name = OpCall(of, times=times), f"{step.name}, {what}"
        launches = (step.kernels - 1) // 2
        return dataclasses.replace(
            step, call=call, name=name, kernels=launches, tensor=(), tokens="m"
        )

    name, gated = f"{step.name}, inner", bool(op.gated)
    piece = kernels.activation(name, float(routing.rows), inter, gated=gated, bias=False)
    inner = piece.backward if "gradient" in step.name else piece.forward
    return product("in", into), *inner, product("out", out)
