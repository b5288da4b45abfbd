"""`hybridperf steps`: rows in, predictions out, in order and with reasons; accuracy on measured steps that were held out."""

import json

import numpy as np
import pandas as pd
import pytest

from hybridperf.io import InputError
from hybridperf.steps import adaptation as adaptations
from hybridperf.steps.adaptation import Adaptation
from hybridperf.steps.batch import Bank
from hybridperf.steps.predict import COLUMNS, predict_steps

ROW = dict(
    source="vtrain_made", family="gpt", gpu="a100_sxm4_80g", n_gpus=8, gpus_per_node=8, hidden=1024, heads=16, layers=12, seq=1024,
    vocab=50304, global_batch=32, micro_batch=4, tp=2, dp=2, pp=2, precision="fp16", recompute="none", schedule="1f1b",
)  # fmt: skip


@pytest.fixture(scope="module")
def bank():
    """Prices once for all tests."""
    return Bank()


def rows(*changes):
    return pd.DataFrame([ROW | change for change in changes])


def test_rows_keep_order_and_columns(bank):
    frame = rows({"id": "a", "tokens_per_s": 1.0}, {"id": "b", "tp": 3}, {"id": "c", "layers": 24, "mine": "x"})
    out = predict_steps(frame, bank=bank).frame
    assert list(out["id"]) == ["a", "b", "c"]
    assert list(out["mine"].dropna()) == ["x"]
    assert out["given_tokens_per_s"][0] == 1.0
    assert set(COLUMNS) <= set(out)
    assert out["predicted_s"].isna().tolist() == [False, True, False]
    assert "row 2 (b)" in out["note"][1]
    good = out.dropna(subset="predicted_s")
    assert (good["low_s"] < good["predicted_s"]).all()
    assert (good["predicted_s"] < good["high_s"]).all()
    assert (good[["compute_s", "exposed_comm_s", "bubble_s"]].sum(axis=1) <= good["predicted_s"] * 1.001).all()
    assert good["tokens_per_s"].to_numpy() == pytest.approx(32 * 1024 / good["predicted_s"].to_numpy())
    assert ((good["mfu"] > 0) & (good["mfu"] < 0.6)).all()
    assert good["fits"].all()


def test_without_rows_the_note_says_so(bank):
    assert "no measured steps" in predict_steps(rows({}), bank=bank).frame["note"][0]


@pytest.mark.parametrize(
    ("changes", "direction"),
    [
        ({"layers": 24}, 1), ({"global_batch": 64}, 1), ({"recompute": "full"}, 1), ({"vocab": 50257, "tp": 1, "dp": 4}, 0),
        ({"pp": 1, "dp": 4}, -1), ({"hidden": 2048}, 1),
    ],
)  # fmt: skip
def test_more_work_takes_longer(bank, changes, direction):
    frame = rows({}, changes)
    one, other = predict_steps(frame, bank=bank).frame["predicted_s"]
    assert np.isfinite([one, other]).all()
    assert direction == 0 or (other - one) * direction > 0


def test_a_vocabulary_that_tensor_cores_cannot_load_whole_costs_a_multiple_of_its_head(bank):
    alone = {"tp": 1, "pp": 1, "dp": 8}
    aligned, not_aligned = predict_steps(rows({**alone, "vocab": 50304}, {**alone, "vocab": 50257}), bank=bank).frame["predicted_s"]
    assert not_aligned > 1.08 * aligned


def made_rows(count=40, seed=0):
    """Rows whose steps took 1.25 times what is believed without rows, but for noise."""
    rng = np.random.default_rng(seed)
    frame = rows(
        *({"micro_batch": int(m), "layers": int(layers), "global_batch": int(m) * 8, "hidden": int(hidden)} for m, layers, hidden in zip(
            rng.choice([1, 2, 4], count), rng.choice([12, 24], count), rng.choice([1024, 2048], count), strict=True))
    )  # fmt: skip
    return frame, rng


@pytest.fixture(scope="module")
def fitted(bank):
    frame, rng = made_rows()
    believed = predict_steps(frame, bank=bank).frame["predicted_s"]
    frame["step_time_s"] = 1.25 * believed * np.exp(0.01 * rng.standard_normal(len(frame)))
    return frame, predict_steps(frame.iloc[20:], fit_on=frame.iloc[:20], bank=bank)


