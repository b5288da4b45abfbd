"""What a collective answers: who sends how much over which link, and in how many steps.

A new one is a file beside this one that registers itself, and its import in `__init__.py`:

    register(Collective(bus_factor=..., inside=..., across=...), "all_reduce", "allreduce")

Ways to send that several share (`ring`, `tree`) are files, too.

It runs over n = g N ranks, g on each of N nodes, and its functions take numbers, NumPy or JAX
arrays of these. The closed form (`collectives.form`) prices it by them, with knobs of its own once
it is measured; nobody derives anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from hybridperf.collectives.algorithms import ring, tree
from hybridperf.io import InputError
from hybridperf.io.namespace import Array


@dataclasses.dataclass(frozen=True)
class Collective:
    """How a collective divides its bytes S, and its steps."""

    bus_factor: Callable[[Array], Array]  # of n
    inside: Callable[[Array, Array], Array]  # share of S through one rank's link, from (g, N)
    across: Callable[[Array, Array], Array]  # share of S through one node's network, from (g, N)
    # only one rank of a node talks to another node, so one rank's share of the network carries it
    one_rank_across: bool = False
    # Steps inside nodes and between them, from (g, N): of the way that suits few bytes, and of the
    # one that suits many.
    few_bytes_steps: Callable[[Array, Array], tuple[Array, Array]] = tree.steps
    many_bytes_steps: Callable[[Array, Array], tuple[Array, Array]] = ring.steps

    def steps(self, ranks_per_node: Array, nodes: Array) -> np.ndarray:
        """Steps [..., 4]: for few bytes inside nodes and across, then for many."""
        few, many = self.few_bytes_steps, self.many_bytes_steps
        each = (*few(ranks_per_node, nodes), *many(ranks_per_node, nodes))
        return np.stack(np.broadcast_arrays(*each), -1)


COLLECTIVES: dict[str, Collective] = {}  # by our name
ALIASES: dict[str, str] = {}  # other spellings -> our name


def register(collective: Collective, name: str, *spellings: str) -> None:
    """Make a collective known by its name and other spellings, in lower case with `_`.

    Raises:
        InputError: when one of them is taken.
    """
    for taken in {name, *spellings} & {*COLLECTIVES, *ALIASES}:
        raise InputError(f"expected a new name of a collective, got {taken!r}, which is taken")
    COLLECTIVES[name] = collective
    ALIASES.update(dict.fromkeys(spellings, name))
