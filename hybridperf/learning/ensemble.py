"""The small networks of all learned corrections, two layers and a bound, zero at the start; and
what an ensemble of them says of inputs, in NumPy or traced by JAX.

    f_e(x) = c tanh( net_e(x) / c )

Axes: N rows, d inputs, E members; weights of all members are stacked, every leaf [E, ...].
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.io.arrays import flat

BOUND = 2.5  # c, of the log: a factor of 12
# rows of a product, and products at once: activations stay in a core's cache
_SLAB, _SLABS = 64, 4
# GELU by tanh (Hendrycks and Gimpel, arXiv 1606.08415), as Flax has it
_GELU = math.sqrt(2.0 / math.pi)


@functools.cache
def network(width: int, bound: float) -> Any:
    """The network of a correction, a Flax module: inputs [..., d], whole or in parts side by side
    -> log correction [...].
    """
    import flax.linen as nn  # takes a fifth of a second, and closed forms alone do without

    class Beside(nn.Module):
        """A dense layer on parts of its input: a batch multiplies what it does not vary once."""

        @nn.compact
        def __call__(self, *parts: jax.Array) -> jax.Array:
            ends = list(itertools.accumulate(part.shape[-1] for part in parts))
            shape = (ends[-1], width)
            kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
            bias = self.param("bias", nn.initializers.zeros, (width,))
            rows = zip(parts, [0, *ends], ends, strict=False)
            return sum(part @ kernel[start:end] for part, start, end in rows) + bias

    class BoundedNet(nn.Module):
        @nn.compact
        def __call__(self, *parts: jax.Array) -> jax.Array:
            h = nn.gelu(Beside(name="first")(*parts))
            h = h + nn.gelu(nn.Dense(width, name="second")(h))
            out = nn.Dense(1, kernel_init=nn.initializers.zeros, name="out")(h)[..., 0]
            return bound * jnp.tanh(out / bound)

    return BoundedNet()


def output(params: Any, bound: float, *parts: jax.Array) -> jax.Array:
    """What one member says of inputs [N, d], whole or in parts side by side: [N]."""
    net = network(params["out"]["kernel"].shape[0], bound)
    return jnp.asarray(net.apply({"params": params}, *parts))


def fits(params: Any, inputs: int) -> bool:
    """Whether weights are those of networks that take so many inputs, or some more."""
    found = {name: leaf.shape for name, leaf in flat(params).items()}
    members, most, width = found.get("first/kernel", (0, 0, 0))
    shapes = {
        "first/kernel": (most, width), "first/bias": (width,), "second/kernel": (width, width),
        "second/bias": (width,), "out/kernel": (width, 1), "out/bias": (1,),
    }  # fmt: skip
    wanted = {name: (members, *shape) for name, shape in shapes.items()}
    return found == wanted and inputs <= most and members > 0


def evaluate(params: Any, parts: Sequence[Any], bound: float = BOUND) -> tuple[Any, Any]:
    """(mean, standard deviation) over members at inputs [N, d] in parts side by side: [N] each.

    Inputs that networks have beyond d are zero.
    """
    if all(isinstance(part, np.ndarray) for part in parts):
        each = outputs(params, np.concatenate(parts, 1), bound)
        return each.mean(0), each.std(0)
    missing = params["first"]["kernel"].shape[1] - sum(part.shape[1] for part in parts)
    parts = [*parts, np.zeros((len(parts[0]), missing))] if missing else parts
    return tuple(_ensemble(params, bound, *parts))


@functools.partial(jax.jit, static_argnums=1)
def _ensemble(params: Any, bound: float, *parts: jax.Array) -> jax.Array:
    # one after the other: products of all members at once are turned about in memory, which takes
    # as long again; activations are calculated anew for a slope, sooner than they are kept
    each = jax.lax.map(jax.checkpoint(lambda p: output(p, bound, *parts)), params)
    # without a slope: where members agree it has none, and no search follows it
    apart = jnp.std(jax.lax.stop_gradient(each), 0)
    return jnp.stack([jnp.mean(each, 0), apart])


def outputs(params: Any, x: np.ndarray, bound: float) -> np.ndarray:
    """What each member's network says of x [N, d]: [E, N]. Inputs beyond d are zero.

    `BoundedNet` once more, in NumPy: a few rows need no compiler. Products are of `_SLAB` rows,
    whatever N, so that a row by itself says what it says among others.
    """
    layers = [
        tuple(np.asarray(params[name][part], np.float64) for part in ("kernel", "bias"))
        for name in ("first", "second", "out")
    ]
    layers = [(kernel[:, None], bias[:, None, None]) for kernel, bias in layers]
    members, slabs = len(layers[0][0]), -(-len(x) // _SLAB)
    padded = np.zeros((slabs, _SLAB, layers[0][0].shape[2]))
    padded.reshape(slabs * _SLAB, -1)[: len(x), : x.shape[1]] = x
    out = np.empty((members, slabs, _SLAB))
    for start in range(0, slabs, _SLABS):
        h: Any = padded[start : start + _SLABS]
        for at, (kernel, bias) in enumerate(layers):
            more = h @ kernel
            more += bias
            if at < 2:
                inner = more * more
                inner *= _GELU * 0.044715
                inner += _GELU
                inner *= more
                np.tanh(inner, inner)
                inner += 1.0
                inner *= 0.5
                more *= inner
            h = h + more if at == 1 else more
        out[:, start : start + _SLABS] = h[..., 0]
    return bound * np.tanh(out.reshape(members, -1)[:, : len(x)] / bound)
