"""The peak that MFU is a share of, of the number format in which products of layers multiply; the
lower bound of a step.

An fp8 or fp4 recipe multiplies narrow what it keeps in 16 bits between ops (`ops/quantise.py`), so
its activations' dtype does not say which peak counts.

The lower bound of a step: its products, with recomputation, at the datasheet's peak, evenly on all
devices: seconds = FLOPs / (devices x peak). Fused attention skips what a causal mask hides, so half
of it counts. Where products of layers multiply in a narrower format than other ops, the faster of
both peaks is taken of all. Axes: N steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from hybridperf.hardware import DeviceSpec
from hybridperf.io import InputError
from hybridperf.ops.quantise import scheme_dtype
from hybridperf.workloads.transformer.config import TransformerConfig

_Key = TypeVar("_Key", bound=Hashable)


def places_by(keys: Iterable[_Key]) -> Iterator[tuple[_Key, np.ndarray]]:
    """Each key with the places that it stands at."""
    places: dict[_Key, list[int]] = {}
    for at, key in enumerate(keys):
        places.setdefault(key, []).append(at)
    return ((key, np.array(at)) for key, at in places.items())


def peaks_flops_per_s(
    configs: Sequence[TransformerConfig], devices: Sequence[DeviceSpec]
) -> np.ndarray:
    """Of the matrix units of each step's device [N], in the format of its layers' products; NaN
    where it has none of it.
    """
    return _peaks([(one.dtype, one.quant) for one in configs], devices)


def _peaks(formats: Sequence[tuple[str, str]], devices: Sequence[DeviceSpec]) -> np.ndarray:
    known: dict[tuple[int, tuple[str, str]], float] = {}
    found = np.empty(len(devices))
    for at, (device, one) in enumerate(zip(devices, formats, strict=True)):
        key = (id(device), one)
        if key not in known:
            try:
                known[key] = device.peak(scheme_dtype(*one), "matrix")
            except InputError:
                known[key] = np.nan
        found[at] = known[key]
    return found


def lower_bounds_s(
    configs: Sequence[TransformerConfig], devices: Sequence[DeviceSpec]
) -> np.ndarray:
    """Seconds below which no step on such devices can go [N]; 0 where they have no such peak."""
    unquantised = _peaks([(one.dtype, "") for one in configs], devices)
    peaks = np.fmax(np.fmax(unquantised, peaks_flops_per_s(configs, devices)), 0.0)
    flops, causal = np.empty(len(configs)), [one.attention == "fused" for one in configs]
    modes = [one.layout.recompute for one in configs]
    alike = zip((one.shape for one in configs), modes, causal, strict=True)
    tokens = np.array([one.layout.global_batch * one.shape.seq for one in configs], float)
    for (shape, mode, half), at in places_by(alike):
        flops[at] = shape.hardware_flops(tokens[at], mode, causal=half)
    ranks = np.array([one.layout.ranks for one in configs], float)
    return np.divide(flops, ranks * peaks, out=np.zeros(len(configs)), where=peaks > 0)


def lower_bound_s(config: TransformerConfig, device: DeviceSpec) -> float:
    """Seconds below which a step on such devices cannot go; 0 where they have no such peak."""
    return float(lower_bounds_s([config], [device])[0])
