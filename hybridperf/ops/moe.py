"""A layer of experts: each token's `topk` experts out of many multiply its vector in, act on it and
multiply it out.

One expert is a gated MLP of three matrices (in, gate, out) of hidden x inter, or an ungated one of
two. The experts are shared out among `moe_ep` ranks, the columns of each among `moe_tp`. `tokens`
is the number over all ranks; what is counted is one rank's share, on the rank that has most to do:
the others wait for it.

Who gets how many tokens. `balanced`: everyone the same. `power_law_a`: loads are spread as x^-a
between a least and a largest load (1 and 0.8 tokens; 0.01 and 2 where there are fewer assignments
than experts), scaled to sum up and rounded to whole tokens. That is how the public tables of expert
layers (aiconfigurator) draw their routing. In closed form, for L = largest / least and b = 1 - a:

    share of loads below x = ((x / least)^b - 1) / (L^b - 1),    n-th moment ~ (L^(b+n) - 1) / (b +
                                                                 n)

so experts with work are those whose load does not round to zero, and the busiest one of E stands at
the share 1 - 1 / (2 E).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import ClassVar

from hybridperf.hardware import Unit
from hybridperf.io.errors import InputError
from hybridperf.io.namespace import Array, array_module, floats, root
from hybridperf.ops.base import Columns, Op, register, undivided
from hybridperf.ops.gemm import FLOPS_PER_MULTIPLY_ADD
from hybridperf.ops.inputs import Gpu, gpu_inputs, log2_of, log2_ratio, log_of, shape_inputs, tails
from hybridperf.ops.quantise import QUANT, WIDE_BYTES, scheme_dtype, scheme_flags, scheme_of
from hybridperf.ops.roofline import Work, streamed
from hybridperf.ops.tiles import blocks, whole_tiles

BALANCED = "balanced"
_POWER_LAW = re.compile(r"power_law_(\d+(?:\.\d+)?)")
_TILE_ROWS, _TILE_COLUMNS = 64.0, 128.0  # of the usual grouped product: experts often have few rows
_LARGEST_SHARE = 0.8  # of the tokens, that one expert is drawn to get


@dataclasses.dataclass(frozen=True)
class Routing:
    """What the busiest rank gets."""

    rows: Array  # pairs of token and expert
    active: Array  # experts with at least one row
    busiest: Array  # rows of the expert that has most


def route(tokens: Array, topk: Array, experts: Array, moe_ep: Array, distribution: str) -> Routing:
    """Rows of the busiest of `moe_ep` ranks (module docstring)."""
    module = array_module(tokens, topk, experts, moe_ep)
    maximum, minimum = module.maximum, module.minimum
    assigned, local = tokens * topk, experts / moe_ep
    if distribution == BALANCED:
        rows = maximum(assigned / moe_ep, 1.0)  # somewhere is at least one
        return Routing(rows, minimum(maximum(local, 1.0), rows), maximum(rows / local, 1.0))
    b = 1.0 - _exponent(distribution)
    crowded = (assigned > experts) * 1.0
    least = crowded * 1.0 + (1.0 - crowded) * 0.01
    largest = crowded * maximum(_LARGEST_SHARE * tokens, 1.01) + (1.0 - crowded) * 2.0
    span = largest / least
    mean, square = _moment(span, b, 1.0) * least, _moment(span, b, 2.0) * least**2
    unit = assigned / (experts * mean)  # rows per unit of load
    normal = span**b - 1.0

    busiest = least * (1.0 + (1.0 - 0.5 / experts) * normal) ** (1.0 / b) * unit
    # a token goes to an expert once
    busiest = maximum(minimum(busiest, tokens), maximum(assigned / experts, 1.0))
    half_a_row = minimum(maximum(0.5 / unit, least), largest)
    active = experts * (1.0 - ((half_a_row / least) ** b - 1.0) / normal)
    active = minimum(maximum(active, topk), minimum(experts, assigned))

    # The busiest rank: the one with the busiest expert and ordinary others, or, of many experts
    # each, a lucky draw of them all
    others = (assigned - busiest) / maximum(experts - 1.0, 1.0)
    with_busiest = busiest + (local - 1.0) * others
    spread = unit * root(maximum(square - mean**2, 0.0) * local * (1.0 - 1.0 / moe_ep))
    lucky = assigned / moe_ep + spread * root(2.0 * module.log(moe_ep * 1.0))
    rows = maximum(with_busiest, minimum(lucky, local * busiest))
    rows = maximum(minimum(rows, assigned), 1.0)
    rows = (moe_ep > 1) * rows + (moe_ep <= 1) * assigned
    return Routing(rows, minimum(maximum(active / moe_ep, 1.0), rows), minimum(busiest, rows))


def _moment(span: Array, b: float, order: float) -> Array:
    """Mean of x^order for loads spread as x^(b - 1) between 1 and `span`."""
    power = b + order
    if abs(power) < 1e-6:
        power = 1e-6  # the limit is a logarithm; so near to it nobody sees the difference
    return (span**power - 1.0) / power / ((span**b - 1.0) / b)


def _exponent(distribution: str) -> float:
    if distribution == BALANCED:
        return 0.0
    found = _POWER_LAW.fullmatch(distribution)
    if not found:
        known = f"known are {BALANCED} and power_law_x, as in power_law_1.2"
        raise InputError(f"unknown distribution {distribution!r}: {known}")
    exponent = float(found[1])
    return exponent if abs(exponent - 1.0) > 1e-6 else 1.0 + 1e-6


def known_distribution(name: str, dtype: str = "") -> str:
    """The name of a distribution; `InputError` for one that is unknown."""
    del dtype
    _exponent(name)
    return name


def _contradictions(op: Moe) -> Sequence[tuple[Array, str]]:
    return (
        (op.topk > op.experts, "topk must be at most experts"),
        (undivided(op.experts, op.moe_ep), "moe_ep must divide experts"),
        (op.moe_tp > op.inter, "moe_tp must be at most inter"),
    )


_COLUMNS = Columns(
    zero_allowed=frozenset({"gated"}), implied={"gated": ("kernel", {"nongated": 0.0})},
    readers={**QUANT, "distribution": known_distribution}, contradictions=_contradictions,
)  # fmt: skip


@register("moe", columns=_COLUMNS)
@dataclasses.dataclass(frozen=True)
class Moe(Op):
    """The experts of one rank, routing and summing included (module docstring)."""

    unit: ClassVar[Unit] = "matrix"

    tokens: Array
    hidden: Array
    inter: Array
    topk: Array
    experts: Array
    moe_tp: Array = 1.0
    moe_ep: Array = 1.0
    gated: Array = 1.0  # 0: two matrices per expert, not three
    quant: str = ""
    distribution: str = BALANCED

    @property
    def peak_dtype(self) -> str:
        return scheme_dtype(self.dtype, self.quant)

    def routing(self) -> Routing:
        """Tokens and experts of this rank under the op's distribution."""
        return route(self.tokens, self.topk, self.experts, self.moe_ep, self.distribution)

    def work(self) -> Work:
        routing, scheme = self.routing(), scheme_of(self)
        inter = self.inter / self.moe_tp
        activation, wide = scheme.activation_bytes, scheme.outgoing_bytes
        minimum = array_module(self.tokens, routing.rows).minimum
        here = minimum(self.tokens, routing.rows)  # tokens with an expert on this rank
        outer = here * self.hidden * (activation + wide)  # vectors read, sums written
        # written by the first product, read by the last
        inner = routing.rows * inter * (wide + activation)
        return streamed(
            outer + inner + self.weights_bytes(routing),
            flops=FLOPS_PER_MULTIPLY_ADD * self._matrices() * routing.rows * self.hidden * inter,
            transcendentals=routing.rows * inter,
        )

    def weights_bytes(self, routing: Routing) -> Array:
        """Of the matrices of this rank's active experts."""
        numbers = routing.active * self._matrices() * self.hidden * self.inter / self.moe_tp
        return numbers * scheme_of(self).weight_bytes

    def _matrices(self) -> Array:
        return 2.0 + (self.gated > 0)


