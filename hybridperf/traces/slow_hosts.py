"""Slow hosts and slow pairs of hosts, named from measured collectives alone.

The same question (collective, ranks, bytes, ...) was asked of several sets of hosts. What one set
takes over the median of all is its slow-down at that size; over all sizes its median counts. A set
is slow where that is above both `least` and five robust standard deviations of the logs (1.4826
times the median absolute deviation; Rousseeuw and Croux, JASA 1993). A host is named where the
median of all sets with it is slow, which one bad cable does not do; a slow set without such a host
is named as a set: a link, a switch port, or what lies between.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from hybridperf.io import InputError

_QUESTION = ("collective", "n_gpus", "n_nodes")
# where a table has them
_SIZES = ("system", "bytes", "dtype", "in_place", "variant", "lib", "lib_version")
_DEVIATIONS, _TO_SIGMA = 5.0, 1.4826
_FEWEST_SETS = 4  # that were asked the same: of three, two slow ones are the median
LEAST = 1.2


class SlowHosts(NamedTuple):
    """Hosts and pairs of hosts that logs show to be slow, with their evidence."""

    # of every question and set of hosts: collective, n_gpus, n_nodes, hosts, slow_down, sizes, slow
    sets: pd.DataFrame
    # of every question and host: collective, n_gpus, n_nodes, host, slow_down, sets, slow
    hosts: pd.DataFrame

    def sentences(self) -> list[str]:
        """What is slow, a sentence for each question; what is not, too."""
        found = []
        for question, sets in self.sets.groupby([*_QUESTION]):
            collective, gpus, _ = map(str, question)
            of_hosts = self.hosts.merge(sets[[*_QUESTION]].drop_duplicates(), on=[*_QUESTION])
            bad = of_hosts[of_hosts.slow].sort_values("slow_down", ascending=False)
            words = [f"host {one.host} ({one.slow_down:.2f} x)" for one in bad.itertuples()]
            named = set(bad.host)
            others = [named.isdisjoint(names.split()) for names in sets.hosts]
            alone = sets[sets.slow & np.array(others)]
            alone = alone.sort_values("slow_down", ascending=False)
            words += [
                f"{' and '.join(one.hosts.split())} ({one.slow_down:.2f} x)"
                for one in alone.itertuples()
            ]
            what = f"{collective} of {gpus} GPUs, {len(sets)} sets of hosts"
            found.append(f"{what}: {'slow: ' + ', '.join(words) if words else 'none is slow'}")
        return found


def find_slow(frame: pd.DataFrame, least: float = LEAST) -> SlowHosts:
    """Slow hosts and sets of hosts in measured collectives.

    Args:
        frame: rows as of `data/README.md`, with `hosts` (names, separated by blanks) or `src`, a
            log's path whose file name ends in the names, `_` between them.
        least: slow-down from which on a set counts as slow, if it stands out, too.

    Raises:
        InputError: columns are missing, or fewer than four sets of hosts were asked the same.
    """
    if not (np.isfinite(least) and least > 1):
        raise InputError(f"expected a slow-down above 1 that counts, got {least:g}")
    if missing := [name for name in (*_QUESTION, "bytes", "time_s") if name not in frame]:
        raise InputError(f"expected columns {', '.join(missing)} in measured collectives, got none")
    rows = frame.assign(hosts=_hosts(frame), time_s=pd.to_numeric(frame["time_s"], "coerce"))
    rows = rows[(rows.hosts != "") & (rows.time_s > 0)]
    keys = [*_QUESTION, *(name for name in _SIZES if name in rows)]
    same = rows.groupby(keys, dropna=False)
    rows = rows.assign(log=np.log(rows.time_s / same.time_s.transform("median")))
    rows = rows[same.hosts.transform("nunique") >= _FEWEST_SETS]
    if rows.empty:
        raise InputError(
            f"expected {_FEWEST_SETS} sets of hosts or more that ran the same collective at the"
            " same size, with their names in `hosts` or at the end of `src`, got fewer; give logs"
            " of more pairs of hosts"
        )
    sets = rows.groupby([*_QUESTION, "hosts"]).log.agg(["median", "size"]).reset_index()
    sets = sets.rename(columns={"median": "log", "size": "sizes"})
    limit = sets.groupby([*_QUESTION]).log.transform(lambda log: _limit(log, least))
    sets = sets.assign(slow=sets.log > limit, limit=limit)
    single = sets.assign(host=sets.hosts.str.split()).explode("host")
    hosts = single.groupby([*_QUESTION, "host"]).agg(
        log=("log", "median"), sets=("log", "size"), limit=("limit", "first")
    )
    hosts = hosts.assign(slow=(hosts.log > hosts.limit) & (hosts.sets > 1)).reset_index()
    for found in (sets, hosts):
        found.insert(found.columns.get_loc("log"), "slow_down", np.exp(found["log"]))
    return SlowHosts(*(found.drop(columns=["log", "limit"]) for found in (sets, hosts)))


def _limit(log: pd.Series, least: float) -> float:
    middle = log.median()
    sigma = _TO_SIGMA * (log - middle).abs().median()
    return float(middle + max(np.log(least), _DEVIATIONS * sigma))


def _hosts(frame: pd.DataFrame) -> pd.Series:
    """Sorted names of the hosts of each row, "" where nothing tells them."""
    if "hosts" in frame:
        return frame["hosts"].fillna("").astype(str).map(lambda one: " ".join(sorted(one.split())))
    if "src" not in frame:
        return pd.Series("", frame.index)
    numbers = pd.to_numeric(frame["n_nodes"], "coerce").fillna(0).astype(int)
    found = []
    for src, nodes in zip(frame["src"].astype(str), numbers, strict=True):
        # the last words of a log's name, as many as nodes; no names where they are not different
        words = re.sub(r"\.\w+$", "", src.rsplit("/", 1)[-1]).split("_")[-nodes:]
        known = nodes > 1 and len(set(words)) == nodes
        found.append(" ".join(sorted(words)) if known else "")
    return pd.Series(found, frame.index)
