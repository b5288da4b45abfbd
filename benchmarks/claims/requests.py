"""Measured runs of vLLM, request by request: percentiles of a simulation without any fit.

Steps are priced on GPUs of which no row is measured (what other GPUs showed, `fit` without rows),
with what is believed of the framework; the engine has the settings of its run. Beside that stand
the same simulation with datasheets alone, and without limits of slots and cache.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.claims.harness import Found, ResultLine, claim
from hybridperf.hardware import load_device
from hybridperf.io import InputError, read_table
from hybridperf.learning.prior.shipped import DEFAULT_PRIOR, load_prior
from hybridperf.model import PerfModel
from hybridperf.model.fit.device import fit
from hybridperf.model.serving_effects import CALLS_ALONE, ServingEffects, believed
from hybridperf.serving.batching import serve
from hybridperf.serving.engine import Engine
from hybridperf.serving.requests import arriving
from hybridperf.serving.rows import named_model
from hybridperf.workloads.serving import Deployment, step_times
from hybridperf.workloads.serving.deployment import serving_memory
from hybridperf.workloads.transformer.zoo import load_shape

RUNS = "serving/requests_runs.csv"
PERCENTS = (50, 90, 99)
_GOALS = {"ttft_s": 0.15, "tpot_s": 0.05}
# GPUs as the runs' table calls them
_DEVICES = {
    "GeForce RTX 4090 24 GB": "rtx_4090",
    "RTX PRO 6000 Blackwell 96 GB": "rtx_pro_6000_server",
}


@claim("requests", ("runs",), by_data=True)
def run(data: Path | None, tasks: Sequence[str], quick: bool) -> Iterator[Found]:
    """All runs; they take seconds, `quick` or not."""
    del tasks, quick
    folder = Path(data or "")
    yield judged(folder, read_table(folder / RUNS))


def judged(folder: Path, runs: pd.DataFrame) -> Found:
    """Errors of percentiles, signed, of each run."""
    lines, cells, served = [], [], []
    for row in runs.itertuples():
        measured = read_table(folder / f"serving/requests_{row.run}.csv.gz")
        if row.gpu not in _DEVICES:
            raise InputError(f"expected a run on {', '.join(_DEVICES)}, got {row.gpu!r}")
        device = load_device(_DEVICES[str(row.gpu)])
        prior = fit(None, device, prior=load_prior(DEFAULT_PRIOR))[0]
        datasheet = fit(None, device, prior="none")[0]
        # its client calls the engine in its own process: no token leaves over HTTP
        # (LLMServingSim, bench/core/runner.py)
        effects = dataclasses.replace(believed(str(row.framework)), sequence_s=0.0)
        ours = _simulated(row, measured, prior, effects)
        bare = _simulated(row, measured, datasheet, CALLS_ALONE)
        free = _simulated(row, measured, prior, effects, limits=False)
        served.append(ours.assign(run=row.run))
        for name, goal in _GOALS.items():
            errors = [_errors(one[name], measured[name]) for one in (ours, bare, free)]
            for percent, *of in zip(PERCENTS, *errors, strict=True):
                cells.append([str(row.run), f"P{percent} {name}", *of])
            worst = [float(np.abs(some).max()) for some in errors]
            lines.append(ResultLine(
                f"{row.run}, {name.removesuffix('_s').upper()}", worst[0], len(measured), goal,
                {"datasheet": worst[1], "no limits": worst[2]}, "worst of P50, P90, P99",
            ))  # fmt: skip
    head = ["run", "of", "error", "datasheets_error", "no_limits_error"]
    tables = {"requests": pd.concat(served), "percentiles": pd.DataFrame(cells, columns=head)}
    return Found("", tables, lines, "requests")


def _simulated(
    row: object, measured: pd.DataFrame, model: PerfModel, effects: ServingEffects,
    limits: bool = True,
) -> pd.DataFrame:  # fmt: skip
    told = row._asdict()  # type: ignore[attr-defined]
    shape = load_shape(named_model(str(told["model"]))[0])
    deployment = Deployment(shape, tp=int(told["tp"]), framework=str(told["framework"]))
    kv_tokens = told["kv_tokens"]
    if np.isnan(kv_tokens):  # what its GPU has room for
        kv_tokens = serving_memory(deployment).cached_tokens(float(model.device.memory_bytes or 0))
    engine = Engine(
        step_times(model, [deployment])[0].as_run(effects), int(told["max_num_seqs"]),
        int(told["max_num_batched_tokens"]), kv_tokens,
    )  # fmt: skip
    if not limits:
        engine = dataclasses.replace(engine, slots=len(measured), kv_tokens=np.inf)
    times = (measured[name].to_numpy() for name in ("queued_s", "prompt_tokens", "output_tokens"))
    served = serve(arriving(*times), [engine])
    return pd.DataFrame({"ttft_s": served.ttft_s, "tpot_s": served.tpot_s})


def _errors(predicted: pd.Series, measured: pd.Series) -> np.ndarray:
    """Of percentiles, as shares."""
    return np.percentile(predicted, PERCENTS) / np.percentile(measured, PERCENTS) - 1.0
