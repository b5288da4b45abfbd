"""A model prices ops: the datasheet's is the roofline, a fitted one survives its file, and rows
keep their places.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.engine import batches, folding
from hybridperf.engine.batches import BatchPredictor, predict_batch
from hybridperf.engine.folding import FoldedProgram
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.prediction import predict
from hybridperf.engine.workload import Workload
from hybridperf.hardware import load_device
from hybridperf.io import InputError
from hybridperf.io.documents import with_checksum
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.model import GroupReport, PerfModel, load_model
from hybridperf.model.platform import durations
from hybridperf.ops import GROUPS, Copy, Elementwise, Gemm, OpCall
from hybridperf.ops.roofline import RooflineKnobs, Work

V100 = load_device("v100")
WORK_FIELDS = [field.name for field in dataclasses.fields(Work)]
HALF_WIDTH = 0.25
LARGEST_ERROR = (
    np.log(1 + HALF_WIDTH) / 0.9
)  # held-out log errors are uniform up to it: 90 % of them lie within the half-width


@pytest.fixture(scope="module")
def fitted() -> PerfModel:
    """All knobs away from neutral, each group's different."""
    rng = np.random.default_rng(0)
    n = len(GROUPS)
    knobs = RooflineKnobs(
        floor_s=rng.uniform(1e-6, 5e-6, n),
        compute_efficiency=rng.uniform(0.4, 0.9, n),
        memory_efficiency=rng.uniform(0.4, 0.9, n),
        transcendental_flops=rng.uniform(5, 30, n),
        strided_factor=rng.uniform(0.5, 2, n),
        step_s=rng.uniform(1e-11, 1e-10, n),
        smoothing=rng.uniform(0.05, 0.6, n),
        level_speedup=np.array([7.0, 3.0, 3.0, 1.0]),
        line_s=np.array([3e-10, 1e-9, 0.0, 2e-8]),
        level_capacity=np.array([0.9, 0.8, 0.3, 1.0]),
    )
    report = GroupReport(
        rows=100, half_width=HALF_WIDTH, lowest=dict.fromkeys(WORK_FIELDS, 0.0),
        highest=dict.fromkeys(WORK_FIELDS, 40.0),
        errors=tuple(np.linspace(-LARGEST_ERROR, LARGEST_ERROR, 41).tolist()),
    )  # fmt: skip
    return PerfModel(V100, knobs, dict.fromkeys(GROUPS, report), {"rows": 100, "note": "made up"})


def gemms(sizes: list[float], **more: object) -> pd.DataFrame:
    return pd.DataFrame({"op": "gemm", "dtype": "fp32", "m": sizes, "n": 512, "k": 256, **more})


# --- the datasheet --------------------------------------------------------------------------------


def test_datasheet_model_is_the_roofline() -> None:
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 4096, 200).astype(float)
    frame = pd.concat(
        [
            gemms(list(sizes)),
            pd.DataFrame({"op": "softmax", "dtype": "fp32", "rows": sizes, "cols": 77}),
            pd.DataFrame(
                {"op": "gather", "dtype": "fp32", "rows": sizes, "cols": 64, "vocab": 1e5}
            ),
        ],
        ignore_index=True,
    )
    out = PerfModel.datasheet(V100).predict_ops(frame)
    assert (out["predicted_s"] == out["roofline_s"]).all()  # to the bit
    m = sizes[:5]
    expected = np.maximum(
        2 * m * 512 * 256 / V100.peak("fp32", "matrix"),
        4 * (m * 256 + 256 * 512 + m * 512) / V100.memory_bytes_per_s,
    )
    np.testing.assert_allclose(out["predicted_s"][:5], expected, rtol=1e-6)
    assert out["low_s"].isna().all()
    assert not out["in_range"].any()
    assert out["note"].str.contains("datasheet roofline").all()


# --- files ----------------------------------------------------------------------------------------


