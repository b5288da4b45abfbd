"""`hybridperf steps`: rows in, predictions out, in order and with reasons; accuracy on measured
steps that were held out.
"""

import dataclasses
import itertools
import json
import operator
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from support.entered import entered_again, files_entered

import hybridperf as hp
from hybridperf.engine.closed import step_seconds
from hybridperf.engine.evaluate import makespan
from hybridperf.engine.lower import lower
from hybridperf.io import InputError
from hybridperf.io.documents import with_checksum
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.model import adapted_steps
from hybridperf.model.adapted_steps import Adaptation
from hybridperf.model.calls import CallChain
from hybridperf.model.step_effects import NAMES, StepEffects
from hybridperf.training.steps import adapt
from hybridperf.training.steps import adaptation as adaptations
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.predict import COLUMNS, predict_steps
from hybridperf.training.steps.rows import ResolvedRows
from hybridperf.workloads.transformer.step import transformer

ROW = dict(
    source="vtrain_made", family="gpt", gpu="a100_sxm4_80g", n_gpus=8, gpus_per_node=8, hidden=1024,
    heads=16, layers=12, seq=1024, vocab=50304, global_batch=32, micro_batch=4, tp=2, dp=2, pp=2,
    precision="fp16", recompute="none", schedule="1f1b",
)  # fmt: skip


ALL_ONE = StepEffects(
    **{name: 1e-12 if name.endswith(("_s", "_shown", "_gpus")) else 1.0 for name in NAMES}
)  # nothing is launched or exposed
PARTS = ["compute_s", "exposed_comm_s", "bubble_s", "host_s"]
DOUBTED = {"source": "vtrain_single_node", "recompute": "full"}
LARGE = {
    "hidden": 12288,
    "heads": 96,
    "layers": 96,
    "tp": 8,
    "dp": 1,
    "pp": 1,
    "global_batch": 8,
    "micro_batch": 8,
    "seq": 2048,
}


@pytest.fixture(scope="module")
def cache():
    """Prices once for all tests."""
    return PriceCache()


def rows(*changes):
    return pd.DataFrame([ROW | change for change in changes])


def test_rows_keep_order_and_columns(cache):
    frame = rows(
        {"id": "a", "tokens_per_s": 1.0},
        {"id": "b", "tp": 3},
        {"id": "c", "layers": 24, "mine": "x"},
    )
    out = predict_steps(frame, cache=cache).frame
    assert list(out["id"]) == ["a", "b", "c"]
    assert list(out["mine"].dropna()) == ["x"]
    assert out["given_tokens_per_s"][0] == 1.0
    assert set(COLUMNS) <= set(out)
    assert out["predicted_s"].isna().tolist() == [False, True, False]
    assert "row 2 (b)" in out["note"][1]
    good = out.dropna(subset="predicted_s")
    assert (good["low_s"] < good["predicted_s"]).all()
    assert (good["predicted_s"] < good["high_s"]).all()
    assert good[PARTS].sum(axis=1).to_numpy() == pytest.approx(
        good["predicted_s"].to_numpy(), rel=1e-12
    )
    assert good["tokens_per_s"].to_numpy() == pytest.approx(
        32 * 1024 / good["predicted_s"].to_numpy()
    )
    assert ((good["mfu"] > 0) & (good["mfu"] < 0.6)).all()
    assert good["fits"].all()


def test_without_rows_the_note_says_so(cache):
    assert "no measured steps" in predict_steps(rows({}), cache=cache).frame["note"][0]


@pytest.mark.parametrize(
    ("changes", "direction"),
    [
        ({"layers": 24}, 1),
        ({"global_batch": 64}, 1),
        ({"recompute": "full"}, 1),
        ({"vocab": 50257, "tp": 1, "dp": 4}, 0),
        ({"pp": 1, "dp": 4}, -1),
        ({"hidden": 2048}, 1),
    ],
)
def test_more_work_takes_longer(cache, changes, direction):
    frame = rows({}, changes)
    one, other = predict_steps(frame, cache=cache).frame["predicted_s"]
    assert np.isfinite([one, other]).all()
    assert direction == 0 or (other - one) * direction > 0


