"""The rows of a table updated by their optimizer in JAX, each once a batch: what a fused kernel of
an embedding library does, written with a sort and a segment sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hybridperf_calibration.microbench.lookups import Lookups

Array = Any
RATE = 0.01


def merged_update(of: Lookups) -> Callable[..., tuple[Array, ...]]:
    """A function of (table, lookups, gradients of bags), or with the optimizer's state behind the
    table, that returns both as they are afterwards.
    """

    def merged(i: Array, g: Array) -> tuple[Array, Array]:
        """(the different rows, their gradients); as many as there are lookups, the rest behind the
        table, where updates are dropped.
        """
        flat = i.reshape(-1)
        order = jnp.argsort(flat)
        rows = flat[order]
        new = jnp.concatenate([jnp.ones(1, bool), rows[1:] != rows[:-1]])
        place = jnp.cumsum(new) - 1
        sums = jax.ops.segment_sum(
            g[order // of.pooling], place, len(flat), indices_are_sorted=True
        )
        return jnp.full(len(flat), of.rows, rows.dtype).at[place].set(rows), sums

    def sgd(t: Array, i: Array, g: Array) -> tuple[Array]:
        rows, sums = merged(i, g)
        return (t.at[rows].add(-RATE * sums, mode="drop"),)

    def adagrad(t: Array, s: Array, i: Array, g: Array) -> tuple[Array, Array]:
        rows, sums = merged(i, g)
        each = of.optimizer == "adagrad"
        squares = sums * sums if each else (sums * sums).mean(-1)
        root = lax.rsqrt(s.at[rows].get(mode="clip") + squares + 1e-8)
        step = sums * (root if each else root[:, None])
        return t.at[rows].add(-RATE * step, mode="drop"), s.at[rows].add(squares, mode="drop")

    return sgd if of.optimizer == "sgd" else adagrad
