"""A GPU fitted from a prior: no rows, few rows, rows of several families and of none; files; steps;
wrong inputs.

Times are made up: the closed form of each family with knobs of the device, a ripple over one size
that all devices share, noise of 3 %.
"""

import dataclasses
import json
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.cli.known import known
from hybridperf.engine.batches import predict_batch
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.prediction import predict
from hybridperf.engine.workload import Workload
from hybridperf.hardware import load_device
from hybridperf.io import InputError
from hybridperf.io.documents import with_checksum
from hybridperf.learning.prior import FamilyRows, train_family
from hybridperf.learning.prior.form import WAVE_ROOFLINE
from hybridperf.learning.prior.shipped import Prior
from hybridperf.learning.training import TrainingRecipe
from hybridperf.model import PerfModel, load_model
from hybridperf.model.families import FAMILIES
from hybridperf.model.fit.device import FitReport, fit
from hybridperf.ops import Copy, DecodeAttention, Elementwise, Gemm, OpCall, Softmax
from hybridperf.report import fits
from hybridperf.report.prediction import prediction_report
from hybridperf_calibration.published.ops import device_rows

QUICK = TrainingRecipe(steps=200, batch=64)
SILENT = TrainingRecipe(steps=5, batch=32)  # knobs alone
NOISE = 0.03
# one device in the prior: of more, trunks are trained that each leave one out, which takes a second
# compilation
OLD = "a100_sxm4_80g"
NEW = load_device("h100_sxm")


def gemms(device: str, number: int, seed: int, **words: str) -> pd.DataFrame:
    """Products of all sizes, in bf16 by vLLM where nothing else is said."""
    sizes = (2 ** np.random.default_rng(seed).uniform(5, 12, (number, 3))).astype(int)
    said = {"op": "gemm", "dtype": "bf16", "framework": "vllm", **words}
    return measured(pd.DataFrame(sizes, columns=["m", "n", "k"]).assign(**said), device, seed)


def softmaxes(device: str, number: int, seed: int) -> pd.DataFrame:
    sizes = (2 ** np.random.default_rng(seed).uniform(5, 12, (number, 2))).astype(int)
    return measured(
        pd.DataFrame(sizes, columns=["rows", "cols"]).assign(op="softmax", dtype="fp32"),
        device,
        seed,
    )


def measured(frame: pd.DataFrame, device: str, seed: int) -> pd.DataFrame:
    """The rows with the device and a made-up time."""
    frame = frame.assign(device=device, time_s=1.0)
    rows = family_rows(frame)
    at = (OLD, "l40s", NEW.id).index(device)
    theta = np.log([4e-6, 0.6, 0.75, 2.0, 4e-7]) + 0.15 * np.sin(np.arange(5.0) + at) * np.array(
        [1, 1, 1, 0, 1]
    )
    ripple = 0.25 * np.sin(1.5 * rows.inputs.select(rows.sizes)[:, 0])
    noise = NOISE * np.random.default_rng(seed + 1).normal(size=len(rows))
    return frame.assign(time_s=np.exp(WAVE_ROOFLINE.log_s(theta, rows.work()) + ripple + noise))


def family_rows(frame: pd.DataFrame) -> FamilyRows:
    ((_, rows),) = device_rows(frame, load_device(frame["device"].iloc[0]), "made up", Counter())
    return rows.rows


FEW = 15  # too few for networks of their own, which take long to compile


def transposes(number: int) -> pd.DataFrame:
    """An op that no family knows."""
    sizes = (2 ** np.random.default_rng(5).uniform(6, 12, (number, 2))).astype(int)
    frame = pd.DataFrame(sizes, columns=["rows", "cols"]).assign(
        op="transpose", dtype="fp32", device=NEW.id
    )
    return frame.assign(time_s=3e-6 + 8.0 * sizes.prod(1) / (0.6 * NEW.memory_bytes_per_s))


def known_by(frame: pd.DataFrame) -> tuple[FamilyRows, np.ndarray]:
    return family_rows(frame), frame["time_s"].to_numpy()


