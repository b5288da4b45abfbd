"""Many points at once: a design through a target, by chunks that can be done anywhere, in
any order, and again.

spec -> design (points by index) -> constraints -> target -> part files -> one Parquet file, top K,
Pareto front
"""

from hybridperf.explore.sweeps.run import SweepResult, sweep

__all__ = ["SweepResult", "sweep"]