def test_a_vocabulary_that_tensor_cores_cannot_load_whole_costs_a_multiple_of_its_head(cache):
    alone = {"tp": 1, "pp": 1, "dp": 8}
    aligned, not_aligned = predict_steps(
        rows({**alone, "vocab": 50304}, {**alone, "vocab": 50257}), cache=cache
    ).frame["predicted_s"]
    assert not_aligned > 1.08 * aligned


# --- a row by itself ------------------------------------------------------------------------------


def same(one, other):
    """Two predictions of one row are the same, but for the order of sums."""
    assert one["note"].removeprefix("row 1: ") == other["note"].removeprefix("row 1: ")
    for name in COLUMNS[:-1]:
        assert one[name] == pytest.approx(other[name], rel=1e-9, nan_ok=True), name


def test_a_row_passes_no_more_files_than_it_did(cache):
    """Each is read by whoever asks how a row is predicted; fewer are better, 15 are the aim. Two
    are those that read the columns of every question (`fields/`).
    """
    predict_steps(rows({}), cache=cache)
    entered = files_entered(lambda: predict_steps(rows({}), cache=cache))
    assert "training/steps/predict.py" in entered
    assert len(entered) <= 30, sorted(entered)


@pytest.fixture(scope="module")
def h100() -> hp.PerfModel:
    return hp.load_model("h100_sxm").with_collectives(hp.load_collectives("dgx_h100"))