@pytest.fixture(scope="module")
def prior() -> Prior:
    matmul, softmax = {OLD: known_by(gemms(OLD, 500, 0))}, {OLD: known_by(softmaxes(OLD, 200, 9))}
    families = {
        "matmul": train_family(matmul, recipe=QUICK),
        "softmax": train_family(softmax, recipe=SILENT),
    }
    return Prior(families, {"made_by": "a test", "date": "2026-11-01"})


@pytest.fixture(scope="module")
def cold(prior: Prior) -> PerfModel:
    """Nothing was measured."""
    return fit(None, NEW, prior=prior)[0]


@pytest.fixture(scope="module")
def mixed(prior: Prior) -> tuple[PerfModel, FitReport]:
    """A few rows of two families, of an op that none knows, and of another device."""
    frames = [
        gemms(NEW.id, 60, 20),
        softmaxes(NEW.id, 40, 21),
        transposes(FEW),
        gemms("l40s", 25, 22),
    ]
    return fit(pd.concat(frames, ignore_index=True), NEW, prior=prior)


@pytest.fixture(scope="module")
def unseen() -> pd.DataFrame:
    return gemms(NEW.id, 300, 77)


def error(model: PerfModel, frame: pd.DataFrame) -> float:
    return float((model.predict_ops(frame)["predicted_s"] / frame["time_s"] - 1).abs().median())


# --- no rows --------------------------------------------------------------------------------------


def test_without_rows_the_prior_speaks_alone_and_says_so(
    cold: PerfModel, prior: Prior, unseen: pd.DataFrame
) -> None:
    out = cold.predict_ops(unseen)
    assert (out["note"] == "prior alone: no matmul of h100_sxm was measured").all()
    assert out["in_range"].all()
    assert ((out["low_s"] < out["predicted_s"]) & (out["predicted_s"] < out["high_s"])).all()
    assert error(cold, unseen) < 0.25 < error(PerfModel.datasheet(NEW), unseen)
    assert unseen["time_s"].between(out["low_s"], out["high_s"]).mean() > 0.85
    np.testing.assert_array_equal(
        out["roofline_s"], PerfModel.datasheet(NEW).predict_ops(unseen)["predicted_s"]
    )


def test_without_rows_there_is_nothing_to_report(prior: Prior) -> None:
    model, report = fit(None, NEW, prior=prior)
    assert (report.rows, len(report.table), len(report.held_out)) == (0, 0, 0)
    assert model.provenance["prior"] == {"date": "2026-11-01", "rows": {"matmul": 0, "softmax": 0}}
    assert set(model.families) == {"matmul", "softmax"}


def test_ops_that_no_family_knows_are_the_datasheets(cold: PerfModel) -> None:
    out = cold.predict_ops(transposes(5))
    assert (out["predicted_s"] == out["roofline_s"]).all()
    assert (
        out["note"]
        .str.contains("no transpose measurements in this model: datasheet roofline")
        .all()
    )


def test_beyond_what_the_prior_saw_is_said(cold: PerfModel) -> None:
    out = cold.predict_ops(
        pd.DataFrame(
            {
                "op": "gemm",
                "dtype": "bf16",
                "framework": "vllm",
                "m": [64, 10**7],
                "n": 512,
                "k": 512,
            }
        )
    )
    assert out["in_range"].tolist() == [True, False]
    assert "outside the measured range of matmul" in out["note"][1]


def test_a_row_without_framework_says_what_it_is_taken_for(
    cold: PerfModel, mixed: tuple[PerfModel, FitReport]
) -> None:
    plain = pd.DataFrame({"op": ["gemm", "matmul"], "dtype": "bf16", "m": 512, "n": 512, "k": 512})
    for model in (cold, mixed[0]):
        out = model.predict_ops(plain)
        assert out["note"].str.contains("no framework given: taken for vllm").all()
        np.testing.assert_array_equal(
            out["predicted_s"], model.predict_ops(plain.assign(framework="vllm"))["predicted_s"]
        )
        assert out["in_range"].all()


def test_an_implementation_never_met_has_the_familys_usual_knobs(cold: PerfModel) -> None:
    row = pd.DataFrame(
        {
            "op": "gemm",
            "dtype": ["bf16", "fp8"],
            "quant": ["int8_wo", "fp8"],
            "m": 512,
            "n": 512,
            "k": 512,
        }
    )
    out = cold.predict_ops(row)
    assert not out["in_range"].any()
    assert out["note"].str.contains("no such matmul was measured: usual knobs of the family").all()
    assert np.isfinite(out["predicted_s"]).all()


