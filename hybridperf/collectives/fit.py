"""Fit a system's collectives: the prior over systems, adapted to none or thousands of rows.

A box on PCIe that nobody measured takes the latencies of a measured one, bandwidths of nobody's:
what a library waits for (launches, flags, hops) is its own and the bus's, so another box tells it;
what the links carry is the host's doing (switches, sockets, host memory), so efficiency and its
decay with ranks stay what is usual over all systems.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.collectives import versions
from hybridperf.collectives.form import ALPHA_BETA
from hybridperf.collectives.model import CollectiveModel, find_collectives, load_collectives
from hybridperf.collectives.rows import checked, collective_rows, implementations
from hybridperf.collectives.traffic import link_of
from hybridperf.fields.columns import read_whole
from hybridperf.hardware import SystemSpec, load_device, load_system
from hybridperf.io import (
    InputError,
    check_seconds,
    positive_column,
    require_columns,
    write_json,
    write_table,
)
from hybridperf.io.provenance import origin
from hybridperf.learning.prior import FamilyPrior, adapt, uninformed
from hybridperf.learning.prior.shipped import NO_PRIOR, Prior, load_prior

FAMILY = "collectives"
DEFAULT_PRIOR = "collectives_prior"  # the one that is installed
REPORT_SCHEMA_VERSION = 1
# systems differ more than GPUs do: 12 rows of a collective err by 14.3 % with these and by 15.5
# without, 20 by 12.5 and 13.8 (23 collectives of systems left out)
_OWN_HYPER_ROWS = 10
_SHORT_S = 1e-4  # of a small message, over the slowest links met
_PRIOR_LATENCY_S = 1e-5  # of all systems of the shipped prior
_SAME_SHARE = 1e-3  # shares of a network whose logs differ by less are one
_SHARED = "pcie"  # the link of which no datasheet tells what it carries
_OF_BANDWIDTH = ("intra_efficiency", "inter_efficiency", "rank_decay")


@dataclasses.dataclass(frozen=True)
class CollectiveReport:
    """How a fit errs on rows it did not see."""

    rows: int = 0
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)  # rows left out, by reason
    # collective, implementation, n_gpus, n_nodes, bytes, measured_s, predicted_s, knobs_s,
    # roofline_s, low_s, high_s
    held_out: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)
    measured: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)  # the rows fitted on

    def by_collective(self) -> pd.DataFrame:
        """Rows and errors of the fit and of baselines, per collective, implementation and link."""
        if self.held_out.empty:
            return pd.DataFrame()
        rows, measured = self.held_out, self.held_out["measured_s"]
        errors = {
            name: (rows[f"{name}_s"] / measured - 1).abs()
            for name in ("predicted", "knobs", "roofline")
        }
        inside = measured.between(rows["low_s"], rows["high_s"])
        grouped = rows.assign(**errors, inside=inside).groupby(
            ["collective", "implementation", "link"], sort=True
        )
        return grouped.agg(
            rows=("predicted", "size"), median_ape=("predicted", "median"),
            mean_ape=("predicted", "mean"), knobs_ape=("knobs", "median"),
            roofline_ape=("roofline", "median"), inside=("inside", "mean"),
        ).reset_index()  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """Plain numbers, for provenance."""
        held_out = self.by_collective().to_dict("records")
        return {"rows": self.rows, "dropped": dict(self.dropped), "held_out": held_out}

    def save(self, folder: str | os.PathLike) -> None:
        """Write `collectives_report.json` and `collectives_held_out.csv`, atomically each."""
        path = Path(folder) / "collectives_report.json"
        write_json(path, "collectives-report", REPORT_SCHEMA_VERSION, self.summary())
        if len(self.held_out):
            write_table(self.held_out, Path(folder) / "collectives_held_out.csv")


def fit_collectives(
    rows: pd.DataFrame | None, system: SystemSpec | str, prior: Prior | str | None = None,
    provenance: Mapping[str, Any] | None = None, keep_rows: bool = True,
) -> tuple[CollectiveModel, CollectiveReport]:  # fmt: skip
    """Fit a model of a system's collectives to measured rows.

    Args:
        rows: columns `collective, bytes, n_gpus, n_nodes, time_s` (seconds), and `lib, lib_version,
            variant, dtype, in_place` where known; None: the prior alone.
        system: name or facts of the system.
        prior: what other systems showed: a `Prior`, its folder or name, or "none"; None: the
            shipped one. Without prior and rows the model is the datasheet's latency and rates.
        provenance: what to record about the rows.
        keep_rows: False: no measured row stays in the model, at some cost in accuracy.

    Returns:
        The model, and a report of its errors on held-out rows.

    Raises:
        InputError: when no row is of this system, a row is damaged, or the prior is of another
            kind.
    """
    spec = (load_system(system) if isinstance(system, str) else system).racked()
    about = {**origin(rows), **(provenance or {})}
    known = _prior(prior)
    if rows is None or rows.empty:
        if known is None:
            return CollectiveModel(spec, None, about), CollectiveReport()
        known, boxes = with_latencies(known, spec)
        references = boxes or references_of(spec, known.population.devices)
        adapted = adapt(_tuned(known, references).with_references(references))
        there, met = _learned_on(spec, known.population.devices), versions.of_prior(adapted.prior)
        model = CollectiveModel(there, adapted, about, known_versions=met)
        return model.on(spec), CollectiveReport()
    measured, dropped = usable_rows(rows, spec)
    references = references_of(spec, known.population.devices) if known else []
    met = versions.of_prior(known.with_references(references)) if known else {}
    met = versions.of_rows(measured, met)
    usable = versions.taken_for_known(measured, met)
    seen, time_s = collective_rows(usable, spec), usable["time_s"].to_numpy(np.float64)
    traffic_s = seen.seconds.sum(1)
    check_seconds(time_s, traffic_s, np.maximum(traffic_s, _SHORT_S), "time_s")
    start = _tuned(known, references).with_references(references) if known else uninformed(seen)
    # 20 rows of a GB200 node left out err by 12.2 % with a share of what none would say, by 14.0
    # without it, none by 13.9
    adapted = adapt(
        start, seen, time_s, keep_rows, own_hyper_rows=_OWN_HYPER_ROWS, blended=known is not None
    )  # fmt: skip
    about["rows"] = len(usable)
    model = CollectiveModel(spec, adapted, about, seen.measured(), seen.usual_versions(), met)
    report = CollectiveReport(len(usable), dropped, _held_out(model, usable), measured)
    return dataclasses.replace(model, provenance={**about, "fit": report.summary()}), report


def usable_rows(frame: pd.DataFrame, system: SystemSpec) -> tuple[pd.DataFrame, dict[str, int]]:
    """(rows of `system` to fit on, how many others by reason); `InputError` for a damaged row."""
    frame = read_whole(frame, "collectives")
    require_columns(frame, ["collective", "bytes", "n_gpus", "time_s"], "fitting collectives")
    dropped: dict[str, int] = {}
    if "system" in frame and system.id != "here":
        others = (frame["system"].notna() & (frame["system"].astype(str) != system.id)).to_numpy()
        dropped = {"other systems": int(others.sum())} if others.any() else {}
        frame = frame[~others]
        if frame.empty:
            raise InputError(
                f"no row of {system.id} ({others.sum()} of other systems); check --system against"
                " the table"
            )
    good, problem, _ = checked(frame, system.racked())
    if len(bad := np.flatnonzero(problem != "")):
        row = int(frame.index[bad[0]]) + 1
        raise InputError(f"row {row}: {problem[bad[0]]} ({len(bad)} such rows)")
    positive_column(good, "time_s", "fitting collectives")
    return good, dropped


def references_of(system: SystemSpec, names: Iterable[str]) -> list[str]:
    """Those of some known systems that stand in for one without measurements.

    Their accelerators have this system's architecture and kind of link. Of these, the ones with as
    much of the network per accelerator, or where none has, the ones with the nearest: otherwise a
    faster network would leave a system without references, and its links inside a node would be
    guessed again. A box on PCIe has none: whether its accelerators reach each other below one
    switch, across sockets or through host memory is the host's doing and no datasheet tells. Four
    measured boxes carry 0.55 to 0.75 of the line rate among four accelerators; a fifth, of L40S,
    carries 0.6 among two, 0.16 among four and 0.05 among eight.
    """
    if link_of(system) == _SHARED:
        return []
    joined = architecture_and_link(system)
    apart = {}
    for name in names if joined else ():
        known = load_system(name)
        if architecture_and_link(known) == joined:
            apart[name] = abs(math.log(known.share_bytes_per_s / system.share_bytes_per_s))
    return [name for name, far in apart.items() if far <= min(apart.values()) + _SAME_SHARE]


def _tuned(prior: FamilyPrior, references: Iterable[str]) -> FamilyPrior:
    """The prior with the networks that the many rows of a reference tuned, where it is calibrated.

    A calibration from a prior of other systems does not count, nor one of a box on PCIe.
    """
    for name in references:
        known = None if find_collectives(name) is None else load_collectives(name).adapted
        if (
            known is not None and known.params is not None
            and link_of(load_system(name)) != _SHARED
            and known.prior.population.devices == prior.population.devices
        ):  # fmt: skip
            sizes, standard = prior.sizes.joined(known.prior.sizes), known.prior.standard
            return dataclasses.replace(prior, params=known.params, standard=standard, sizes=sizes)
    return prior


def _learned_on(system: SystemSpec, names: Iterable[str]) -> SystemSpec:
    """An unmeasured system at the rates at which corrections of its references were learned."""
    rates: dict[str, float] = {"latency_s": _PRIOR_LATENCY_S}
    for name in references_of(system, names)[:1]:
        first = load_system(name)
        rates["intra_bytes_per_s"] = first.intra_bytes_per_s
        rates["nic_bytes_per_s"] = first.nic_bytes_per_s
        rates["node_bytes_per_s"] = first.share_bytes_per_s * system.accelerators_per_node
    return system.model_copy(update=rates)


def architecture_and_link(system: SystemSpec) -> str:
    return f"{load_device(system.device).arch} {link_of(system)}" if system.device else ""


def _prior(prior: Prior | str | None) -> FamilyPrior | None:
    if prior == NO_PRIOR:
        return None
    found = prior if isinstance(prior, Prior) else load_prior(prior or DEFAULT_PRIOR)
    if FAMILY not in found.families:
        raise InputError(
            f"the prior holds {', '.join(found.families)}, expected {FAMILY}; give --prior"
            f" {DEFAULT_PRIOR}, or none"
        )
    return found.families[FAMILY]


def _held_out(model: CollectiveModel, usable: pd.DataFrame) -> pd.DataFrame:
    adapted = model.adapted
    if adapted is None or not len(adapted.held_out_at):
        return pd.DataFrame()
    part = usable.iloc[adapted.held_out_at]
    rows = collective_rows(part, model.system)
    measured_s = part["time_s"].to_numpy(np.float64)
    predicted_s = measured_s * np.exp(adapted.held_out)
    datasheet = CollectiveModel.datasheet(model.system)
    return pd.DataFrame({
        "collective": part["collective"].to_numpy(), "implementation": implementations(part),
        "link": np.where(rows.nodes > 1, "network", link_of(model.system)),
        "n_gpus": part["n_gpus"].to_numpy(), "n_nodes": part["n_nodes"].to_numpy(),
        "bytes": part["bytes"].to_numpy(), "measured_s": measured_s, "predicted_s": predicted_s,
        "knobs_s": np.exp(adapted.knobs.closed(rows).total),
        "roofline_s": datasheet.predict(part)["roofline_s"].to_numpy(),
        "low_s": predicted_s * np.exp(-adapted.held_out_log_width),
        "high_s": predicted_s * np.exp(adapted.held_out_log_width),
    })  # fmt: skip


def collectives_by_name(name: str) -> CollectiveModel:
    """A model of collectives by folder or name; without a calibration the prior alone."""
    if find_collectives(name) is not None or (os.path.exists(name) and not name.endswith(".toml")):
        return load_collectives(name)
    try:
        system = load_system(name)
    except InputError:
        if name.endswith(".toml"):
            raise
        return load_collectives(name)  # raises, and lists what there is
    return fit_collectives(None, system)[0]


def with_latencies(prior: FamilyPrior, system: SystemSpec) -> tuple[FamilyPrior, list[str]]:
    """(a prior whose measured box keeps its latencies alone, the names of such boxes: one or none).

    Of the prior's boxes on PCIe the one that was measured in most ways counts. The prior as it is
    for a system on another link.
    """
    usual = prior.population
    boxes = [at for at, name in enumerate(usual.devices) if link_of(load_system(name)) == _SHARED]
    if link_of(system) != _SHARED or not boxes:
        return prior, []
    ways = [np.isfinite(usual.own[at, :, 0]).sum() for at in boxes]
    box, own = boxes[int(np.argmax(ways))], usual.own.copy()
    carried = [ALPHA_BETA.knobs.index(name) for name in _OF_BANDWIDTH]
    own[box][:, carried] = np.where(
        np.isfinite(own[box][:, carried]), usual.mean_of(usual.implementations)[:, carried], np.nan
    )
    population = dataclasses.replace(usual, own=own)
    return dataclasses.replace(prior, population=population), [usual.devices[box]]
