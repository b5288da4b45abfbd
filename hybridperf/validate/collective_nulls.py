"""What any model of collectives must beat, each given the same rows: the measured ones of the
system and those of all others.

    datasheet      latency + x, x = bytes at the datasheet's rates
    alpha_beta     a + x / e: two numbers of a group
    ring_tree      a + softmin(h log2 n + u x, k (n - 1) + v x): five numbers of a group; saturates
                   with size
    interpolation  straight lines in the logs of bytes and seconds, per group, ranks and nodes;
                   other ranks by equal bus bandwidth
    relative       the same on the rows of systems of one architecture and kind of link, as if they
                   were this system's
    trees          gradient-boosted trees on log seconds, the rows of all systems

A group is a collective, link and implementation. Numbers of a group are found by robust least
squares of logs, pulled weakly to what they are on other systems. A group without rows has those of
its collective on the system; else those of the other systems, by group, then by collective.
Interpolation and relative say nothing of a group of which they have no row. N rows; predictions are
logs of seconds [N].
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from hybridperf.io import InputError

NAMES = ("datasheet", "alpha_beta", "ring_tree", "interpolation", "relative", "trees")
Predicts = Callable[[pd.DataFrame], np.ndarray]
Formula = Callable[[np.ndarray, pd.DataFrame], np.ndarray]

_OTHERS_ROWS = 2000  # of each other system: more no longer help
# trees: a row of the system itself stands there so often, while it has fewer rows than the others
_OWN_COPIES = 10
_TREES = {
    "max_iter": 200,
    "learning_rate": 0.1,
    "max_leaf_nodes": 31,
    "min_samples_leaf": 5,
    "l2_regularization": 1.0,
}
_LOSS_SCALE = 0.25
_SHARPNESS = 4.0
_ALPHA_BETA = np.log([2e-5, 0.7]), np.array([1.5, 0.7])  # (start, spread around what others have)
_RING_TREE = np.log([1e-5, 2e-6, 3.0, 2e-6, 1.4]), np.array([1.5, 1.5, 0.7, 1.5, 0.7])
_LEVELS = (("collective", "link", "implementation"), ("collective",), ())


def require_scikit_learn() -> Any:
    """The module of the trees; `InputError` where it is not installed."""
    try:
        return importlib.import_module("sklearn.ensemble")
    except ImportError as error:
        raise InputError(
            "null models need scikit-learn; pip install 'hybridperf[validate]'"
        ) from error


def fit_all(
    own: pd.DataFrame,
    others: pd.DataFrame,
    references: Sequence[str] = (),
    seed: int = 0,
    only: Sequence[str] = NAMES,
) -> dict[str, Predicts]:
    """Every null model of these rows (see `collective_groups`): `own` of the system, perhaps none;
    `kin`: which others are relatives.
    """
    others = _thinned(others, np.random.default_rng(seed))
    makes: dict[str, Callable[[], Predicts]] = {
        "datasheet": lambda: datasheet,
        "alpha_beta": lambda: by_group(own, others, alpha_beta, *_ALPHA_BETA),
        "ring_tree": lambda: by_group(own, others, ring_tree, *_RING_TREE),
        "interpolation": lambda: interpolation(own),
        "relative": lambda: interpolation(others[others["system"].isin(references)]),
        "trees": lambda: trees(own, others, seed),
    }
    return {name: makes[name]() for name in only}


def datasheet(rows: pd.DataFrame) -> np.ndarray:
    """log(latency + x)."""
    return np.log(rows["latency_s"].to_numpy() + rows["datasheet_s"].to_numpy())


# --- a few numbers of a group ---------------------------------------------------------------------


def alpha_beta(theta: np.ndarray, rows: pd.DataFrame) -> np.ndarray:
    """log(a + x / e), theta the logs of a and e."""
    return np.logaddexp(theta[0], np.log(rows["datasheet_s"].to_numpy()) - theta[1])


def ring_tree(theta: np.ndarray, rows: pd.DataFrame) -> np.ndarray:
    """log of the formula above, theta the logs of a, h, u, k, v; softmin(s, t) = (s^-p +
    t^-p)^(-1/p).
    """
    x, n = np.log(rows["datasheet_s"].to_numpy()), rows["n_gpus"].to_numpy()
    tree = np.logaddexp(theta[1] + np.log(np.log2(n)), theta[2] + x)
    ring = np.logaddexp(theta[3] + np.log(n - 1), theta[4] + x)
    return np.logaddexp(
        theta[0], -np.logaddexp(-_SHARPNESS * tree, -_SHARPNESS * ring) / _SHARPNESS
    )


def by_group(
    own: pd.DataFrame, others: pd.DataFrame, formula: Formula, start: np.ndarray, spread: np.ndarray
) -> Predicts:
    """The formula with numbers of each group, found when first asked for."""

    @functools.cache
    def elsewhere(key: tuple[str, str, str]) -> np.ndarray:
        for level in _LEVELS:
            rows = _of(others, level, key)
            if len(rows):
                return _fitted(formula, rows, start, 10 * spread)
        return start

    @functools.cache
    def numbers(key: tuple[str, str, str]) -> np.ndarray:
        for level in _LEVELS[:-1]:
            rows = _of(own, level, key)
            if len(rows):
                return _fitted(formula, rows, elsewhere(key), spread)
        return elsewhere(key)

    def predicts(rows: pd.DataFrame) -> np.ndarray:
        out = np.empty(len(rows))
        for key, at in rows.groupby(list(_LEVELS[0]), sort=False).indices.items():
            out[at] = formula(numbers(key), rows.iloc[at])
        return out

    return predicts


def _of(rows: pd.DataFrame, level: Sequence[str], key: tuple[str, str, str]) -> pd.DataFrame:
    keep = np.ones(len(rows), bool)
    for name in level:
        keep &= (rows[name] == key[_LEVELS[0].index(name)]).to_numpy()
    return rows[keep]


def _fitted(
    formula: Formula, rows: pd.DataFrame, pulled_to: np.ndarray, spread: np.ndarray
) -> np.ndarray:
    log_time = np.log(rows["time_s"].to_numpy())

    def residuals(theta: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [(formula(theta, rows) - log_time) / _LOSS_SCALE, (theta - pulled_to) / spread]
        )

    return np.asarray(least_squares(residuals, pulled_to, loss="soft_l1", max_nfev=100).x)


# --- interpolation --------------------------------------------------------------------------------


def interpolation(own: pd.DataFrame) -> Predicts:
    """Lines through the median times of each size; level below the least size, equal bandwidth
    above the largest.
    """
    curves: dict[tuple[Any, ...], list[tuple[float, float, float, np.ndarray, np.ndarray]]] = {}
    for (*key, n, nodes), rows in own.groupby([*_LEVELS[0], "n_gpus", "n_nodes"]):
        medians = np.log(rows["time_s"]).groupby(np.log(rows["bytes"])).median()
        curve = (
            float(n),
            float(nodes),
            float(rows["bus_factor"].iloc[0]),
            medians.index.to_numpy(),
            medians.to_numpy(),
        )
        curves.setdefault(tuple(key), []).append(curve)

    def predicts(rows: pd.DataFrame) -> np.ndarray:
        out = np.full(len(rows), np.nan)
        for (*key, n, nodes), at in rows.groupby(
            [*_LEVELS[0], "n_gpus", "n_nodes"]
        ).indices.items():
            if known := curves.get(tuple(key)):
                nearest = min(
                    known,
                    key=lambda curve: abs(np.log(curve[0] / n)) + abs(np.log(curve[1] / nodes)),
                )
                _, _, factor, sizes, log_time = nearest
                size = np.log(rows["bytes"].to_numpy()[at])
                same_bandwidth = np.log(rows["bus_factor"].to_numpy()[at] / factor) + np.maximum(
                    size - sizes[-1], 0.0
                )
                out[at] = np.interp(size, sizes, log_time) + same_bandwidth
        return out

    return predicts


# --- trees ----------------------------------------------------------------------------------------

_WORDS = ("system", "collective", "link", "implementation")


def trees(own: pd.DataFrame, others: pd.DataFrame, seed: int) -> Predicts:
    """Boosted trees on rows of all systems."""
    typical = len(others) / max(others["system"].nunique(), 1)
    copies = int(np.clip(typical / max(len(own), 1), 1, _OWN_COPIES))
    learned = pd.concat([others, *[own] * copies], ignore_index=True)
    codes = {
        word: {value: code for code, value in enumerate(sorted(learned[word].unique()))}
        for word in _WORDS
    }

    def inputs(rows: pd.DataFrame) -> np.ndarray:
        numbers = [
            np.log2(rows[name].to_numpy(np.float64))
            for name in ("bytes", "n_gpus", "n_nodes", "datasheet_s", "latency_s")
        ]
        return np.stack(
            [
                *numbers,
                datasheet(rows),
                *(rows[word].map(codes[word]).to_numpy(np.float64) for word in _WORDS),
            ],
            1,
        )

    x = inputs(learned)
    words = np.arange(x.shape[1]) >= x.shape[1] - len(_WORDS)
    boosting = require_scikit_learn().HistGradientBoostingRegressor(
        **_TREES, categorical_features=words, early_stopping=False, random_state=seed
    )
    boosting.fit(x, np.log(learned["time_s"].to_numpy()))
    return lambda rows: np.asarray(boosting.predict(inputs(rows)))


def _thinned(rows: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    order = random.permutation(len(rows))
    shuffled = rows.iloc[order]
    return shuffled[shuffled.groupby("system").cumcount() < _OTHERS_ROWS].reset_index(drop=True)
