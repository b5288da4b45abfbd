"""Least squares that a handful of disturbed measurements does not bend."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def huber_data_only(rows: int) -> Callable[[np.ndarray], np.ndarray]:
    """SciPy loss: pseudo-Huber for the first `rows` residuals, plain squares for the prior's."""

    def loss(z: np.ndarray) -> np.ndarray:
        rho = np.stack([z, np.ones_like(z), np.zeros_like(z)])
        root = np.sqrt(1 + z[:rows])
        rho[:, :rows] = 2 * (root - 1), 1 / root, -0.5 / root**3
        return rho

    return loss