def test_numbers_are_those_that_jax_traces(fitted: PerfModel) -> None:
    """In NumPy without a compiler, of however many ops."""
    ops = [Gemm("fp32", 2.0**at, 300.0, 70.0) for at in range(12)]
    table = fitted.table([
        OpCall(op, times=times)
        for op in (*ops, Elementwise("fp32", 700.0, 900.0), Copy("fp32", 5000.0, 3000.0))
        for times in (1, 3)
    ])  # fmt: skip
    alone = fitted.op_seconds(table)
    assert alone.dtype == np.float64
    assert alone == pytest.approx(np.asarray(jax.jit(durations)(table, fitted.platform())), 1e-6)
    many = jax.tree.map(lambda leaf: np.tile(leaf, 1000), table)
    assert (fitted.op_seconds(many) == np.tile(alone, 1000)).all()


def test_a_saved_model_predicts_the_same_to_the_bit(fitted: PerfModel, tmp_path: Path) -> None:
    fitted.save(tmp_path / "m")
    again = load_model(tmp_path / "m")
    frame = gemms(list(np.geomspace(1, 1e6, 50)))
    pd.testing.assert_frame_equal(
        again.predict_ops(frame), fitted.predict_ops(frame), check_exact=True
    )
    assert again.fingerprint() == fitted.fingerprint()
    assert again.device == fitted.device
    assert load_model(tmp_path / "m" / "model.json").fingerprint() == fitted.fingerprint()


def test_the_datasheet_model_has_a_file_too(tmp_path: Path) -> None:
    PerfModel.datasheet(V100).save(tmp_path)
    frame = gemms([5.0])
    pd.testing.assert_frame_equal(
        load_model(tmp_path).predict_ops(frame), PerfModel.datasheet(V100).predict_ops(frame)
    )


def _truncate(text: str) -> str:
    return text[: len(text) // 2]


def _edit(change: Callable[[dict], object]) -> Callable[[str], str]:
    def edited(text: str) -> str:
        document = json.loads(text)
        change(document)
        return json.dumps(with_checksum(document))

    return edited


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_truncate, "damaged"),
        (_edit(lambda d: d.update(schema_version=99)), "upgrade"),
        (
            _edit(lambda d: d.update(schema="hybridperf/program")),
            "expected a hybridperf/model file",
        ),
        (_edit(lambda d: d.pop("groups")), "damaged"),
        (_edit(lambda d: d.pop("levels")), "damaged"),
        (_edit(lambda d: d.update(groups=[])), "damaged"),
        (_edit(lambda d: d["groups"].update(gemmm=d["groups"]["gemm"])), "damaged"),
        (_edit(lambda d: d["groups"]["gemm"].pop("floor_s")), "damaged"),
        (_edit(lambda d: d["groups"]["gemm"].update(floor_s="fast")), "damaged"),
        (_edit(lambda d: d["groups"]["gemm"].update(floor_s=float("inf"))), "damaged"),
        (_edit(lambda d: d["groups"]["gemm"].update(memory_efficiency=-1.0)), "damaged"),
        (_edit(lambda d: d["groups"]["gemm"].update(half_width="wide")), "damaged"),
        (_edit(lambda d: d["groups"]["gemm"].update(lowest={})), "damaged"),
        (_edit(lambda d: d["device"].pop("memory_bytes_per_s")), "damaged"),
    ],
)
def test_damaged_models_are_refused_in_one_sentence(
    fitted: PerfModel, tmp_path: Path, change: Callable[[str], str], says: str
) -> None:
    fitted.save(tmp_path)
    path = tmp_path / "model.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=says) as error:
        load_model(tmp_path)
    assert "\n" not in str(error.value)
    assert "model.json" in str(error.value)


def test_models_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no model"):
        load_model(tmp_path)
    with pytest.raises(InputError, match="unknown model 'nowhere'"):
        load_model("nowhere")


