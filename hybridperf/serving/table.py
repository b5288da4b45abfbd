"""A table of operating points, predicted: time to first token, time per output token, throughput,
memory, with intervals and what was assumed.

Axes: N rows that can be predicted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.fields.columns import as_given, read_columns, with_answers
from hybridperf.io import InputError, replacing_in, settled
from hybridperf.model import load_model
from hybridperf.ops.frameworks import serving_framework
from hybridperf.serving.fit import FILE, TARGETS, ServingFit, fitted
from hybridperf.serving.rows import ServedRow, understood
from hybridperf.serving.served import Served, served
from hybridperf.workloads.serving.deployment import USABLE

COLUMNS = (
    "predicted_ttft_s", "ttft_low_s", "ttft_high_s", "predicted_tpot_s", "tpot_low_s",
    "tpot_high_s", "predicted_tokens_per_s_gpu", "tokens_per_s_gpu_low", "tokens_per_s_gpu_high",
    "memory_bytes", "fits", "note",
)  # fmt: skip
# Ends of nine tenths, in standard deviations below and above: first tokens wait for what no column
# tells. By rows of models and of systems left out
BEYOND = {"tpot_s": (1.15, 1.1), "ttft_s": (1.4, 2.5)}
_APART = 1.2  # times as far for time per output token where prompts are computed apart
# further standard deviations in logs: of the number of workers, between 1 and 16, where it is not
# told; of a queue for slots, which a tenth more memory can empty
_UNTOLD = {"tpot_s": 0.6, "ttft_s": 1.2}
_QUEUED = 0.7
# the lower end of TTFT, in standard deviations, where a framework's engines may begin cold (`cold`
# of its habits): such rows among those that are given make the rest seem slow
_COLD_LOW = 1.7
# shorter where an engine drafts and nothing tells it: 2.5 tokens a step at 1.3 times its seconds
_DRAFTS = 0.65
# of GPUs of which no op is measured: steps by a reference device differ from those of a GPU's own
# ops by 0.07 of decoding and 0.10 of prompts in the mean (claim `serving --tasks gpus`), a new
# generation's by twice that
UNMEASURED = 0.12
_MEAN = "ttft is the mean of a run{} in which all clients start at once"
_STEADY = "ttft is the mean of a steady load"


@dataclasses.dataclass(frozen=True)
class PredictedServing:
    """A table with its predictions, and what they were made by."""

    frame: pd.DataFrame
    fit: ServingFit


def predict_serving(
    frame: pd.DataFrame, fit_on: pd.DataFrame | None = None, fit: ServingFit | None = None
) -> PredictedServing:
    """Predict each row of a table of operating points (columns: `fields/serve.toml`).

    Args:
        frame: the rows.
        fit_on: measured rows, with ttft_s and tpot_s, that effects are fitted to.
        fit: effects that were fitted before; without either, beliefs alone count.
    """
    if fit_on is not None and fit is not None:
        raise InputError("expected rows to fit on or fitted effects, got both; give one of them")
    if fit_on is not None:
        fit = fit_of(fit_on)
    known, frame = fit or ServingFit({}), as_given(frame, COLUMNS)
    found = served(understood(frame))
    out: dict[str, Any] = {name: np.full(len(frame), np.nan) for name in COLUMNS[:-1]}
    notes = np.full(len(frame), "", object)
    for at, why in found.problems.items():
        notes[at] = why
    if len(found.rows):
        for name, values in filled(found, known).items():
            (notes if name == "note" else out[name])[found.at] = values
    fits = pd.arrays.BooleanArray(out["fits"] == 1, np.isnan(out["fits"]))
    out |= {"fits": fits, "note": notes}
    return PredictedServing(with_answers(frame, out), known)


def fit_of(rows: pd.DataFrame) -> ServingFit:
    """Effects fitted to measured rows."""
    said = read_columns(rows, "serve").frame
    for name in TARGETS:
        if name not in said:
            raise InputError(
                f"expected a column {name} in measured rows of serving, found none; give ttft_s and"
                " tpot_s, seconds"
            )
    seconds = {name: pd.to_numeric(said[name], errors="coerce").to_numpy(float) for name in TARGETS}
    good = np.logical_and.reduce(
        [(values > 0) & np.isfinite(values) for values in seconds.values()]
    )
    if not good.any():
        raise InputError(
            f"expected seconds above zero in ttft_s and tpot_s of measured rows, got none in"
            f" {len(rows)} rows"
        )
    kept = rows[good].reset_index(drop=True)
    told = understood(kept)
    # one measurement under several names, or in two spellings of its layout, counts once
    pairs = zip(told, *(seconds[name][good] for name in TARGETS), strict=True)
    seen = pd.Series([(measured_as(row), *values) for row, *values in pairs], dtype=object)
    once = ~seen.duplicated().to_numpy()
    found = served([row for row, first in zip(told, once, strict=True) if first])
    measured = {name: seconds[name][good][once][found.at] for name in TARGETS}
    return fitted(found, measured)


def chance_within(
    limit_s: float, predicted_s: np.ndarray, low_s: np.ndarray, high_s: np.ndarray
) -> np.ndarray:
    """That seconds keep a limit [N], nine of ten of which lie between low and high.

    By Laplace's law in logs, each side as wide as its own end says: of rows of models left out 45,
    74 and 93 % lie within a quarter, a half and the whole of their interval, of the law 44, 68, 90.
    """
    above = np.log(limit_s / predicted_s)
    ends = np.log(np.where(above > 0, high_s / predicted_s, predicted_s / low_s))
    tail = 0.5 * 0.1 ** (np.abs(above) / ends)
    return np.where(above > 0, 1.0 - tail, tail)


def measured_as(row: ServedRow) -> tuple[Any, ...]:
    """What two rows of one measurement share, whatever their names and spellings."""
    sizes = row.clients, row.prompt, row.output, row.engine, row.prefill, row.workers
    return row.model, row.system, row.framework, *sizes, row.refused


def filled(found: Served, fit: ServingFit) -> Mapping[str, Any]:
    """Columns of the rows that can be predicted [N]."""
    rows = found.rows
    latency = found.latency(fit.of(rows))
    law = {"tpot_s": latency.tpot_s, "ttft_s": latency.ttft_s}
    waits = latency.waiting_s > 0
    out: dict[str, Any] = {}
    for target, short in (("ttft_s", "ttft"), ("tpot_s", "tpot")):
        offset, deviation = fit.left(rows, target)
        untold = np.array([not row.workers_known for row in rows]) * _UNTOLD[target]
        queued = waits * _QUEUED * (target == "ttft_s")
        unmeasured = found.unmeasured * UNMEASURED
        deviation = np.sqrt(deviation**2 + untold**2 + queued**2 + unmeasured**2)
        seconds = law[target] * np.exp(offset)
        apart = np.array([row.prefill is not None for row in rows])
        if target == "tpot_s":
            deviation = deviation * np.where(apart, _APART, 1.0)
        low, high = BEYOND[target]
        out[f"predicted_{short}_s"] = seconds
        drafts = np.array([not row.drafts_known for row in rows]) * _DRAFTS * (target == "tpot_s")
        cold = np.array(
            [serving_framework(row.framework).cold * (row.prefill is None) for row in rows]
        ) * (target == "ttft_s")
        below = np.where(cold > 0, _COLD_LOW, low) * deviation
        out[f"{short}_low_s"] = seconds * np.exp(-np.hypot(below, drafts))
        out[f"{short}_high_s"] = seconds * np.exp(np.hypot(high * deviation, cold))
    clients, output, gpus = (
        np.array([getattr(row, name) for row in rows]) for name in ("clients", "output", "gpus")
    )
    request_s = out["predicted_ttft_s"] + (output - 1.0) * out["predicted_tpot_s"]
    out["predicted_tokens_per_s_gpu"] = clients * output / request_s / gpus
    # one effect on steps moves both, first tokens by as much as they take of a request; what else
    # delays them is theirs
    first = out["predicted_ttft_s"] / request_s
    for end, slow in (("low", "high"), ("high", "low")):
        tpot, ttft = (
            np.log(out[f"{name}_{slow}_s"] / out[f"predicted_{name}_s"])
            for name in ("tpot", "ttft")
        )
        far = np.hypot(
            (1.0 - first) * tpot + first * np.sign(ttft) * np.minimum(abs(ttft), abs(tpot)),
            first * np.maximum(abs(ttft) - abs(tpot), 0.0),
        )
        far = np.sign(ttft) * far
        out[f"tokens_per_s_gpu_{end}"] = out["predicted_tokens_per_s_gpu"] * np.exp(-far)
    for name in ("predicted_tpot_s", "tpot_low_s", "tpot_high_s"):  # none after the first token
        out[name] = np.where(output > 1, out[name], np.nan)
    ranks = np.array([row.engine.attention_dp * row.workers for row in rows if row.engine])
    running = np.minimum(latency.decoding, np.maximum(clients / ranks, 1.0))
    held = np.array([row.held for row in rows])
    whole = np.array([row.prompt + row.output for row in rows])
    memory = zip(found.memory, running, held, strict=True)
    out["memory_bytes"] = np.array([one.needed(n, tokens) for one, n, tokens in memory])
    least = zip(found.memory, found.capacity, whole, strict=True)
    out["fits"] = np.array([one.sequences(gpu, tokens) >= 1.0 for one, gpu, tokens in least])
    columns = (rows, out["fits"], found.loads.slots, waits, found.memory, found.capacity)
    whose = [
        "; ".join(filter(None, (unmeasured_note(row.system) if bare else "", fit.note_of(row))))
        for row, bare in zip(rows, found.unmeasured, strict=True)
    ]
    parts = zip(*columns, whose, strict=True)
    out["note"] = np.array([_note(*part) for part in parts], object)
    return out


def unmeasured_note(device: str) -> str:
    """Of a GPU that no calibration is shipped of."""
    return f"no op of {device} was measured: shares of the roofline that other GPUs reach"


def _note(
    row: ServedRow, fits: bool, slots: float, waits: bool, memory: Any, capacity: float, whose: str
) -> str:
    """What a row's prediction assumed, the worst first."""
    said = []
    if not fits:
        kept = memory.needed(0.0, 0.0)
        cache = memory.needed(1.0, row.prompt + row.output) - kept
        said.append(
            f"does not fit: {kept / 1e9:.0f} GB of weights and workspace and {cache / 1e9:.1f} GB"
            f" of a request's cache in {USABLE:.0%} of {capacity / 1e9:.0f} GB"
        )
    elif waits:
        said.append(f"clients wait: an attention rank runs {slots:.0f} sequences at once")
    if row.output <= 1:
        said.append("an answer of one token has no time per output token")
    requests = f" of {row.requests:g} requests a client" if row.requests else ""
    said += [*row.notes, whose, _MEAN.format(requests) if row.at_once else _STEADY]
    return "; ".join(filter(None, said))


def saved(folder: Path, fit: ServingFit, rows: pd.DataFrame) -> str:
    """Keep effects with the model in a folder, with that of the rows' machine in a new one; the
    device's name.
    """
    with settled(folder):
        there = (folder / "model.json").exists()
    if there:
        fit.save(folder / FILE)
        return load_model(folder).device.id
    machines = {row.machine for row in understood(rows) if row.machine is not None}
    if len(machines) != 1:
        raise InputError(
            f"expected rows of one machine for a model in {folder}, got {len(machines)}; give the"
            " folder of a model"
        )
    model = machines.pop().load()
    assert model.collectives is not None
    with replacing_in(folder) as new:
        model.save(new)
        model.collectives.save(new)
        fit.save(new / FILE)
    return model.device.id
