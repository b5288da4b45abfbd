"""What each part of the price of collectives brings on systems left out whole: the datasheet, the
closed form with the knobs of other systems and of the rows given, the process over the rows, the
common network, a network for each type of link (all of them; those alone that earn it).

A system's rows are dealt again for each number of them that is given; all arms get the same. What
is judged chooses nothing: which links have a network of their own is told by systems left out of
the prior's own (`link_networks`). An error is the mean over the rows of a group
(system, collective, link, implementation) of |predicted / measured - 1|.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from benchmarks.claims import collective_judge, collectives, harness
from benchmarks.claims.collective_judge import GROUP, OtherSystems
from benchmarks.claims.link_networks import with_link_networks
from benchmarks.claims.scores import SEED
from hybridperf.collectives import fit
from hybridperf.hardware import load_system
from hybridperf.io import unknown, write_table
from hybridperf.learning.prior import FamilyPrior
from hybridperf.learning.prior.shipped import Prior
from hybridperf.report import text
from hybridperf_calibration.ship.link_prior import priced_rows

ROWS = (0, 20, 200)
ARMS = (
    "datasheet", "closed form", "+ process", "+ network", "+ network per link", "those that earn it"
)  # fmt: skip


def run(
    data: Path, out: Path, *, systems: Sequence[str] = (), rows: Sequence[int] = ROWS,
    arms: Sequence[str] = ARMS, quick: bool = False, say: Callable[[str], None] = print,
) -> pd.DataFrame:  # fmt: skip
    """Judge each arm; leaves `ablation.csv` and `results.json` in `out`.

    Args:
        data: folder of measured tables.
        out: where priors and results are kept.
        systems: to leave out, one after the other; all that can be judged if not given.
        rows: numbers of rows of the system to fit on.
        arms: parts of the price, as in `ARMS`.
        quick: priors of few rows, trained shortly, and two systems.
        say: what progress and tables are told.

    Returns:
        A row per system left out, number of rows given, arm and group: `system, rows, arm,
        collective, link, implementation, error`.

    Raises:
        InputError: where there are no measured collectives, or a system isn't among them.
    """
    measured = collective_judge.read_groups(data)
    effort = collective_judge.QUICK if quick else collective_judge.CollectiveEffort()
    known = collectives.judged(measured, collective_judge.TASKS["unseen"], effort)
    if strange := sorted({*systems} - {*known}):
        raise unknown("system", strange[0], known, f"known are {', '.join(known)}")
    elsewhere = OtherSystems(measured.sweeps, measured.few, effort, out / "priors", set(known), say)
    found = []
    for system in systems or known:
        others = elsewhere.rows(system)
        priors = _arms(elsewhere.prior(system).families[fit.FAMILY], others, arms, say)
        own = measured.of(system, few=False)
        asked = collective_judge.eligible(own, collective_judge.TASKS["unseen"])
        for count in rows:
            order = np.random.default_rng([SEED, count]).permutation(len(own))
            given, rest = order[:count], np.sort(order[count:])
            judged = own.iloc[rest[asked[rest]]].reset_index(drop=True)
            fitted = own.iloc[np.sort(given)].reset_index(drop=True) if count else None
            for arm in arms:
                errors = _errors(arm, priors, system, fitted, judged)
                found.append(errors.assign(rows=count, arm=arm))
            said = pd.concat(found[-len(arms) :]).groupby("arm", sort=False)["error"].mean()
            say(f"{system}, {count} rows: " + ", ".join(f"{a} {e:.1%}" for a, e in said.items()))
    frame = pd.concat(found, ignore_index=True)[["system", "rows", "arm", *GROUP[1:], "error"]]
    write_table(frame, out / "ablation.csv")
    over = by_arm(frame)
    harness.write_results(out, "ablation", list(map(_line, over.itertuples())))
    say(
        "\nerror over groups, systems left out\n"
        + text.frame_table(over)
        + f"\n\nablation.csv is in {out}"
    )
    return frame


def _line(found: Any) -> harness.ResultLine:
    return harness.ResultLine(
        f"{found.link}, {found.rows} rows, {found.arm}", found.mean_error, found.groups
    )


def by_arm(found: pd.DataFrame) -> pd.DataFrame:
    """Mean and median error over groups, by rows given, link and arm; of all links first."""
    every = pd.concat([found.assign(link="all"), found])
    table = every.groupby(["link", "rows", "arm"])["error"].agg(
        groups="count", mean_error="mean", median_error="median"
    )
    return table.reindex(ARMS, level="arm").reset_index()


def _arms(
    prior: FamilyPrior, others: pd.DataFrame, arms: Sequence[str], say: Callable[[str], None]
) -> Mapping[str, FamilyPrior]:
    silent = dataclasses.replace(prior, params=jax.tree.map(np.zeros_like, prior.params))
    found = {"closed form": silent, "+ process": silent, "+ network": prior}
    if not {"+ network per link", "those that earn it"} & set(arms):
        return found
    systems = {
        str(name): priced_rows(part.reset_index(drop=True), load_system(str(name)))
        for name, part in others.groupby("system")
    }
    every, choices = with_link_networks(prior, systems, SEED, every=True)
    earned = {one.link for one in choices if one.is_on}
    for one in choices:
        verdict = "on" if one.is_on else "off"
        say(
            f"  {one.link}: {one.systems} systems left out, mean log error"
            f" {one.without:.3f} -> {one.with_own:.3f}: {verdict}"
        )
    own = getattr(every, "links", {})
    some = {link: params for link, params in own.items() if link in earned}
    chosen = dataclasses.replace(every, links=some) if some else prior  # type: ignore[call-arg]
    return found | {"+ network per link": every, "those that earn it": chosen}


def _errors(
    arm: str, priors: Mapping[str, FamilyPrior], system: str, given: pd.DataFrame | None,
    asked: pd.DataFrame,
) -> pd.DataFrame:  # fmt: skip
    """Mean error of each group of asked rows."""
    unknown, column = asked.drop(columns=["time_s"]), "predicted_s"
    if arm == "datasheet":
        model, column = fit.fit_collectives(None, system, "none")[0], "roofline_s"
    else:
        prior = Prior({fit.FAMILY: priors[arm]}, {})
        model = fit.fit_collectives(given, system, prior, keep_rows=arm != "closed form")[0]
    error = np.abs(model.predict(unknown)[column].to_numpy() / asked["time_s"].to_numpy() - 1)
    return asked[list(GROUP)].assign(error=error).groupby(list(GROUP), as_index=False).mean()