TABLES = tuple(hp.Table(f"t{at}", 1e5 * at, 64, 20, access=hp.Zipf(0.9, 150)) for at in range(1, 9))
STEPS = {
    "transformer": lambda: hp.transformer(
        hp.TransformerConfig(hp.load_shape("llama2-7b"), hp.Layout(dp=8, zero=1, accumulation=4))
    ),
    "dlrm": lambda: hp.dlrm(hp.DlrmConfig(4096, 13, (512, 64), (512, 1), TABLES, ranks=8)),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_prediction_goes_back_and_forth_no_more_than_it_did(h100, name):
    """At most eight returns to a file. Formulas (`ops/`) are asked by whoever needs a count, and
    each asks for its namespace (stages of a price, too, which serve traced functions), as the
    process does by which an H100's lookups go with an H200's (whose correction is one more to
    enter); a norm asks its knobs for the form, for its floor and for whether its kernel was met;
    stages of a price ask a batch what it is, who knows it, and the device what it has; rows of
    collectives which sizes were measured, and how near others lie; everything
    else prices and composes, once.
    """
    step = STEPS[name]()
    hp.predict(h100, step)
    again = entered_again(lambda: hp.predict(h100, step))
    for most, rooms in ((47, ("io/",)), (25, ("ops/",)), (13, ("learning/",)),
        (40, ("model/batch.py", "model/stages/")), (16, ("collectives/", "hardware/")), (8, ("",)),
    ):  # fmt: skip
        those = {file: again.pop(file) for file in [*again] if file.startswith(rooms)}
        assert max(those.values()) <= most, Counter(those).most_common(9)


def test_rows_that_ask_the_same_are_answered_once_and_keep_what_is_their_own(cache, monkeypatch):
    """Three rows, two questions: one that contradicts its own rate, one as it is, one refused."""
    table = rows({"step_time_s": 1.0, "tokens_per_s": 1.0}, {}, {"tp": 3})
    asked = []
    priced = PriceCache.priced
    monkeypatch.setattr(
        PriceCache, "priced", lambda self, some: asked.append(len(some)) or priced(self, some)
    )
    found = predict_steps(table, cache=cache).frame
    assert asked == [2]
    assert found["predicted_s"].iloc[0] == found["predicted_s"].iloc[1]
    flagged, plain, refused = found["note"]
    flag, rest = flagged.split("; ", 1)
    assert flag.startswith("contradiction: tokens/s 1, but batch x sequence / step time")
    assert rest == plain
    assert refused.startswith("row 3: expected tp x pp x cp x dp")


@pytest.mark.parametrize(
    "other",
    [
        {"recompute": "none"},
        LARGE,
        {"hidden": 2048},
        {"source": "mine"},  # another label; one that needs what it says; neither
    ],
)
def test_a_row_is_predicted_alike_whatever_stands_beside_it(cache, other):
    alone = predict_steps(rows(DOUBTED), cache=cache).frame.iloc[0]
    beside = predict_steps(rows(DOUBTED, DOUBTED | other), cache=cache).frame.iloc[0]
    assert "recomputation is doubtful" in alone["note"]
    same(alone, beside)


def test_doubt_needs_a_source_that_is_doubted_and_a_row_that_could_do_without(cache):
    changes = (
        DOUBTED,
        DOUBTED | LARGE,
        DOUBTED | {"source": "vtrain_multi_node"},
        DOUBTED | {"source": "mine"},
        {"source": "vtrain_single_node"},
    )
    notes = predict_steps(rows(*changes), cache=cache).frame["note"]
    assert ["doubtful" in note for note in notes] == [True, False, False, False, False]


def test_halfway_between_two_labels_the_parts_still_add_up(cache):
    found = predict_steps(rows(DOUBTED, {"recompute": "full"}, {}), cache=cache).frame
    assert found[PARTS].sum(axis=1).to_numpy() == pytest.approx(
        found["predicted_s"].to_numpy(), rel=1e-12
    )
    assert found["predicted_s"][2] < found["predicted_s"][0] < found["predicted_s"][1]


def test_labels_that_measured_rows_prefer_are_put_on_rows_that_fit_with_them(fitted, cache):
    known = Adaptation(
        fitted[1].adaptation.groups,
        {"vtrain_single_node": "none"},
        {"vtrain_single_node": {"none": 0.0, "full": -9.0}},
    )
    alone, beside = (
        predict_steps(rows(*some), knobs=known, cache=cache).frame
        for some in ([DOUBTED], [DOUBTED, DOUBTED | LARGE])
    )
    same(alone.iloc[0], beside.iloc[0])
    assert ["prefer" in note for note in beside["note"]] == [True, False]


def test_naming_the_row_s_own_system_changes_nothing(cache):
    """The cluster's own rate of a node, and a rack that counts as a node, are known by the row, not
    by the system's name.
    """
    vtrain = {"n_gpus": 64, "dp": 16, "global_batch": 256}
    rack = {
        "source": "mine",
        "gpu": "GB200",
        "n_gpus": 64,
        "gpus_per_node": None,
        "dp": 16,
        "global_batch": 256,
        "precision": "bf16",
    }
    for change, system, other in (
        (vtrain, "aic_a100_sxm", "azure_ndm_a100_v4"),
        (rack, "aic_gb200", "aic_b200_sxm"),
    ):
        frame = rows(change)
        own, named, moved = (
            predict_steps(frame, system=name, cache=cache).frame.iloc[0]
            for name in (None, system, other)
        )
        same(own, named)
        assert moved["predicted_s"] != own["predicted_s"]


# --- formats and schedules ------------------------------------------------------------------------


def test_mfu_counts_the_peak_of_the_format_that_products_run_in(cache):
    """An H100 multiplies fp8 at 1,979 TFLOP/s dense, twice its bf16; a B200 fp4 at four times."""
    h100 = {
        "source": "mine",
        "framework": "megatron_core",
        "gpu": "h100",
        "precision": "bf16",
        "hidden": 4096,
        "heads": 32,
    }
    frame = rows(h100, h100 | {"precision": "fp8"}, h100 | {"gpu": "b200", "precision": "nvfp4"})
    found = predict_steps(frame, cache=cache).frame
    tokens = 32 * 1024
    row = cache.understand(frame).rows[0].config
    for at, peak, said in ((0, 989.5e12, ""), (1, 1979e12, "fp8"), (2, 9000e12, "fp4")):
        expected = row.shape.model_flops(tokens) / (found["predicted_s"][at] * 8 * peak)
        assert found["mfu"][at] == pytest.approx(expected, rel=0.02)
        assert (f"MFU is a share of the {said} peak" in found["note"][at]) == bool(said)


UNIFORM = {
    "layers": 16,
    "hidden": 4096,
    "heads": 32,
    "tp": 1,
    "dp": 1,
    "pp": 8,
    "micro_batch": 4,
    "global_batch": 32,
    "vocab": 1024,
}


def test_chimera_and_zero_bubble_wait_less_than_1f1b(cache):
    """Eight like stages, eight micro-batches, B = 2 F: bubbles of 7, 6 F + ... as the closed forms
    say, the same work.
    """
    names = ("1f1b", "chimera", "zero_bubble")
    found = predict_steps(
        rows(*(UNIFORM | {"schedule": name, "sharding": "none"} for name in names)), cache=cache
    ).frame
    bubble = (found["bubble_s"] / found["compute_s"]).to_numpy()
    assert found["predicted_s"].notna().all()
    assert bubble[0] == pytest.approx(7 / 8, rel=0.15)
    assert bubble[1] == pytest.approx((8 * 1 / 3 + 14 * 2 / 3 - 8) / 8, rel=0.15)
    assert bubble[2] == pytest.approx(7 / 3 / 8, rel=0.25)


EXPERTS = {
    "family": "moe", "experts": 8, "topk": 2, "ffn": 4096, "ep": 8, "dp": 8, "n_gpus": 64,
    "global_batch": 512,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "more", "within"),
    [
        ("1f1b", {}, 0.015), ("chimera", {}, 0.015), ("zero_bubble", {}, 0.015),
        ("zb_v", {"global_batch": 64}, 0.015), ("dualpipe", {"global_batch": 64}, 0.015),
        ("dualpipe_v", {"global_batch": 64}, 0.015), ("zb_v", EXPERTS, 0.03),
        ("dualpipe", EXPERTS, 0.03), ("dualpipe_v", EXPERTS, 0.05),
    ],
)  # fmt: skip
def test_a_row_takes_what_the_graph_of_its_step_takes(cache, name, more, within):
    """Both priced alike, every efficiency 1, sends beside the computation: embedding, a small head,
    reduction, optimizer and all.
    """
    batch = cache.understand(rows(UNIFORM | more | {"schedule": name, "sharding": "none"}))
    prices, config = (
        cache.prices(batch.rows[0].machine),
        batch.rows[0].config.replace(overlap_sends=True),
    )
    composed = step_seconds(
        dataclasses.replace(batch.features, sends_hidden=np.ones(1)), ALL_ONE
    ).step_s[0]
    step = transformer(config, host=None)
    prices.learn(call for call in step.calls if not isinstance(call, CallChain))
    seconds = [0.0 if isinstance(call, CallChain) else prices[call] for call in step.calls]
    for at, call in enumerate(step.calls):
        if isinstance(call, CallChain):
            seconds[at] = sum(seconds[row - 1] * often for row, often in call.parts)
    graph = makespan(lower(step.graph).program, np.array(seconds, np.float32)[:, None])[0]
    assert composed == pytest.approx(float(graph), rel=within)


