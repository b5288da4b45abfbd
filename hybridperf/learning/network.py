"""The small network of all learned corrections, in Flax: two layers, bounded, zero at the start.

Axes: F inputs.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


class BoundedNet(nn.Module):
    """Inputs [..., F] -> log correction [...], zero before it learned anything."""

    width: int
    bound: float
    # standard deviations of the first layer's weights and biases at the start; None: Flax' own
    first_spread: tuple[float, float] | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        names, spreads = ("kernel_init", "bias_init"), self.first_spread or ()
        normal = nn.initializers.normal
        spread: dict[str, Any] = {at: normal(sd) for at, sd in zip(names, spreads, strict=False)}
        h = nn.gelu(nn.Dense(self.width, name="first", **spread)(x))
        h = h + nn.gelu(nn.Dense(self.width, name="second")(h))
        out = nn.Dense(1, kernel_init=nn.initializers.zeros, name="out")(h)[..., 0]
        return self.bound * jnp.tanh(out / self.bound)
