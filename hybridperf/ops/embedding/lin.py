"""Embedding lookups by the formulas of Lin et al. (owensgroup/ml_perf_model@5b2522a), which
`hybridperf validate lin` prints next to ours.

B bags per table, E rows, D numbers of fp32 a row, L lookups per bag, r32(x) = x rounded up to 32
bytes. A bag of a table moves

    offsets 64 + table offset 32 + indices r32(4 L) + rows L r32(4 D) + result r32(4 D)  bytes.

`plain` charges all of it to DRAM; backward (SGD) moves rows twice and is bound by B L 4 (D // 4)
flops, too. `hit_rate` assumes uniform access and takes what the L2 cache holds off the rows. With W
warps in flight (45 per SM) there are n = ceil(W / B) tables in flight:

    forward    X = min(0.9 L2 / (n 4 D), E, B L),  U = E (1 - (1 - 1/E)^(B L))
               h = 1 - (X + (B L - X)(E - X) / E) / (B L)  where U > X,  else 1 - U / (B L)
               t = f max( DRAM(misses and the rest), hits / L2 bandwidth )
               f = 1 (D > 64), 1.1 (D > 32), 1.55 (else)
    backward   X = floor(L2 / n) / (4 D),  h = product over i < L of (X - i) / (E - i)
               t = max( DRAM, L2, compute )

DRAM time is their three-segment curve, which falls with size at its knots. Tables of a fused call
are summed up, then timed once; f is that of the tables' mean D. They know no skew: an access
distribution changes nothing here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from hybridperf.io.errors import unknown
from hybridperf.ops.embedding.table import Table

_OFFSETS_BYTES, _TABLE_OFFSET_BYTES = 64.0, 32.0
_FLOAT_BYTES = 4.0
_L2_SHARE = 0.9
_WARPS_PER_SM = 45  # rows of a block in FBGEMM's kernel
_MIB = 2.0**20


@dataclasses.dataclass(frozen=True)
class DramCurve:
    """Their three-segment fit of DRAM time over bytes."""

    linear_from_log2: float  # below, time is `overhead_s`
    saturated_from_log2: float  # above, bytes / `bytes_per_s` + `overhead_s`
    bytes_per_s: float
    overhead_s: float
    # between: bandwidth in GB/s is 10^(height / (1 + e^(-steepness (x - centre))) + base)
    height: float
    centre: float
    steepness: float
    base: float

    def seconds(self, moved_bytes: float) -> float:
        """Time to move so many bytes."""
        x = math.log2(max(moved_bytes, 1.0))
        if x <= self.linear_from_log2:
            return self.overhead_s
        if x > self.saturated_from_log2:
            return moved_bytes / self.bytes_per_s + self.overhead_s
        exponent = self.height / (1.0 + math.exp(-self.steepness * (x - self.centre))) + self.base
        return moved_bytes / (1e9 * 10.0**exponent)


@dataclasses.dataclass(frozen=True)
class LinGpu:
    """Their microbenchmarked constants of one GPU."""

    peak_flops_per_s: float
    l2_bytes_per_s: float
    multiprocessors: int
    l2_bytes: float
    dram: DramCurve


def _gpu(peak: float, l2_speed: float, sms: int, l2_mib: float, *curve: float) -> LinGpu:
    linear, saturated, dram, overhead_us, *rest = curve
    fit = DramCurve(linear, saturated, dram * 1e9, overhead_us * 1e-6, *rest)
    return LinGpu(peak * 1e9, l2_speed * 1e9, sms, l2_mib * _MIB, fit)


# by device name; GFLOP/s, GB/s, SMs, MiB; the curve's knots, GB/s, microseconds, and four numbers
# of the sigmoid
_A100 = (15026.6, 2270.9, 108, 40, 14, 29, 1391.10, 6.450, 2.2096, 20.352, 0.6253, 0.9324)
_V100 = (15441.5, 2847.5, 80, 6, 16, 30, 816.95, 4.833, 1.9472, 19.817, 0.5556, 0.9552)
_GV100 = (13035.9, 2466.7, 80, 6, 15, 28, 601.05, 6.963, 2.5664, 18.546, 0.4197, 0.2728)
GPUS = {"a100_sxm4_40g": _gpu(*_A100), "v100_sxm2": _gpu(*_V100), "gv100": _gpu(*_GV100)}


def gpu(name: str) -> LinGpu:
    """Constants by name; of P100 and TITAN Xp the paper's code holds placeholders only."""
    if name not in GPUS:
        raise unknown("GPU of Lin et al.", name, GPUS, f"known are {', '.join(GPUS)}")
    return GPUS[name]


