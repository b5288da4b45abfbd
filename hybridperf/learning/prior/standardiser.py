"""What networks and process look at: dimensionless inputs in units of their spread.

x is the op's place on its device's fitted closed form (how far compute, memory, waves and the floor
lie apart) and what the op tells of itself (sizes, how they fill tiles and waves, flags),
standardised and clipped. Nothing in x names a device, so a new one has all of it.

Axes: N rows, d inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridperf.io.namespace import array_module
from hybridperf.learning.inputs import Box
from hybridperf.learning.prior.form import ClosedFormValues
from hybridperf.learning.prior.rows import PriorRows

CLIP = 4.0  # standard deviations


@dataclasses.dataclass(frozen=True)
class Standardiser:
    """Which inputs networks look at, and in what units."""

    names: tuple[str, ...]  # of the row's own inputs; its place on the form stands before them
    centre: np.ndarray  # [d]
    scale: np.ndarray  # [d]
    # rows of one device alone: beyond the ends of an input it says what it says there
    ends: Box | None = None
    clip: float = CLIP

    def inputs(self, rows: PriorRows, on: ClosedFormValues) -> Any:
        """x [N, d] in the precision of the rows."""
        own = rows.inputs
        at = {name: i for i, name in enumerate(own.names)}
        known = [at[name] for name in self.names if name in at]
        seen = own.values[:, known] if len(known) == len(self.names) else own.select(self.names)
        if self.ends is not None:
            seen = seen.clip(self.ends.low, self.ends.high)
        module = array_module(on.position, seen)
        raw = module.concatenate([on.position, seen], 1, dtype=on.position.dtype)
        raw -= self.centre
        raw /= self.scale
        if module is np:
            return np.clip(raw, -self.clip, self.clip, out=raw)
        return module.clip(raw, -self.clip, self.clip)


def standard(devices: Sequence[tuple[PriorRows, ClosedFormValues]]) -> Standardiser:
    """From prior devices, each counting the same; inputs that never vary are left out."""
    names = tuple(dict.fromkeys(name for rows, _ in devices for name in rows.inputs.names))
    places = devices[0][1].position.shape[1]
    each = [np.concatenate([on.position, rows.inputs.select(names)], 1) for rows, on in devices]
    centre = np.mean([x.mean(0) for x in each], 0)
    scale = np.sqrt(np.mean([((x - centre) ** 2).mean(0) for x in each], 0))
    kept = np.flatnonzero(scale[places:] > 1e-6) + places
    seen, varying = np.concatenate([np.arange(places), kept]), (names[i - places] for i in kept)
    return Standardiser(tuple(varying), centre[seen], np.maximum(scale[seen], 1e-6))
