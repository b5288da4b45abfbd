"""What an interval takes in beside its knobs: other frameworks where an unknown one is named, the
hardware's own limit; and what notes say of it.
"""

import numpy as np
import pandas as pd
import pytest

from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.model.adapted_steps import Adaptation, Adapted
from hybridperf.model.variance import FOREIGN
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.predict import predict_steps
from hybridperf.workloads.transformer import load_shape

ROW = dict(
    model="llama2-7b", gpu="h100_sxm_80gb", n_gpus=16, tp=2, pp=1, dp=8, micro_batch=1,
    grad_accum=8, precision="bf16", sharding="zero1", recompute="none", gpus_per_node=8,
    seq_parallel=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def cache():
    """Prices once for all tests."""
    return PriceCache()


def predicted(cache, *changes, **options):
    return predict_steps(
        pd.DataFrame([ROW | change for change in changes]), cache=cache, **options
    ).frame


def test_a_framework_that_is_not_known_is_the_mean_over_those_that_are(cache):
    """Where none is named, the assumed one is priced as if it were named."""
    named, unnamed, unknown, other, known_source = predicted(
        cache,
        {"framework": "megatron_core"},
        {},
        {"framework": "mine"},
        {"framework": "unlisted"},
        {"source": "mlperf_training"},
    ).to_dict("records")
    for end in ("predicted_s", "low_s", "high_s"):
        assert unnamed[end] == pytest.approx(named[end], rel=1e-12)
    assert "others may take 10 to 30 % longer" in unnamed["note"]
    assert 1.1 < unknown["predicted_s"] / named["predicted_s"] < 1.3
    assert unknown["predicted_s"] == pytest.approx(other["predicted_s"], rel=1e-12)
    assert "framework mine is not known" in unknown["note"]
    assert "priced as the mean over others" in unknown["note"]
    own, wider = (np.log(row["high_s"] / row["predicted_s"]) for row in (other, unknown))
    assert wider == pytest.approx(np.hypot(own, NINE_OF_TEN * FOREIGN), rel=1e-9)
    assert "longer" not in named["note"] + known_source["note"]


def test_published_steps_of_frameworks_that_no_file_here_is_of(data_dir, cache):
    """On GPUs, nothing fitted. The constant stands in for a guess of the quickest framework's."""
    path = data_dir / "added/training_steps/published_tables.csv.gz"
    if not path.is_file():
        pytest.skip("the second delivery of measured steps is missing")
    rows = pd.read_csv(path)
    rows = rows[rows["framework"].isin(["paxml", "maxtext"])]
    rows = rows[~rows["gpu"].str.startswith("tpu")].reset_index(drop=True)
    found = predict_steps(rows, cache=cache).frame
    measured_s = rows["step_time_s"]
    error = np.abs(found["predicted_s"] / measured_s - 1)
    as_quickest = np.abs(
        predict_steps(rows.assign(framework="megatron_core"), cache=cache).frame["predicted_s"]
        / measured_s - 1
    )  # fmt: skip
    assert error.median() < 0.1 < as_quickest.median()
    inside = measured_s.between(found["low_s"], found["high_s"])
    assert inside.groupby(rows["framework"]).mean().min() > 0.8


def test_rows_of_the_same_machine_say_how_fast_an_unknown_framework_is(cache):
    fitted = Adaptation({"unlisted on Hopper sm_90": Adapted.before()})
    row = predicted(cache, {"framework": "mine"}, knobs=fitted).iloc[0]
    alone = predicted(cache, {"framework": "unlisted"}, knobs=fitted).iloc[0]
    assert row["high_s"] == pytest.approx(alone["high_s"], rel=1e-12)


@pytest.mark.parametrize(
    ("gpu", "precision"),
    [("a100_sxm4_80g", "fp32"), ("b200_sxm", "fp32"), ("h100_sxm_80gb", "fp8")],
)
def test_no_interval_begins_below_what_the_hardware_can_do(cache, gpu, precision):
    """FLOPs of a step without recomputing, at the peak: fused attention skips the masked half."""
    found = predicted(
        cache, {"gpu": gpu, "precision": precision, "framework": "megatron_core", "micro_batch": 4}
    )
    row = found.iloc[0]
    shape = load_shape("llama2-7b")
    share = shape.model_flops(1.0, causal=True) / shape.model_flops(1.0)
    assert row["mfu"] * row["predicted_s"] / row["low_s"] * share <= 1 + 1e-9


def test_one_box_that_stands_for_all_is_said(cache):
    """The only L40S whose links were measured share a root complex: nodes of another system are not
    priced so.
    """
    row = {"gpu": "l40s", "n_gpus": 8, "dp": 4}
    assert (
        "the one box of them that was measured, aic_l40s" in predicted(cache, row)["note"].iloc[0]
    )
    assert "aic_l40s" not in predicted(cache, row, system="8x_a100_pcie")["note"].iloc[0]


def test_experts_that_are_launched_one_by_one_are_said_where_they_wait(cache):
    """128 experts of each rank keep its host busy; 2 of them do not, and a model without experts
    has none.
    """
    row = {"model": "qwen3-30b-a3b", "n_gpus": 64, "tp": 1, "dp": 64, "framework": "megatron_core"}
    alone, shared, dense, grouped = predicted(
        cache,
        row,
        row | {"ep": 64, "micro_batch": 4},
        {"framework": "megatron_core"},
        row | {"framework": "torchtitan"},
    ).to_dict("records")
    assert "products of 128 experts of a rank one by one" in alone["note"]
    assert alone["host_s"] > 0.1 * alone["predicted_s"]
    assert "one by one" not in shared["note"] + dense["note"] + grouped["note"]
    assert grouped["host_s"] < 0.5 * alone["host_s"]
