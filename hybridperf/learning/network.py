"""The small network of all learned corrections, in Flax: two layers, bounded, zero at the start.

Axes: F inputs.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp


class BoundedNet(nn.Module):
    """Inputs [..., F] -> log correction [...], zero before it learned anything."""

    width: int
    bound: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        h = nn.gelu(nn.Dense(self.width, name="first")(x))
        h = h + nn.gelu(nn.Dense(self.width, name="second")(h))
        out = nn.Dense(1, kernel_init=nn.initializers.zeros, name="out")(h)[..., 0]
        return self.bound * jnp.tanh(out / self.bound)
