"""Famous training runs as their papers tell them (`published_runs_dev.csv`), by regime, and after
fitting on half of the sources.

Rows of known layout are judged; those typed from memory are never fitted on. Beside ours stands the
constant share of the peak that errs least on the judged rows themselves.

So are steps that papers tell of in TFLOP/s of a GPU (`paper_steps.toml`), judged as such:

    step_time_s = FLOPs of a batch / (GPUs x FLOP/s of a GPU)

Megatron's FLOPs of a sample are 96 s l h^2 (1 + s / 6h + V / 16lh), eq. 3 of arXiv 2104.04473;
those of a ViT are so many times 24 s l h^2 + 4 s^2 l h. Nothing is fitted. Beside ours stand the
constant rate that errs least on the judged rows themselves, and what the paper predicts.

And layers of BERT as Chimera's authors profiled them (fp32, sequences of 128), each direction by
itself: calls of a layer on a stream that a host fills, nothing fitted. Their host decides the small
ones, and no datasheet knows it.
"""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.claims.harness import Columns, Found, ResultLine, facts
from benchmarks.claims.published_rows import with_told
from benchmarks.claims.scores import Scores, best_factor, mean_of, scores
from benchmarks.claims.step_splits import baseline_rows
from hybridperf.engine.prediction import predict
from hybridperf.engine.workload import Workload
from hybridperf.io import positive_column, read_table, require_columns
from hybridperf.model import model_or_datasheet
from hybridperf.model.calls import InStep
from hybridperf.model.step_effects import slowest_of
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.predict import predict_steps
from hybridperf.training.steps.rows import resolve
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.in_step import probes
from hybridperf.workloads.transformer.layout import Layout
from hybridperf.workloads.transformer.parts import layer_passes
from hybridperf.workloads.transformer.rank_stream import BELIEVED, RankStreams, RepeatedSteps
from hybridperf.workloads.transformer.zoo import load_shape

FILE = "training_steps/published_runs_dev.csv"
LAYERS = "chimera_profiles/layer_profiles_dev.csv"
DRAWS = 4  # of halves of the sources
_CONSTANT = "constant MFU, best"
_SHOWN = ["source", "rows", "mape", "median", "bias", "coverage"]
_COMPUTE_BOUND, _EXPOSED = 0.06, 0.15  # of a step: communication and bubble below; above
_BILL = "GPU hours"  # what `published_as` says of an average over a whole run, restarts and all
_SIZES = ((8, "one node"), (128, "up to 128 GPUs"), (1024, "up to 1,024"), (np.inf, "more"))


def judge(data: Path, draws: int = DRAWS) -> Found:
    """Every regime by beliefs alone, and the sources that were left out of a fit."""
    cache = PriceCache()
    given = with_told(read_table(data / FILE))
    given = given[given["layout_known"] == "yes"].reset_index(drop=True)
    measured_s = given["published_s"].to_numpy(float)
    frame = predict_steps(given, cache=cache).frame.assign(measured_s=measured_s)
    frame["ideal_s"] = baseline_rows(list(resolve(given))).ideal_s
    found = {
        f"published runs, {name}": _scores(frame[chosen.to_numpy()])
        for name, chosen in _regimes(frame)
    }
    halves = list(_halves(given.assign(step_time_s=measured_s), draws, cache))
    for at, name in enumerate(("nothing fitted", "other sources fitted")):
        drawn = [_scores(half[at].assign(measured_s=half[at]["step_time_s"])) for half in halves]
        found[f"left-out half of the sources, {name}"] = mean_of(drawn)
    too_large = frame["fits"].eq(False).sum()
    by_source = [{"source": source, **dataclasses.asdict(_scores(part))}
                 for source, part in frame.groupby("source", sort=False)]  # fmt: skip
    tables = {"published": frame, "published_sources": pd.DataFrame(by_source)[_SHOWN]}
    lines = [ResultLine.of(name, one) for name, one in found.items()]
    said = f"{too_large} of {len(frame)} runs that ran are called too large"
    return Found(said, tables, lines)


