"""Collectives, a file for each way to send; `COLLECTIVES` leads from a name to it."""

from hybridperf.collectives.algorithms import all_reduce, alltoall, whole_buffer  # register theirs
from hybridperf.collectives.algorithms.base import ALIASES, COLLECTIVES, Collective, register

__all__ = [
    "ALIASES", "COLLECTIVES", "Collective", "all_reduce", "alltoall", "register", "whole_buffer",
]  # fmt: skip
