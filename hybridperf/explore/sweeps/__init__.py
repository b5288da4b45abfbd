"""Many points at once: a spec's design through a target, by chunks that can be done anywhere, in
any order, and again.

spec -> design (points by index) -> constraints -> target -> part files -> one Parquet file, top K,
Pareto front
"""

from hybridperf.explore.sweeps import programs, questions, steps, tables  # register their targets
from hybridperf.explore.sweeps.run import SweepResult, sweep
from hybridperf.explore.sweeps.target import Target, register

__all__ = ["SweepResult", "Target", "programs", "questions", "register", "steps", "sweep", "tables"]