# --- rows -----------------------------------------------------------------------------------------


def test_rows_keep_order_and_bad_ones_say_why(fitted: PerfModel) -> None:
    frame = pd.DataFrame([
        {"op": "gemm", "dtype": "fp32", "m": 64, "n": 64, "k": 64, "tag": "a"},
        {"op": "gemmm", "dtype": "fp32", "m": 64, "n": 64, "k": 64, "tag": "b"},
        {"op": "add", "dtype": "fp32", "rows": 64, "cols": 64, "tag": "c"},
        {"op": "gemm", "dtype": "fp32", "m": 0, "n": 64, "k": 64, "tag": "d"},
        {"op": "gemm", "dtype": "fp32", "m": 64, "n": np.nan, "k": 64, "tag": "e"},
        {"op": "gemm", "dtype": "fp32", "m": 1e14, "n": 64, "k": 64, "tag": "f"},
        {"op": "gemm", "dtype": "fp32", "m": 1e12, "n": 1e12, "k": 1e12, "tag": "g"},
        {"op": "gemm", "dtype": "fp77", "m": 64, "n": 64, "k": 64, "tag": "h"},
        {"op": "gemm", "dtype": "fp8", "m": 64, "n": 64, "k": 64, "tag": "i"},
        {"op": None, "dtype": "fp32", "m": 64, "n": 64, "k": 64, "tag": "j"},
        {"op": "gemm", "dtype": "fp16", "m": 64, "n": 64, "k": 64, "tag": "k"},
    ], index=range(50, 61))  # fmt: skip
    out = fitted.predict_ops(frame)
    pd.testing.assert_frame_equal(out[list(frame.columns)], frame)
    notes = out.set_index("tag")["note"]
    good = ["a", "c", "k"]
    assert (notes[good] == "").all()
    for tag, says in {
        "b": "did you mean 'gemm'", "d": "m must be a number above zero", "e": "n must be",
        "f": "at most 1e[+]13", "g": "more than 1e[+]24", "h": "unknown dtype 'fp77'",
        "i": "no known fp8 peak", "j": "unknown op '(?:nan|None)'",
    }.items():  # fmt: skip
        assert pd.Series(notes[tag]).str.contains(says).all(), notes[tag]
    numbers = out.set_index("tag")[["predicted_s", "low_s", "high_s", "roofline_s"]]
    assert (numbers.loc[good] > 0).all(axis=None)
    assert numbers.drop(good).isna().all(axis=None)
    assert out.set_index("tag")["in_range"].sum() == 3
    alone = fitted.predict_ops(frame[frame["tag"] == "a"])
    assert alone["predicted_s"].iloc[0] == out["predicted_s"].iloc[0]  # rows are independent


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (gemms([0.0, -1.0]), "no row of the table can be read"),
        (gemms([1.0]).drop(columns="k"), "column 'k'"),
        (gemms([1.0]).drop(columns="dtype"), "column 'dtype'"),
        (gemms([1.0]).rename(columns={"op": "opp"}), "did you mean 'op'"),
        (gemms([]), "no rows"),
    ],
)
def test_tables_that_cannot_be_priced(fitted: PerfModel, frame: pd.DataFrame, says: str) -> None:
    with pytest.raises(InputError, match=says):
        fitted.predict_ops(frame)


def test_a_row_may_bring_its_own_reuse_distance(fitted: PerfModel) -> None:
    out = fitted.predict_ops(
        pd.DataFrame(
            {
                "op": "copy",
                "dtype": "fp32",
                "rows": 512,
                "cols": 512,
                "reuse_bytes": [np.nan, 1e3, 1e12],
            }
        )
    )["predicted_s"]
    assert out[1] <= out[0] < out[2]


