"""Served models of strangers: operating points of all sources there are, nothing fitted on any.

A measurement that several tables list counts once. Each of TPOT, TTFT and output tokens/s/GPU is
judged where its source has it: all rows, the mean over groups (a model on one engine of a source)
of their medians, and by source, engine, model, layout and whether prompts are computed apart.
Beside ours stands a constant share, the one that the other sources reach in the median, of
bandwidth (weights and cache read once a step), of peak arithmetic (two flops of each active
parameter a token) or of the throughput by both: what one would take who knows no engine.
Refused rows are counted by why.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.claims.harness import Columns, Found, ResultLine
from hybridperf.fields.registry import YES
from hybridperf.io import read_table
from hybridperf.serving.fit import TARGETS, ServingFit
from hybridperf.serving.rows import ServedRow, understood
from hybridperf.serving.served import Served, served
from hybridperf.serving.table import filled, measured_as

_RUNS = ("training_steps/inference_serving_dev", "added/training_steps/inference_serving")
_POINTS = "added/serving/operating_points"
FILES = tuple(f"{name}.csv.gz" for name in (*_RUNS, _POINTS))
RATE = "tokens_per_s_gpu"
_MEASURED = (*TARGETS, RATE)
_CONSTANT = "constant share of other sources"
_LEAST_ROWS = 8  # of a cut that is printed
_OF_A_BENCHMARK = re.compile(r"config_id=|source_file=\d{4}-\d\d-\d\d")
# whose first tokens are the engine's own: its benchmark's program gives it prompts, no server does
_ALONE = ("TensorRT-LLM 0.9", "XiongjieDai", "casper-hansen", "huggingface/optimum-habana")
# what a source's README tells of all its runs and its table does not: dstackai/benchmarks,
# comparison/README.md (commit 1f8afdb), has `--max-model-len 91680` for both machines and no
# `--kv-cache-dtype`, whose default is the model's
_TOLD = {"dstackai/benchmarks": {"max_model_len": 91680, "kv_dtype": "bf16"}}
_CUTS = ("regime", "source", "engine", "layout", "model")


def tables(data: Path) -> list[Path]:
    """The files of strangers that there are under a folder of measured data."""
    return [data / name for name in FILES if (data / name).is_file()]


def read(data: Path) -> pd.DataFrame:
    """All their rows, with `source`: who ran each."""
    frames = []
    for path in tables(data):
        frame = read_table(path)
        if "source" not in frame:
            texts = frame["silicon_data_source"].astype(str)
            benchmark = texts.str.contains(_OF_A_BENCHMARK)
            frame["source"] = np.where(benchmark, "InferenceX", "aiconfigurator")
            frame["opening_burst"] = YES
        else:
            frame["source"] = frame["source"].str.split(r" \(|[@:]", regex=True).str[0]
            alone = frame["source"].str.startswith(_ALONE)
            frame["view"] = np.where(alone, "engine", "")
            for source, values in _TOLD.items():
                for name, value in values.items():
                    frame.loc[frame["source"] == source, name] = value
            names = frame["model_path"]
            local = names.str.endswith(".json")
            frame["model_path"] = names.where(~local, f"{path.parent}/" + names)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def judge(data: Path, rows: int | None = None) -> Found:
    """Every target by each cut, and the rows that were refused.

    Args:
        data: folder of measured data.
        rows: at most so many of a source; None: all.
    """
    frame = read(data)
    if rows is not None:
        frame = frame.groupby("source", sort=False).head(rows)
    frame = frame.reindex(columns=[*dict.fromkeys((*frame.columns, *_MEASURED))])
    measured = frame[[*_MEASURED]].apply(pd.to_numeric, errors="coerce")
    told = understood(frame.drop(columns=[*_MEASURED]).reset_index(drop=True))
    keys = [
        (measured_as(row), str(frame["model_path"].iloc[at]) if row.refused else "", *values)
        for at, (row, values) in enumerate(
            zip(told, measured.fillna(0).to_numpy().tolist(), strict=True)
        )
    ]
    once = np.flatnonzero(~pd.Series(keys, dtype=object).duplicated().to_numpy())
    found = served([told[at] for at in once])
    at = once[found.at]
    ours = filled(found, ServingFit({}))
    judged = pd.DataFrame({
        "row": at, "source": frame["source"].to_numpy()[at],
        "model": [Path(row.model).stem for row in found.rows],
        "system": [row.system for row in found.rows],
        "engine": frame["backend"].astype(str).to_numpy()[at],
        "version": [row.version for row in found.rows],
        "layout": [_layout(row) for row in found.rows],
        "regime": [_regime(row) for row in found.rows],
        **{name: [getattr(row, name) for row in found.rows]
           for name in ("clients", "prompt", "output", "gpus")},
        **{name: measured[name].to_numpy()[at] for name in _MEASURED},
        **{name: values for name, values in ours.items() if name != "note"},
        **_ideal(found), "note": ours["note"],
    })  # fmt: skip
    for name in _MEASURED:
        judged[f"constant_{name}"] = judged[f"ideal_{name}"] * _constants(judged, name)
    refused = pd.DataFrame({
        "source": frame["source"].to_numpy()[once[[*found.problems]]],
        "model": frame["model_path"].to_numpy()[once[[*found.problems]]],
        "system": frame["system"].to_numpy()[once[[*found.problems]]],
        "why": [*found.problems.values()],
    })  # fmt: skip
    lines = [line for name in _MEASURED for line in _lines(judged[judged[name] > 0], name)]
    said = f"{len(judged)} of {len(once)} distinct rows predicted, {len(refused)} refused"
    too_large = int((~judged["fits"].astype(bool)).sum())
    said += f"; {too_large} that ran are called too large"
    why = refused["why"].astype(str).str.replace(r"got .*|[\d.]+", "", regex=True).str.slice(0, 90)
    said += "".join(f"\n  {count} {reason}" for reason, count in why.value_counts().items())
    return Found(said, {"stranger_serving": judged, "stranger_serving_refused": refused}, lines)


def _lines(rows: pd.DataFrame, target: str) -> Iterator[ResultLine]:
    short = {"tpot_s": "tpot", "ttft_s": "ttft"}.get(target, target)
    predicted = "predicted_tokens_per_s_gpu" if target == RATE else f"predicted_{short}_s"
    ends = (f"{short}_low_s", f"{short}_high_s")
    if target == RATE:
        ends = ("tokens_per_s_gpu_low", "tokens_per_s_gpu_high")
    columns = Columns(
        target, predicted, ends if ends[0] in rows else None,
        {_CONSTANT: f"constant_{target}"},
    )  # fmt: skip
    head = "tokens/s/GPU" if target == RATE else short.upper()
    if rows.empty:
        return
    for measure in ("median", "MAPE"):
        yield columns.line(f"strangers, {head}, all rows", rows, measure=measure)
    groups = [columns.scores(some) for _, some in rows.groupby(["source", "engine", "model"])]
    yield ResultLine(
        f"strangers, {head}, groups", float(np.mean([one.median for one in groups])), len(groups),
        None, {_CONSTANT: float(np.mean([one.medians[_CONSTANT] for one in groups]))},
        "mean of medians", None, float(np.mean([one.coverage for one in groups])),
    )  # fmt: skip
    for cut in _CUTS:
        for value, some in rows.groupby(cut):
            if len(some) >= _LEAST_ROWS:
                yield columns.line(f"strangers, {head}, {value}", some, measure="median")


def _regime(row: ServedRow) -> str:
    if row.prefill is None:
        return "one engine does all"
    return "prompts apart" if row.workers_told else "prompts apart, workers not told"


def _layout(row: ServedRow) -> str:
    engine = row.engine
    assert engine is not None
    if engine.attention_dp > 1:
        return "attention ranks"
    if engine.pp > 1:
        return "pipeline"
    return "one GPU" if engine.tp == 1 else f"tp {engine.tp}"


def _ideal(found: Served) -> dict[str, np.ndarray]:
    """Of each row, by bandwidth and peak arithmetic alone [N]."""
    out = np.zeros((len(_MEASURED), len(found.rows)))
    for at, (row, memory) in enumerate(zip(found.rows, found.memory, strict=True)):
        engine, spec = row.engine, row.machine.spec if row.machine else None
        assert engine is not None
        assert spec is not None
        ranks = engine.attention_dp * row.workers
        shape, sequences = engine.shape, max(row.clients / ranks, 1.0)
        read = memory.weights
        if shape.experts:  # of its experts those that some token takes
            tokens = sequences * engine.attention_dp
            share = 1.0 - (1.0 - shape.topk / shape.experts) ** tokens
            active = shape.active_parameters / shape.parameters
            read = read * (active + (1.0 - active) * share)
        read = read * engine.pp + sequences * memory.token * (row.prompt + 0.5 * row.output)
        tpot_s = read / spec.memory_bytes_per_s
        first = (row.prefill or engine).gpus
        ttft_s = 2.0 * shape.active_parameters * row.prompt / first / spec.peak("bf16", "matrix")
        out[:, at] = tpot_s, ttft_s, row.clients * row.output / (
            ttft_s * sequences + row.output * tpot_s
        ) / row.gpus  # fmt: skip
    return {f"ideal_{name}": out[place] for place, name in enumerate(_MEASURED)}


def _constants(judged: pd.DataFrame, target: str) -> np.ndarray:
    """Of each row the median of measured / ideal over the rows of all other sources."""
    ratio = judged[target] / judged[f"ideal_{target}"]
    of_others = {
        source: float(ratio[judged["source"] != source].median())
        for source in judged["source"].unique()
    }
    return judged["source"].map(of_others).to_numpy(float)
