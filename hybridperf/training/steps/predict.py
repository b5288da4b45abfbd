"""Rows of training steps -> times with interval, rates, memory, what the time is made of, and what
was assumed.

    predicted_s low_s high_s    seconds of a step; low to high is a 90 % interval, low no less than
                                the devices' peak allows (`plausibility.py`)
    tokens_per_s mfu            of all GPUs; model FLOPs over time, GPUs and peak (0 to 1;
                                attention's whole square counted) of the format that layers'
                                products multiply in (`plausibility.py`), noted if not that of
                                activations
    memory_bytes fits           of the fullest rank; whether the device has it and the layout runs,
                                empty where it is not sure that it is too large
    compute_s exposed_comm_s    GPU at work on its slowest stage; communication that nothing hides
    bubble_s host_s             the slowest stage waits for others, for its host: these four add up
                                to predicted_s (`engine/closed.py`)
    note                        why a row is not predicted, else what was assumed

Rows keep their order and their columns; a column of one of these names is kept as `given_<name>`. A
table that this wrote before is predicted again: its predictions are replaced, and what was given to
it counts again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.engine.closed import forward_seconds, step_seconds
from hybridperf.fields.columns import as_given, with_answers
from hybridperf.hardware import Host
from hybridperf.io import InputError
from hybridperf.model import adapted_steps
from hybridperf.model.adapted_steps import Adaptation
from hybridperf.model.step_effects import effects_of
from hybridperf.model.variance import FOREIGN, LIKELY_STALL, beyond_by_stalls, ends
from hybridperf.training.steps import adapt
from hybridperf.training.steps.adaptation import adaptation
from hybridperf.training.steps.batch import (
    Batch,
    PriceCache,
    relabelled,
    shared_price_cache,
)
from hybridperf.training.steps.cross_node import chanced_s
from hybridperf.training.steps.features import experts_note, unmeasured_of
from hybridperf.training.steps.memory_fit import (
    failures,
    fitting,
    peak_bytes,
)
from hybridperf.training.steps.plausibility import (
    lower_bounds_s,
    model_flops,
    peaks_flops_per_s,
    places_by,
)
from hybridperf.training.steps.record import without_collector
from hybridperf.training.steps.rows import ResolvedRow, ResolvedRows, resolve
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.layout import Layouts

COLUMNS = (
    "predicted_s", "low_s", "high_s", "tokens_per_s", "mfu", "memory_bytes", "fits", "compute_s",
    "exposed_comm_s", "bubble_s", "host_s", "note",
)  # fmt: skip
_COMPONENTS = ("compute_s", "exposed_comm_s", "bubble_s", "host_s")
# together nobody else's columns
_OURS = {"predicted_s", "low_s", "high_s", "tokens_per_s", "memory_bytes", "fits", "note"}
_UNSURE = (
    "recomputation is doubtful: {why}, and this row fits in memory without it; halfway between with"
    " and without assumed"
)


@dataclasses.dataclass(frozen=True)
class PredictedSteps:
    """A table with its predictions, what they were made by, and sentences on the whole."""

    frame: pd.DataFrame
    adaptation: Adaptation
    remarks: tuple[str, ...] = ()


@without_collector()
def predict_steps(
    frame: pd.DataFrame, device: str | None = None, system: str | None = None,
    host: Host | None = None, fit_on: pd.DataFrame | None = None, knobs: Adaptation | None = None,
    cache: PriceCache | None = None, places: Iterable[int] | None = None,
) -> PredictedSteps:  # fmt: skip
    """Predict each row of a table of training steps (`data/README.md`).

    Args:
        frame: the rows.
        device: accelerator in place of the rows' own.
        system: in place of the rows' own.
        host: how kernels are launched, where that was traced.
        fit_on: measured rows that step effects are fitted to.
        knobs: step effects that were fitted before; without either, beliefs alone count.
        cache: prices kept between calls; None: those of this process.
        places: of the rows in the table that they are a part of, for messages; None: from 1 on.
    """
    if fit_on is not None and knobs is not None:
        raise InputError("expected rows to fit on or fitted knobs, got both; give one of them")
    cache = cache or shared_price_cache()
    frame = before_predictions(frame)
    fit_on = None if fit_on is None else before_predictions(fit_on)
    remarks: list[str] = []
    known = knobs or Adaptation({}, host=host)
    if fit_on is not None:
        known, remarks = adaptation(fit_on, cache, host, device=device, system=system)
    resolved = resolve(frame, device, system, places)
    questions, asked = resolved.unique()
    batch = cache.priced(questions)
    notes: dict[int, str] = {}
    batch = _preferred(batch, known, cache, notes)
    out: dict[str, Any] = {name: np.full(len(questions), np.nan) for name in COLUMNS[:-1]}
    failed, assumed = (np.full(len(questions), "", object) for _ in range(2))
    if len(batch):
        failed[batch.at], assumed[batch.at] = _fill(out, batch, known, cache, notes)
    out = {name: column[asked] for name, column in out.items()}
    fits = pd.arrays.BooleanArray(out["fits"] == 1, np.isnan(out["fits"]))
    out |= {"fits": fits, "note": _notes(resolved, asked, batch.problems, failed, assumed)}
    return PredictedSteps(with_answers(frame, out), known, tuple(remarks))


def forward_passes_s(frame: pd.DataFrame) -> np.ndarray:
    """Seconds of the forward passes alone of each row's step [R], by what is believed of its
    framework; NaN where a row is not predicted. Arguments of `predict_steps`.
    """
    batch, known = shared_price_cache().understand(before_predictions(frame)), Adaptation({})
    out = np.full(len(frame), np.nan)
    for (group, source), here in places_by(
        zip(batch.groups, [row.source for row in batch.rows], strict=True)
    ):
        assert batch.features is not None
        adapted, _ = known.of(group, source)
        f = batch.features.picked(here)
        logs = adapt.predict(adapted, f, batch.cells[here], False).logs
        seconds = forward_seconds(f, effects_of(adapted.theta), *logs)
        out[batch.at[here]] = seconds * np.exp(adapted.offset)
    return out


def before_predictions(frame: pd.DataFrame) -> pd.DataFrame:
    """A table without predictions that were added to it before."""
    return as_given(frame, COLUMNS, _OURS)


def _preferred(batch: Batch, known: Adaptation, cache: PriceCache, notes: dict[int, str]) -> Batch:
    """The batch with recompute labels that measured rows prefer, where a row fits with them."""
    resolved = list(batch.resolved)
    for source, mode in known.recompute.items():
        for at in batch.at[_fitting(batch, [row.source == source for row in batch.rows], mode)]:
            resolved[at] = relabelled(resolved[at], {source: mode})
            notes[int(at)] = (
                f"recompute {mode}, which measured rows of {source} prefer to what they say"
            )
    return cache.priced(ResolvedRows(tuple(resolved))) if notes else batch


def _doubtful(batch: Batch, known: Adaptation) -> list[int]:
    """Rows of a batch whose recompute label is doubtful: their source's labels are known to be and
    were not judged by measured rows, and they fit in memory without recomputing.
    """

    def doubted(row: ResolvedRow) -> bool:
        judged = row.source in known.likelihoods
        recomputes = row.config is not None and row.config.layout.recompute != "none"
        return recomputes and not judged and bool(row.question.doubted)

    return _fitting(batch, [doubted(row) for row in batch.rows], "none")


def _fitting(batch: Batch, chosen: Sequence[bool], mode: str) -> list[int]:
    """Those of some chosen rows of a batch (bool [N]) that fit with a recompute mode."""
    at = np.flatnonzero(chosen)
    of, layouts = batch.columns.of[at], Layouts(*(one[at] for one in batch.columns.layouts))
    some = batch.columns._replace(of=of, layouts=layouts)
    found: list[int] = at[fitting([batch.rows[one] for one in at], mode, some)].tolist()
    return found


@dataclasses.dataclass(frozen=True)
class _Times:
    """Predictions of each row of a batch [N]."""

    log_s: np.ndarray
    deviation: np.ndarray
    parts: dict[str, np.ndarray]  # COMPONENTS
    remarks: np.ndarray
    longer: np.ndarray  # as `variance.ends` takes it

    @staticmethod
    def of(batch: Batch, known: Adaptation, deviates: bool = True) -> _Times:
        """Predictions by what is known of each row's group; `deviates` as in `adapt.predict`."""
        assert batch.features is not None
        rows, sources = len(batch), [row.source for row in batch.rows]
        parts = {name: np.empty(rows) for name in _COMPONENTS}
        found = _Times(
            np.empty(rows), np.empty(rows), parts, np.empty(rows, object), np.empty(rows)
        )
        for (group, source), here in places_by(zip(batch.groups, sources, strict=True)):
            adapted, whose = known.of(group, source)
            f, cells = batch.features.picked(here), batch.cells[here]
            one = adapt.predict(adapted, f, cells, deviates)
            found.log_s[here], found.deviation[here] = one.log_s, one.deviation
            # rows of its own tell how fast a framework is, whatever its name
            foreign = [whose != group and batch.rows[at].question.foreign for at in here]
            stalled_s = chanced_s(f, adapted.effects) if np.any(f.stall_chance) else 0.0
            stalls = beyond_by_stalls(f.stall_chance, stalled_s, np.exp(one.log_s), one.deviation)
            found.deviation[here] = np.hypot(one.deviation, FOREIGN * np.array(foreign))
            found.longer[here] = stalls
            found.remarks[here] = _remarks(known.note_of(group), adapted if whose else None, cells)
            steps = step_seconds(f, effects_of(adapted.theta), *one.logs)
            for name, values in found.parts.items():
                values[here] = getattr(steps, name) * np.exp(adapted.offset)
        return found

    def meet(self, other: _Times, at: np.ndarray) -> None:
        """Take some rows halfway in logs to another assumption, as unsure as they are and as both
        are apart.
        """
        own_s, other_s = np.exp(self.log_s[at]), np.exp(other.log_s)
        log_s = (self.log_s[at] + other.log_s) / 2
        for name, values in self.parts.items():
            share = (values[at] / own_s + other.parts[name] / other_s) / 2
            values[at] = share * np.exp(log_s)
        apart = (self.log_s[at] - other.log_s) / 2
        self.deviation[at] = np.hypot(self.deviation[at], apart)
        self.longer[at] = np.maximum(self.longer[at], other.longer)
        self.log_s[at] = log_s