def test_interval_and_range(fitted: PerfModel) -> None:
    """Rows beyond the range are said, and each octave beyond it (and the slack of 0.585) adds the
    width inside once more, up to three.
    """
    narrow = dataclasses.replace(
        fitted.groups["gemm"], highest={**fitted.groups["gemm"].highest, "flops": np.log2(1e9)}
    )
    out = dataclasses.replace(fitted, groups={"gemm": narrow}).predict_ops(gemms([1.0, 5e3, 1e6]))
    assert out["in_range"].tolist() == [
        True,
        True,
        False,
    ]  # 2.6e5, 1.3e9 (within the slack) and 2.6e11 flops
    assert out["note"].tolist() == ["", "", "outside the measured range of gemm"]
    octaves = np.log2(2 * 1e6 * 512 * 256 / 1e9) - 0.585
    for end in (out["high_s"] / out["predicted_s"], out["predicted_s"] / out["low_s"]):
        np.testing.assert_allclose(end, [1.25, 1.25, 1.25 ** (1 + min(octaves, 3.0))], rtol=1e-6)


# --- steps ----------------------------------------------------------------------------------------

CALLS = (
    OpCall(Gemm("fp32", 512.0, 512.0, 512.0)),
    OpCall(Copy("fp32", 1.0, 1e6)),
    OpCall(Elementwise("fp32", 1e3, 1e3), times=3.0),
)


def chain(rows: list[int], streams: int = 1, backend: str | None = None) -> Workload:
    builder = GraphBuilder()
    for i, row in enumerate(rows):
        builder.op(row, label=f"op{i}", stream=f"s{i % streams}")
    return Workload("chain", builder.build(), CALLS, backend)


def test_a_chain_takes_the_sum_of_its_ops(fitted: PerfModel) -> None:
    result = predict(fitted, chain([1, 2, 3, 1]))
    seconds = result.op_s
    assert result.time_s == pytest.approx(2 * seconds[0] + seconds[1] + seconds[2], rel=1e-12)
    assert result.on_critical_path.all()
    breakdown = result.breakdown()
    assert breakdown["seconds"].sum() == pytest.approx(result.time_s, rel=1e-12)
    assert breakdown["share"].sum() == pytest.approx(1.0)
    assert breakdown["seconds"].is_monotonic_decreasing
    assert breakdown["ops"].sum() == 4
    assert result.ops()["seconds"].sum() == pytest.approx(result.time_s, rel=1e-12)
    assert result.low_s is not None
    assert (
        result.low_s < result.time_s < result.high_s <= 1.25 * result.time_s * (1 + 1e-9)
    )  # errors of groups partly cancel
    assert result.in_range
    once = predict(fitted, dataclasses.replace(chain([3]), calls=(*CALLS[:2], OpCall(CALLS[2].op))))
    assert seconds[2] == pytest.approx(3 * once.time_s, rel=1e-6)


def test_the_interval_of_one_group_is_that_of_its_rows(fitted: PerfModel) -> None:
    """By hand: all ops of a group are off together, as far as its held-out rows were; an octave
    outside of what was measured, twice as far in logs.
    """
    for half_width in (0.05, 0.25, 0.8):
        groups = {
            **fitted.groups,
            "gemm": dataclasses.replace(fitted.groups["gemm"], half_width=half_width),
        }
        result = predict(dataclasses.replace(fitted, groups=groups), chain([1, 1, 1]))
        assert result.high_s / result.time_s == pytest.approx(1 + half_width, rel=1e-6)
        assert result.time_s / result.low_s == pytest.approx(1 + half_width, rel=1e-6)
    one_octave = {**fitted.groups["gemm"].highest, "flops": np.log2(1 + 2 * 512**3) - 1.585}
    groups = {
        **fitted.groups,
        "gemm": dataclasses.replace(fitted.groups["gemm"], highest=one_octave),
    }
    result = predict(dataclasses.replace(fitted, groups=groups), chain([1, 1, 1]))
    assert result.high_s / result.time_s == pytest.approx(1.25**2, rel=5e-3)
    assert not result.in_range


