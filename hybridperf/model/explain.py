"""Why an op takes as long as it is said to: its price as a waterfall of stages.

118 µs roofline x 1.08 tiles x 1.21 learned (4,000 rows of h100_sxm) = 154 µs; 90 %: 139 to 171
"""

from __future__ import annotations

import dataclasses

import numpy as np

from hybridperf.io.later import pd
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.model.batch import Batch
from hybridperf.model.sources import said_by
from hybridperf.model.stages import Machine, Priced, Who, who
from hybridperf.model.stages.family import tiles_log_factor

_NOTHING = 5e-4  # of a factor: not worth a word


@dataclasses.dataclass(frozen=True)
class Waterfall:
    """The price of one execution of an op, stage by stage."""

    roofline_s: float  # by the datasheet
    stages: tuple[tuple[str, float, str], ...]  # (name, factor, by what it is known), in order
    seconds: float  # the product
    low_s: float  # 90 % interval of the op by itself; not a number where nothing tells
    high_s: float

    def __str__(self) -> str:
        unit, scale = next(
            (one for one in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)) if self.seconds * one[1] >= 1),
            ("µs", 1e6),
        )
        parts = [f"{self.roofline_s * scale:.4g} {unit} roofline"]
        said = ""
        for name, factor, source in self.stages:
            if abs(factor - 1.0) < _NOTHING:
                continue
            why = "" if source == said else f" ({source})"
            said = source
            parts.append(f"{factor:.3g} {name}{why}")
        out = f"{' x '.join(parts)} = {self.seconds * scale:.4g} {unit}"
        if np.isfinite(self.low_s):
            out += f"; 90 %: {self.low_s * scale:.4g} to {self.high_s * scale:.4g}"
        return out

    def frame(self) -> pd.DataFrame:
        """A row a stage: `stage, factor, seconds` so far, `source`."""
        names = ["roofline", *(name for name, _, _ in self.stages)]
        factors = np.array([1.0, *(factor for _, factor, _ in self.stages)])
        sources = ["datasheet", *(source for _, _, source in self.stages)]
        return pd.DataFrame({
            "stage": names, "factor": factors, "seconds": self.roofline_s * np.cumprod(factors),
            "source": sources,
        })  # fmt: skip


def waterfalls(batch: Batch, priced: Priced, machine: Machine) -> list[Waterfall]:
    """Of each row of a batch [R]."""
    device, rows = machine.device.id, len(batch)
    by_family, steps = who(batch, machine.model) is Who.FAMILY, []
    for step in priced.steps:
        words = [said_by(one, device) for one in step.sources()]
        log_factor, tiles = step.log_factor, None
        if by_family and step.name == "form":
            tiles = tiles_log_factor(batch, machine)
        if tiles is not None:
            steps.append(("efficiency", log_factor - tiles, words))
            log_factor = tiles
        steps.append(("tiles" if tiles is not None else step.name, log_factor, words))
    half = NINE_OF_TEN * np.sqrt(np.broadcast_to(priced.log_variance, (rows,)))
    seconds = priced.seconds()
    return [
        Waterfall(
            float(np.exp(priced.roofline_log_s[at])),
            tuple((name, float(np.exp(factor[at])), words[at]) for name, factor, words in steps),
            float(seconds[at]), float(seconds[at] * np.exp(-half[at])),
            float(seconds[at] * np.exp(half[at])),
        )
        for at in range(rows)
    ]  # fmt: skip