def test_twice_the_weights_of_chimera_are_reduced_and_updated(cache):
    one, two = cache.understand(
        rows(*(UNIFORM | {"schedule": name, "sharding": "none"} for name in ("1f1b", "chimera")))
    ).rows
    features = [cache.priced(ResolvedRows((row,))).features for row in (one, two)]
    assert features[1].optimizer_s == pytest.approx(2 * features[0].optimizer_s, rel=0.1)
    assert features[1].reduction_s > 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"schedule": "chimera", "sharding": "zero1"},
            "schedule 'chimera' with ZeRO-1 is not modelled",
        ),
        (
            {"schedule": "chimera", "vp": 2},
            "the interleaved schedule, and no other, has vp of 2 or more",
        ),
        ({"schedule": "chimera", "pp": 1, "dp": 4}, "even number of stages"),
        ({"schedule": "chimera", "micro_batch": 16}, "even number of micro-batches"),
        (
            {"schedule": "zero_bubble", "recompute": "full"},
            "schedule 'zero_bubble' with recompute is not modelled",
        ),
        (
            {"schedule": "zero_bubble", "sharding": "zero3"},
            "schedule 'zero_bubble' with ZeRO-3 is not modelled",
        ),
    ],
)
def test_schedules_without_a_closed_form_are_refused_by_name(cache, changes, says):
    found = predict_steps(rows(changes), cache=cache).frame.iloc[0]
    assert found["predicted_s"] != found["predicted_s"]
    assert says in found["note"]