def test_the_interval_of_a_chain_against_independent_draws(fitted: PerfModel) -> None:
    """Groups err independently, ops of a group together: 200,000 draws of the sum in NumPy."""
    widths = {"gemm": 0.2, "copy": 0.1, "elementwise": 0.4}
    groups = fitted.groups | {
        name: dataclasses.replace(fitted.groups[name], half_width=width)
        for name, width in widths.items()
    }
    result = predict(dataclasses.replace(fitted, groups=groups), chain([1, 2, 3, 1]))
    rng = np.random.default_rng(5)
    drawn = [np.log1p(width) / NINE_OF_TEN * rng.normal(size=200_000) for width in widths.values()]
    steps = sum(
        times * seconds * np.exp(-draw)
        for times, seconds, draw in zip((2, 1, 1), result.op_s, drawn, strict=True)
    )
    low, high = np.quantile(steps, [0.05, 0.95])
    assert result.low_s == pytest.approx(low, abs=0.1 * (high - low))
    assert result.high_s == pytest.approx(high, abs=0.1 * (high - low))


def test_a_machine_that_drifts_slows_all_ops_together(fitted: PerfModel, tmp_path) -> None:
    """Where ops have no errors of their own, the ends are those of a change between two states of
    the machine, however many groups there are; files keep it.
    """
    slowness = np.linspace(0.0, 0.4, 11)
    sure = {
        name: dataclasses.replace(report, half_width=0.0) for name, report in fitted.groups.items()
    }
    dataclasses.replace(fitted, groups=sure, drift=tuple(slowness)).save(tmp_path)
    result = predict(load_model(tmp_path), chain([1, 2, 3, 1]))
    end = NINE_OF_TEN * np.sqrt(2) * np.std(slowness)
    assert result.low_s / result.time_s == pytest.approx(np.exp(-end), rel=1e-6)
    assert result.high_s / result.time_s == pytest.approx(np.exp(end), rel=1e-6)


def test_no_interval_where_errors_are_not_known(fitted: PerfModel) -> None:
    """A twentieth of the step may go without."""
    for share, given in ((0.5, False), (0.01, True)):
        silent = dataclasses.replace(fitted.groups["copy"], half_width=None)
        model = dataclasses.replace(fitted, groups={**fitted.groups, "copy": silent})
        alone = predict(model, chain([1, 2])).op_s
        products = int(np.ceil(alone[1] * (1 - share) / share / alone[0]))
        assert (predict(model, chain([2] + [1] * products)).low_s is not None) == given


def test_ops_beside_each_other_take_the_longer_ones_time(fitted: PerfModel) -> None:
    result = predict(fitted, chain([1, 2], streams=2))
    assert result.time_s == max(result.op_s[:2])
    assert result.on_critical_path.tolist() == (result.op_s[:2] == result.time_s).tolist()


def test_datasheet_steps_are_rooflines_and_say_so() -> None:
    result = predict(PerfModel.datasheet(V100), chain([1, 2, 3]))
    assert result.time_s == result.roofline_s
    assert result.low_s is None
    assert any("no measurements" in note for note in result.notes)


def test_groups_without_measurements_are_noted(fitted: PerfModel) -> None:
    result = predict(
        dataclasses.replace(fitted, groups={"gemm": fitted.groups["gemm"]}), chain([1, 2, 3])
    )
    assert result.low_s is None
    assert any(note.startswith("no copy measurements") for note in result.notes)
    assert any(
        note.startswith("no interval: the error of ") and "is not known (copy" in note
        for note in result.notes
    )
    assert not result.in_range


def test_another_kind_of_device_is_refused(fitted: PerfModel) -> None:
    for call in (
        predict,
        hp.step_function,
        lambda m, w: predict_batch(m, w, memory_bytes_per_s=[1e12]),
    ):
        with pytest.raises(InputError, match="compiled for a cpu"):
            call(fitted, chain([1], backend="cpu"))
    assert predict(fitted, chain([1], backend="gpu")).time_s > 0


