"""Step effects from measured rows (`--fit-on`), by group, and which recompute labels hold.

Rows share knobs within a group: one framework on one architecture of devices. A group without rows
takes those of the same framework, then of the same architecture, then stays with what is believed
without rows.

The label of recomputation is a claim like others. Where rows of a source say that they recompute,
the likelihood of all of them under no, selective and full recomputation is compared, corrections of
layers held small, so that a third more work cannot hide in them. A label falls where another mode
is much likelier, for every row that fits in memory with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.hardware import Host
from hybridperf.io import InputError, closest, read_json, write_json
from hybridperf.training.steps import adapt
from hybridperf.training.steps.adapt import Adapted
from hybridperf.training.steps.batch import Batch, PriceCache, relabelled, with_recompute
from hybridperf.training.steps.features import picked
from hybridperf.training.steps.memory_fit import USABLE, endings, memory_knobs, peak_bytes
from hybridperf.training.steps.rows import ResolvedRow, ResolvedRows
from hybridperf.training.steps.step_effects import NAMES
from hybridperf.workloads.transformer.config import TransformerConfig

SCHEMA_VERSION = 1
_KIND = "step-knobs"
_ARRAYS, _NUMBERS = ("cells", "corrections", "covariance"), ("rows", "noise", "evidence")
MODES = ("none", "selective", "full")
# while labels are compared, knobs stay near op data and corrections small, so that a third more
# work cannot hide in them
_WHILE_COMPARED = adapt.FitLimits(
    0.3, {"gemm": 0.05, "attention": 0.15, "memory": 0.1, "exposed_kernel_s": 0.7}
)
MUCH_LIKELIER = 3.0  # log likelihood: twenty to one
_MOST_COMPARED = 200  # rows of a source that are enough to compare by
# how much further off knobs of another group are than they say: the likeliest over twelve pairs of
# published sources (H100s for A100s, one framework for another); leaving any pair out it is 0.04 to
# 0.07
_ELSEWHERE = 0.06
_LEAST_ROWS = 3  # of a group, to be fitted by itself
# how much longer, in logs, a step takes in nine of ten cases with another framework than the one
# assumed where none is named: predictions for the six others, over 48 layouts of five models on
# A100s and H100s (median 0.14, least -0.05)
UNNAMED = 0.37
# how far off, in logs, a row is named and no row of a machine is: of 1,850 shared ones all but some
# stalled runs of one cluster lie within a factor of 2.9, the farthest of those 58
_FAR, _NO_MACHINE = np.log(3.0), np.log(100.0)
_WRONG_UNITS = np.log(3.0)  # noise in logs that no machine explains


@dataclasses.dataclass(frozen=True)
class Adaptation:
    """Step effects by group, and recompute labels that measured rows contradict, by source."""

    groups: Mapping[str, Adapted]
    recompute: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # by source and mode
    likelihoods: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    host: Host | None = None
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # rows of groups that have too few to be fitted
    few: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def of(self, group: str) -> tuple[Adapted, str]:
        """(what to predict a group by, whose rows that is: "" for nobody's)."""
        framework, arch = group.split(" on ")

        def strangeness(known: str) -> tuple[bool, bool, bool, int]:
            other_framework = not known.startswith(f"{framework} on ")
            other_arch = not known.endswith(f" on {arch}")
            return known != group, other_framework, other_arch, -self.groups[known].rows

        known = min(self.groups, key=strangeness, default="")
        if not known or all(strangeness(known)[:3]):
            return Adapted.before(self.host), ""
        one = self.groups[known]
        if known != group:
            one = dataclasses.replace(one, noise=float(np.hypot(one.noise, _ELSEWHERE)))
        return one, known

    def note_of(self, group: str) -> str:
        """Whose rows a group is predicted by, as a note has it; "" where that is its own."""
        whose, few = self.of(group)[1], self.few.get(group, 0)
        if whose == group:
            return ""
        if whose:
            since = f", since those of {group} are too few ({few})" if few else ""
            return f"fitted to rows of {whose}{since}"
        why = "no measured steps" + (f" of {group}" if self.groups else "")
        if few:
            why = f"measured steps of {group} too few to fit ({few})"
        return f"{why}: believed efficiencies alone"

    def save(self, path: str | Path) -> None:
        """Write everything into one JSON file."""
        groups = {
            name: {"knobs": dict(zip(NAMES, np.exp(one.theta).tolist(), strict=True))}
            | {field: getattr(one, field).tolist() for field in _ARRAYS}
            | {field: getattr(one, field) for field in _NUMBERS}
            for name, one in self.groups.items()
        }
        document = {
            "groups": groups, "recompute": dict(self.recompute),
            "likelihoods": {k: dict(v) for k, v in self.likelihoods.items()},
            "host": None if self.host is None else self.host.model_dump(),
            "provenance": dict(self.provenance), "few": dict(self.few),
        }  # fmt: skip
        write_json(path, _KIND, SCHEMA_VERSION, document)

    @staticmethod
    def load(path: str | Path) -> Adaptation:
        """What `save` wrote; `InputError` for anything else."""
        saved = read_json(path, _KIND, SCHEMA_VERSION)
        try:
            groups = {name: _read(one) for name, one in saved["groups"].items()}
            host = None if saved["host"] is None else Host(**saved["host"])
            if bad := [mode for mode in saved["recompute"].values() if mode not in MODES]:
                raise ValueError(f"{bad[0]!r} is no recompute mode")
            likelihoods = {
                source: {mode: float(one) for mode, one in found.items()}
                for source, found in saved["likelihoods"].items()
            }
            # files of earlier versions have no `few`
            few = {name: int(count) for name, count in saved.get("few", {}).items()}
            provenance = dict(saved["provenance"])
            return Adaptation(groups, dict(saved["recompute"]), likelihoods, host, provenance, few)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            why = (str(error).splitlines() or [type(error).__name__])[0]
            if isinstance(error, KeyError):
                why = f"{error} is missing"
            raise InputError(f"{path} is damaged ({why}); fit the rows again") from error


def adaptation(
    frame: pd.DataFrame, cache: PriceCache, host: Host | None = None, device: str | None = None,
    system: str | None = None,
) -> tuple[Adaptation, list[str]]:  # fmt: skip
    """(what measured rows teach, remarks on what was left out or preferred).

    `frame` has `step_time_s`; `cache`, `host`, `device` and `system` as in `predict_steps`.

    Raises:
        InputError: for rows that no machine explains: what is fitted to milliseconds is worse than
            what is believed without rows.
    """
    if "step_time_s" not in frame:
        raise InputError(
            "expected a column step_time_s in the rows to fit on, found none; give measured steps"
        )
    batch = cache.understand(frame, device, system)
    why = _left_out(frame, batch)
    ran = np.array([not why[at] for at in batch.at], bool)
    first = next(filter(None, why), "")
    if not ran.any():
        raise InputError(
            "expected measured steps to fit on, found none that ran and can be priced; the first,"
            f" {first}"
        )
    remarks = []
    if left := len(frame) - int(ran.sum()):
        remarks.append(f"{left} of {len(frame)} rows to fit on left out; the first, {first}")
    measured_s = frame["step_time_s"].to_numpy(object)[batch.at[ran]].astype(float)
    batch = chosen(batch, ran)
    off = _off(batch, measured_s, host)
    far, wild = np.abs(off) > _FAR, np.abs(off) > _NO_MACHINE
    for what, some in (("kept", far & ~wild), ("left out", wild)):
        if some.any():
            worst = int(np.argmax(np.where(some, np.abs(off), 0.0)))
            remarks.append(
                f"{some.sum()} rows to fit on took far longer or shorter than others of their group"
                f" let expect, and are {what}; the worst, {batch.rows[worst].name}:"
                f" {np.exp(off[worst]):.3g} times; check its step_time_s"
            )
    batch, measured_s = chosen(batch, ~wild), measured_s[~wild]
    sources = doubtful(batch)
    likelihoods = {one: compared(batch, measured_s, one, cache, host) for one in sources}
    recompute = {}
    for source, likely in likelihoods.items():
        label = _labels(batch, source)[0]
        best = max(likely, key=lambda mode: likely[mode])
        if best != label and likely[best] - likely[label] > MUCH_LIKELIER:
            recompute[source] = best
        preferred = recompute.get(source, "nothing else")
        odds = ", ".join(f"{mode} {value - likely[label]:+.1f}" for mode, value in likely.items())
        remarks.append(
            f"rows of {source} are labelled recompute {label}; {preferred} is preferred (log"
            f" likelihood {odds} against the label)"
        )
    if recompute:
        relabelled_rows = tuple(relabelled(row, recompute) for row in batch.rows)
        batch = cache.priced(ResolvedRows(relabelled_rows))
    groups, few = _fit_groups(batch, measured_s, host)
    if not groups:
        most = max(few, key=lambda name: few[name])
        raise InputError(
            f"expected {_LEAST_ROWS} or more measured steps of one framework on one architecture to"
            f" fit on, got at most {few[most]}, of {most}; " + (remarks[0] if left else "give more")
        )
    provenance = {"rows": len(measured_s), "sources": sorted({row.source for row in batch.rows})}
    adapted = Adaptation(groups, recompute, likelihoods, host, provenance, few)
    for name, count in few.items():
        whose = adapted.of(name)[1]
        by = f"rows of {whose}" if whose else "believed efficiencies"
        remarks.append(
            f"{_LEAST_ROWS} measured rows of {name} are needed to fit them, got {count}; such rows"
            f" are predicted by {by}"
        )
    return adapted, remarks


def _fit_groups(
    batch: Batch, measured_s: np.ndarray, host: Host | None
) -> tuple[dict[str, Adapted], dict[str, int]]:
    """(fits by group, rows of groups that have too few)."""
    groups, few, names = {}, {}, np.array(batch.groups)
    assert batch.features is not None
    for name in dict.fromkeys(names.tolist()):
        here = names == name
        if here.sum() < _LEAST_ROWS:
            few[name] = int(here.sum())
            continue
        f, cells = picked(batch.features, here), batch.cells[here]
        groups[name] = adapt.fit(f, cells, measured_s[here], host)
        if groups[name].noise > _WRONG_UNITS:
            raise InputError(
                f"expected step_time_s of whole steps in seconds, got {here.sum()} rows of {name}"
                f" that lie a factor of {np.exp(groups[name].noise):.3g} from what fits them best;"
                " give seconds, or leave these rows out"
            )
    return groups, few


def _left_out(frame: pd.DataFrame, batch: Batch) -> list[str]:
    """Why each row of a table cannot be fitted on; "" where it can [R]."""
    given_s = frame["step_time_s"]
    flags = given_s.map(lambda one: isinstance(one, bool | np.bool_))
    seconds = pd.to_numeric(given_s.where(~flags), "coerce")
    found = []
    columns = zip(batch.resolved, seconds, given_s, endings(frame), strict=True)
    for at, (row, value, given, ended) in enumerate(columns):
        if row.config is None or at in batch.problems:
            found.append(row.refused or f"{row.name}: {batch.problems[at]}")
        elif ended != "ok":
            found.append(f"{row.name}: its status is {ended}, not ok")
        elif not (np.isfinite(value) and value > 0):
            found.append(f"{row.name}: expected seconds above zero in step_time_s, got {given!r}")
        else:
            found.append(f"{row.name}: {row.flags[0]}" if row.flags else "")
    return found


def _off(batch: Batch, measured_s: np.ndarray, host: Host | None) -> np.ndarray:
    """Log of each row's seconds over the beliefs' prediction, less its group's median [N].

    What is fitted to rows would have followed those that are wrong.
    """
    assert batch.features is not None
    believed = adapt.predict(Adapted.before(host), batch.features, batch.cells)
    off = np.log(measured_s) - believed.log_s
    names = np.array(batch.groups)
    for name in set(names.tolist()):
        off[names == name] -= np.median(off[names == name])
    return off


def chosen(batch: Batch, rows: np.ndarray) -> Batch:
    """Some of a batch's rows (bool [N])."""
    assert batch.features is not None
    kept = tuple(row for row, keep in zip(batch.rows, rows, strict=True) if keep)
    features, cells = picked(batch.features, rows), batch.cells[rows]
    return dataclasses.replace(batch, at=batch.at[rows], rows=kept, features=features, cells=cells)


def doubtful(batch: Batch) -> list[str]:
    """Sources all of whose rows carry one label of recomputation, but would fit without it."""
    found = []
    for source in dict.fromkeys(row.source for row in batch.rows):
        labels = _labels(batch, source)
        rows = [row for row in batch.rows if row.source == source]
        if len(labels) == 1 and labels[0] != "none" and fitting(rows, "none").all():
            found.append(source)
    return found


def fitting(rows: Sequence[ResolvedRow], mode: str) -> np.ndarray:
    """Whether each row fits in its device's memory with this recompute mode (bool [N])."""
    out = np.zeros(len(rows), bool)
    by_framework: dict[str, list[tuple[int, TransformerConfig, float]]] = {}
    for at, row in enumerate(rows):
        if row.config is not None and row.machine is not None:
            one = (at, with_recompute(row.config, mode), row.machine.memory_bytes)
            by_framework.setdefault(row.framework, []).append(one)
    for framework, found in by_framework.items():
        places, configs, room = zip(*found, strict=True)
        needed = peak_bytes(configs, memory_knobs(framework))
        out[list(places)] = needed <= USABLE * np.array(room)
    return out


def compared(
    batch: Batch, measured_s: np.ndarray, source: str, cache: PriceCache, host: Host | None
) -> dict[str, float]:
    """Log likelihood of a source's rows under each recompute mode."""
    places = np.flatnonzero([row.source == source for row in batch.rows])
    spread = np.linspace(0, len(places) - 1, min(len(places), _MOST_COMPARED))
    places = places[np.unique(spread.astype(int))]
    found = {}
    for mode in MODES:
        rows = tuple(relabelled(batch.rows[at], {source: mode}) for at in places)
        other = cache.priced(ResolvedRows(rows))
        assert other.features is not None
        fitted = adapt.fit(other.features, other.cells, measured_s[places], host, _WHILE_COMPARED)
        found[mode] = fitted.evidence
    return found


def _labels(batch: Batch, source: str) -> list[str]:
    configs = [row.config for row in batch.rows if row.source == source]
    return list(dict.fromkeys(one.layout.recompute for one in configs if one is not None))


def _read(one: Mapping[str, Any]) -> Adapted:
    effects = one["knobs"]
    if lacking := [name for name in NAMES if name not in effects]:
        raise ValueError(f"knob {lacking[0]} is missing")
    if other := [name for name in effects if name not in NAMES]:
        raise ValueError(f"{other[0]!r} is no knob{closest(other[0], NAMES)}")
    numbers = {name: one[name] for name in _NUMBERS}
    for name, value in (*effects.items(), *numbers.items()):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} is no number but {value!r}")
    values = np.array([float(effects[name]) for name in NAMES])
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError("a knob is not positive")
    cells = np.array(one["cells"], float).reshape(-1, adapt.LENGTH.shape[1])
    corrections = np.array(one["corrections"], float).reshape(len(adapt.SPREAD), len(cells))
    covariance = np.array(one["covariance"], float)
    noise, evidence = float(one["noise"]), float(one["evidence"])
    arrays = np.concatenate([cells.ravel(), corrections.ravel(), [evidence]])
    if not (np.isfinite(arrays).all() and 0 < noise < np.inf):
        raise ValueError("a number is not finite")
    shape = (len(NAMES) + corrections.size,) * 2
    if covariance.shape != shape or not np.isfinite(covariance).all():
        raise ValueError("the covariance does not have the shape of knobs and corrections")
    theta = np.log(values)
    return Adapted(theta, cells, corrections, covariance, int(one["rows"]), noise, evidence)
