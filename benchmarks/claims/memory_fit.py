"""Memory knobs of a framework fitted to measured peaks, and which runs fail by them.

Knobs are fitted to logs of peaks: robust, and held near counts by beliefs (`MEMORY_PRIORS`). Axes:
N configs, K knobs.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy

from hybridperf.io import InputError
from hybridperf.training.steps.memory_fit import peak_bytes, starved
from hybridperf.workloads.memory import MEMORY_PRIORS, USABLE, MemoryKnobs
from hybridperf.workloads.transformer.config import Configs, TransformerConfig

# Log error beyond which a row counts less and less. By hand; with 0.04 to 0.3 peaks of a model left
# out err within 0.4 points of the same
_SCALE = 0.08
_NAMES = tuple(field.name for field in dataclasses.fields(MemoryKnobs))
_DEFAULTS = np.array([getattr(MemoryKnobs(), name) for name in _NAMES], float)
_WIDTHS = np.array([MEMORY_PRIORS[name] for name in _NAMES], float)
_FROM_ZERO = _DEFAULTS == 0


def fit_memory(configs: Sequence[TransformerConfig], measured_bytes: np.ndarray) -> MemoryKnobs:
    """Knobs that explain measured peaks [N]; `InputError` where there are none."""
    positive = (np.asarray(measured_bytes) > 0).all()
    if not len(configs) or len(configs) != len(measured_bytes) or not positive:
        raise InputError(
            f"expected as many peaks above zero as configs, got {len(measured_bytes)} for"
            f" {len(configs)}"
        )
    columns, target = Configs.of_rows(configs), np.log(measured_bytes)

    def residuals(moved: np.ndarray) -> np.ndarray:
        error = (np.log(peak_bytes(columns, _moved(moved))) - target) / _SCALE
        # Cauchy's loss as a sum of squares, beliefs not among it
        robust = np.sign(error) * np.sqrt(2 * np.log1p(error**2 / 2))
        return np.concatenate([robust, moved])

    start = np.where(_FROM_ZERO, 0.1, 0.0)  # no slope at the bound itself
    lowest = np.where(_FROM_ZERO, 0.0, -np.inf)
    return _moved(
        scipy.optimize.least_squares(residuals, start, bounds=(lowest, np.inf), max_nfev=60).x
    )


def _moved(moved: np.ndarray) -> MemoryKnobs:
    """Knobs so many widths from their defaults [K]: in logs, or as they are from zero."""
    scaled = _DEFAULTS * np.exp(_WIDTHS * np.where(_FROM_ZERO, 0.0, moved))
    values = np.where(_FROM_ZERO, _WIDTHS * moved, scaled)
    return MemoryKnobs(**dict(zip(_NAMES, values.tolist(), strict=True)))


def will_fail(
    configs: Sequence[TransformerConfig], needed_bytes: np.ndarray, memory_bytes: np.ndarray | float
) -> np.ndarray:
    """Whether each config [N] starves or needs more bytes than the device has [N]."""
    return (needed_bytes > USABLE * memory_bytes) | np.array(
        [bool(starved(config)) for config in configs]
    )