def test_a_batch_of_one_is_predict(fitted: PerfModel) -> None:
    workload = chain([1, 2, 3, 1])
    expected = predict(fitted, workload).time_s
    for knobs in (
        {"memory_bytes_per_s": V100.memory_bytes_per_s},
        {"peak_flops_scale": 1.0},
        {"floor_s": [1.0]},
    ):
        np.testing.assert_allclose(predict_batch(fitted, workload, **knobs), [expected], rtol=1e-6)


def test_rows_of_a_batch_are_independent(fitted: PerfModel) -> None:
    workload = chain([1, 2, 3])
    bandwidth, floor = np.array([1e11, 1e12, 3e12]), np.array([1.0, 2.0, 0.5])
    together = predict_batch(
        fitted, workload, memory_bytes_per_s=bandwidth, copy__floor_s=floor * 1e-6
    )
    pairs = zip(bandwidth, floor, strict=True)
    alone = [
        predict_batch(fitted, workload, memory_bytes_per_s=b, copy__floor_s=f * 1e-6)[0]
        for b, f in pairs
    ]
    np.testing.assert_allclose(together, alone, rtol=1e-6)
    assert len(set(together)) == 3
    slower = predict_batch(fitted, workload, memory_bytes_per_s=np.geomspace(1e13, 1e10, 20))
    assert (np.diff(slower) >= 0).all()


def test_a_groups_own_knob_is_the_last_word(fitted: PerfModel) -> None:
    workload = chain([1, 2])
    first = predict_batch(
        fitted, workload, compute_efficiency=[0.5], gemm__compute_efficiency=[0.9]
    )
    second = predict_batch(
        fitted, workload, gemm__compute_efficiency=[0.9], compute_efficiency=[0.5]
    )
    assert first == second
    assert first == pytest.approx(
        predict_batch(fitted, workload, gemm__compute_efficiency=[0.9]), rel=0.1
    )


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({}, "at least one knob"),
        ({"memory_bytes_per_ss": [1.0]}, "did you mean 'memory_bytes_per_s'"),
        ({"gem__floor_s": [1.0]}, "did you mean 'gemm__floor_s'"),
        ({"memory_bytes_per_s": [1.0, -1.0]}, "must be positive"),
        ({"memory_bytes_per_s": [1.0, np.nan]}, "must be positive"),
        ({"memory_bytes_per_s": [1.0, 2.0], "floor_s": [1.0]}, "same length"),
        ({"memory_bytes_per_s": [[1.0, 2.0]]}, r"arrays \[B\]"),
        ({"memory_bytes_per_s": []}, r"arrays \[B\]"),
        ({"memory_bytes_per_s": "fast"}, "must be numbers"),
    ],
)
def test_knobs_that_cannot_be_varied(fitted: PerfModel, knobs: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        predict_batch(fitted, chain([1]), **knobs)


def test_repeats_of_deep_steps_are_composed_once_and_predicted_as_one_op_after_another(
    fitted: PerfModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = chain([1, 2, 3, 2] * 2000, streams=4)
    knobs = {
        "memory_bytes_per_s": np.geomspace(1e11, 1e13, 50),
        "gemm__compute_efficiency": np.linspace(0.2, 1, 50),
    }
    deep = BatchPredictor(fitted, workload)
    assert not isinstance(deep._program, FoldedProgram)
    assert len(deep._program.row) < len(workload.graph.rank) / 10
    monkeypatch.setattr(folding, "WORTH", 0.0)
    monkeypatch.setattr(batches, "contracted", lambda program: program)
    plain = BatchPredictor(fitted, workload)
    assert len(plain._program.row) >= len(workload.graph.rank)
    np.testing.assert_allclose(deep(**knobs), plain(**knobs), rtol=1e-4)
    np.testing.assert_allclose(
        deep(peak_flops_scale=[1.0]), predict(fitted, workload).time_s, rtol=1e-4
    )


def test_a_knob_of_a_group_that_the_step_has_not_changes_nothing(fitted: PerfModel) -> None:
    with_it = predict_batch(fitted, chain([1]), norm__floor_s=[1.0, 2.0])
    np.testing.assert_allclose(with_it, predict(fitted, chain([1])).time_s, rtol=1e-6)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("floor_s", np.nan, "knob floor_s is nan, expected 0 or more"),
        ("memory_efficiency", -0.5, "knob memory_efficiency is -0.5, expected"),
        ("line_s", np.nan, "knob line_s is nan"),
    ],
)
def test_a_model_that_gives_no_seconds_is_refused_before_it_is_compiled(
    fitted: PerfModel, field: str, value: float, says: str
) -> None:
    knobs = dataclasses.replace(
        fitted.knobs, **{field: np.full_like(getattr(fitted.knobs, field), value)}
    )
    with pytest.raises(InputError, match=says):
        predict_batch(
            dataclasses.replace(fitted, knobs=knobs), chain([1, 2]), peak_flops_scale=[1.0]
        )


