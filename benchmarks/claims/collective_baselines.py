"""What any model of collectives must beat, given the same rows: the measured ones of the system and
those of all others.

    datasheet      latency + x, x = bytes at the datasheet's rates
    alpha_beta     a + x / e: two numbers of a group
    ring_tree      a + softmin(h log2 n + u x, k (n - 1) + v x): five numbers of a group; saturates
                   with size
    interpolation  straight lines in the logs of bytes and seconds, per group, ranks and nodes;
                   other ranks by equal bus bandwidth
    relative       the same on the rows of systems of one architecture and kind of link, as if they
                   were this system's
    nccl           what NCCL itself expects (`nccl_switch.py`), times factors of each algorithm and
                   protocol
    trees          gradient-boosted trees on log seconds, the rows of all systems

A group is a collective, link and implementation. Numbers of a group are found by robust least
squares of logs, pulled weakly to what they are on other systems. A group without rows has those of
its collective on the system; else those of the other systems, by group, then by collective.
Interpolation and relative predict nothing (NaN) for a group of which they have no row. N rows;
predictions are logs of seconds [N].
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from benchmarks.claims import nccl_switch
from benchmarks.claims.scores import OTHERS_ROWS, SEED, boosted_trees, fit_logs, own_copies

NAMES = ("datasheet", "alpha_beta", "ring_tree", "interpolation", "relative", "nccl", "trees")
Predicts = Callable[[pd.DataFrame], np.ndarray]
Formula = Callable[..., np.ndarray]  # of theta and rows

_SHARPNESS = 4.0
_ALPHA_BETA = np.log([2e-5, 0.7]), np.array([1.5, 0.7])  # (start, spread around what others have)
_RING_TREE = np.log([1e-5, 2e-6, 3.0, 2e-6, 1.4]), np.array([1.5, 1.5, 0.7, 1.5, 0.7])
_GROUP = ("collective", "link", "implementation")
_LEVELS = (_GROUP, ("collective",), ())


def fit_all(
    own: pd.DataFrame,
    others: pd.DataFrame,
    references: Sequence[str] = (),
    only: Sequence[str] = NAMES,
) -> dict[str, Predicts]:
    """Every baseline of these rows (see `collective_rows`): of the system (`own`, perhaps none) and
    of others, of which `references` are of the same architecture and kind of link.
    """
    others = others.iloc[np.random.default_rng(SEED).permutation(len(others))]
    others = others[others.groupby("system").cumcount() < OTHERS_ROWS].reset_index(drop=True)
    makes: dict[str, Callable[[], Predicts]] = {
        "datasheet": lambda: datasheet,
        "alpha_beta": lambda: by_group(own, others, alpha_beta, *_ALPHA_BETA),
        "ring_tree": lambda: by_group(own, others, ring_tree, *_RING_TREE),
        "interpolation": lambda: interpolation(own),
        "relative": lambda: interpolation(others[others["system"].isin(references)]),
        "nccl": lambda: nccl_switch.fitted(own, others, references),
        "trees": lambda: trees(own, others),
    }
    return {name: makes[name]() for name in only}


def datasheet(rows: pd.DataFrame) -> np.ndarray:
    """log(latency + x)."""
    return np.log(rows["link_latency_s"].to_numpy() + rows["datasheet_s"].to_numpy())


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
    softmin = -np.logaddexp(-_SHARPNESS * tree, -_SHARPNESS * ring) / _SHARPNESS
    return np.logaddexp(theta[0], softmin)


def by_group(
    own: pd.DataFrame, others: pd.DataFrame, formula: Formula, start: np.ndarray, spread: np.ndarray
) -> Predicts:
    """The formula with numbers of each group, found when first needed."""

    @functools.cache
    def numbers(key: tuple[str, str, str], here: bool) -> np.ndarray:
        for level in _LEVELS[:-1] if here else _LEVELS:
            rows, wanted = own if here else others, [key[_GROUP.index(name)] for name in level]
            rows = rows[(rows[list(level)] == wanted).all(axis=1)]
            if len(rows):
                log_time = np.log(rows["time_s"].to_numpy())
                pulled_to, by = (numbers(key, False), spread) if here else (start, 10 * spread)
                return fit_logs(functools.partial(formula, rows=rows), log_time, pulled_to, by)
        return numbers(key, False) if here else start

    def predicts(rows: pd.DataFrame) -> np.ndarray:
        out = np.empty(len(rows))
        for key, at in rows.groupby(list(_GROUP), sort=False).indices.items():
            out[at] = formula(numbers(key, True), rows.iloc[at])
        return out

    return predicts


def interpolation(own: pd.DataFrame) -> Predicts:
    """Lines through the median times of each size; level below the least size, equal bandwidth
    above the largest. Of the measured ranks and nodes those that are closest, in logs.
    """
    by = [*_GROUP, "n_gpus", "n_nodes"]
    curves: dict[tuple[str, ...], list[tuple[np.ndarray, pd.Series, float]]] = {}
    for (*key, n, nodes), rows in own.groupby(by):
        medians = np.log(rows["time_s"]).groupby(np.log(rows["bytes"])).median()
        curve = np.array([n, nodes], float), medians, float(rows["bus_factor"].iloc[0])
        curves.setdefault(tuple(key), []).append(curve)

    def predicts(rows: pd.DataFrame) -> np.ndarray:
        out = np.full(len(rows), np.nan)
        for (*key, n, nodes), at in rows.groupby(by).indices.items():
            if known := curves.get(tuple(key)):
                asked = np.array([n, nodes], float)
                apart = [np.abs(np.log(sizes / asked)).sum() for sizes, _, _ in known]
                _, medians, bus_factor = known[int(np.argmin(apart))]
                log_bytes, size = medians.index.to_numpy(), np.log(rows["bytes"].to_numpy()[at])
                beyond = np.maximum(size - log_bytes[-1], 0.0)
                factor = np.log(rows["bus_factor"].to_numpy()[at] / bus_factor)
                out[at] = np.interp(size, log_bytes, medians.to_numpy()) + (factor + beyond)
        return out

    return predicts


_WORDS = ("system", *_GROUP)
_NUMBERS = ("bytes", "n_gpus", "n_nodes", "datasheet_s", "link_latency_s")


def trees(own: pd.DataFrame, others: pd.DataFrame) -> Predicts:
    """Boosted trees on rows of all systems."""
    typical = len(others) / max(others["system"].nunique(), 1)
    copies = own_copies(typical, max(len(own), 1))
    learned = pd.concat([others, *[own] * copies], ignore_index=True)
    known = {word: pd.Index(sorted(learned[word].unique())) for word in _WORDS}

    def inputs(rows: pd.DataFrame) -> np.ndarray:
        numbers = [np.log2(rows[name].to_numpy(np.float64)) for name in _NUMBERS]
        codes = [known[word].get_indexer(rows[word]) for word in _WORDS]
        words = [np.where(code < 0, np.nan, code) for code in codes]
        return np.stack([*numbers, datasheet(rows), *words], 1)

    x = inputs(learned)
    words = np.arange(x.shape[1]) >= x.shape[1] - len(_WORDS)
    boosting = boosted_trees(categorical_features=words)
    boosting.fit(x, np.log(learned["time_s"].to_numpy()))
    return lambda rows: np.asarray(boosting.predict(inputs(rows)))