# --- tables that were predicted before ------------------------------------------------------------


def test_predicting_an_output_again_changes_nothing(fitted, cache):
    """What was given counts again, and no column stands twice: a second and a third run say what
    the first did.
    """
    frame = rows({"id": "a", "tokens_per_s": 1e5, "note": "mine"}, {"id": "b"}).assign(
        step_time_s=[0.5, 0.5]
    )
    first = predict_steps(frame, cache=cache).frame
    second = predict_steps(first, cache=cache).frame
    third = predict_steps(second, cache=cache).frame
    assert not third.columns.duplicated().any()
    assert list(third["given_note"].dropna()) == ["mine"]
    pd.testing.assert_frame_equal(second, first)
    pd.testing.assert_frame_equal(third, first)


def test_an_output_can_be_fitted_on(fitted, cache):
    """Its own predictions are no claims of its rows, which would contradict their times."""
    frame = fitted[0].iloc[:20].reset_index(drop=True)
    written = predict_steps(frame, cache=cache).frame
    one, other = (predict_steps(rows({}), fit_on=some, cache=cache) for some in (frame, written))
    assert other.remarks == one.remarks
    assert other.frame["predicted_s"][0] == one.frame["predicted_s"][0]


def test_a_table_s_own_given_columns_are_kept(cache):
    found = predict_steps(rows({"note": "mine", "given_note": "theirs"}), cache=cache).frame
    assert not found.columns.duplicated().any()
    assert found["given_note"][0] == "theirs"
    assert found["given_note_2"][0] == "mine"


def made_rows(count=40, seed=0):
    """Rows whose steps took 1.25 times what is believed without rows, but for noise."""
    rng = np.random.default_rng(seed)
    frame = rows(
        *(
            {
                "micro_batch": int(m),
                "layers": int(layers),
                "global_batch": int(m) * 8,
                "hidden": int(hidden),
            }
            for m, layers, hidden in zip(
                rng.choice([1, 2, 4], count),
                rng.choice([12, 24], count),
                rng.choice([1024, 2048], count),
                strict=True,
            )
        )
    )
    return frame, rng


@pytest.fixture(scope="module")
def fitted(cache):
    frame, rng = made_rows()
    believed = predict_steps(frame, cache=cache).frame["predicted_s"]
    frame["step_time_s"] = 1.25 * believed * np.exp(0.01 * rng.standard_normal(len(frame)))
    return frame, predict_steps(frame.iloc[20:], fit_on=frame.iloc[:20], cache=cache)


def test_measured_rows_adapt_predictions_of_others(fitted):
    frame, found = fitted
    measured = frame["step_time_s"].iloc[20:]
    assert np.abs(found.frame["predicted_s"] / measured - 1).mean() < 0.05
    assert "no measured steps" not in found.frame["note"].iloc[0]


def test_saved_knobs_predict_the_same(fitted, cache, tmp_path):
    frame, found = fitted
    found.adaptation.save(tmp_path / "knobs.json")
    again = predict_steps(
        frame.iloc[20:], knobs=Adaptation.load(tmp_path / "knobs.json"), cache=cache
    ).frame
    for name in ("predicted_s", "low_s", "high_s"):
        assert again[name].to_numpy() == pytest.approx(found.frame[name].to_numpy(), rel=1e-6)


