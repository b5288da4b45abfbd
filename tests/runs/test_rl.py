"""Steps of reinforcement learning: lengths, packing, composition, what is refused, plans."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.runs.rl.framework import algorithms, rl_frameworks
from hybridperf.runs.rl.lengths import answer_lengths, packed
from hybridperf.runs.rl.plan import plan_report, rl_plan
from hybridperf.runs.rl.settings import config_of
from hybridperf.runs.rl.step import composed, trained

ROW = {
    "framework": "nemo_rl", "release": "0.5", "model": "llama3-8b", "gpu": "h100_sxm",
    "n_gpus": 16, "rollouts": 512, "train_batch": 256, "mean_length": 600, "max_length": 2048,
    "train_pp": 2,
}  # fmt: skip


def test_lengths_have_their_mean_and_end_at_the_longest() -> None:
    lengths = answer_lengths(4000, 4000, 900.0, 4000, 0.8)
    assert lengths.mean() == pytest.approx(900.0, rel=0.01)
    assert (np.diff(lengths) >= 0).all()
    assert lengths[-1] == 4000
    # one engine of many: the longest answer of all is on it
    one = answer_lengths(50, 4000, 900.0, 10**6, 0.8)
    assert one[-1] > answer_lengths(50, 50, 900.0, 10**6, 0.8)[-1]


def test_samples_are_packed_longest_first() -> None:
    assert packed(np.array([5, 5, 3, 3, 2, 2]), 10) == 2
    assert packed(np.array([6, 6, 6]), 10) == 3


def test_parts_follow_each_other_or_run_side_by_side() -> None:
    config = config_of(ROW)
    parts = {"generate": 5.0, "logprob": 1.0, "train": 2.0, "refit": 0.5, "prepare": 0.25}
    assert composed(config, parts) == 8.75
    apart = dataclasses.replace(config, train_gpus=8, staleness=1)
    assert composed(apart, parts) == 5.5  # the trainer waits
    assert composed(apart, parts | {"train": 7.0}) == 8.75  # engines wait
    # on-policy nobody can work ahead, wherever it is
    assert composed(dataclasses.replace(apart, staleness=0), parts) == 8.75


def test_a_table_is_answered_part_by_part() -> None:
    rows = pd.DataFrame([ROW, ROW | {"policy": "1-step off"}, ROW | {"model": "llama9"}])
    found = hp.predict_rl(rows.assign(tokens_per_s_gpu=1.0))
    on, off = found.iloc[0], found.iloc[1]
    assert on["low_s"] < on["predicted_s"] < on["high_s"]
    names = ["generate_s", "logprob_s", "train_s", "refit_s"]
    prepare_s = on["predicted_s"] - on[names].sum()
    assert prepare_s == pytest.approx(4.0)
    assert off["predicted_s"] < on["predicted_s"]
    assert off["train_s"] == pytest.approx(2.0 * on["train_s"], rel=0.1)  # on half of the GPUs
    assert off["idle_s"] > 0 == on["idle_s"]
    assert "train_gpus 8 assumed" in off["note"]
    assert np.isnan(found["predicted_s"].iloc[2])
    assert "unknown model" in found["note"].iloc[2]
    assert (found["given_tokens_per_s_gpu"] == 1.0).all()
    tokens = 512 * (128 + 600) / 16
    assert on["tokens_per_s_gpu"] == pytest.approx(tokens / on["predicted_s"])


def test_log_probabilities_are_forward_passes_of_the_same_trainer() -> None:
    config = config_of(ROW | {"recompute": "none"})
    bare = config.habits.model_copy(update={"train_longer": 1.0, "forward_longer": 1.0})
    one = trained([dataclasses.replace(config, habits=bare, forwards=1)])[0]
    # of three passes of matrices one; the optimizer and gradients' messages are none
    assert 0.2 < one.logprob_s / one.train_s < 0.4
    two = trained([dataclasses.replace(config, habits=bare, forwards=2)])[0]
    assert two.logprob_s == pytest.approx(2.0 * one.logprob_s)


def test_longer_answers_and_older_rollouts() -> None:
    step = hp.rl(ROW)
    longer = hp.rl(ROW | {"max_length": 4096})
    assert longer.parts["generate"] > step.parts["generate"]  # its end alone: the mean is the same
    apart = ROW | {"n_gpus": 32, "train_gpus": 28, "train_pp": 1, "train_batch": 512}
    one, four = (hp.rl(apart | {"staleness": many}) for many in (1, 4))
    assert four.parts["generate"] < one.parts["generate"]  # one batch ends beside the next


def test_algorithms_differ_by_what_runs_beside_the_policy() -> None:
    grpo, ppo, dapo = (hp.rl(ROW | {"algorithm": name}) for name in ("grpo", "ppo", "dapo"))
    assert ppo.parts["train"] == pytest.approx(2.0 * grpo.parts["train"])
    assert ppo.parts["logprob"] == pytest.approx(1.5 * grpo.parts["logprob"])
    assert dapo.parts["logprob"] == pytest.approx(0.5 * grpo.parts["logprob"])
    assert dapo.parts["generate"] > grpo.parts["generate"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"group": 100}, "groups that divide the 512 rollouts"),
        ({"train_batch": 300}, "train_batch that divides the 512 rollouts"),
        ({"staleness": -1}, "0 or more"),
        ({"policy": "1-step off", "colocated": "yes"}, "colocated with a staleness of 0"),
        ({"policy": "on", "staleness": 2}, "policy and staleness to say the same"),
        ({"gen_tp": 3}, "engines that share the 16 GPUs"),
        ({"train_pp": 3}, "tp x pp x cp of the trainer to divide its 16 GPUs"),
        ({"mean_length": 4000}, "mean_length from 1 to the 2048"),
        ({"model": "llama3-70b"}, "room for the longest answer"),
        ({"framework": "nobody_rl"}, "unknown framework"),
        ({"rollouts": None}, "expected rollouts"),
        ({"train_gpuz": 8}, "did you mean"),
    ],
)
def test_what_cannot_be_is_one_sentence(change, says) -> None:
    row = {name: value for name, value in (ROW | change).items() if value is not None}
    with pytest.raises(hp.InputError, match=says.replace("(", r"\(")) as caught:
        hp.rl(row)
    assert "\n" not in str(caught.value)


def test_a_plan_ranks_ways_and_says_how_sure() -> None:
    fields = {"rollouts": 256, "train_batch": 128, "mean_length": 300, "max_length": 1024}
    found = rl_plan("llama3-8b", "dgx_h100", 8, fields | {"staleness": 1})
    table = found.table
    assert (np.diff(table["predicted_s"]) >= 0).all()
    assert {"shared", "apart"} == {*table["place"]}
    assert table["chance"].sum() == pytest.approx(1.0)
    assert (table["train_gpus"] + table["gen_gpus"] * (table["place"] == "apart") == 8).all()
    # a row of the plan asked again is the same step
    best = found.steps[0]
    said = {**fields, "model": "llama3-8b", "gpu": "h100_sxm", "system": "dgx_h100", "n_gpus": 8}
    layout = {f"train_{name}": best.config.layout[name] for name in ("tp", "pp")}
    place = {"gen_tp": best.config.ranks[0], "recompute": best.config.layout["recompute"]}
    if best.config.apart:
        place |= {"train_gpus": best.config.train_gpus, "staleness": best.config.staleness}
    assert hp.rl(said | layout | place).seconds == pytest.approx(best.seconds)
    assert "samples/s" in plan_report(found, 3)
    with pytest.raises(hp.InputError, match="expected a way to train"):
        rl_plan("llama3-405b", "dgx_h100", 8, fields)


def test_habits_have_sources() -> None:
    assert {"nemo_rl", "verl", "openrlhf", "slime", "trl"} <= {*rl_frameworks()}
    assert all(len(one.source) > 20 for one in rl_frameworks().values())
    assert all(len(one.source) > 20 for one in algorithms().values())
