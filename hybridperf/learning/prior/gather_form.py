"""The closed form of ops that gather rows of a dense matrix by an index (sparse products) on a GPU.

    t     = floor + pnorm( compute, traffic, longest row; q )
    odds  = x / (1 - x) * exp(k * skew),   x = r / (1 + r^3)^(1/3),   r = c L2 / slice
    hit   = odds / (1 + odds)
    traffic = ( again (1 - hit + hit / g) + streamed (1 - warm + warm / g) ) / (e_B BW)
    streamed = first + d * beside + i * indices,   warm = 1 / (1 + (streamed / (c L2))^3)
    longest row = nonzeros * ( latency + row bytes / rate )

A cache of C bytes holds the share C / F of a footprint of F that is gathered from evenly; where
some rows are gathered far more often than others (`skew`, the deviation of log frequencies) it
holds those, and hits are more: of a log-normal distribution the most frequent share x has the share
Phi(Phi^-1(x) + skew) of all gathers, here by logistic curves, which a fit may differentiate
anywhere. Where a cache holds all that a kernel streams (`warm`), the one before left it there, be
it the same again or the layer's product. Kernels that go through the columns of the dense matrix
slice by slice gather from a slice of w of n columns at a time: slice = footprint * w / n with
1 / w = 1 / n + 1 / s.

Twelve knobs per device and kernel, kept as logs, with where each begins: beliefs, with the widths
`start_spread`; no publication was read for them.

    floor_s              launch: 5 us
    compute_efficiency   share of the peak
    memory_efficiency    e_B; 0.8
    cache_gain           g, bandwidth of L2 over memory's: 3.5
    cache_share          c; 1
    skew_share           k: 1
    slice_columns        s; 100, a few warps' width
    gather_s             latency of one gather after the other: 5 ns, dozens in flight
    row_s_per_kilobyte   of the longest row: 10 ns
    indices              i; 0.8
    beside               d; 1
    smoothing            q is 1 / (1 + it); 1, half way between a corner and a sum

Axes: N rows, K knobs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridperf.io.namespace import array_module
from hybridperf.learning.prior.form import FAR, ClosedForm, ClosedFormValues
from hybridperf.ops.roofline import roof_s

_LOGISTIC = 1.7  # of a normal quantile: Phi(x) is nearly 1 / (1 + exp(-1.7 x))
_KILOBYTE = 1024.0
# columns of `work`; all but the last are logs
WORK = (
    "compute_s", "again_s", "first_s", "beside_s", "index_s", "column_per_l2", "columns",
    "longest", "row_bytes", "skew",
)  # fmt: skip


class GatherRoofline(ClosedForm):
    """The roofline of gathers; `work` [N, 10] in the order of `WORK`."""

    name = "gathers"
    knobs = (
        "floor_s", "compute_efficiency", "memory_efficiency", "cache_gain", "cache_share",
        "skew_share", "slice_columns", "gather_s", "row_s_per_kilobyte", "indices", "beside",
        "smoothing",
    )  # fmt: skip
    position = (
        "hit", "again_over_traffic", "longest_over_traffic", "floor_over_traffic", "above_floor",
    )  # fmt: skip
    start = np.log([5e-6, 0.6, 0.8, 3.5, 1.0, 1.0, 100.0, 5e-9, 10e-9, 0.8, 1.0, 1.0])
    start_spread = np.array([0.4, 0.4, 0.15, 0.25, 0.2, 0.2, 0.5, 1.0, 1.0, 0.35, 0.35, 0.4])
    least_spread = np.array([0.2, 0.1, 0.1, 0.15, 0.2, 0.2, 0.3, 0.4, 0.4, 0.2, 0.2, 0.1])

    def log_s(self, theta: np.ndarray, work: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(_parts(theta, work)["total"]))

    def closed(self, theta: np.ndarray, work: Any) -> ClosedFormValues:
        module, of = array_module(work), _parts(theta, work)
        ratios = (of[part] / of["traffic"] for part in ("again", "longest", "floor"))
        logs = [module.log(one + 1e-9).clip(-FAR, FAR) for one in ratios]
        above = of["floor"] / of["total"]
        return ClosedFormValues(module.log(of["total"]), module.stack([of["hit"], *logs, above], 1))


def _parts(theta: np.ndarray, work: Any) -> dict[str, Any]:
    """Seconds of the parts of some rows, and the share of gathers that a cache serves."""
    (
        floor, compute, memory, gain, cache, skew_share, slice_columns, gather, per_kilobyte,
        indices, beside, smoothing,
    ) = (theta[..., at] for at in range(12))  # fmt: skip
    of = {name: work[..., at] for at, name in enumerate(WORK)}
    module = array_module(work)
    exp = module.exp
    width = 1.0 / (exp(-of["columns"]) + exp(-slice_columns))
    held = exp(cache - of["column_per_l2"]) / width
    # x / (1 - x) = r / (a - r) at a = (1 + r^3)^(1/3), without the loss of digits where a is near
    # r: a^3 - r^3 = 1 = (a - r)(a^2 + a r + r^2)
    root = (1.0 + held**3) ** (1.0 / 3.0)
    odds = held * (root**2 + root * held + held**2)
    odds = odds * exp(_LOGISTIC * exp(skew_share) * of["skew"])
    hit = odds / (1.0 + odds)
    again = exp(of["again_s"]) * (1.0 - hit + hit * exp(-gain))
    streamed = exp(of["first_s"]) + exp(beside + of["beside_s"]) + exp(indices + of["index_s"])
    cache_s = exp(cache + of["first_s"] - of["column_per_l2"] - of["columns"])
    warm = 1.0 / (1.0 + (streamed / cache_s) ** 3)
    streamed = streamed * (1.0 - warm + warm * exp(-gain))
    traffic = (again + streamed) * exp(-memory)
    row = exp(gather) + exp(per_kilobyte + of["row_bytes"]) / _KILOBYTE
    longest = exp(of["longest"]) * row
    q = 1.0 / (1.0 + exp(smoothing))
    body = roof_s(0.0, (exp(of["compute_s"] - compute), traffic, longest), q, xp=module)
    floor_s = module.broadcast_to(exp(floor), body.shape)
    return {
        "total": floor_s + body, "floor": floor_s, "hit": hit, "traffic": traffic,
        "again": again * exp(-memory), "longest": longest,
    }  # fmt: skip


GATHER_ROOFLINE = GatherRoofline()
