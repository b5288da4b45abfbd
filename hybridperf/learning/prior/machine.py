"""What a datasheet says of a device's knobs before anything was measured on it.

Knobs of other devices are taken over per cycle and per rate that a device sustains, not per second
and per peak: a kernel's start and a wave's latency are cycles of the chip's clock, a card with a
low power limit never reaches the peak of its boost clock, and a kernel that a chip's
multiprocessors hold up gains nothing from a wider memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from hybridperf.learning.prior.form import WAVE_ROOFLINE
from hybridperf.learning.prior.implementation import OpImplementation

_USUAL_CLOCK_HZ = 1.9e9  # where a device's is not known
_OF_THE_CLOCK = [WAVE_ROOFLINE.knobs.index(name) for name in ("floor_s", "wave_s", "step_s")]
OF_THE_PEAK = WAVE_ROOFLINE.knobs.index("compute_efficiency")
_OF_THE_MEMORY = WAVE_ROOFLINE.knobs.index("memory_efficiency")


@dataclasses.dataclass(frozen=True)
class Machine:
    """Facts of one device that move the knobs of `form.WaveRoofline`; none: nothing is moved."""

    clock_hz: float | None = None  # of kernels that no host launches
    # share of its datasheet peak that its power limit lets it hold, by number format; 1 elsewhere
    sustained: Mapping[str, float] = dataclasses.field(default_factory=dict)
    memory_share: float = 1.0  # of the memory's bandwidth, against a usual machine's
    takes_kernels: bool = False  # libraries take others' on it (`implementation.taken_from`)

    def moves(self, implementations: Sequence[str], knobs: int) -> np.ndarray:
        """[len(implementations), knobs] how far logs of knobs lie from those of a usual machine."""
        out = np.zeros((len(implementations), knobs))
        if self.clock_hz:
            there = [at for at in _OF_THE_CLOCK if at < knobs]  # older knobs have no step
            out[:, there] = np.log(_USUAL_CLOCK_HZ / self.clock_hz)
        if self.sustained:
            dtypes = [OpImplementation.parse(name).dtype for name in implementations]
            out[:, OF_THE_PEAK] = np.log([self.sustained.get(dtype, 1.0) for dtype in dtypes])
        if self.memory_share != 1:
            out[:, _OF_THE_MEMORY] = np.log(self.memory_share)
        return out

    def document(self) -> dict[str, Any]:
        """As plain numbers."""
        return dataclasses.asdict(self)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """From what `document` gave."""
        clock_hz, sustained = document["clock_hz"], document["sustained"]
        return cls(
            None if clock_hz is None else float(clock_hz),
            {str(dtype): float(share) for dtype, share in sustained.items()},
            float(document["memory_share"]),
            bool(document.get("takes_kernels", False)),  # of older files: none
        )


NO_FACTS = Machine()