def test_damaged_knobs_are_refused(fitted, tmp_path):
    path = tmp_path / "knobs.json"
    fitted[1].adaptation.save(path)
    document = json.loads(path.read_text())
    next(iter(document["groups"].values()))["covariance"] = [[1.0]]
    path.write_text(json.dumps(with_checksum(document)))
    with pytest.raises(InputError, match="damaged"):
        Adaptation.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"groups": []},
        {"groups": 3},
        {"recompute": [1]},
        {"recompute": {"a": "bananas"}},
        {"likelihoods": 1},
        {"host": 4},
        {"provenance": 3},
        {"noise": float("nan")},
        {"noise": "much"},
        {"knobs": {"gemm": float("nan")}},
        {"knobs": 1},
        {"cells": "x"},
        {"rows": [1]},
    ],
)
def test_knobs_of_wrong_kinds_are_refused_by_the_file_s_name(fitted, tmp_path, change):
    path = tmp_path / "knobs.json"
    fitted[1].adaptation.save(path)
    document = json.loads(path.read_text())
    (name,) = change
    where = document if name in document else next(iter(document["groups"].values()))
    where[name] = (
        where[name] | change[name]
        if name == "knobs" and isinstance(change[name], dict)
        else change[name]
    )
    path.write_text(json.dumps(with_checksum(document)))
    with pytest.raises(InputError, match=r"knobs\.json") as caught:
        Adaptation.load(path)
    assert "\n" not in str(caught.value)


def test_fitting_on_two_rows_is_refused(fitted, cache):
    with pytest.raises(
        InputError,
        match=(
            r"expected 3 or more measured steps .* got at most 2, of megatron_deepspeed on Ampere"
        ),
    ):
        predict_steps(rows({}), fit_on=fitted[0].iloc[:2], cache=cache)


def test_times_in_milliseconds_are_refused(fitted, cache):
    frame = fitted[0].iloc[:20]
    with pytest.raises(
        InputError,
        match=r"expected step_time_s of whole steps in seconds, got 20 rows of .* give seconds",
    ):
        predict_steps(
            rows({}), fit_on=frame.assign(step_time_s=1000 * frame["step_time_s"]), cache=cache
        )


def test_a_row_that_cannot_be_priced_is_named(cache, monkeypatch):
    def fails(*_):
        raise InputError("expected something else")

    monkeypatch.setattr("hybridperf.training.steps.batch.features", fails)
    notes = predict_steps(rows({"id": "a"}, {}), cache=cache).frame["note"]
    assert list(notes) == ["row 1 (a): expected something else", "row 2: expected something else"]


def test_groups_borrow_from_the_nearest(fitted):
    known = fitted[1].adaptation
    (group,) = known.groups
    assert known.of(group)[1] == group
    assert known.of("megatron_deepspeed on hopper")[1] == group
    assert known.of("nanotron on hopper")[1] == ""


def test_borrowed_knobs_are_less_sure_than_a_group_s_own(fitted):
    known = fitted[1].adaptation
    (group,) = known.groups
    other = "megatron_deepspeed on hopper"
    own, borrowed = known.of(group)[0], known.of(other)[0]
    assert borrowed.noise == pytest.approx((own.noise**2 + 0.06**2) ** 0.5)
    believed = (adapted_steps.beliefs(None, one)[0] for one in (group, other))
    assert own.theta - borrowed.theta == pytest.approx(operator.sub(*believed))


def test_rows_that_did_not_run_are_not_fitted(fitted, cache):
    frame = fitted[0].copy()
    frame["status"] = ["OOM", *["ok"] * (len(frame) - 1)]
    said = predict_steps(frame.iloc[:2], fit_on=frame, cache=cache).remarks
    assert any("1 of 40 rows" in sentence for sentence in said)


def test_fitting_on_nothing_is_refused(cache):
    with pytest.raises(InputError, match="step_time_s"):
        predict_steps(rows({}), fit_on=rows({}), cache=cache)
    with pytest.raises(InputError, match="none that ran"):
        predict_steps(rows({}), fit_on=rows({}).assign(step_time_s=np.nan), cache=cache)


