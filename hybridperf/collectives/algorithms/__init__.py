"""Collectives, a file for each way to send; `COLLECTIVES` leads from a name to it."""

from hybridperf.collectives.algorithms import (  # register theirs
    all_reduce,
    alltoall,
    experts,
    whole_buffer,
)
from hybridperf.collectives.algorithms.base import ALIASES, COLLECTIVES, Collective, register

__all__ = [
    "ALIASES", "COLLECTIVES", "Collective", "all_reduce", "alltoall", "experts", "register",
    "whole_buffer",
]  # fmt: skip
