"""Laws of arithmetic, traffic and memory that every framework and model obeys, whatever was
measured: each a ratio between two questions that differ in one thing.
"""

import numpy as np
import pandas as pd
import pytest

from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.predict import predict_steps
from hybridperf.workloads.transformer import load_shape

ROW = {
    "model": "llama3-8b", "gpu": "H100-SXM5-80GB", "framework": "megatron_core", "tp": 1, "pp": 1,
    "precision": "bf16", "n_gpus": 8, "micro_batch": 1, "global_batch": 64, "sharding": "zero1",
}  # fmt: skip
WIDE = ROW | {"model": "llama2-70b", "tp": 8, "n_gpus": 64}


@pytest.fixture(scope="module")
def ask():
    """Predictions of rows that differ from `ROW`, none refused; prices once for all tests."""
    cache = PriceCache()

    def asked(*changes, row=ROW):
        found = predict_steps(pd.DataFrame([row | one for one in changes]), cache=cache).frame
        assert found["predicted_s"].notna().all(), found["note"].tolist()
        return found

    asked.cache = cache
    return asked


def test_a_step_is_linear_in_its_micro_batches(ask):
    for row in (ROW, WIDE, ROW | {"pp": 4, "vp": 1}):
        step_s = ask(*({"global_batch": 64 * n} for n in (1, 2, 3)), row=row)["predicted_s"]
        first, second = step_s.diff()[1:]
        assert first == pytest.approx(second, rel=0.01)


def test_bubbles_are_those_of_the_formula(ask):
    """(p - 1) / m of the rest without chunks, over v with; GPipe as long as 1F1B in more bytes."""
    row = ROW | {"pp": 4, "n_gpus": 4, "schedule": "1f1b", "vp": 1, "recompute": "none"}
    some = ask({}, {"vp": 4, "schedule": "interleaved"}, {"schedule": "gpipe"}, row=row)
    m, share = 64, some["bubble_s"] / (some["predicted_s"] - some["bubble_s"])
    assert share[0] == pytest.approx(3 / m, rel=0.5)
    assert share[1] < 0.6 * share[0]
    assert some["predicted_s"][2] == pytest.approx(some["predicted_s"][0], rel=0.02)
    assert some["memory_bytes"][2] > 1.5 * some["memory_bytes"][0]


def test_tensor_parallelism_over_nodes_is_slow(ask):
    inside, across = ask({"tp": 8}, {"tp": 16}, row=WIDE)["exposed_comm_s"]
    assert across > 2 * inside


def test_recomputing_everything_takes_a_third_more(ask):
    none, full = ask({"recompute": "none"}, {"recompute": "full"}).to_dict("records")
    assert 1.25 < full["compute_s"] / none["compute_s"] < 1.36
    assert full["memory_bytes"] < none["memory_bytes"]


def test_recomputation_that_saves_nothing_is_said(ask):
    """Fused attention writes no scores that could be recomputed; unfused attention does."""
    ways = [
        {"recompute": mode, "attention": attention}
        for attention in ("fused", "unfused")
        for mode in ("none", "selective")
    ]
    found = ask(*ways, row=ROW | {"seq": 2048})
    said = found["note"].str.contains("selective recomputation saves nothing")
    assert said.tolist() == [False, True, False, False]
    fused, again, unfused, saved = found["memory_bytes"]
    assert fused == again
    assert saved < unfused


def test_sequence_and_context_parallelism_divide_activations(ask):
    tensor = {"tp": 8, "recompute": "none", "seq": 8192}
    plain, sequence = ask(tensor | {"seq_parallel": "no"}, tensor | {"seq_parallel": "yes"})[
        "memory_bytes"
    ]
    assert sequence < plain
    whole, divided = ask(*({"cp": cp, "seq": 32768, "sharding": "none"} for cp in (1, 2)))[
        "memory_bytes"
    ]
    states = 16 * load_shape("llama3-8b").parameters
    assert (divided - states) / (whole - states) == pytest.approx(0.5, abs=0.1)


def test_eight_bits_are_quicker_by_less_than_their_peak(ask):
    """1.3 to 1.6 times on an H100, whose peak doubles."""
    wide, narrow = ask({"precision": "bf16"}, {"precision": "fp8"}, row=WIDE | {"micro_batch": 2})[
        "predicted_s"
    ]
    assert 1.25 < wide / narrow < 1.65


def test_later_devices_are_no_slower(ask):
    old, same_chip, new = ask(*({"gpu": one} for one in ("h100", "h200", "b200")))["predicted_s"]
    assert old >= same_chip > 1.5 * new


