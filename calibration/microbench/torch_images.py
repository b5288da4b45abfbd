"""Ops on images, for `torch_families`: convolutions and both their gradients, grouped and depthwise
ones, pooling, interpolation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as nn

from hybridperf_calibration.microbench.op_programs import OpProgram, floats, indices, most, size

Tensor = torch.Tensor
_aten = torch.ops.aten
PRODUCT_FLOPS = 1.2e9  # of one op, at most


def fitting(sizes: list[int], count: Callable[[list[int]], float], of_a_core: float) -> list[int]:
    """Sizes of at most so much of what is counted: the largest is halved until they are."""
    while count(sizes) > most(of_a_core):
        at = int(np.argmax(sizes))
        sizes[at] = max(sizes[at] // 2, 1)
    return sizes


def product(*sizes: float) -> float:
    return float(np.prod(sizes))


def convolution(u: np.ndarray) -> OpProgram:
    kernel = (1, 3, 3, 5, 7, 2)[int(u[6] * 6)]
    batch, image = size(u[0], 1, 32, u[4]), size(u[1], kernel, 112, u[5])
    c_in = 3 if u[2] < 0.1 else size(u[2], 4, 512, u[4])
    return convolved(u, batch, image, c_in, size(u[3], 8, 512, u[4]), kernel, 1)


def grouped_convolution(u: np.ndarray) -> OpProgram:
    batch, image = size(u[0], 1, 16, 0.9), size(u[1], 7, 64, 0.9)
    per_group = 1 if u[3] < 0.6 else size(u[3], 2, 32, 0.1)  # depthwise mostly
    groups = size(u[2], 2, max(256 // per_group, 2), u[4])
    channels = groups * per_group
    return convolved(u, batch, image, channels, channels, (3, 5, 7)[int(u[6] * 3)], groups)


def convolved(
    u: np.ndarray, batch: int, image: int, c_in: int, c_out: int, kernel: int, groups: int
) -> OpProgram:
    """A convolution, its gradient for inputs, or its gradient for weights."""
    stride = 2 if u[7] > 0.75 and image >= 2 * kernel else 1
    padding = kernel // 2 if kernel % 2 and u[7] < 0.9 else 0
    out = (image + 2 * padding - kernel) // stride + 1
    while 2.0 * batch * c_out * out**2 * (c_in / groups) * kernel**2 > most(PRODUCT_FLOPS):
        if batch > 1:
            batch //= 2
        elif groups == 1 and max(c_in, c_out) > 8:
            c_in, c_out = max(c_in // 2, 3), max(c_out // 2, 8)
        else:
            break
    x, w = floats(batch, c_in, image, image), floats(c_out, c_in // groups, kernel, kernel)
    y = floats(batch, c_out, out, out)
    name = f"{batch} {image} {c_in} {c_out} {kernel} {stride} {padding} {groups}"
    if u[8] < 0.45:

        def forward(x: Tensor, w: Tensor) -> Tensor:
            return nn.conv2d(x, w, None, stride, padding, 1, groups)

        return OpProgram(f"convolution {name}", forward, [x, w])
    wanted = [u[8] < 0.72, u[8] >= 0.72, False]
    several = ([stride] * 2, [padding] * 2, [1, 1])

    def backward(y: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        given = (*several, False, [0, 0], groups, wanted)
        return _aten.convolution_backward(y, x, w, None, *given)

    of = "inputs" if wanted[0] else "weights"
    return OpProgram(f"convolution {of} {name}", backward, [y, x, w])


def pool(u: np.ndarray) -> OpProgram:
    batch, channels, image = (
        size(u[0], 1, 16, 0.9),
        size(u[1], 4, 128, 0.1),
        size(u[2], 4, 56, u[3]),
    )
    batch, channels, image = fitting(
        [batch, channels, image], lambda s: s[0] * s[1] * s[2] ** 2, 1e6
    )
    image = max(image // 2 * 2, 4)
    x = floats(batch, channels, image, image)
    kernel, stride, padding = ((2, 2, 0), (3, 2, 1), (3, 1, 1))[int(u[4] * 3)]
    out = (image + 2 * padding - kernel) // stride + 1
    small, at = floats(batch, channels, out, out), indices(image, batch, channels, out, out)
    name = f"{batch} {channels} {image} {kernel} {stride}"
    each = ([kernel] * 2, [stride] * 2, [padding] * 2)
    if u[5] < 0.3:
        pooled = lambda x: _aten.max_pool2d_with_indices(x, *each)  # noqa: E731
        return OpProgram(f"max pool {name}", pooled, [x])
    if u[5] < 0.6:
        return OpProgram(f"mean pool {name}", lambda x: nn.avg_pool2d(x, *each), [x])
    if u[5] < 0.8:

        def back(g: Tensor, x: Tensor, at: Tensor) -> Tensor:
            given = (*each, [1, 1], False, at)
            return _aten.max_pool2d_with_indices_backward(g, x, *given)

        return OpProgram(f"max pool gradient {name}", back, [small, x, at])
    mean_back = lambda g, x: _aten.avg_pool2d_backward(g, x, *each, False, True, None)  # noqa: E731
    return OpProgram(f"mean pool gradient {name}", mean_back, [small, x])


def interpolation(u: np.ndarray) -> OpProgram:
    batch, channels, image = size(u[0], 1, 8, 0.9), size(u[1], 4, 128, 0.1), size(u[2], 4, 32, 0.9)
    batch, channels, image = fitting(
        [batch, channels, image], lambda s: s[0] * s[1] * s[2] ** 2, 2.5e5
    )
    x, larger = (floats(batch, channels, side, side) for side in (image, 2 * image))
    sizes = ([2 * image] * 2, [batch, channels, image, image])
    name = f"{batch} {channels} {image}"
    if u[3] < 0.25:
        fn = lambda x: _aten.upsample_nearest2d(x, sizes[0])  # noqa: E731
        return OpProgram(f"nearest {name}", fn, [x])
    if u[3] < 0.5:
        fn = lambda x: _aten.upsample_bilinear2d(x, sizes[0], False)  # noqa: E731
        return OpProgram(f"bilinear {name}", fn, [x])
    if u[3] < 0.75:
        fn = lambda g: _aten.upsample_nearest2d_backward(g, *sizes)  # noqa: E731
        return OpProgram(f"nearest gradient {name}", fn, [larger])
    fn = lambda g: _aten.upsample_bilinear2d_backward(g, *sizes, False)  # noqa: E731
    return OpProgram(f"bilinear gradient {name}", fn, [larger])
