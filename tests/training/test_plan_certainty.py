"""How sure a plan is, and by whose rows: what was not measured, knobs of a file, a framework that
nobody named.
"""

import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.model.adapted_steps import Adaptation, Adapted
from hybridperf.training.plans.explain import NAIVE, compared, naive
from hybridperf.training.plans.run import plan
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.plausibility import lower_bounds_s
from hybridperf.training.steps.predict import predict_steps
from hybridperf.workloads.transformer.config import Configs

SYSTEM, FEW = (
    "oci_bm_gpu_h100_8",
    {
        "tp": [1, 2],
        "cp": [1],
        "recompute": ["full"],
        "micro_batch": [1],
        "pp": [1],
        "zero": [1, 3],
        "shard_ranks": [64],
    },
)
SHARDING = ("none", "zero1", "zero2", "zero3")


def as_row(found: hp.Plan, **more: str) -> dict:
    """The winner as a row of a table."""
    x = found.best
    return {
        "model": found.setup.shape.name, "gpu": found.setup.device.id, "n_gpus": x.ranks,
        "tp": x.tp, "pp": x.pp, "dp": x.dp, "cp": x.cp, "vp": x.vp, "micro_batch": x.micro_batch,
        "grad_accum": x.accumulation, "recompute": x.recompute, "precision": "bf16",
        "sharding": SHARDING[x.zero], "seq_parallel": x.sequence_parallel, "schedule": x.schedule,
        **more,
    }  # fmt: skip


@pytest.mark.parametrize("named", [{}, {"framework": "torchtitan"}])
def test_a_plan_is_as_sure_as_a_prediction_of_its_winner(named):
    """No collective of this system was measured, and where no framework is named others are slower:
    both say the same of both.
    """
    cache = PriceCache()
    found = plan("llama2-7b", SYSTEM, 64, batch=128, only=FEW, cache=cache, **named)
    row = predict_steps(
        pd.DataFrame([as_row(found, **named)]), system=SYSTEM, cache=cache
    ).frame.iloc[0]
    winner = compared(found)[0]
    assert found.step_s(winner.choice) == pytest.approx(row["predicted_s"], rel=1e-9)
    assert (winner.low_s, winner.high_s) == pytest.approx((row["low_s"], row["high_s"]), rel=1e-6)
    there = predict_steps(
        pd.DataFrame([as_row(found, **named)]), system="xxrjun_example-cluster01", cache=cache
    ).frame.iloc[0]
    measured_links = there["high_s"] / there["predicted_s"]
    assert winner.high_s / row["predicted_s"] > measured_links
    doubt = f"collectives by the prior alone: none of {SYSTEM} was measured"
    assert doubt in found.notes
    assert doubt in row["note"]
    assert any("other frameworks" in note for note in found.notes) == (not named)


def test_an_interval_ends_where_the_hardware_does():
    """Single precision on an A100 runs near its peak: the lower end of its interval would lie above
    that.
    """
    found = plan("llama3-8b", "aic_a100_sxm", 64, batch=64, dtype="fp32", only=FEW)
    for one in compared(found):
        (least,) = lower_bounds_s(Configs.of_rows([found.config(one.choice)]), [found.setup.device])
        assert one.low_s >= min(least, found.step_s(one.choice)) > 0


@pytest.mark.parametrize(
    ("rows_of", "says"),
    [
        ("megatron_core on Ampere sm_80", ""),
        ("torchtitan on Ampere sm_80", "fitted to rows of torchtitan on Ampere sm_80"),
        (
            "torchtitan on Hopper sm_90",
            "no measured steps of megatron_core on Ampere sm_80: default efficiencies alone",
        ),
    ],
)
def test_a_plan_says_whose_rows_its_knobs_are(run, tmp_path, rows_of, says):
    Adaptation({rows_of: Adapted.before()}).save(tmp_path / "k.json")
    status, said, _ = run(
        "plan", "--shape", "gpt3-125m", "--system", "aic_a100_sxm", "--gpus", "8", "--batch", "16",
        "--only", "cp=1", "--only", "tp=1", "--knobs", tmp_path / "k.json", "--out",
        tmp_path / "p.csv",
    )  # fmt: skip
    assert status == 0
    assert says in said
    assert ("fitted to rows" in said, "default efficiencies" in said) == (
        "fitted" in says,
        "default efficiencies" in says,
    )


def test_knobs_do_not_hide_that_a_device_is_missing(refused, tmp_path):
    Adaptation({"torchtitan on Ampere sm_80": Adapted.before()}).save(tmp_path / "k.json")
    sentence = refused(
        "plan", "--shape", "gpt3-125m", "--system", "galvatron_8gpu_nvlink", "--gpus", "8",
        "--knobs", tmp_path / "k.json", "--out", tmp_path / "p.csv",
    )  # fmt: skip
    assert "name it by --device" in sentence


def test_the_naive_layout_keeps_experts_together():
    """The rule of thumb says nothing of experts."""
    assert "expert" not in NAIVE
    found = plan(
        "mixtral-8x7b",
        "aic_h100_sxm",
        64,
        batch=64,
        only={"cp": [1], "micro_batch": [1], "recompute": ["full"]},
    )
    chosen = naive(found)
    assert chosen is not None
    assert found.layout(chosen).ep == 1
