"""Broadcast and reduce (S: the buffer), and a ring of sends (S: the message): all of it goes over
each link on its way, where there is anyone to send to. Of sends, one rank of a node talks to the
next node.
"""

import dataclasses

from hybridperf.collectives.algorithms import direct
from hybridperf.collectives.algorithms.base import Collective, register

_WHOLE_BUFFER = Collective(
    bus_factor=lambda n: 1.0,
    inside=lambda g, nodes: direct.steps(g, nodes)[0],
    across=lambda g, nodes: direct.steps(g, nodes)[1],
)
register(_WHOLE_BUFFER, "broadcast", "bcast")
register(_WHOLE_BUFFER, "reduce")
_SENDS = dataclasses.replace(
    _WHOLE_BUFFER, one_rank_across=True, few_bytes_steps=direct.steps, many_bytes_steps=direct.steps
)
register(_SENDS, "sendrecv", "send_recv", "p2p")
