"""Tokens to the ranks of their experts and back: S is all tokens of a rank, each counted once.

How often a token travels is the kernel's doing (`collectives/experts.py`); here it travels once.
"""

from hybridperf.collectives.algorithms import direct, ring
from hybridperf.collectives.algorithms.base import Collective, register

NAMES = ("dispatch", "combine")
_ONCE = Collective(
    bus_factor=ring.share,
    inside=lambda g, nodes: (g - 1) / (g * nodes),
    across=lambda g, nodes: g * ring.share(nodes),
    few_bytes_steps=direct.steps,
    many_bytes_steps=direct.steps,
)
for _name in NAMES:
    register(_ONCE, _name)
