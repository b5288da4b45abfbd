"""The ops of images that a training step is made of, as small JAX functions: a builder for each
family of `families.py`, which takes a point of the unit cube.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridperf_calibration.microbench.op_programs import OpProgram, floats, indices, most, size

Array = Any


def pooling(u: np.ndarray) -> OpProgram:
    """Maxima and sums in windows of an image, and which element of a window was the largest, as the
    gradient of a maximum asks: the largest and its four coordinates at once.
    """
    batch, image = size(u[0], 1, 16, u[3]), size(u[1], 7, 56, u[4])
    channels = min(size(u[2], 8, 256, u[3]), int(most(3e6) / (batch * image**2)) or 1)
    window, padding = (2, 3)[int(u[5] * 2)], ("VALID", "SAME")[int(u[4] * 10) % 2]
    places, shape = ((1, window, window, 1), (1, 2, 2, 1), padding), (batch, image, image, channels)
    name = f"{'x'.join(map(str, shape))} in {window} {padding}"
    if u[6] < 0.2:
        highest = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, *places)  # noqa: E731
        return OpProgram(f"maximum {name}", highest, [floats(*shape)])
    if u[6] < 0.3:
        total = lambda x: lax.reduce_window(x, 0.0, lax.add, *places)  # noqa: E731
        return OpProgram(f"sum {name}", total, [floats(*shape)])
    if u[6] < 0.4:
        largest = lambda x: jnp.argmax(x, -1)  # noqa: E731
        return OpProgram(f"argmax {'x'.join(map(str, shape))}", largest, [floats(*shape)])

    def larger(one: Sequence[Array], other: Sequence[Array]) -> tuple[Array, ...]:
        return tuple(lax.select(one[0] >= other[0], a, b) for a, b in zip(one, other, strict=True))

    def chosen(*of: Array) -> Array:
        first = (np.array(-np.inf, of[0].dtype), *[np.int32(0)] * 4)
        return lax.reduce_window(of, first, larger, *places)

    at = [indices(image, *shape)] * 4
    return OpProgram(f"place of the maximum {name}", chosen, [floats(*shape), *at])


def convolution(u: np.ndarray) -> OpProgram:
    batch, image = size(u[0], 1, 16, u[4]), size(u[1], 7, 56, u[5])
    c_in, c_out = size(u[2], 3, 256, u[4]), size(u[3], 8, 256, u[5])
    kernel = [1, 3, 3, 5][int(u[6] * 4)]
    stride = 1 + int(u[7] * 1.5)
    batch = max(min(batch, int(most(4e8) / (kernel**2 * c_in * c_out * image**2))), 1)

    def forward(x: Array, w: Array) -> Array:
        return _convolved(x, w, stride)

    x, w = floats(batch, image, image, c_in), floats(kernel, kernel, c_in, c_out)
    out = -(-image // stride)
    y = floats(batch, out, out, c_out)
    name = f"{batch} {image} {c_in} {c_out} {kernel} {stride}"
    if u[8] < 0.6:
        return OpProgram(f"convolution {name}", forward, [x, w])
    if u[8] < 0.8:  # the transposed programs of a backward pass
        back = lambda w, g: _transposed(lambda x: forward(x, w), x[1], g)  # noqa: E731
        return OpProgram(f"convolution inputs {name}", back, [w, y])
    back = lambda x, g: _transposed(lambda w: forward(x, w), w[1], g)  # noqa: E731
    return OpProgram(f"convolution weights {name}", back, [x, y])


def _convolved(x: Array, w: Array, stride: int, groups: int = 1) -> Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=layout, feature_group_count=groups
    )


def _transposed(linear: Callable[[Array], Array], shape: tuple[int, ...], gradient: Array) -> Array:
    return jax.linear_transpose(linear, jax.ShapeDtypeStruct(shape, gradient.dtype))(gradient)[0]


def grouped_convolution(u: np.ndarray) -> OpProgram:
    batch, image = size(u[0], 1, 8, 0.9), size(u[1], 7, 32, 0.9)
    groups, per_group = size(u[2], 2, 64, u[4]), 1 if u[5] < 0.6 else size(u[3], 2, 16, 0.1)
    kernel, channels = (3, 5)[int(u[6] * 2)], groups * per_group

    def forward(x: Array, w: Array) -> Array:
        return _convolved(x, w, 1, groups)

    x, w = floats(batch, image, image, channels), floats(kernel, kernel, per_group, channels)
    name = f"{batch} {image} {channels} {groups} {kernel}"
    if u[7] < 0.7:
        return OpProgram(f"grouped convolution {name}", forward, [x, w])
    back = lambda w, g: _transposed(lambda x: forward(x, w), x[1], g)  # noqa: E731
    return OpProgram(f"grouped convolution inputs {name}", back, [w, x])