def test_the_command_writes_predictions_and_knobs(fitted, run, tmp_path):
    frame = fitted[0]
    frame.iloc[:20].to_csv(tmp_path / "train.csv", index=False)
    planned = pd.concat([frame.iloc[20:24], rows({"pp": 64})], ignore_index=True)
    planned.to_csv(tmp_path / "rows.csv", index=False)
    out, knobs = tmp_path / "out.csv", tmp_path / "knobs.json"
    status, printed, err = run(
        "steps",
        tmp_path / "rows.csv",
        "--fit-on",
        tmp_path / "train.csv",
        "--save-knobs",
        knobs,
        "--out",
        out,
    )
    assert status == 3
    assert "4 of 5 rows predicted" in printed
    assert "1 row not predicted" in err
    first = pd.read_csv(out)
    status, _, _ = run(
        "steps", tmp_path / "rows.csv", "--knobs", knobs, "--out", tmp_path / "again.csv"
    )
    assert status == 3
    assert pd.read_csv(tmp_path / "again.csv")["predicted_s"][:4].to_numpy() == pytest.approx(
        first["predicted_s"][:4].to_numpy()
    )


def test_the_command_takes_its_own_output(run, tmp_path):
    paths = [tmp_path / f"{name}.csv" for name in ("rows", "first", "second", "third")]
    rows({"note": "mine"}, {"schedule": "chimera"}, {"pp": 64}).to_csv(paths[0], index=False)
    said = [run("steps", before, "--out", after) for before, after in itertools.pairwise(paths)]
    assert {status for status, _, _ in said} == {3}
    assert all("columns note of" in err and "are kept as given_note" in err for _, _, err in said)
    first, second, third = (path.read_text() for path in paths[1:])
    assert second == first
    assert third == first


def test_options_that_contradict_each_other_are_refused(refused, fitted, tmp_path):
    fitted[0].to_csv(tmp_path / "rows.csv", index=False)
    fitted[1].adaptation.save(tmp_path / "knobs.json")
    where = ("steps", tmp_path / "rows.csv", "--out", tmp_path / "out.csv")
    assert "--fit-on" in refused(*where, "--save-knobs", tmp_path / "other.json")
    assert "both" in refused(
        *where, "--knobs", tmp_path / "knobs.json", "--fit-on", tmp_path / "rows.csv"
    )


def test_wrong_options_and_files_are_refused_before_anything_is_written(refused, fitted, tmp_path):
    fitted[0].to_csv(tmp_path / "rows.csv", index=False)
    rows({}).to_csv(tmp_path / "unmeasured.csv", index=False)
    out = tmp_path / "out.csv"
    where = ("steps", tmp_path / "rows.csv", "--out", out)
    for option in ("--device", "--system", "--host", "--knobs", "--fit-on"):
        assert "nosuch" in refused(*where, option, tmp_path / "nosuch.csv")
    assert "nosuch" in refused("steps", tmp_path / "nosuch.csv", "--out", out)
    sentence = refused(
        *where, "--fit-on", tmp_path / "rows.csv", "--fit-on", tmp_path / "unmeasured.csv"
    )
    assert "unmeasured.csv" in sentence
    assert "step_time_s" in sentence
    assert not out.exists()


# --- accuracy -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_node(data_dir):
    frame = pd.read_csv(data_dir / "training_steps" / "vtrain_steps_dev.csv.gz")
    return frame[frame["source"] == "vtrain_single_node"].reset_index(drop=True)


def error(frame, measured_s):
    return float(np.abs(frame["predicted_s"].to_numpy() / measured_s - 1).mean())


def null_error(frame):
    """Of a constant MFU, the median one of the rows themselves."""
    work = (
        frame["global_batch"]
        * frame["layers"]
        * frame["hidden"] ** 2
        * frame["seq"]
        / frame["n_gpus"]
    )
    rate = np.median(work / frame["step_time_s"])
    return float(np.abs(work / rate / frame["step_time_s"] - 1).mean())


def test_one_node_without_any_measured_step(one_node, cache):
    found = predict_steps(one_node.drop(columns="step_time_s"), cache=cache).frame
    assert error(found, one_node["step_time_s"]) < 0.1
    assert null_error(one_node) > 0.5
    inside = (found["low_s"] <= one_node["step_time_s"]) & (
        one_node["step_time_s"] <= found["high_s"]
    )
    assert inside.mean() > 0.8