def test_measured_rows_adapt_predictions_of_others(fitted):
    frame, found = fitted
    measured = frame["step_time_s"].iloc[20:]
    assert np.abs(found.frame["predicted_s"] / measured - 1).mean() < 0.05
    assert "no measured steps" not in found.frame["note"].iloc[0]


def test_saved_knobs_predict_the_same(fitted, bank, tmp_path):
    frame, found = fitted
    found.adaptation.save(tmp_path / "knobs.json")
    again = predict_steps(frame.iloc[20:], knobs=Adaptation.load(tmp_path / "knobs.json"), bank=bank).frame
    for name in ("predicted_s", "low_s", "high_s"):
        assert again[name].to_numpy() == pytest.approx(found.frame[name].to_numpy(), rel=1e-6)


def test_damaged_knobs_are_refused(fitted, tmp_path):
    path = tmp_path / "knobs.json"
    fitted[1].adaptation.save(path)
    document = json.loads(path.read_text())
    next(iter(document["groups"].values()))["covariance"] = [[1.0]]
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match="damaged"):
        Adaptation.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"groups": []}, {"groups": 3}, {"recompute": [1]}, {"recompute": {"a": "bananas"}}, {"likelihoods": 1}, {"host": 4},
        {"provenance": 3}, {"noise": float("nan")}, {"noise": "much"}, {"knobs": {"gemm": float("nan")}}, {"knobs": 1}, {"cells": "x"},
        {"rows": [1]},
    ],
)  # fmt: skip
def test_knobs_of_wrong_kinds_are_refused_by_the_file_s_name(fitted, tmp_path, change):
    path = tmp_path / "knobs.json"
    fitted[1].adaptation.save(path)
    document = json.loads(path.read_text())
    (name,) = change
    where = document if name in document else next(iter(document["groups"].values()))
    where[name] = where[name] | change[name] if name == "knobs" and isinstance(change[name], dict) else change[name]
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"knobs\.json") as caught:
        Adaptation.load(path)
    assert "\n" not in str(caught.value)


def test_fitting_on_two_rows_is_refused(fitted, bank):
    with pytest.raises(InputError, match=r"expected 3 or more measured steps .* got at most 2, of megatron_deepspeed on Ampere"):
        predict_steps(rows({}), fit_on=fitted[0].iloc[:2], bank=bank)


def test_times_in_milliseconds_are_noticed(fitted, bank):
    frame = fitted[0].iloc[:20]
    with pytest.raises(InputError, match="expected step_time_s of whole steps in seconds"):
        predict_steps(rows({}), fit_on=frame.assign(step_time_s=1000 * frame["step_time_s"]), bank=bank)


def test_a_row_that_cannot_be_priced_is_named(bank, monkeypatch):
    def fails(*_):
        raise InputError("expected something else")

    monkeypatch.setattr("hybridperf.steps.batch.features", fails)
    notes = predict_steps(rows({"id": "a"}, {}), bank=bank).frame["note"]
    assert list(notes) == ["row 1 (a): expected something else", "row 2: expected something else"]


def test_groups_borrow_from_the_nearest(fitted):
    known = fitted[1].adaptation
    (group,) = known.groups
    assert known.of(group)[1] == group
    assert known.of("megatron_deepspeed on hopper")[1] == group
    assert known.of("nanotron on hopper")[1] == ""


def test_rows_that_did_not_run_are_not_fitted(fitted, bank):
    frame = fitted[0].copy()
    frame["status"] = ["OOM", *["ok"] * (len(frame) - 1)]
    said = predict_steps(frame.iloc[:2], fit_on=frame, bank=bank).said
    assert any("1 of 40 rows" in sentence for sentence in said)


def test_fitting_on_nothing_is_refused(bank):
    with pytest.raises(InputError, match="step_time_s"):
        predict_steps(rows({}), fit_on=rows({}), bank=bank)
    with pytest.raises(InputError, match="none that ran"):
        predict_steps(rows({}), fit_on=rows({}).assign(step_time_s=np.nan), bank=bank)