@shape_inputs.register(Moe)
def _(op: Moe) -> dict[str, Array]:
    inter = op.inter / op.moe_tp
    return log_of(op, "hidden", "topk", inter=inter, **vars(op.routing()))


@blocks.register(Moe)
def _(op: Moe) -> Array:
    routing = op.routing()
    inter = whole_tiles(op.inter / op.moe_tp, _TILE_COLUMNS)
    return routing.active * whole_tiles(routing.rows / routing.active, _TILE_ROWS) * inter


@gpu_inputs.register(Moe)
def _(op: Moe, gpu: Gpu) -> dict[str, Array]:
    routing, scheme = op.routing(), scheme_of(op)
    rows, active, busiest = routing.rows, routing.active, routing.busiest
    inter, local = op.inter / op.moe_tp, op.experts / op.moe_ep
    each = floats(rows / active)
    activations = rows * (op.hidden + inter) * WIDE_BYTES
    out = {
        **log2_of(op, "tokens", "hidden", "topk", "experts", inter=inter, local=local),
        **log2_of(rows=rows, each=each, active=active, busiest=busiest),
        **gpu.per_l2(bytes=op.work().bytes, weights=op.weights_bytes(routing)),
        **gpu.per_l2(activations=activations),
        **tails(16, 64, each=each),
        **tails(128, each=each, inter=inter, hidden=op.hidden),
        "uneven": log2_ratio(busiest, each),
        "active_share": log2_ratio(active, local),
        "over_mean_rank": log2_ratio(rows * op.moe_ep, op.tokens * op.topk),
        "moe_tp": array_module(op.moe_tp).log2(floats(op.moe_tp)),
        "moe_ep": array_module(op.moe_ep).log2(floats(op.moe_ep)),
        "gated": (floats(op.gated) > 0) * 1.0,
        "exponent": _exponent(op.distribution),
        "weight_bytes": scheme.weight_bytes,
        "narrow": float(scheme.narrow_bytes > 0),
        **scheme_flags(op.quant),
    }
    for name, columns in (("inner", inter), ("outer", op.hidden)):
        for tile in (16.0, 64.0, 128.0):
            tiles = active * whole_tiles(each, tile) * whole_tiles(columns, _TILE_COLUMNS)
            out |= gpu.waves(f"{name}{tile:.0f}", tiles)
    return out