def test_one_trace_for_a_grid(fitted: PerfModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other numbers, another chain of the same bucket, another machine's knobs: compiled once per
    batch size and set of knobs.
    """
    import importlib

    module = importlib.import_module("hybridperf.engine.batches")
    traces = []

    def counted(*args):
        traces.append(1)
        return module._batch_answers_impl(*args)

    monkeypatch.setattr(module, "_few_answers", jax.jit(counted, static_argnums=5))
    for bandwidth in (1e11, 5e11, 9e11):
        predict_batch(fitted, chain([1, 2, 3]), memory_bytes_per_s=np.linspace(1, 2, 7) * bandwidth)
    predict_batch(fitted, chain([3, 2, 3, 1]), memory_bytes_per_s=np.linspace(1, 2, 7) * 1e12)
    other = dataclasses.replace(fitted, knobs=jax.tree.map(lambda x: 1.1 * x, fitted.knobs))
    predict_batch(other, chain([1, 2, 3]), memory_bytes_per_s=np.linspace(1, 2, 7) * 1e12)
    assert len(traces) == 1


def test_a_number_format_never_measured_is_said_and_has_no_interval(fitted: PerfModel) -> None:
    """Matrix units run formats at rates of their own: knobs of one say nothing of another. Loops
    care for the size only.
    """
    groups = {
        name: dataclasses.replace(report, dtypes=("fp32",))
        for name, report in fitted.groups.items()
    }
    model = dataclasses.replace(fitted, groups=groups)
    frame = pd.DataFrame({"op": "gemm", "dtype": ["fp32", "int8"], "m": 64, "n": 64, "k": 64})
    out = model.predict_ops(frame)
    assert np.isfinite(out["low_s"][0])
    assert np.isnan(out["low_s"][1])
    assert not out["in_range"][1]
    assert "int8" in out["note"][1]
    assert groups["gemm"].measured_dtype(Gemm("fp32", m=1.0, n=1.0, k=1.0))
    assert groups["gemm"].measured_dtype(Copy("int32", rows=1.0, cols=1.0))
    assert not groups["gemm"].measured_dtype(Copy("bf16", rows=1.0, cols=1.0))


def test_a_model_prints_its_device_and_how_it_was_calibrated(fitted: PerfModel) -> None:
    device = fitted.device.id
    groups = f"{len(GROUPS)} op groups fitted to 100 measured rows"
    assert repr(fitted) == f"<PerfModel: {device}: {groups}>"
    datasheet = "datasheet roofline, nothing measured"
    assert repr(PerfModel.datasheet(V100)) == f"<PerfModel: {device}: {datasheet}>"
    assert len(repr(load_model("a100_sxm4_80g"))) < 300
