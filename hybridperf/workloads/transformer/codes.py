"""Words of a layout as numbers, so that columns of layouts are arrays: a word's code is its place
here.
"""

RECOMPUTE = ("none", "selective", "full")
SCHEDULES = ("1f1b", "gpipe", "interleaved", "chimera", "zero_bubble")

NONE, SELECTIVE, FULL = range(len(RECOMPUTE))
ONE_F_ONE_B, GPIPE, INTERLEAVED, CHIMERA, ZERO_BUBBLE = range(len(SCHEDULES))