# --- few rows -------------------------------------------------------------------------------------


def test_few_rows_help(
    cold: PerfModel, mixed: tuple[PerfModel, FitReport], unseen: pd.DataFrame
) -> None:
    model, _ = mixed
    assert error(model, unseen) < 0.8 * error(cold, unseen)
    out = model.predict_ops(unseen)
    assert out["in_range"].mean() > 0.9
    assert (out.loc[out["in_range"], "note"] == "").all()
    assert unseen["time_s"].between(out["low_s"], out["high_s"]).mean() > 0.75


def test_every_row_is_priced_whoever_knows_it(mixed: tuple[PerfModel, FitReport]) -> None:
    model, report = mixed
    frame = pd.concat(
        [gemms(NEW.id, 10, 30), softmaxes(NEW.id, 10, 31), transposes(10)], ignore_index=True
    )
    out = model.predict_ops(frame)
    assert np.isfinite(out["predicted_s"]).all()
    assert np.isfinite(out.loc[out["op"] != "transpose", ["low_s", "high_s"]]).all(axis=None)
    assert error(model, transposes(10)) < 0.1
    assert set(report.table["op"]) == {"matmul", "softmax", "transpose"}
    assert dict(zip(report.table["op"], report.table["rows"], strict=True)) == {
        "matmul": 60,
        "softmax": 40,
        "transpose": FEW,
    }
    assert report.rows == 100 + FEW
    assert report.dropped == {"other devices": 25}
    assert model.provenance["prior"]["rows"] == {"matmul": 60, "softmax": 40}
    assert model.provenance["fit"]["rows"] == model.provenance["rows"] == 100 + FEW


def test_what_a_report_says_is_of_rows_left_out(mixed: tuple[PerfModel, FitReport]) -> None:
    _, report = mixed
    held_out = report.held_out
    assert Counter(held_out["op"]) == {"matmul": 60, "softmax": 40, "transpose": FEW}
    of_matmul = held_out[held_out["op"] == "matmul"]
    np.testing.assert_allclose(
        np.sort(of_matmul["measured_s"]), np.sort(gemms(NEW.id, 60, 20)["time_s"])
    )
    assert (of_matmul["low_s"] < of_matmul["predicted_s"]).all()
    rated = gemms(NEW.id, 60, 20).assign(
        roofline_s=PerfModel.datasheet(NEW).predict_ops(gemms(NEW.id, 60, 20))["predicted_s"]
    )
    np.testing.assert_allclose(
        np.sort(of_matmul["roofline_s"]), np.sort(rated["roofline_s"]), rtol=1e-5
    )
    line = report.table.set_index("op").loc["matmul"]
    assert line["median_ape"] < line["knobs_ape"] < line["roofline_ape"]
    assert line["share"] == 1.0
    assert "matmul" in fits.fit_report(report)


def test_one_row_is_enough(prior: Prior, cold: PerfModel, unseen: pd.DataFrame) -> None:
    model, report = fit(gemms(NEW.id, 1, 40), NEW, prior=prior)
    out = model.predict_ops(unseen)
    assert np.isfinite(out[["predicted_s", "low_s", "high_s"]]).all(axis=None)
    assert error(model, unseen) < 1.5 * error(cold, unseen)
    assert report.rows == 1


def test_few_rows_are_no_less_sure_than_none_and_no_surer_than_they_can_tell(
    prior: Prior, cold: PerfModel
) -> None:
    """A step of one op has the interval of the table's row, whatever three errors left out say."""
    model, _ = fit(gemms(NEW.id, 3, 40), NEW, prior=prior)
    graph = GraphBuilder()
    graph.op(1, label="product")
    call = OpCall(Gemm("bf16", 2048.0, 4096.0, 1024.0))
    row = pd.DataFrame({"op": "gemm", "dtype": "bf16", "m": [2048], "n": 4096, "k": 1024})
    widths = []
    for one in (cold, model):
        step = predict(one, Workload("product", graph.build(), (call,)))
        of_row = one.predict_ops(row).iloc[0]
        assert step.low_s == pytest.approx(of_row.low_s, rel=0.02)
        assert step.high_s == pytest.approx(of_row.high_s, rel=0.02)
        widths.append(of_row.high_s / of_row.low_s)
    assert widths[1] <= widths[0] * (1 + 1e-9)


