"""What can be true of a step: the peak that MFU is a share of, the lower bound of its time, where a
row contradicts itself.

The peak is that of the number format in which products of layers multiply: an fp8 or fp4 recipe
multiplies narrow what it keeps in 16 bits between ops (`ops/quantise.py`), so its activations'
dtype does not say which peak counts.

The lower bound of a step: its products, with recomputation, at the datasheet's peak, evenly on all
devices: seconds = FLOPs / (devices x peak). Fused attention skips what a causal mask hides, so half
of it counts. Where products of layers multiply in a narrower format than other ops, the faster of
both peaks is taken of all.

A row contradicts itself where two of its fields say different things about the same quantity:

    batch       micro-batch x accumulation x data-parallel ranks  against  the global batch
    tokens/s    the row's own  against  global batch x sequence / step time
    per GPU     tokens/s  against  tokens/s of a GPU x GPUs
    MFU         the row's own  against  model FLOPs / (step time x GPUs x peak)
    parameters  the row's own  against  those of its sizes
    FLOPs       TFLOP/s over tokens/s of a GPU  against  what a token takes: two thirds of it mean
                that most weights were frozen (adapters), which a row has to say

A row that says too little contradicts nothing. Tolerances are rounding of what was published, and
for MFU how differently people count. Axes: N steps; R rows, U questions that they ask.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import pandas as pd

from hybridperf.hardware import DeviceSpec
from hybridperf.hardware.machines import Machine
from hybridperf.io import InputError
from hybridperf.training.steps.record import positive_numbers
from hybridperf.workloads.transformer.columns import RECOMPUTE
from hybridperf.workloads.transformer.config import Configs, TransformerConfig

RATE_TOLERANCE = 0.02
MFU_TOLERANCE = 0.07
MFU_ROUNDING = 0.05  # percent: some publish one digit after the point
PARAMETER_TOLERANCE = 0.05
FROZEN = 0.75  # of the FLOPs of a token that trains all weights: without weight gradients 2/3
_Key = TypeVar("_Key", bound=Hashable)


def places_by(keys: Iterable[_Key]) -> Iterator[tuple[_Key, np.ndarray]]:
    """Each key with the places that it stands at."""
    places: dict[_Key, list[int]] = {}
    for at, key in enumerate(keys):
        places.setdefault(key, []).append(at)
    return ((key, np.array(at)) for key, at in places.items())


def peaks_flops_per_s(configs: Configs, devices: Sequence[DeviceSpec]) -> np.ndarray:
    """Of the matrix units of each step's device [N], in the format of its layers' products; NaN
    where it has none of it.
    """
    return _peaks(configs, devices, lambda one: one.product_dtype)


def _peaks(
    configs: Configs, devices: Sequence[DeviceSpec], dtype: Callable[[TransformerConfig], str]
) -> np.ndarray:
    found = np.empty(len(devices))
    known = {id(device): device for device in devices}
    for (number, device), here in places_by(
        zip(configs.of.tolist(), map(id, devices), strict=True)
    ):
        try:
            found[here] = known[device].peak(dtype(configs.templates[number]), "matrix")
        except InputError:
            found[here] = np.nan
    return found


def model_flops(configs: Configs) -> np.ndarray:
    """FLOPs that each step needs, nothing computed twice [N]."""
    return configs.tokens * configs.each(lambda one: one.shape.model_flops(1.0))


def lower_bounds_s(
    configs: Configs, devices: Sequence[DeviceSpec], peaks: np.ndarray | None = None
) -> np.ndarray:
    """Seconds below which no step on such devices can go [N]; 0 where they have no such peak.

    `peaks`: `peaks_flops_per_s` of these, where they are known.
    """
    peaks = peaks_flops_per_s(configs, devices) if peaks is None else peaks
    unquantised = _peaks(configs, devices, lambda one: one.dtype)
    peaks = np.fmax(np.fmax(unquantised, peaks), 0.0)

    def of(mode: str) -> np.ndarray:
        return configs.each(
            lambda one: one.shape.hardware_flops(1.0, mode, causal=one.attention == "fused")
        )

    x = configs.layouts
    flops = configs.tokens * np.choose(x.recompute, [*map(of, RECOMPUTE)])
    return np.divide(flops, x.ranks * peaks, out=np.zeros(len(flops)), where=peaks > 0)


def contradictions(
    frame: pd.DataFrame, configs: Sequence[TransformerConfig | None],
    machines: Sequence[Machine | None], global_batches: Sequence[int | None], asked: np.ndarray,
) -> dict[int, tuple[str, ...]]:  # fmt: skip
    """What contradicts itself, one sentence each, by the row's place.

    `configs`, `machines`, `global_batches` of questions [U], None where a row has none; `asked`:
    which of them each row asks [R].
    """
    found: dict[int, list[str]] = {}

    def differs(
        what: str, said: np.ndarray, other: np.ndarray, tolerance: np.ndarray | float, against: str
    ) -> None:
        with np.errstate(invalid="ignore"):
            wrong = np.abs(np.log(said / other)) > np.log1p(tolerance)
        for at in np.flatnonzero(wrong):
            sentence = f"contradiction: {what} {said[at]:.4g}, but {against} {other[at]:.4g}"
            found.setdefault(int(at), []).append(sentence)

    known = [at for at, config in enumerate(configs) if config is not None]
    some = Configs.of_rows([config for config in configs if config is not None])
    sizes = np.full((4, len(configs)), np.nan)
    of_shape = (lambda one: one.shape.seq, lambda one: one.shape.parameters, _trained_flops)
    sizes[:, known] = (some.samples, *map(some.each, of_shape))
    batch, seq, parameters, least_flops = sizes
    given = np.array([np.nan if one is None else one for one in global_batches], float)
    accumulated = positive_numbers(frame, "grad_accum")
    for at in np.flatnonzero(~np.isnan((batch + given)[asked] + accumulated)):
        config, whole = configs[asked[at]], global_batches[asked[at]]
        assert config is not None
        x, times = config.layout, int(accumulated[at])
        if (product := x.micro_batch * times * x.dp) != whole:
            taken = f": accumulation {x.accumulation} taken" if x.accumulation != times else ""
            found[int(at)] = [
                f"contradiction: micro-batch x accumulation x dp = {x.micro_batch} x {times} x"
                f" {x.dp} = {product}, global batch {whole}{taken}"
            ]
    names = ("step_time_s", "tokens_per_s", "tokens_per_s_gpu", "n_gpus", "mfu", "params")
    step_s, tokens_per_s, per_gpu, gpus, percent, own, tflops = (
        positive_numbers(frame, name) for name in (*names, "tflops_gpu")
    )
    tokens = (np.where(np.isnan(given), batch, given) * seq)[asked]
    # whole tokens of a GPU, whose sum is then published too
    tolerance = RATE_TOLERANCE + np.where(np.isnan(per_gpu), 0.0, 0.5 / per_gpu)
    differs("tokens/s", tokens_per_s, tokens / step_s, tolerance, "batch x sequence / step time")
    of_gpus = np.where(np.isnan(seq[asked]), np.nan, per_gpu * gpus)
    differs("tokens/s", tokens_per_s, of_gpus, RATE_TOLERANCE, "tokens/s of a GPU x GPUs")
    judged = np.flatnonzero(~np.isnan(percent * step_s * seq[asked]))
    nearest = np.full(len(frame), np.nan)
    if len(judged):
        chosen = [configs[one] for one in asked[judged]]
        devices = [machines[one] for one in asked[judged]]
        nearest[judged] = _nearest_mfu(
            [one for one in chosen if one is not None],
            [one for one in devices if one is not None], tokens[judged], step_s[judged],
            percent[judged],
        )  # fmt: skip
    tolerance = MFU_TOLERANCE + MFU_ROUNDING / percent
    differs("MFU", percent / 100, nearest, tolerance, "FLOPs / time / peak")
    differs("parameters", own, parameters[asked], PARAMETER_TOLERANCE, "those of the sizes")
    said = 1e12 * tflops / per_gpu
    for at in np.flatnonzero(said < FROZEN * least_flops[asked]):
        found.setdefault(int(at), []).append(
            f"contradiction: TFLOP/s over tokens/s are {said[at] / 1e9:.4g} GFLOP a token, training"
            f" all weights takes {least_flops[asked[at]] / 1e9:.4g}; say adapters if that is so"
        )
    return {at: tuple(sentences) for at, sentences in found.items()}


def _trained_flops(config: TransformerConfig) -> float:
    """Least FLOPs of a token that trains what the config trains; 0 where that is adapters."""
    if config.adapters:
        return 0.0
    return min(6.0 * config.shape.active_parameters, config.shape.model_flops(1.0, causal=True))


def _nearest_mfu(
    configs: Sequence[TransformerConfig], machines: Sequence[Machine], tokens: np.ndarray,
    step_s: np.ndarray, percent: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """FLOPs / (time x peak) of rows, attention and parameters counted as is nearest to theirs."""
    columns = Configs.of_rows(configs)
    matrices = tokens * columns.each(lambda one: one.shape.model_flops(1.0, causal=True))
    attention = tokens * columns.each(lambda one: one.shape.model_flops(1.0)) - matrices
    six = 6 * tokens * columns.each(lambda one: one.shape.active_parameters)
    counts = np.array([matrices, matrices + attention, six, six + attention, six + 2 * attention])
    peaks = peaks_flops_per_s(columns, [one.spec for one in machines])
    ours = counts / (step_s * columns.layouts.ranks * peaks)
    nearest = np.abs(np.log(ours * 100 / percent)).argmin(0)
    return ours[nearest, np.arange(len(configs))]
