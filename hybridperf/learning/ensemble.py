"""Networks of `network.py` with all their members' weights stacked, evaluated in NumPy.

Axes: N rows, F inputs, E members.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

# rows of a product, and products at once: activations stay in a core's cache
_SLAB, _SLABS = 64, 4
# GELU by tanh (Hendrycks and Gimpel, arXiv 1606.08415), as Flax has it
_GELU = math.sqrt(2.0 / math.pi)


def outputs(params: Any, x: np.ndarray, bound: float) -> np.ndarray:
    """What each member's network says of x [N, F]: [E, N]. Inputs beyond F are zero.

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