def _regimes(frame: pd.DataFrame) -> Iterator[tuple[str, pd.Series]]:
    """Names of sets of rows, and which rows are in each."""
    comm, bubble = (frame[name] / frame["predicted_s"] for name in ("exposed_comm_s", "bubble_s"))
    yield "all", comm >= 0
    computing = (comm < _COMPUTE_BOUND) & (bubble < _COMPUTE_BOUND)
    billed = frame["published_as"].str.contains(_BILL)
    yield "compute-bound", computing
    yield "compute-bound, no bills of GPU hours", computing & ~billed
    yield "bills of GPU hours", billed
    yield f"communication over {100 * _EXPOSED:.0f} % exposed", comm > _EXPOSED
    least = 0.0
    for most, name in _SIZES:
        yield name, frame["n_gpus"].between(least, most, inclusive="right")
        least = most


def _halves(
    frame: pd.DataFrame, draws: int, cache: PriceCache
) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """Half of the sources predicted: by beliefs alone, and with the other half's rows given."""
    sources = frame["source"].unique()
    for seed in range(draws):
        known = set(np.random.default_rng(seed).permutation(sources)[: len(sources) // 2])
        taught = frame["source"].isin(known)
        asked = frame[~taught].reset_index(drop=True)
        rows = frame[taught & (frame["verified"] != "recalled")]
        yield (
            predict_steps(asked, cache=cache).frame,
            predict_steps(asked, fit_on=rows, cache=cache).frame,
        )


def _scores(rows: pd.DataFrame) -> Scores:
    measured_s, others = rows["measured_s"], {}
    if "ideal_s" in rows and len(rows):
        factor = best_factor((measured_s / rows["ideal_s"]).to_numpy(float))
        others = {_CONSTANT: factor * rows["ideal_s"]}
    return scores(measured_s, rows["predicted_s"], rows["low_s"], rows["high_s"], others)


_PAPERS, _GIVEN = "paper_steps.toml", ("rows", "passes")
_CONSTANT_RATE, _THEIRS = "constant TFLOP/s, best", "the paper's own"
_MEASURE = "MAPE of TFLOP/s"


def paper_steps() -> pd.DataFrame:
    """Rows of all tables, `source` a table's name, with `step_time_s`."""
    tables = facts(_PAPERS)
    frame = pd.DataFrame(
        {**_shared(table), **row, "passes": passes, "source": name, "id": f"{name} {number + 1}"}
        for name, table in tables.items()
        for passes in table.get("passes", [4])
        for number, row in enumerate(table["rows"])
    ).assign(status="ok")
    frame = with_told(frame)
    s, h, vocab = frame["seq"], frame["hidden"], frame["vocab"]
    matrices = 24 * s * frame["layers"] * h**2
    gpt = matrices * (1 + s / (6 * h) + vocab / (16 * frame["layers"] * h))
    forward = gpt.where(frame["family"] == "gpt", matrices * (1 + s / (6 * h)))
    flops = frame["passes"] * forward * frame["global_batch"] / frame["n_gpus"]
    return frame.assign(step_time_s=flops / (1e12 * frame["tflops_gpu"]))


def _shared(table: dict[str, Any]) -> dict[str, Any]:
    """What all rows of a table have alike."""
    named = {"sharding": "", **table}
    return {key: value for key, value in named.items() if key not in _GIVEN} | {
        "ffn": 4 * table["hidden"] if "hidden" in table else None
    }


def judge_papers() -> Found:
    """Every table, and each way of sharding in it, by beliefs alone."""
    frame = paper_steps()
    predicted_s = predict_steps(frame).frame["predicted_s"]
    rates = frame["tflops_gpu"] * frame["step_time_s"] / predicted_s
    frame = frame.assign(predicted_s=predicted_s, predicted_tflops_gpu=rates)
    lines = []
    for (source, passes), table in frame.groupby(["source", "passes"], sort=False):
        recalled = ", recalled, not read" if (table["verified"] == "recalled").all() else ""
        name = f"{source}, {passes} passes counted{recalled}"
        ways = [(str(way or "no sharding"), rows) for way, rows in table.groupby("sharding")]
        parts = [(name, table), *((f"{name}, {way}", rows) for way, rows in ways if len(ways) > 1)]
        lines += [_line(name, rows) for name, rows in parts]
    return Found("steps of papers, nothing fitted", {"papers": frame}, lines)


def _line(name: str, rows: pd.DataFrame) -> ResultLine:
    rows = rows.assign(constant=best_factor(rows["tflops_gpu"].to_numpy(float)))
    baselines = {_CONSTANT_RATE: "constant"}
    if rows["theirs_tflops_gpu"].notna().all():
        baselines[_THEIRS] = "theirs_tflops_gpu"
    columns = Columns("tflops_gpu", "predicted_tflops_gpu", None, baselines)
    return columns.line(name, rows, measure=_MEASURE)


_LAYERS = Columns(baselines={"roofline x constant": "constant_s"})
_LAYER_SEQ, _FEW_SAMPLES = 128, 4


def judge_layers(frame: pd.DataFrame) -> Found:
    """Each direction by GPU and by size; `frame`: `model, device, micro_batch, f_s, b_s`."""
    columns = ["device", "model", "micro_batch"]
    require_columns(frame, [*columns, "f_s", "b_s"], "a table of layer profiles")
    samples = positive_column(frame, "micro_batch", "layer profiles")
    models = {name: model_or_datasheet(name) for name in frame["device"].unique()}
    parts = []
    for direction, column in (("forward", "f_s"), ("backward", "b_s")):
        measured_s = positive_column(frame, column, "layer profiles")
        made = [
            predict(models[row.device], layer_of(row.model, int(row.micro_batch), direction))
            for row in frame.itertuples()
        ]
        roofline_s = np.array([one.roofline_s for one in made])
        parts.append(frame[columns].assign(
            direction=direction, measured_s=measured_s, predicted_s=[one.time_s for one in made],
            low_s=[one.low_s for one in made], high_s=[one.high_s for one in made],
            constant_s=roofline_s * best_factor(measured_s / roofline_s),
            size=np.where(samples <= _FEW_SAMPLES, f"up to {_FEW_SAMPLES} samples", "more"),
        ))  # fmt: skip
    rows = pd.concat(parts, ignore_index=True)
    lines = [
        _LAYERS.line(f"layers, {', '.join(key)}", part)
        for by in ("device", "size")
        for key, part in rows.groupby([by, "direction"], sort=False)
    ]
    return Found("", {"layers": rows}, lines, "layers")


def layer_of(model: str, micro_batch: int, direction: str) -> Workload:
    """One layer of a model, `forward` or `backward` alone, in PyTorch's own ops."""
    shape = load_shape(model).replace(seq=_LAYER_SEQ)
    config = TransformerConfig(
        shape, Layout(micro_batch=micro_batch), dtype="fp32", attention="unfused",
        framework="eager", dropout=True,
    )  # fmt: skip
    steps = getattr(layer_passes(config), direction)
    streams = RankStreams(BELIEVED, each_kernel=True, framework=config.framework)
    streams.run(0, (RepeatedSteps(steps, 1, direction == "backward", "layer"),), "layer")
    cell = tuple(map(math.log2, config.cell_sizes))
    in_step = InStep(streams.places, config.framework, cell, probes(config), slowest_of(1))
    name = f"{direction} of a layer of {model}, {micro_batch} samples"
    graph, calls = streams.graph.build(), streams.calls
    return Workload(name, graph, calls, flops=streams.flops, in_step=in_step)
