"""What a reader asks of a surprising figure, answered where it is shown: why a time is below the
datasheet's roofline, and what would narrow an interval that is several times wide.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hybridperf.hardware import LEVELS, DeviceSpec

WIDE = 10.0  # from the low to the high end: an interval worth a sentence
_BELOW = 0.98  # of the roofline: closer is rounding


def below_roofline(
    device: DeviceSpec, predicted_s: np.ndarray, roofline_s: np.ndarray, reuse_bytes: np.ndarray
) -> np.ndarray:
    """Why times are below the datasheet's roofline, which reads all data from memory; "" for those
    that are not [N].

    `reuse_bytes`: what else is touched before an op's data is used again.
    """
    sizes = device.level_bytes()[:-1]
    largest = int(np.argmax(sizes))
    cache = f"its data stays in a cache ({LEVELS[largest]}, {sizes[largest] / 2**20:.4g} MiB)"
    below = predicted_s < _BELOW * roofline_s
    cached = below & (reuse_bytes <= sizes[largest])
    begin = "faster than the datasheet's roofline: "
    return np.select([cached, below], [begin + cache, begin + beyond_datasheet(device)], "")


def beyond_datasheet(device: DeviceSpec) -> str:
    """What makes measured kernels faster than a datasheet's peak or bandwidth."""
    found = "part of the data stays in a cache, or a kernel does less than is counted"
    # no operating system tells a CPU's bandwidth
    return f"{found}, or the memory is faster than assumed" if device.kind == "cpu" else found


def narrowed_by(times: float, sizes: Mapping[str, object], where: str = "") -> str:
    """On an interval of so many times: which op or collective, and what would narrow it.

    `sizes` has the name under `op`; `where` is what else to say of it.
    """
    words = {
        key: f"{size:g}" if isinstance(size, (int, float, np.number)) else str(size)
        for key, size in sizes.items()
        if size
    }
    op = words.pop("op")
    near = " ".join(f"{key}={word}" for key, word in words.items())
    mend = "`hybridperf fit` on measured rows near this size narrows it (`calibrate` measures here)"
    return f"an interval of {times:,.0f} times is of {op} {near}{where}: {mend}"
