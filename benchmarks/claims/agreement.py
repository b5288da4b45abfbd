"""Do a table of training steps, a plan and the graph of a step give one answer to one question?

Models cut to a few layers are planned on systems and frameworks drawn at random (dense, grouped
queries, experts, short and long sequences); of each plan some layouts, drawn too, are asked again
as rows of a table and as graphs:

    plan   `hp.plan`: columns of layouts
    steps  `hybridperf steps`: a row with the layout's own columns
    graph  `hp.predict(hp.transformer(config))`: ops, messages and launches of each rank as nodes

What one way refuses (unfused attention over a split sequence) is drawn again. The closed form of
plans and tables is the graph's where a pipeline's stages are alike; where it is known to be less,
a layout's `exception` says so.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.claims import harness
from benchmarks.claims.harness import Found, ResultLine
from hybridperf.engine.prediction import predict
from hybridperf.io import InputError
from hybridperf.training.plans.ranked import Choice
from hybridperf.training.plans.run import Plan, plan
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.predict import predict_steps
from hybridperf.workloads.transformer import Layout, load_shape
from hybridperf.workloads.transformer.framework import framework_habits
from hybridperf.workloads.transformer.layout import ORDER
from hybridperf.workloads.transformer.step import transformer

MODELS = ("gpt2-xl", "gpt3-13b", "llama2-7b", "llama3-8b", "mixtral-8x7b", "qwen3-30b-a3b")
SYSTEMS = ("aic_h100_sxm", "aic_a100_sxm", "aic_h200_sxm")
LAYOUTS, OF_EACH_PLAN, QUICK = 300, 3, 30
GOAL_STEPS, GOAL_GRAPH, GOAL_WORST = 1e-9, 0.01, 0.05  # |log ratio| to the plan
# graphs of some thousand kernels: deeper pipelines and more micro-batches say no more
_LAYERS, _SEQ, _GPUS, _BATCH_PER_GPU = (4, 8, 16), (1024, 2048, 8192), (1, 2, 4, 8, 16, 32), (1, 4)
_MOST_MICRO_BATCHES = 8
_SHARDING = ("none", "zero1", "zero2", "zero3")
_MEASURE = "|log ratio| to the plan"


def compared(count: int, seed: int = 0) -> pd.DataFrame:
    """`count` layouts by the three ways.

    Returns:
        A row each with its columns, `plan_s, steps_s, graph_s`, whether table and plan say the same
            of memory (`same_fit`), and why the closed form may differ (`exception`).
    """
    rng, cache = np.random.default_rng(seed), PriceCache()
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        with contextlib.suppress(InputError):
            rows += _of_a_plan(rng, cache)
    frame = pd.DataFrame(rows[:count]).assign(steps_s=np.nan, same_fit=False, note="")
    for system, here in frame.groupby("system").groups.items():
        asked = frame.loc[here].drop(columns=["plan_s", "steps_s", "graph_s", "same_fit", "note"])
        found = predict_steps(asked, system=str(system), cache=cache).frame
        frame.loc[here, "steps_s"] = found["predicted_s"]
        # a framework's own rules on what runs are no verdict on memory
        ended = found["note"].str.startswith("does not run under")
        frame.loc[here, "same_fit"] = found["fits"].fillna(False).astype(bool) | ended
        frame.loc[here, "note"] = found["note"]
    return frame


def _of_a_plan(rng: np.random.Generator, cache: PriceCache) -> Iterator[dict[str, Any]]:
    shape = load_shape(str(rng.choice(MODELS)))
    shape = dataclasses.replace(shape, layers=int(rng.choice(_LAYERS)), seq=int(rng.choice(_SEQ)))
    gpus, framework = int(rng.choice(_GPUS)), str(rng.choice([*framework_habits()]))
    system, batch = str(rng.choice(SYSTEMS)), gpus * int(rng.choice(_BATCH_PER_GPU))
    found = plan(shape, system, gpus, batch=batch, framework=framework, dtype="bf16", cache=cache)
    for rank in rng.choice(len(found), min(len(found), OF_EACH_PLAN), replace=False):
        choice = found.choice(int(rank))
        x = found.layout(choice)
        # a row cannot say in which order dimensions take ranks, nor shards over some of them, nor
        # how experts are divided
        experts = 1 if x.ep > 1 and x.tp > 1 else None
        unsaid = x.order != ORDER or x.shard_ranks not in (None, x.data_ranks)
        unsaid = unsaid or x.expert_tp != experts
        if unsaid or x.accumulation > _MOST_MICRO_BATCHES:
            continue
        with contextlib.suppress(InputError):
            model = found.cases[choice.case].setup.prices.model
            graph_s = float(predict(model, transformer(found.config(choice))).time_s)
            told = {"system": system, "framework": framework, "gpu": found.setup.device.id}
            told["exception"] = _exception(found, choice)
            yield {
                **told, **_columns(shape, x), "plan_s": found.step_s(choice), "graph_s": graph_s
            }  # fmt: skip


def _exception(found: Plan, choice: Choice) -> str:
    """Why the closed form of a layout is more than 5 % off its graph now and then."""
    config = found.config(choice)
    chunks = {sum(config.layers_of(stage)) for stage in range(config.stages)}
    if config.layout.vp > 1 and (len(chunks) > 1 or config.stage_split != "even"):
        return "chunks of an interleaved pipeline differ"
    if config.layout.pp > 1 and config.layout.zero > 1:
        return "shards are gathered beside the waits of a pipeline"
    return ""


def _columns(shape: Any, x: Layout) -> dict[str, Any]:
    """A layout in the columns of a table of training steps."""
    sizes = {
        name: getattr(shape, name)
        for name in ("hidden", "heads", "kv_heads", "layers", "ffn", "vocab", "seq")
    }
    degrees = {name: getattr(x, name) for name in ("tp", "pp", "dp", "cp", "ep", "vp")}
    return {
        "model": shape.name, **sizes, "n_gpus": x.ranks, **degrees,
        "seq_parallel": "yes" if x.sequence_parallel else "no", "micro_batch": x.micro_batch,
        "grad_accum": x.accumulation, "global_batch": x.global_batch, "precision": "bf16",
        "sharding": _SHARDING[x.zero], "shard_ranks": x.data_ranks if x.zero else None,
        "recompute": x.recompute, "schedule": x.schedule,
    }  # fmt: skip


@harness.claim("agreement", ("all",))
def run(data: Path | None, wanted: Sequence[str], quick: bool) -> Iterator[Found]:
    """How far the three ways are apart; `quick`: a tenth of the layouts."""
    del data, wanted
    frame = compared(QUICK if quick else LAYOUTS)
    logs = {name: np.log(frame[name] / frame["plan_s"]) for name in ("steps_s", "graph_s")}
    steps, graph = (np.abs(one) for one in logs.values())
    usual = frame["exception"] == ""
    lines = [
        _line("steps, worst", steps.max(), steps, GOAL_STEPS),
        _line("memory verdicts that differ", (~frame["same_fit"]).mean(), steps, 0.0),
        _line("graph, median", graph.median(), graph, GOAL_GRAPH),
        _line("graph, worst", graph[usual].max(), graph[usual], GOAL_WORST),
    ]
    for why, some in graph[~usual].groupby(frame["exception"]):
        lines.append(_line(f"graph, worst where {why}", some.max(), some, None))
    said = []
    for by in ("framework", "model", "sharding", "recompute", "pp", "tp"):
        ratio = logs["graph_s"].groupby(frame[by]).median()
        parts = ", ".join(f"{name} {100 * value:+.2f} %" for name, value in ratio.items())
        said.append(f"graph over plan by {by}, median: {parts}")
    yield Found("\n".join(said), {"layouts": frame}, lines, "layouts")


def _line(name: str, ours: float, rows: pd.Series, goal: float | None) -> ResultLine:
    return ResultLine(name, float(ours), len(rows), goal, measure=_MEASURE)
