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

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import pandas as pd

from hybridperf.hardware import DeviceSpec
from hybridperf.io import InputError
from hybridperf.ops.quantise import scheme_dtype
from hybridperf.training.steps.names import Machine
from hybridperf.training.steps.record import positive_numbers
from hybridperf.workloads.transformer.config import TransformerConfig

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


def peaks_flops_per_s(
    configs: Sequence[TransformerConfig], devices: Sequence[DeviceSpec]
) -> np.ndarray:
    """Of the matrix units of each step's device [N], in the format of its layers' products; NaN
    where it has none of it.
    """
    return _peaks([(one.dtype, one.quant) for one in configs], devices)


def _peaks(formats: Sequence[tuple[str, str]], devices: Sequence[DeviceSpec]) -> np.ndarray:
    known: dict[tuple[int, tuple[str, str]], float] = {}
    found = np.empty(len(devices))
    for at, (device, one) in enumerate(zip(devices, formats, strict=True)):
        key = (id(device), one)
        if key not in known:
            try:
                known[key] = device.peak(scheme_dtype(*one), "matrix")
            except InputError:
                known[key] = np.nan
        found[at] = known[key]
    return found


def lower_bounds_s(
    configs: Sequence[TransformerConfig], devices: Sequence[DeviceSpec]
) -> np.ndarray:
    """Seconds below which no step on such devices can go [N]; 0 where they have no such peak."""
    unquantised = _peaks([(one.dtype, "") for one in configs], devices)
    peaks = np.fmax(np.fmax(unquantised, peaks_flops_per_s(configs, devices)), 0.0)
    flops, causal = np.empty(len(configs)), [one.attention == "fused" for one in configs]
    modes = [one.layout.recompute for one in configs]
    alike = zip((one.shape for one in configs), modes, causal, strict=True)
    tokens = np.array([one.layout.global_batch * one.shape.seq for one in configs], float)
    for (shape, mode, half), at in places_by(alike):
        flops[at] = shape.hardware_flops(tokens[at], mode, causal=half)
    ranks = np.array([one.layout.ranks for one in configs], float)
    return np.divide(flops, ranks * peaks, out=np.zeros(len(configs)), where=peaks > 0)


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
    some = [config for config in configs if config is not None]
    sizes = np.full((4, len(configs)), np.nan)
    sizes[:, known] = (
        np.array(
            [
                (c.layout.global_batch, c.shape.seq, c.shape.parameters, _trained_flops(c))
                for c in some
            ],
            float,
        )
        .reshape(-1, 4)
        .T
    )
    batch, seq, parameters, least_flops = sizes
    given = np.array([np.nan if one is None else one for one in global_batches], float)
    for at in np.flatnonzero((batch[asked] != given[asked]) & ~np.isnan((batch + given)[asked])):
        config = configs[asked[at]]
        assert config is not None
        x = config.layout
        product = f"{x.micro_batch} x {x.accumulation} x {x.dp} = {x.global_batch}"
        found[int(at)] = [
            f"contradiction: micro-batch x accumulation x dp = {product}, global batch"
            f" {global_batches[asked[at]]}"
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
    counts = np.empty((5, len(configs)))
    for shape, at in places_by(config.shape for config in configs):
        matrices = shape.model_flops(tokens[at], causal=True)
        attention = shape.model_flops(tokens[at]) - matrices
        six = 6 * shape.active_parameters * tokens[at]
        counts[:, at] = (
            matrices, matrices + attention, six, six + attention, six + 2 * attention
        )  # fmt: skip
    peaks = peaks_flops_per_s(configs, [one.spec for one in machines])
    ours = counts / (step_s * np.array([one.layout.ranks for one in configs]) * peaks)
    nearest = np.abs(np.log(ours * 100 / percent)).argmin(0)
    return ours[nearest, np.arange(len(configs))]
