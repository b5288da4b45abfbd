"""Words of a layout as numbers, for columns of layouts: a word's code is its place."""

from hybridperf.workloads.schedules import NAMES as SCHEDULES

RECOMPUTE = ("none", "selective", "full")
NONE, SELECTIVE, FULL = range(len(RECOMPUTE))
GPIPE, INTERLEAVED = SCHEDULES.index("gpipe"), SCHEDULES.index("interleaved")
CHIMERA, ZERO_BUBBLE = SCHEDULES.index("chimera"), SCHEDULES.index("zero_bubble")