def test_a_model_prices_what_it_has_not_measured_as_its_saved_one_does(tmp_path: Path) -> None:
    rows = gemms(NEW.id, 3, 40)
    model, _ = fit(rows, NEW)
    model.save(tmp_path)
    decoding = pd.DataFrame({
        "op": ["generation_attention", "adam"], "dtype": "bf16", "batch": 8, "kv_len": 512,
        "heads": 32, "head_dim": 128, "parameters": 1e6,
    })  # fmt: skip
    pd.testing.assert_frame_equal(
        model.predict_ops(decoding), load_model(tmp_path).predict_ops(decoding), rtol=1e-6
    )
    left_out = fit(rows, NEW, prior=Prior({}, {}))[0]
    assert left_out.references is None  # devices that a prior leaves out stay left out


def test_times_of_another_unit_are_refused(prior: Prior, cold: PerfModel) -> None:
    large = pd.DataFrame({"op": "gemm", "dtype": "bf16", "m": 8192, "n": 8192, "k": [4096, 8192]})
    large["time_s"] = cold.predict_ops(large)["predicted_s"]
    fit(large, NEW, prior=prior)
    for times, said in {1e6: "microseconds", 1e3: "milliseconds", 1e-3: "times shorter"}.items():
        other = large.assign(time_s=large["time_s"] * times)
        with pytest.raises(InputError, match=f"expected seconds in time_s, .*{said}"):
            fit(other, NEW, prior=prior)


def test_a_new_implementation_is_fitted_beside_the_known(prior: Prior) -> None:
    frame = gemms(NEW.id, 60, 50, framework="eager")
    model, _ = fit(frame, NEW, prior=prior)
    out = model.predict_ops(gemms(NEW.id, 60, 51, framework="eager"))
    assert (out["note"] == "").mean() > 0.8
    assert out["in_range"].mean() > 0.8


def test_the_same_rows_give_the_same_model(prior: Prior) -> None:
    models = [fit(gemms(NEW.id, 20, 20), NEW, prior=prior)[0] for _ in range(2)]
    assert models[0].fingerprint() == models[1].fingerprint()


def test_rows_of_one_family_leave_the_other_to_its_prior(prior: Prior, cold: PerfModel) -> None:
    model, _ = fit(gemms(NEW.id, 30, 41), NEW, prior=prior)
    frame = softmaxes(NEW.id, 20, 42)
    out = model.predict_ops(frame)
    assert out["note"].str.contains("prior alone: no softmax of h100_sxm").all()
    np.testing.assert_array_equal(out["predicted_s"], cold.predict_ops(frame)["predicted_s"])


def test_number_formats_that_no_family_prices_are_no_ones_claim(
    cold: PerfModel, mixed: tuple[PerfModel, FitReport]
) -> None:
    """The prior knows products on matrix units alone: what it learned there says nothing of single
    precision.
    """
    single = pd.DataFrame({"op": "gemm", "dtype": "fp32", "m": [64, 512], "n": 512, "k": 512})
    for model in (cold, mixed[0]):
        out = model.predict_ops(single)
        assert not out["in_range"].any()
        assert out["note"].str.contains("no gemm in fp32 was measured, only").all()
        assert out["low_s"].isna().all()


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["cold", "mixed"])
def test_what_is_saved_predicts_the_same(
    request: pytest.FixtureRequest, tmp_path: Path, unseen: pd.DataFrame, which: str
) -> None:
    model = request.getfixturevalue(which)
    model = model[0] if isinstance(model, tuple) else model
    model.save(tmp_path)
    again = load_model(tmp_path)
    frame = pd.concat(
        [unseen.head(40), softmaxes(NEW.id, 20, 31), transposes(10)], ignore_index=True
    )
    pd.testing.assert_frame_equal(
        again.predict_ops(frame), model.predict_ops(frame), check_exact=True
    )
    assert again.fingerprint() == model.fingerprint()
    step = steps()
    assert (predict(again, step).time_s, predict(again, step).low_s) == (
        predict(model, step).time_s,
        predict(model, step).low_s,
    )
    document = json.loads((tmp_path / "model.json").read_text())
    assert set(document["families"]) == {"matmul", "softmax"}
    assert document["families"]["matmul"]["slots"] == ["gemm|vllm|bf16|"]
    assert document["families"]["matmul"]["rows"] == model.families["matmul"].rows
    assert document["provenance"]["prior"]["date"] == "2026-11-01"
    assert "gemm" in known(str(tmp_path))


