"""One step has one interval, whoever is asked: a graph, a row of a table, a plan."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.engine.prediction import predict
from hybridperf.fields.columns import row_of
from hybridperf.model.adapted_steps import Adaptation, Adapted, Group
from hybridperf.training.plans.ranked import step_intervals
from hybridperf.training.plans.run import plan
from hybridperf.training.steps.as_graph import step_graph
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.predict import predict_steps
from hybridperf.workloads.transformer.step import transformer

# how far ends may lie apart, in logs of themselves over the predicted seconds; and those seconds
SAME, SAME_S = 0.01, 0.02
CASES = [
    ("llama2-7b", 8, "aic_h100_sxm", "megatron_core", 8, {}),
    ("llama2-7b", 8, "aic_h100_sxm", "", 8, {}),
    ("gpt3-13b", 4, "aic_a100_sxm", "megatron", 16, {"tp": [2], "pp": [2]}),
    ("llama3-8b", 4, "aic_h200_sxm", "torchtitan", 4, {"zero": [3], "tp": [1]}),
    ("mixtral-8x7b", 4, "aic_h100_sxm", "megatron_core", 8, {"ep": [4]}),
    ("gpt2-xl", 4, "aic_a100_sxm", "eager_pytorch", 2, {}),
    ("llama2-7b", 4, "8x_b200_sxm", "megatron_core", 8, {"tp": [2]}, "fp8"),
    ("llama2-7b", 4, "dgx_h100", "nanotron", 16, {"tp": [2], "pp": [2], "dp": [4]}),
]


@pytest.fixture(scope="module")
def cache():
    """Prices once for all tests."""
    return PriceCache()


def planned(cache, model, layers, system, framework, gpus, only, quant=""):
    """A plan's best layout: (plan, its choice, its interval)."""
    shape = dataclasses.replace(hp.load_shape(model), layers=layers, seq=2048)
    most = {"micro_batch": [1], "schedule": ["1f1b"], "cp": [1]} | only
    found = plan(
        shape, system, gpus, batch=4 * gpus, framework=framework, only=most, cache=cache,
        quant=quant,
    )  # fmt: skip
    choice = found.choice(0)
    low, high = step_intervals(found, np.array([[choice.case, choice.at]]))
    return found, choice, (low[0], high[0])


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:4])))
def test_a_plan_and_a_graph_say_how_sure_alike(cache, case) -> None:
    found, choice, ends = planned(cache, *case)
    time_s = found.step_s(choice)
    graph = predict(found.cases[0].setup.prices.model, transformer(found.config(choice)))
    assert graph.time_s == pytest.approx(time_s, rel=SAME_S)
    assert graph.low_s / graph.time_s == pytest.approx(ends[0] / time_s, rel=SAME)
    assert graph.high_s / graph.time_s == pytest.approx(ends[1] / time_s, rel=SAME)


def test_a_run_that_may_stall_reaches_as_far_by_graph_and_plan(cache) -> None:
    found, choice, (_, high_s) = planned(cache, *CASES[-1])
    graph = predict(found.cases[0].setup.prices.model, transformer(found.config(choice)))
    assert graph.high_s == pytest.approx(high_s, rel=SAME_S)
    assert high_s > 2 * found.step_s(choice)


@pytest.mark.parametrize("framework", ["framework=megatron_core", "source=mine", "framework=mine"])
def test_a_row_is_as_sure_as_its_graph(framework) -> None:
    words = ("model=llama2-7b", "gpu=h100_sxm", "system=dgx_h100", "n_gpus=4", "tp=2", "pp=2",
             "micro_batch=1", "global_batch=16", "sharding=none", "precision=bf16",
             framework)  # fmt: skip
    row, graph = predict_steps(row_of(words, "steps")).frame.iloc[0], step_graph(*words).prediction
    for end in ("low_s", "high_s"):
        of_row = row[end] / row["predicted_s"]
        assert getattr(graph, end) / graph.time_s == pytest.approx(of_row, rel=SAME)


def test_rows_that_were_learned_from_narrow_graph_and_table_alike(cache) -> None:
    """Of a fit with correlated effects and a cell of its own."""
    before, rng = Adapted.before(group="megatron_core on Hopper sm_90"), np.random.default_rng(0)
    effects = len(before.theta)
    root = rng.normal(size=(effects + 3, effects + 3)) * np.sqrt(
        np.append(np.diag(before.covariance), [0.05**2] * 3) / effects
    ) * 0.5  # fmt: skip
    cell = np.log2([[4096, 2, 4096, 4096]])
    fitted = dataclasses.replace(
        before, cells=cell, corrections=np.array([[0.02], [-0.03], [0.05]]),
        covariance=root.T @ root, rows=30, noise=0.02,
    )  # fmt: skip
    knobs = Adaptation({Group.of("megatron_core", "Hopper sm_90"): fitted})
    words = {"model": "llama2-7b", "gpu": "h100_sxm", "system": "dgx_h100", "n_gpus": 8, "tp": 2,
             "pp": 1, "dp": 4, "micro_batch": 1, "grad_accum": 2, "sharding": "none",
             "precision": "bf16", "framework": "megatron_core"}  # fmt: skip
    frame = pd.DataFrame([words])
    row = predict_steps(frame, knobs=knobs, cache=cache).frame.iloc[0]
    batch = cache.understand(frame)
    model = dataclasses.replace(cache.prices(batch.rows[0].machine).model, steps=knobs)
    graph = predict(model, transformer(batch.configs[0]))
    assert graph.time_s == pytest.approx(row["predicted_s"], rel=SAME_S)
    own = np.log(row["high_s"] / row["predicted_s"])
    assert np.log(graph.high_s / graph.time_s) == pytest.approx(own, rel=0.05)
    unfitted = predict_steps(frame, cache=cache).frame.iloc[0]
    assert own < 0.8 * np.log(unfitted["high_s"] / unfitted["predicted_s"])


def test_naming_the_framework_that_is_assumed_changes_nothing_by_graph_either() -> None:
    """All its habits, seconds and interval; another one takes its own along."""
    shape, layout = hp.load_shape("llama3.2-1b"), hp.Layout(accumulation=2)
    config = hp.TransformerConfig(shape, layout)
    named = hp.TransformerConfig(shape, layout, framework="megatron_core")
    assert config == named == hp.TransformerConfig.run_by("megatron_core", shape, layout)
    assert "framework" in config.assumed
    assert "framework" not in named.assumed
    assert named.replace(framework="nanotron") == hp.TransformerConfig.run_by(
        "nanotron", shape, layout
    )
    own = named.replace(bucket_bytes=1e6)
    assert own.replace(framework="nanotron").bucket_bytes == own.bucket_bytes != named.bucket_bytes
    model = hp.load_model("h100_sxm")
    first, other = (hp.predict(model, hp.transformer(one)) for one in (config, named))
    assert (first.time_s, first.low_s, first.high_s) == (other.time_s, other.low_s, other.high_s)