def _notes(
    resolved: ResolvedRows, asked: np.ndarray, problems: Mapping[int, str], failed: np.ndarray,
    assumed: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Notes of rows [R] by what their questions [U] fail by and assume; a row's own flags between.

    `asked`: whose question each row has [R]; `problems`: of questions that cannot be priced.
    """
    pairs = zip(failed, assumed, strict=True)
    out = np.array(["; ".join(filter(None, pair)) for pair in pairs], object)[asked]
    for at, (row, one) in enumerate(zip(resolved, asked.tolist(), strict=True)):
        if row.question.refused:
            out[at] = row.refused
        elif one in problems:
            out[at] = f"{row.name}: {problems[one]}"
        elif row.flags:
            out[at] = "; ".join(filter(None, (failed[one], *row.flags, assumed[one])))
    return out


def _fill(
    out: dict[str, Any], batch: Batch, known: Adaptation, cache: PriceCache, notes: dict[int, str]
) -> tuple[list[str], list[str]]:
    """Predictions of what can be predicted: (why each would not run, what else is to be noted)."""
    assert batch.features is not None
    times, configs, doubtful = _Times.of(batch, known), batch.configs, _doubtful(batch, known)
    if doubtful:
        rows = [relabelled(one := batch.rows[at], {one.source: "none"}) for at in doubtful]
        without = cache.priced(ResolvedRows(tuple(rows)))
        if len(without):
            times.meet(_Times.of(without, known, deviates=False), np.array(doubtful)[without.at])
        for row in doubtful:
            why = batch.rows[row].question.doubted
            notes[int(batch.at[row])] = _UNSURE.format(why=why)
    at, step_s = batch.at, np.exp(times.log_s)
    out["predicted_s"][at] = step_s
    peaks = peaks_flops_per_s(batch.columns, batch.devices)
    least_s = lower_bounds_s(batch.columns, batch.devices, peaks)
    out["low_s"][at], out["high_s"][at] = ends(step_s, times.deviation, times.longer, least_s)
    for name, values in times.parts.items():
        out[name][at] = values
    out["tokens_per_s"][at] = batch.columns.tokens / step_s
    flops, ranks = model_flops(batch.columns), batch.columns.layouts.ranks
    out["mfu"][at] = flops / (step_s * ranks * peaks)
    failed, chances = _fill_memory(out, batch), np.asarray(batch.features.stall_chance)
    host_shares = times.parts["host_s"] / step_s
    surely = np.asarray(batch.features.stalls) > 0
    shares = [_share_of(config) for config in batch.columns.templates]
    columns: tuple[Any, ...] = (at, batch.rows, configs, times.remarks, chances, surely)
    columns += (host_shares, batch.columns.of)
    assumed = []
    for place, row, config, remark, chance, sure, waiting, of in zip(
        *(one if isinstance(one, list | tuple) else one.tolist() for one in columns), strict=True
    ):
        stall = "predicted as a run that stalls: every one like this did" if sure else ""
        if chance > LIKELY_STALL:
            stall = (
                "predicted as a run that does not stall; one run in"
                f" {round(1 / chance)} like this stalls and takes far longer, up to high_s"
            )
        launched = experts_note(config, waiting) if config.shape.experts else ""
        unmeasured = unmeasured_of(config, cache.prices(row.machine)).notes
        remarks = (notes.get(place, ""), remark, *unmeasured, stall, launched, shares[of])
        assumed.append("; ".join(filter(None, (*row.question.notes, *remarks))))
    return failed, assumed


def _remarks(whose: str, adapted: adapted_steps.Adapted | None, cells: np.ndarray) -> np.ndarray:
    """Remarks on how each row of a group was predicted [n].

    `whose`: by what rows; `adapted`: fitted to these, None to none.
    """
    if adapted is None:
        return np.full(len(cells), whose, object)
    known = {tuple(cell) for cell in np.round(adapted.cells, 6)}
    new = "no measured step has layers of this size, tensor parallelism and micro-batch"
    added = ["" if tuple(cell) in known else new for cell in np.round(cells, 6)]
    return np.array(["; ".join(filter(None, (whose, one))) for one in added], object)


def _fill_memory(out: dict[str, Any], batch: Batch) -> list[str]:
    """Why each row would not run [N]."""
    needed = peak_bytes(batch.columns, [row.framework for row in batch.rows])
    out["memory_bytes"][batch.at] = needed
    failed, doubts = failures(batch.rows, needed)
    pairs = [*zip(failed, doubts, strict=True)]
    out["fits"][batch.at] = [np.nan if doubt else not why for why, doubt in pairs]
    return [f"{why}; not sure: {doubt}" if doubt else why for why, doubt in pairs]


def _share_of(config: TransformerConfig) -> str:
    """What format's peak MFU is a share of, where that is not the activations'."""
    found = config.product_dtype
    return "" if found == config.dtype else f"MFU is a share of the {found} peak"