def test_a_damaged_family_is_one_sentence(cold: PerfModel, tmp_path: Path) -> None:
    cold.save(tmp_path)
    document = json.loads((tmp_path / "model.json").read_text())
    for spoil in (
        lambda families: families["matmul"].pop("slots"),
        lambda families: families["matmul"].update(rows=None),
        lambda families: families.update(other=families["matmul"]),
        lambda families: families["matmul"].update(prior={}),
    ):  # fmt: skip
        wrong = json.loads(json.dumps(document))
        spoil(wrong["families"])
        (tmp_path / "model.json").write_text(json.dumps(with_checksum(wrong)))
        with pytest.raises(InputError, match="is damaged") as refused:
            load_model(tmp_path)
        assert "\n" not in str(refused.value)


# --- without a prior ------------------------------------------------------------------------------


def test_without_prior_and_rows_it_is_the_roofline_to_the_bit(unseen: pd.DataFrame) -> None:
    model, report = fit(None, NEW, prior="none")
    assert model.families == {}
    assert report.rows == 0
    frame = pd.concat(
        [unseen.head(50), softmaxes(NEW.id, 50, 31), transposes(10)], ignore_index=True
    )
    out = model.predict_ops(frame)
    assert (out["predicted_s"] == out["roofline_s"]).all()
    assert model.fingerprint() == PerfModel.datasheet(NEW).fingerprint()


def test_ops_of_no_family_are_fitted_as_without_a_prior(mixed: tuple[PerfModel, FitReport]) -> None:
    model, report = fit(transposes(FEW), NEW, prior="none")
    assert model.families == {}
    assert "prior" not in model.provenance
    frame = transposes(10)
    pd.testing.assert_frame_equal(
        model.predict_ops(frame), mixed[0].predict_ops(frame), check_exact=True
    )
    of_mixed = mixed[1].table.set_index("op").loc["transpose"]
    pd.testing.assert_series_equal(
        of_mixed, report.table.set_index("op").loc["transpose"], check_dtype=False
    )


# --- steps ----------------------------------------------------------------------------------------

PRODUCTS = [Gemm("bf16", float(m), 512.0, 1024.0) for m in (64, 256, 1024, 4096)]


def steps(ops: list | None = None, times: float = 1.0, inlined: bool = False) -> Workload:
    """One op after the other."""
    calls = tuple(OpCall(op, times=times, inlined=inlined) for op in ops or PRODUCTS)
    builder = GraphBuilder()
    for i in range(len(calls)):
        builder.op(i + 1, label=f"op{i}")
    return Workload("chain", builder.build(), calls)


def as_rows(ops: list[Gemm]) -> pd.DataFrame:
    return pd.DataFrame(
        [{"op": "gemm", "dtype": op.dtype, "m": op.m, "n": op.n, "k": op.k} for op in ops]
    )


@pytest.mark.parametrize("which", ["cold", "mixed"])
def test_a_step_takes_what_its_ops_take(request: pytest.FixtureRequest, which: str) -> None:
    model = request.getfixturevalue(which)
    model = model[0] if isinstance(model, tuple) else model
    alone = model.predict_ops(as_rows(PRODUCTS))
    result = predict(model, steps())
    np.testing.assert_allclose(result.op_s, alone["predicted_s"], rtol=1e-5)
    np.testing.assert_allclose(result.op_roofline_s, alone["roofline_s"], rtol=1e-6)
    assert result.op_in_range.tolist() == alone["in_range"].tolist() == [True] * 4
    assert result.in_range
    assert result.low_s is not None
    assert result.low_s < result.time_s < result.high_s
    assert result.low_s > alone["low_s"].sum() * 0.8
    assert result.high_s < alone["high_s"].sum() * 1.25
    again = predict(model, steps(times=3.0))
    assert again.time_s == pytest.approx(3 * result.time_s, rel=1e-5)


