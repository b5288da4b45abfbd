"""Rows of training steps -> times with interval, rates, memory, what the time is made of, and what was assumed.

    predicted_s low_s high_s     seconds of a step; low and high hold nine of ten
    tokens_per_s mfu             of all GPUs; model FLOPs over time, GPUs and peak (0 to 1; attention's whole square counted)
    memory_bytes fits            of the fullest rank; whether the device has it and the layout runs at all
    compute_s exposed_comm_s     GPU at work on its slowest stage; communication that nothing hides
    bubble_s                     the slowest stage waits for others; what is left of predicted_s waits for the host
    note                         why a row is not predicted, else what was assumed

Rows keep their order and their columns; a column of one of these names is kept as `given_<name>`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.hardware import Host, load_device
from hybridperf.io import InputError
from hybridperf.steps import adapt
from hybridperf.steps.adaptation import Adaptation, adaptation, all_fit, doubtful
from hybridperf.steps.batch import Bank, Batch, relabelled, shared_bank
from hybridperf.steps.compose import step_seconds
from hybridperf.steps.cross_node import stall_chance
from hybridperf.steps.failures import failures
from hybridperf.steps.features import picked
from hybridperf.steps.knobs import knobs_of
from hybridperf.steps.memory_fit import memory_knobs, peak_bytes
from hybridperf.steps.names import framework_of
from hybridperf.steps.rows import Resolved

COLUMNS = (
    "predicted_s", "low_s", "high_s", "tokens_per_s", "mfu", "memory_bytes", "fits", "compute_s", "exposed_comm_s", "bubble_s", "note",
)  # fmt: skip
NINE_OF_TEN = 1.645  # deviations
_LIKELY_STALL = 0.05
_COMPONENTS = ("compute_s", "exposed_comm_s", "bubble_s")
_UNSURE = "recomputation is doubtful: all rows of this source fit in memory without it; halfway between with and without assumed"


@dataclasses.dataclass(frozen=True)
class Predicted:
    """A table with its predictions, what they were made by, and sentences on the whole."""

    frame: pd.DataFrame
    adaptation: Adaptation
    said: tuple[str, ...] = ()


def predict_steps(
    frame: pd.DataFrame, device: str | None = None, system: str | None = None, host: Host | None = None,
    fit_on: pd.DataFrame | None = None, knobs: Adaptation | None = None, bank: Bank | None = None,
) -> Predicted:  # fmt: skip
    """Predict each row of a table of training steps (`data/README.md`), by beliefs alone, by `knobs` that were fitted before, or by knobs
    fitted to the measured rows `fit_on`."""
    if fit_on is not None and knobs is not None:
        raise InputError("expected rows to fit on or fitted knobs, got both; give one of them")
    bank = bank or shared_bank()
    said: list[str] = []
    known = knobs or Adaptation({}, host=host)
    if fit_on is not None:
        known, said = adaptation(fit_on, bank, host, device=device, system=system)
    batch = bank.understand(frame, device, system)
    batch, notes = _relabelled(batch, known, bank)
    unsure = [source for source in doubtful(batch) if source not in known.likelihoods and framework_of(source)]
    other = bank.priced(Resolved(tuple(relabelled(row, dict.fromkeys(unsure, "none")) for row in batch.resolved))) if unsure else None
    notes |= dict.fromkeys(unsure, _UNSURE)
    out: dict[str, Any] = {name: np.full(len(frame), np.nan) for name in COLUMNS[:-1]}
    note = np.array([row.note for row in batch.resolved], object)
    for at, why in batch.problems.items():
        note[at] = why
    if len(batch):
        _fill(out, note, batch, other, known, notes)
    fits = pd.array([pd.NA if np.isnan(one) else bool(one) for one in out["fits"]], "boolean")
    given = {name: f"given_{name}" for name in COLUMNS if name in frame}
    return Predicted(frame.rename(columns=given).assign(**{**out, "fits": fits, "note": note}), known, tuple(said))


def _relabelled(batch: Batch, known: Adaptation, bank: Bank) -> tuple[Batch, dict[str, str]]:
    """The batch with the labels of recomputation that measured rows prefer, and a note for each source that has any."""
    notes, changes = {}, {}
    for source, mode in known.recompute.items():
        rows = [row for row in batch.rows if row.source == source]
        if rows and all_fit(rows, mode):
            changes[source] = mode
            notes[source] = f"recompute {mode}, which measured rows of {source} prefer to what they say"
    if not changes:
        return batch, notes
    return bank.priced(Resolved(tuple(relabelled(row, changes) for row in batch.resolved))), notes


@dataclasses.dataclass(frozen=True)
class _Times:
    """Of each row of a batch [N]."""

    log_s: np.ndarray
    deviation: np.ndarray
    parts: dict[str, np.ndarray]  # COMPONENTS
    remarks: np.ndarray

    @staticmethod
    def of(batch: Batch, known: Adaptation) -> _Times:
        assert batch.features is not None
        names = np.array(batch.groups)
        found = _Times(
            np.empty(len(batch)), np.empty(len(batch)), {name: np.empty(len(batch)) for name in _COMPONENTS}, np.empty(len(batch), object)
        )
        for group in dict.fromkeys(names.tolist()):
            here = names == group
            adapted, whose = known.of(group)
            f, cells = picked(batch.features, here), batch.cells[here]
            one = adapt.predict(adapted, f, cells)
            found.log_s[here], found.deviation[here] = one.log_s, one.deviation
            found.remarks[here] = _remarks(group, whose, known.few.get(group, 0), adapted, cells)
            parts = step_seconds(f, knobs_of(adapted.theta), *one.logs)
            for name, values in found.parts.items():
                values[here] = getattr(parts, name)
        return found

    def halfway(self, other: _Times) -> _Times:
        """Between two assumptions of which neither is known to hold: halfway in logs, as unsure as they are apart."""
        apart = (self.log_s - other.log_s) / 2
        parts = {name: (values + other.parts[name]) / 2 for name, values in self.parts.items()}
        return _Times((self.log_s + other.log_s) / 2, np.hypot(self.deviation, apart), parts, self.remarks)


def _fill(out: dict[str, Any], note: np.ndarray, batch: Batch, other: Batch | None, known: Adaptation, notes: dict[str, str]) -> None:
    """Predictions of the rows that have one; `other`: the same rows under the assumption that a doubtful label does not hold."""
    times, configs = _Times.of(batch, known), batch.configs
    if other is not None:
        times = times.halfway(_Times.of(other, known))
    at, step_s = batch.at, np.exp(times.log_s)
    out["predicted_s"][at] = step_s
    for name, sign in (("low_s", -1), ("high_s", 1)):
        out[name][at] = np.exp(times.log_s + sign * NINE_OF_TEN * times.deviation)
    for name, values in times.parts.items():
        out[name][at] = values
    tokens = np.array([config.layout.global_batch * config.shape.seq for config in configs], float)
    out["tokens_per_s"][at] = tokens / step_s
    out["mfu"][at] = [
        config.shape.model_flops(count) / (seconds * config.layout.ranks * _peak(row))
        for config, row, count, seconds in zip(configs, batch.rows, tokens, step_s, strict=True)
    ]
    failed = _fill_memory(out, batch)
    chance = stall_chance(batch.rows)
    for i, (place, row) in enumerate(zip(at, batch.rows, strict=True)):
        stall = f"one run in {round(1 / chance[i])} like this stalls and takes far longer" if chance[i] > _LIKELY_STALL else ""
        note[place] = "; ".join(filter(None, (failed[i], row.note, notes.get(row.source, ""), times.remarks[i], stall)))


def _remarks(group: str, whose: str, few: int, adapted: adapt.Adapted, cells: np.ndarray) -> np.ndarray:
    """What is to be said of how each row of a group was predicted [n]; `few`: its own measured rows, too few to be fitted."""
    if not whose:
        why = f"measured steps of {group} too few to fit ({few})" if few else "no measured steps"
        return np.full(len(cells), f"{why}: believed efficiencies alone", object)
    known = {tuple(cell) for cell in np.round(adapted.cells, 6)}
    new = "no measured step has layers of this size, tensor parallelism and micro-batch"
    other = "" if whose == group else f"fitted to rows of {whose}" + (f", since those of {group} are too few ({few})" if few else "")
    return np.array(["; ".join(filter(None, (other, "" if tuple(cell) in known else new))) for cell in np.round(cells, 6)], object)


def _fill_memory(out: dict[str, Any], batch: Batch) -> list[str]:
    """Why each row would not run [N]."""
    frameworks = np.array([row.framework for row in batch.rows])
    configs, needed = batch.configs, np.empty(len(batch))
    for framework in dict.fromkeys(frameworks.tolist()):
        here = np.flatnonzero(frameworks == framework)
        needed[here] = peak_bytes([configs[at] for at in here], memory_knobs(framework))
    out["memory_bytes"][batch.at] = needed
    failed = failures(batch.rows, needed)
    out["fits"][batch.at] = [not why for why in failed]
    return failed


def _peak(row: Any) -> float:
    """FLOP/s of a row's device that its MFU is a share of; NaN where the device has none of that format."""
    try:
        return load_device(row.machine.device).peak(row.config.dtype, "matrix")
    except InputError:
        return float("nan")
