"""Embedding lookups by the formulas of Lin et al. (owensgroup/ml_perf_model@5b2522a), which
`python -m benchmarks.claims lin` prints next to ours.

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
from collections.abc import Sequence

from hybridperf.io.errors import unknown
from hybridperf.ops.embedding.table import Table

_OFFSETS_BYTES, _TABLE_OFFSET_BYTES = 64.0, 32.0
_FLOAT_BYTES = 4.0
_L2_SHARE = 0.9
_WARPS_PER_SM = 45  # rows of a block in FBGEMM's kernel
_MIB = 2.0**20


@dataclasses.dataclass(frozen=True)
class LinGpu:
    """Their microbenchmarked constants of one GPU, in their units."""

    peak_gflops: float
    l2_gbytes_per_s: float
    multiprocessors: int
    l2_mib: float
    # their three-segment fit of DRAM time over bytes
    linear_from_log2: float  # below, time is the overhead
    saturated_from_log2: float  # above, bytes / bandwidth + overhead
    dram_gbytes_per_s: float
    overhead_us: float
    # between: bandwidth in GB/s is 10^(height / (1 + e^(-steepness (x - centre))) + base)
    height: float
    centre: float
    steepness: float
    base: float

    @property
    def l2_bytes(self) -> float:
        """Of the L2 cache."""
        return self.l2_mib * _MIB

    def dram_s(self, moved_bytes: float) -> float:
        """Seconds to move so many bytes."""
        x = math.log2(max(moved_bytes, 1.0))
        if x <= self.linear_from_log2:
            return self.overhead_us * 1e-6
        if x > self.saturated_from_log2:
            return moved_bytes / (self.dram_gbytes_per_s * 1e9) + self.overhead_us * 1e-6
        exponent = self.height / (1.0 + math.exp(-self.steepness * (x - self.centre))) + self.base
        return moved_bytes / (1e9 * 10.0**exponent)


_A100 = (15026.6, 2270.9, 108, 40, 14, 29, 1391.10, 6.450, 2.2096, 20.352, 0.6253, 0.9324)
_V100 = (15441.5, 2847.5, 80, 6, 16, 30, 816.95, 4.833, 1.9472, 19.817, 0.5556, 0.9552)
_GV100 = (13035.9, 2466.7, 80, 6, 15, 28, 601.05, 6.963, 2.5664, 18.546, 0.4197, 0.2728)
GPUS = {"a100_sxm4_40g": LinGpu(*_A100), "v100_sxm2": LinGpu(*_V100), "gv100": LinGpu(*_GV100)}
FORMULAS = ("lin_plain", "lin_hit_rate")


def gpu(name: str) -> LinGpu:
    """Constants by name; of P100 and TITAN Xp the paper's code holds placeholders only."""
    if name not in GPUS:
        raise unknown("GPU of Lin et al.", name, GPUS, f"known are {', '.join(GPUS)}")
    return GPUS[name]


def lookup_s(
    formula: str, direction: str, tables: Sequence[Table], batch: float, on: LinGpu
) -> float:
    """Seconds of a fused call by one of `FORMULAS`, "forward" or "backward" (SGD)."""
    forward, knows_hits = direction == "forward", formula == "lin_hit_rate"
    rate = forward_hit_rate if forward else backward_hit_rate
    missed, hit, bag_flops = 0.0, 0.0, 0.0
    for t in tables:
        width = _to_32(_FLOAT_BYTES * t.dim)  # of a row, and of the result
        rows = (1 if forward else 2) * t.pooling * width
        rest = _OFFSETS_BYTES + _TABLE_OFFSET_BYTES + _to_32(_FLOAT_BYTES * t.pooling) + width
        share = rate(t, batch, on) if knows_hits else 0.0
        missed += batch * (rest + (1 - share) * rows)
        hit += batch * share * rows
        bag_flops += batch * t.pooling * 4 * (t.dim // 4)
    seconds = max(on.dram_s(missed), hit / (on.l2_gbytes_per_s * 1e9))
    if not forward:
        return max(seconds, bag_flops / (on.peak_gflops * 1e9))
    dim = sum(t.dim for t in tables) / len(tables)
    return (1.0 if dim > 64 or not knows_hits else 1.1 if dim > 32 else 1.55) * seconds


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


def _to_32(amount: float) -> float:
    return 32.0 * math.ceil(amount / 32.0)