def test_fewer_heads_of_keys_and_values_save_time_and_memory(ask):
    own = dict(model="", family="llama", hidden=4096, heads=32, layers=32, ffn=14336, vocab=128256)
    every, some = ask(*(own | {"seq": 8192, "kv_heads": n} for n in (32, 8))).to_dict("records")
    assert some["predicted_s"] < every["predicted_s"]
    assert some["memory_bytes"] < every["memory_bytes"]


def test_the_share_of_attention_grows_with_the_sequence(ask):
    """Seconds of a token rise, the more the longer sequences are."""
    rows = [{"seq": seq, "global_batch": 64 * 4096 // seq} for seq in (2048, 8192, 32768)]
    short, middle, long = ask(*rows)["compute_s"]
    assert short < middle < long
    assert long - middle > 2 * (middle - short)


def test_more_processors_for_a_given_batch_take_less_time(ask):
    few, some, many = ask(*({"n_gpus": n, "global_batch": 512} for n in (8, 64, 512)))[
        "predicted_s"
    ]
    assert few > 7 * some > 40 * many


FRAMEWORKS = ("megatron_core", "megatron", "megatron_deepspeed", "torchtitan", "gpt_neox")
MODELS = ("llama2-7b", "llama3-8b", "gpt3-175b", "qwen3-30b-a3b")


@pytest.fixture(scope="module")
def layouts():
    """Forty layouts drawn at random, of those that run."""
    random, drawn = np.random.default_rng(0), []
    while len(drawn) < 40:
        tp, pp, dp, accumulations = (
            int(random.choice(one)) for one in ((1, 2, 4, 8), (1, 2, 4), (1, 2, 8, 16), (1, 2, 4))
        )
        row = {"model": random.choice(MODELS), "framework": random.choice(FRAMEWORKS)}
        row |= {"tp": tp, "pp": pp, "dp": dp, "n_gpus": tp * pp * dp, "vp": 1}
        row |= {"micro_batch": int(random.choice((1, 2))), "grad_accum": pp * accumulations}
        shape = load_shape(row["model"])
        if shape.key_heads % tp == 0 and (row["n_gpus"] <= 8 or row["n_gpus"] % 8 == 0):
            drawn.append(row)
    fixed = {"gpu": "h100_sxm", "precision": "bf16", "sharding": "zero1", "recompute": "none"}
    return pd.DataFrame(drawn).assign(**fixed, seq_parallel=True)


@pytest.mark.parametrize(
    ("more", "less", "column", "most"),
    [  # links of a B200's box and of a rack of GB200s were measured apart: see below
        ({"schedule": "gpipe"}, {"schedule": "1f1b"}, "memory_bytes", np.inf),
        ({"schedule": "1f1b"}, {"schedule": "zero_bubble"}, "predicted_s", 1.5),
        ({"sharding": "none"}, {"sharding": "zero1"}, "memory_bytes", np.inf),
        ({"sharding": "zero1"}, {"sharding": "zero2"}, "memory_bytes", np.inf),
        ({"recompute": "full"}, {"recompute": "none"}, "predicted_s", 1.45),
        ({"recompute": "none"}, {"recompute": "full"}, "memory_bytes", np.inf),
        ({"seq_parallel": False}, {"seq_parallel": True}, "memory_bytes", np.inf),
        ({"gpu": "h800_sxm"}, {"gpu": "h100_sxm"}, "predicted_s", 3.0),
        ({"gpu": "h200_sxm"}, {"gpu": "b200_sxm"}, "predicted_s", 3.0),
        ({"gpu": "b200_sxm"}, {"gpu": "gb200"}, "predicted_s", 3.0),
        ({"gpu": "a100_sxm_80gb"}, {"gpu": "h100_sxm"}, "predicted_s", 3.0),
    ],
)
def test_what_costs_more_does_so_in_every_layout(ask, layouts, more, less, column, most):
    """Parts of each step add up to it, inside its interval."""
    frames = [layouts.assign(**one).to_dict("records") for one in (more, less)]
    found = [predict_steps(pd.DataFrame(one), cache=ask.cache).frame for one in frames]
    both = found[0][column].notna() & found[1][column].notna()
    assert both.sum() >= 10
    ratio = (found[0][column] / found[1][column])[both]
    least = 0.98 if less.get("gpu") == "gb200" else 1 - 1e-4
    assert (ratio > least).all(), layouts[both][ratio <= least].to_dict("records")
    assert (ratio < most).all()
    parts = ("compute_s", "exposed_comm_s", "bubble_s", "host_s")
    for one in found:
        some = one[one["predicted_s"].notna()]
        assert sum(some[part] for part in parts).to_numpy() == pytest.approx(some["predicted_s"])
        assert (some["low_s"] <= some["predicted_s"]).all()
        assert (some["predicted_s"] <= some["high_s"]).all()