def test_one_node_from_thirty_measured_steps(one_node, cache):
    errors, covered = [], []
    for seed in range(3):
        use = np.random.default_rng(seed).choice(len(one_node), 30, replace=False)
        rest = one_node.drop(index=use)
        found = predict_steps(rest, fit_on=one_node.iloc[use], cache=cache).frame
        errors.append(error(found, rest["step_time_s"].to_numpy()))
        covered.append(
            (
                (found["low_s"] <= rest["step_time_s"]) & (rest["step_time_s"] <= found["high_s"])
            ).mean()
        )
    assert np.mean(errors) < 0.04
    assert 0.75 < np.mean(covered) < 0.98


def test_what_rows_say_of_recomputation_is_tested(one_node, cache):
    """Labelled full, they behave as if nothing was recomputed."""
    adapted, said = adaptations.adaptation(one_node.iloc[::6], cache)
    found = adapted.likelihoods["vtrain_single_node"]
    assert max(found, key=lambda mode: found[mode]) != "full"
    assert adapted.recompute["vtrain_single_node"] != "full"
    assert any("recompute" in sentence for sentence in said)


def test_a_fabric_of_which_nothing_was_measured_widens_the_interval_as_far_as_its_collectives_reach(
    cache,
):
    """Eight A100 joined by PCIe: the prior alone says a collective within a factor of two and a
    half up and down, as boxes left out needed, and most of the step is one.
    """
    measured, prior = (
        predict_steps(
            rows({"gpu": gpu, "tp": 8, "dp": 1, "pp": 1, "precision": "bf16"}), cache=cache
        ).frame.iloc[0]
        for gpu in ("A100 SXM 80GB", "A100 PCIe 80GB")
    )
    assert "prior alone" in prior["note"]
    assert "prior alone" not in measured["note"]
    assert measured["high_s"] / measured["predicted_s"] < 2.5
    assert prior["high_s"] > prior["predicted_s"] + 1.3 * prior["exposed_comm_s"]
    assert (
        prior["predicted_s"] - prior["exposed_comm_s"] < 1.5 * prior["low_s"] + prior["host_s"]
    )  # what computes stays
    alone = predict_steps(
        rows({"gpu": "A100 PCIe 80GB", "n_gpus": 1, "tp": 1, "dp": 1, "pp": 1}), cache=cache
    ).frame.iloc[0]
    assert "prior alone" not in alone["note"]  # it exchanges nothing


def test_ops_that_were_not_measured_are_said_and_widen_the_interval(cache):
    row = {
        "n_gpus": 1,
        "tp": 1,
        "dp": 1,
        "pp": 1,
        **{name: LARGE[name] for name in ("hidden", "heads", "seq")},
        "layers": 2,
    }
    frame = predict_steps(
        rows(*({"gpu": gpu, **row} for gpu in ("V100 SXM2", "A100 SXM 80GB"))), cache=cache
    ).frame
    assert (
        "no products in fp16 of v100_sxm2 were measured: the share of the peak that a100_sxm4_80g"
        " reaches is believed" in frame["note"][0]
    )
    assert "were measured" not in frame["note"][1]
    widths = np.log(frame["high_s"] / frame["low_s"])
    assert widths[0] > 1.2 * widths[1]
    assert (frame["mfu"] < 0.9).all()


def test_measured_rows_take_away_as_much_doubt_of_a_machine_as_they_tell():
    """Of a knob that rows told all of, nothing is left open."""
    batch = PriceCache().understand(rows({"gpu": "A100 PCIe 80GB", "tp": 8, "dp": 1, "pp": 1}))
    before = adapted_steps.Adapted.before()
    sure = dataclasses.replace(before, covariance=1e-8 * before.covariance)
    widths = batch.features.unmeasured_widths
    open_, closed = (
        one.unmeasured(
            adapt.slopes(batch.features, one.theta, one.of_cells(batch.cells)[0])[1], widths
        ).max()
        for one in (before, sure)
    )
    assert open_ > 0.3 / NINE_OF_TEN
    assert closed < 1e-3
