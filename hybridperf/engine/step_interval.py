"""The interval of a training step: what is not known of step effects, of blocks' times and of what
nobody measured on the machine, drawn together and sent through the graph.

All three are those of tables and plans (`training/steps/adapt.py`). Axes: U rows, D draws, K
effects, B = 3 blocks.
"""

from __future__ import annotations

import numpy as np

from hybridperf.model.adapted_steps import BLOCKS, Adapted, beliefs, logs_of
from hybridperf.model.calls import BLOCK_LOGS, InStep
from hybridperf.model.price import Prices
from hybridperf.model.step_effects import NAMES, OF_OPS, in_step_s
from hybridperf.model.step_table import chained
from hybridperf.model.unmeasured import Unmeasured


def drawn_seconds(
    adapted: Adapted, in_step: InStep, missing: Unmeasured, prices: Prices, normal: np.ndarray
) -> tuple[np.ndarray, float]:
    """(seconds of rows in as many steps that may be [U, D], deviation of the log of any of them).

    Args:
        adapted: what is known of step effects and blocks.
        in_step: where calls stand in the step.
        missing: what was not measured of its calls.
        prices: of its calls, each by itself.
        normal: independent standard normal numbers [at least 5 + K + B C, D]; C cells of the rows
            that were learned from.
    """
    ops, links, *blocks = normal[: 2 + BLOCKS]
    rest = normal[2 + BLOCKS : 2 + BLOCKS + len(adapted.covariance)]
    variances, axes = np.linalg.eigh(adapted.covariance)  # rounding may leave one below zero
    moved = axes @ (np.sqrt(np.maximum(variances, 0.0))[:, None] * rest)
    theta = adapted.theta[:, None] + moved[: len(NAMES)]
    # rows that were learned from told of an effect as much as its width shrank
    left = np.sqrt(np.diag(adapted.covariance)[: len(NAMES)]) / beliefs()[1]
    widths = np.minimum(left, 1.0) * missing.widths
    theta += widths[:, None] * np.where(np.isin(NAMES, OF_OPS)[:, None], ops, links)
    corrections, weights, open_ = adapted.of_cells(np.array([in_step.cell]))
    of_cells = moved[len(NAMES) :].reshape(BLOCKS, -1, moved.shape[1])
    drawn = corrections + np.einsum("bc,bcd->bd", weights[:, 0], of_cells)
    drawn += (adapted.open_spread * np.sqrt(open_[:, 0]))[:, None] * np.array(blocks)
    table = prices.table
    assert table.role is not None
    effects = np.exp(theta)
    alone_s = prices.seconds[:, None]
    seconds = in_step_s(np, alone_s, table.role, table.count, effects, table.slowest, table.power_s)
    logs = np.stack([np.zeros(moved.shape[1]), *logs_of(drawn)])
    block_of = [BLOCK_LOGS.index(place.block) for place in in_step.places]
    return chained(table, seconds * np.exp(logs[block_of])), adapted.noise
