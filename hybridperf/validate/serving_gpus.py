"""Steps of GPUs that nobody measured: each measured GPU is left out in turn, its calibration and
that of its links with it, and priced as any other GPU is: by the share of the roofline that a
reference device reaches (`model/reference_device.py`).

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
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd

from hybridperf.collectives.fit import fit_collectives
from hybridperf.hardware import load_system
from hybridperf.model import PerfModel, load_model, shipped
from hybridperf.runs.serving_rows import Machine, machine_of
from hybridperf.workloads.serving import Deployment, step_times
from hybridperf.workloads.transformer.zoo import load_shape

GPUS = {"a100_sxm4_80g": "aic_a100_sxm", "h100_sxm": "aic_h100_sxm", "h200_sxm": "aic_h200_sxm",
        "b200_sxm": "aic_b200_sxm"}  # fmt: skip
FEW, FEW_CLIENTS = 20, 8
DECODES = tuple((sequences, keys) for sequences in (1.0, 8.0, 64.0, 256.0) for keys in (1e3, 8e3))
PROMPTS = (512.0, 2048.0, 8192.0)
_SERVED = (
    ("llama3-8b", {}), ("llama3-70b", {"tp": 4}), ("gpt-oss-120b", {}), ("deepseek-v3", {"tp": 8}),
)  # fmt: skip
_SCHEMES = {"bfloat16": "bf16", "fp8": "fp8"}


def without(gpu: str) -> Callable[[Machine], PerfModel]:
    """Prices machines as if a GPU and its links had never been measured."""

    def load(machine: Machine) -> PerfModel:
        model = machine.load()
        return unmeasured(model) if model.device.id == gpu else model

    return load


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


def composed(gpus: Sequence[str] = tuple(GPUS)) -> pd.DataFrame:
    """Steps of each GPU, a row each: `own_s`, `predicted_s`, `roofline_s`."""
    parts = []
    for gpu in gpus:
        own = load_model(gpu)
        own = own.with_collectives(machine_links(GPUS[gpu]))
        bare = dataclasses.replace(unmeasured(own), references=None)
        some = [
            Deployment(load_shape(name), **layout, quant=scheme, framework="vllm")
            for name, layout in _SERVED
            for scheme, dtype in _SCHEMES.items()
            if dtype in own.device.peak_flops_per_s
        ]
        columns = [_steps(model, some) for model in (own, unmeasured(own), bare)]
        first = columns[0].rename(columns={"seconds": "own_s"})
        parts.append(first.assign(
            gpu=gpu, predicted_s=columns[1]["seconds"], roofline_s=columns[2]["seconds"]
        ))  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def machine_links(system: str):  # noqa: ANN201
    return machine_of(load_system(system).id).load().collectives


def _steps(model: PerfModel, some: Sequence[Deployment]) -> pd.DataFrame:
    rows = []
    for one, times in zip(some, step_times(model, some), strict=True):
        rows += [{"model": one.shape.name, "quant": one.quant, "phase": "decode",
                  "seconds": float(times.seconds(sequences, keys))}
                 for sequences, keys in DECODES]  # fmt: skip
        rows += [{"model": one.shape.name, "quant": one.quant, "phase": "prefill",
                  "seconds": float(times.seconds(0.0, 1.0, tokens, tokens / 2.0))}
                 for tokens in PROMPTS]  # fmt: skip
    return pd.DataFrame(rows)