def test_a_step_of_many_kinds_is_priced_whole(mixed: tuple[PerfModel, FitReport]) -> None:
    model, _ = mixed
    ops = [
        PRODUCTS[0],
        Softmax("fp32", 512.0, 512.0),
        Copy("bf16", 512.0, 512.0),
        Elementwise("bf16", 512.0, 512.0),
        Gemm("bf16", 8.0, 8.0, 8.0),
    ]
    ops.append(DecodeAttention("bf16", batch=2.0, kv_len=512.0, heads=8.0, head_dim=128.0))
    result = predict(model, steps(ops))
    assert np.isfinite(result.op_s).all()
    assert (result.op_s > 0).all()
    assert result.op_in_range.tolist() == [True, True, False, False, False, False]
    assert any("no copy measurements: datasheet roofline" in note for note in result.notes)
    assert len(prediction_report(result)) > 100


def test_an_op_compiled_into_another_pays_no_floor(mixed: tuple[PerfModel, FitReport]) -> None:
    model, _ = mixed
    own, inlined = (
        predict(model, steps(PRODUCTS[:1], inlined=inlined)).time_s for inlined in (False, True)
    )
    assert 0 < inlined < own


def test_knobs_keep_their_meaning(mixed: tuple[PerfModel, FitReport]) -> None:
    model, _ = mixed
    workload, base = steps(), model.device.memory_bytes_per_s
    rates = base * np.array([0.5, 1, 2, 4])
    held = predict_batch(model, workload, memory_bytes_per_s=rates, hold_corrections=True)
    assert (np.diff(held) <= 0).all(), "the closed form's"
    times = predict_batch(model, workload, memory_bytes_per_s=rates)
    assert times[1] == pytest.approx(held[1], rel=1e-5)
    assert times[0] > times[1]
    assert times[1] == pytest.approx(predict(model, workload).time_s, rel=1e-5)
    floors = predict_batch(model, workload, floor_s=np.array([0.5, 1, 2]))
    assert (np.diff(floors) > 0).all()


def test_the_gradient_is_finite_and_points_the_right_way(
    mixed: tuple[PerfModel, FitReport],
) -> None:
    slopes = hp.step_function(mixed[0], steps()).slopes()
    assert np.isfinite(jax.tree.leaves(slopes)).all()
    assert slopes["memory_bytes_per_s"] <= 0
    assert slopes["peak_flops_scale"] < 0


def test_a_prior_alone_is_said_of_a_step(cold: PerfModel) -> None:
    assert any("prior alone" in note for note in predict(cold, steps()).notes)


# --- wrong inputs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("in_hand", [False, True])
def test_a_prior_is_for_gpus(prior: Prior, tmp_path: Path, in_hand: bool) -> None:
    prior.save(tmp_path)
    for device in ("here", NEW.model_copy(update={"l2_bytes": None})):
        with pytest.raises(InputError, match=r"priors know GPUs .*; use --prior none") as refused:
            fit(None, device, prior=prior if in_hand else str(tmp_path))
        assert "\n" not in str(refused.value)


def test_an_unknown_prior_names_what_there_is() -> None:
    with pytest.raises(
        InputError, match=r"unknown prior .nome. .did you mean .none.*: give the folder of a prior"
    ):
        fit(None, NEW, prior="nome")


def test_a_row_that_cannot_be_read_is_named(prior: Prior) -> None:
    frame = gemms(NEW.id, 5, 60)
    frame.loc[3, "m"] = -1
    with pytest.raises(InputError, match="row 4: gemm: m must be a number above zero"):
        fit(frame, NEW, prior=prior)


def test_families_of_the_prior_are_known(prior: Prior) -> None:
    assert set(prior.families) < set(FAMILIES)


def test_a_family_of_a_gpu_without_facts_is_refused(cold: PerfModel) -> None:
    bare = dataclasses.replace(cold, device=NEW.model_copy(update={"multiprocessors": None}))
    with pytest.raises(
        InputError, match="the number of multiprocessors or the L2 size of h100_sxm is not known"
    ):
        bare.predict_ops(as_rows(PRODUCTS))