def test_the_command_writes_predictions_and_knobs(fitted, run, tmp_path):
    frame = fitted[0]
    frame.iloc[:20].to_csv(tmp_path / "train.csv", index=False)
    planned = pd.concat([frame.iloc[20:24], rows({"pp": 64})], ignore_index=True)
    planned.to_csv(tmp_path / "rows.csv", index=False)
    out, knobs = tmp_path / "out.csv", tmp_path / "knobs.json"
    status, printed, err = run("steps", tmp_path / "rows.csv", "--fit-on", tmp_path / "train.csv", "--save-knobs", knobs, "--out", out)
    assert status == 3
    assert "4 of 5 rows predicted" in printed
    assert "1 rows not predicted" in err
    first = pd.read_csv(out)
    status, _, _ = run("steps", tmp_path / "rows.csv", "--knobs", knobs, "--out", tmp_path / "again.csv")
    assert status == 3
    assert pd.read_csv(tmp_path / "again.csv")["predicted_s"][:4].to_numpy() == pytest.approx(first["predicted_s"][:4].to_numpy())


def test_options_that_contradict_each_other_are_refused(refused, fitted, tmp_path):
    fitted[0].to_csv(tmp_path / "rows.csv", index=False)
    fitted[1].adaptation.save(tmp_path / "knobs.json")
    where = ("steps", tmp_path / "rows.csv", "--out", tmp_path / "out.csv")
    assert "--fit-on" in refused(*where, "--save-knobs", tmp_path / "other.json")
    assert "both" in refused(*where, "--knobs", tmp_path / "knobs.json", "--fit-on", tmp_path / "rows.csv")


def test_wrong_options_and_files_are_refused_before_anything_is_written(refused, fitted, tmp_path):
    fitted[0].to_csv(tmp_path / "rows.csv", index=False)
    rows({}).to_csv(tmp_path / "unmeasured.csv", index=False)
    out = tmp_path / "out.csv"
    where = ("steps", tmp_path / "rows.csv", "--out", out)
    for option in ("--device", "--system", "--host", "--knobs", "--fit-on"):
        assert "nosuch" in refused(*where, option, tmp_path / "nosuch.csv")
    assert "nosuch" in refused("steps", tmp_path / "nosuch.csv", "--out", out)
    sentence = refused(*where, "--fit-on", tmp_path / "rows.csv", "--fit-on", tmp_path / "unmeasured.csv")
    assert "unmeasured.csv" in sentence
    assert "step_time_s" in sentence
    assert not out.exists()


# --- accuracy ---------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_node(data_dir):
    frame = pd.read_csv(data_dir / "training_steps" / "vtrain_steps_dev.csv.gz")
    return frame[frame["source"] == "vtrain_single_node"].reset_index(drop=True)


def error(frame, measured_s):
    return float(np.abs(frame["predicted_s"].to_numpy() / measured_s - 1).mean())


def null_error(frame):
    """Of a constant MFU, the median one of the rows themselves."""
    work = frame["global_batch"] * frame["layers"] * frame["hidden"] ** 2 * frame["seq"] / frame["n_gpus"]
    rate = np.median(work / frame["step_time_s"])
    return float(np.abs(work / rate / frame["step_time_s"] - 1).mean())


def test_one_node_without_any_measured_step(one_node, bank):
    found = predict_steps(one_node.drop(columns="step_time_s"), bank=bank).frame
    assert error(found, one_node["step_time_s"]) < 0.1
    assert null_error(one_node) > 0.5
    inside = (found["low_s"] <= one_node["step_time_s"]) & (one_node["step_time_s"] <= found["high_s"])
    assert inside.mean() > 0.8


def test_one_node_from_thirty_measured_steps(one_node, bank):
    errors, covered = [], []
    for seed in range(3):
        use = np.random.default_rng(seed).choice(len(one_node), 30, replace=False)
        rest = one_node.drop(index=use)
        found = predict_steps(rest, fit_on=one_node.iloc[use], bank=bank).frame
        errors.append(error(found, rest["step_time_s"].to_numpy()))
        covered.append(((found["low_s"] <= rest["step_time_s"]) & (rest["step_time_s"] <= found["high_s"])).mean())
    assert np.mean(errors) < 0.04
    assert 0.75 < np.mean(covered) < 0.98


def test_what_rows_say_of_recomputation_is_tested(one_node, bank):
    """Labelled full, they behave as if nothing was recomputed (training_steps.md 2.4)."""
    adapted, said = adaptations.adaptation(one_node.iloc[::6], bank)
    found = adapted.likelihoods["vtrain_single_node"]
    assert max(found, key=lambda mode: found[mode]) != "full"
    assert adapted.recompute["vtrain_single_node"] != "full"
    assert any("recompute" in sentence for sentence in said)
