"""Steps of GPUs that nobody measured: each measured GPU is left out in turn, its calibration and
that of its links with it, and priced as any other GPU is: by the share of the roofline that a
reference device reaches (`model/stages/borrowed.py`).

* Composed: steps of decoding and of prompts apart, against those composed of the GPU's own measured
  ops. Nothing of a server is in them.
* Measured: TPOT, and TTFT of few clients (a prompt and the steps it waits for), of served models on
  it, effects fitted to rows of other GPUs; without its rows and with `FEW` of them.

Priors over devices, which calibrations of other GPUs are conditioned on, have seen the GPU's ops:
what a reference device says of its own ops changes little by that, but it is no clean split.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from benchmarks.claims.harness import Columns, ResultLine
from hybridperf.collectives.fit import fit_collectives
from hybridperf.collectives.model import CollectiveModel, load_collectives
from hybridperf.hardware import load_device
from hybridperf.model import PerfModel, load_model, shipped
from hybridperf.model.serving_effects import CALLS_ALONE
from hybridperf.serving.fit import TARGETS, fitted
from hybridperf.serving.machines import Machine
from hybridperf.serving.rows import ServedRow
from hybridperf.serving.served import Served, served
from hybridperf.serving.table import filled
from hybridperf.workloads.serving import Deployment, step_times
from hybridperf.workloads.transformer.zoo import load_shape

GPUS = {"a100_sxm4_80g": "aic_a100_sxm", "h100_sxm": "aic_h100_sxm", "h200_sxm": "aic_h200_sxm",
        "b200_sxm": "aic_b200_sxm"}  # fmt: skip
FEW, FEW_CLIENTS, DRAWS = 20, 8, 3
GOAL, FEW_GOAL = 0.12, 0.08
DECODES = tuple((sequences, keys) for sequences in (1.0, 8.0, 64.0, 256.0) for keys in (1e3, 8e3))
PROMPTS = (512.0, 2048.0, 8192.0)
# models as they are published: their size, layout, schemes; each where the GPU has such a rate
_SERVED: tuple[tuple[str, Mapping[str, Any], Mapping[str, Any]], ...] = (
    ("llama3-8b", {}, {"quant": "bfloat16"}),
    ("llama3-8b", {}, {"quant": "fp8"}),
    ("llama3-70b", {"tp": 4}, {"quant": "bfloat16"}),
    ("llama3-70b", {"tp": 4}, {"quant": "fp8"}),
    ("mixtral-8x7b", {"tp": 2}, {"quant": "bfloat16"}),
    ("gpt-oss-120b", {}, {"quant": "bfloat16", "expert_quant": "w4a16_mxfp4"}),
    ("deepseek-v3", {"tp": 8}, {"quant": "fp8_block"}),
)
_BARE, _TREES = "roofline", "trees"


def unmeasured(model: PerfModel) -> PerfModel:
    """A GPU by what others show, whatever is known of it."""
    gpu, links = model.device.id, model.collectives
    return dataclasses.replace(
        PerfModel.datasheet(model.device),
        references=functools.partial(_others, gpu),
        collectives=None if links is None else fit_collectives(None, links.system)[0],
    )


def _others(gpu: str) -> tuple[PerfModel, ...]:
    return tuple(one for one in shipped() if one.device.id != gpu)


@functools.cache
def _without(gpu: str, machine: Machine) -> PerfModel:
    """What prices a machine as if a GPU and its links had never been measured."""
    model = machine.load()
    return unmeasured(model) if model.device.id == gpu else model


def _roofline(machine: Machine) -> PerfModel:
    return _bare(machine.load())


def _bare(model: PerfModel) -> PerfModel:
    links = model.collectives
    bare = None if links is None else CollectiveModel.datasheet(links.system)
    return dataclasses.replace(PerfModel.datasheet(model.device), collectives=bare)


def composed(gpus: Sequence[str] = tuple(GPUS)) -> pd.DataFrame:
    """Steps of each GPU, a row each: `own_s`, `predicted_s`, `roofline_s`."""
    parts = []
    for gpu in gpus:
        own = load_model(gpu).with_collectives(load_collectives(GPUS[gpu]))
        some = [
            Deployment(load_shape(name), **layout, **_habit(gpu, scheme), framework="vllm")
            for name, layout, scheme in _SERVED
            if "fp8" in own.device.peak_flops_per_s or {*scheme.values()} == {"bfloat16"}
        ]
        models = {"own_s": own, "predicted_s": unmeasured(own), "roofline_s": _bare(own)}
        parts.append(_steps(models, some).assign(gpu=gpu))
    return pd.concat(parts, ignore_index=True)


def _habit(gpu: str, scheme: Mapping[str, Any]) -> Mapping[str, Any]:
    """Blackwell multiplies MXFP4 experts by 8-bit activations, others by 16-bit ones."""
    narrow = {"w4a16_mxfp4": "w4a8_mxfp4_mxfp8"} if load_device(gpu).tensor_memory else {}
    return {name: narrow.get(one, one) for name, one in scheme.items()}


def _steps(models: Mapping[str, PerfModel], some: Sequence[Deployment]) -> pd.DataFrame:
    """Seconds of decoding and prompt steps of deployments, a column for each model."""
    times = {name: step_times(model, some) for name, model in models.items()}
    rows = []
    for at, one in enumerate(some):
        named = {"model": one.shape.name, "quant": one.of_experts()}
        for sequences, keys in DECODES:
            each = {name: float(of[at].seconds(sequences, keys)) for name, of in times.items()}
            rows.append({**named, "phase": "decode", **each})
        for tokens in PROMPTS:
            each = {name: float(of[at].seconds(0.0, 1.0, tokens, tokens / 2.0))
                    for name, of in times.items()}  # fmt: skip
            rows.append({**named, "phase": "prefill", **each})
    return pd.DataFrame(rows)


def measured(
    rows: Sequence[ServedRow], seconds: Mapping[str, np.ndarray], features: np.ndarray, gpu: str,
    draws: int = DRAWS,
) -> pd.DataFrame:  # fmt: skip
    """Judged rows of a left-out GPU, with `FEW` of them given or none.

    Args:
        rows: of whole engines [N].
        seconds: measured, of each target [N].
        features: of the trees [N, F].
        gpu: that is left out; rows of others that its calibration prices are not given.
        draws: of the few.
    """
    mine = np.array([row.system == gpu for row in rows])
    given = np.array([row.machine is not None and row.machine.model != gpu for row in rows])
    use = np.flatnonzero(mine | given)
    found = served([rows[at] for at in use.tolist()], functools.partial(_without, gpu))
    use = use[found.at]
    bare = served([rows[at] for at in use[mine[use]].tolist()], _roofline).latency(CALLS_ALONE)
    told, features = {name: values[use] for name, values in seconds.items()}, features[use]
    own = np.flatnonzero(mine[use])
    parts = []
    for seed in range(-1, draws):
        few = np.zeros(len(use), bool)
        if seed >= 0:
            few[np.random.default_rng(seed).permutation(own)[:FEW]] = True
        known = given[use] | few
        fit = fitted(found.part(known), {name: values[known] for name, values in told.items()})
        judged = mine[use] & ~few
        ours = filled(found.part(judged), fit)
        clients = [row.clients for row in found.part(judged).rows]
        frame = pd.DataFrame({"gpu": gpu, "given": FEW * (seed >= 0), "clients": clients})
        for target, short in zip(TARGETS, ("tpot", "ttft"), strict=True):
            frame[target] = told[target][judged]
            frame[f"predicted_{target}"] = ours[f"predicted_{short}_s"]
            frame[f"low_{target}"] = ours[f"{short}_low_s"]
            frame[f"high_{target}"] = ours[f"{short}_high_s"]
            frame[f"trees_{target}"] = trees(features, told[target], known, judged)
            frame[f"bare_{target}"] = getattr(bare, target)[judged[own]]
        parts.append(frame)
    return pd.concat(parts, ignore_index=True)


def gpu_lines(steps: pd.DataFrame, points: pd.DataFrame) -> Iterator[ResultLine]:
    """Mean errors of composed steps, by GPU and phase, and of measured points."""
    bare = {_BARE: "roofline_s"}
    composed_s = Columns("own_s", interval=None, baselines=bare)
    for name, some in [("all", steps), *steps.groupby("gpu")]:
        for phase, rows in some.groupby("phase"):
            goal = GOAL if name == "all" else None
            yield composed_s.line(f"gpus, composed {phase}, {name}", rows, goal, "mean")
    for given, kinds in points.groupby("given"):
        for name, some in [("all", kinds), *kinds.groupby("gpu")]:
            few = some[some["clients"] <= FEW_CLIENTS]
            for target, rows in zip(TARGETS, (some, few), strict=True):
                columns = Columns(
                    target, f"predicted_{target}", (f"low_{target}", f"high_{target}"),
                    {_TREES: f"trees_{target}", _BARE: f"bare_{target}"},
                )  # fmt: skip
                goal = (FEW_GOAL if given else GOAL) if name == "all" else None
                what = f"gpus, measured {target.removesuffix('_s').upper()}, {name}, {given} rows"
                yield columns.line(what, rows, goal, "mean")


def trees(
    features: np.ndarray, seconds: np.ndarray, given: np.ndarray, judged: np.ndarray
) -> np.ndarray:
    """Seconds of the judged rows, by trees fitted to the logs of those given; NaN without any.

    Args:
        features: [N, F]
        seconds: measured [N].
        given: bool [N].
        judged: bool [N].
    """
    if not given.any():
        return np.full(int(judged.sum()), np.nan)
    fitted = HistGradientBoostingRegressor(random_state=0)
    with threadpool_limits(1):  # on a busy machine several threads wait for each other
        fitted.fit(features[given], np.log(seconds[given]))
    return np.asarray(np.exp(fitted.predict(features[judged])))


def features_of(found: Served) -> np.ndarray:
    """What trees see of each row: sizes, machine, framework as numbers."""
    out = []
    for row in found.rows:
        engine, machine = row.engine, row.machine
        assert engine is not None
        assert machine is not None
        shape, device = engine.shape, machine.load().device
        names = (row.framework == "vllm", row.framework == "sglang", row.prefill is not None)
        out.append([
            np.log(shape.parameters), np.log(shape.active_parameters), shape.layers, shape.hidden,
            shape.experts, np.log(device.memory_bytes_per_s), np.log(device.peak("bf16", "matrix")),
            engine.tp, engine.attention_dp, engine.expert_ep, row.gpus, row.workers,
            np.log(row.clients), np.log(row.prompt), np.log(row.output),
            "fp4" in engine.of_experts(), engine.quant == "bfloat16", *names,
        ])  # fmt: skip
    return np.array(out, float)