def plain_forward_s(tables: Sequence[Table], batch: float, on: LinGpu) -> float:
    """All traffic to DRAM."""
    return on.dram.seconds(sum(batch * (_rest_bytes(t) + _row_bytes(t)) for t in tables))


def plain_backward_s(tables: Sequence[Table], batch: float, on: LinGpu) -> float:
    """The rows read and written; SGD."""
    moved = sum(batch * (_rest_bytes(t) + 2 * _row_bytes(t)) for t in tables)
    return max(on.dram.seconds(moved), _compute_s(tables, batch, on))


def hit_rate_forward_s(tables: Sequence[Table], batch: float, on: LinGpu) -> float:
    """Uniform access; rows that the L2 cache holds come from there."""
    hits = [(t, forward_hit_rate(t, batch, on)) for t in tables]
    missed = sum(batch * (_rest_bytes(t) + (1 - h) * _row_bytes(t)) for t, h in hits)
    hit_s = sum(batch * h * _row_bytes(t) for t, h in hits) / on.l2_bytes_per_s
    dim = sum(t.dim for t in tables) / len(tables)
    factor = 1.0 if dim > 64 else 1.1 if dim > 32 else 1.55
    return factor * max(on.dram.seconds(missed), hit_s)


def hit_rate_backward_s(tables: Sequence[Table], batch: float, on: LinGpu) -> float:
    """As forward, rows moved twice, with the chance that all rows of a bag are held."""
    hits = [(t, backward_hit_rate(t, batch, on)) for t in tables]
    missed = sum(batch * (_rest_bytes(t) + 2 * (1 - h) * _row_bytes(t)) for t, h in hits)
    hit_s = sum(batch * 2 * h * _row_bytes(t) for t, h in hits) / on.l2_bytes_per_s
    return max(on.dram.seconds(missed), hit_s, _compute_s(tables, batch, on))


FORMULAS: dict[str, dict[str, Callable[[Sequence[Table], float, LinGpu], float]]] = {
    "lin_plain": {"forward": plain_forward_s, "backward": plain_backward_s},
    "lin_hit_rate": {"forward": hit_rate_forward_s, "backward": hit_rate_backward_s},
}


def forward_hit_rate(table: Table, batch: float, on: LinGpu) -> float:
    """Share of a table's lookups that find their row in L2."""
    lookups, rows = table.lookups(batch), table.rows
    fit = _L2_SHARE * on.l2_bytes / (_tables_in_flight(batch, on) * _FLOAT_BYTES * table.dim)
    held = min(fit, rows, lookups)
    unique = rows * -math.expm1(lookups * math.log1p(-1.0 / rows)) if rows > 1 else 1.0
    if unique > held:
        return 1.0 - (held + (lookups - held) * (rows - held) / rows) / lookups
    return 1.0 - unique / lookups


def backward_hit_rate(table: Table, batch: float, on: LinGpu) -> float:
    """The chance that the rows of one bag are all held."""
    held = (on.l2_bytes // _tables_in_flight(batch, on)) / (_FLOAT_BYTES * table.dim)
    chance = 1.0
    for i in range(round(table.pooling)):
        chance *= min(max((held - i) / max(table.rows - i, 1.0), 0.0), 1.0)
    return chance


def _tables_in_flight(batch: float, on: LinGpu) -> int:
    return math.ceil(on.multiprocessors * _WARPS_PER_SM / batch)


def _row_bytes(table: Table) -> float:
    """Of the rows of one bag."""
    return table.pooling * _to_32(_FLOAT_BYTES * table.dim)


def _rest_bytes(table: Table) -> float:
    """Of one bag besides its rows."""
    own = _to_32(_FLOAT_BYTES * table.pooling)
    return _OFFSETS_BYTES + _TABLE_OFFSET_BYTES + own + _to_32(_FLOAT_BYTES * table.dim)


def _compute_s(tables: Sequence[Table], batch: float, on: LinGpu) -> float:
    return sum(batch * t.pooling * 4 * (t.dim // 4) for t in tables) / on.peak_flops_per_s


def _to_32(amount: float) -> float:
    return 32.0 * math.ceil(amount / 32.0)
