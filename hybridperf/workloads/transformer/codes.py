"""Words of a layout as numbers, for columns of layouts: a word's code is its place."""

from hybridperf.io.namespace import Array
from hybridperf.workloads.schedules import NAMES as SCHEDULES
from hybridperf.workloads.schedules.names import KINDS

RECOMPUTE = ("none", "selective", "full")
NONE, SELECTIVE, FULL = range(len(RECOMPUTE))
INTERLEAVED = SCHEDULES.index("interleaved")
CHIMERA, ZERO_BUBBLE = SCHEDULES.index("chimera"), SCHEDULES.index("zero_bubble")
FORWARDS_FIRST = tuple(i for i, name in enumerate(SCHEDULES) if KINDS[name].forwards_first)


def forwards_first(schedule: Array) -> Array:
    """Whether no backward of a schedule begins before all forwards, by its code."""
    return sum(schedule == code for code in FORWARDS_FIRST) > 0
