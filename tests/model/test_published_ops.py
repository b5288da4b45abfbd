"""Loaders of published measurements: one per source on rows written here, shapes on their sides,
ops inside models, and the data itself.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import load_device
from hybridperf.io import InputError, read_table
from hybridperf.ops import Gemm, PrefillAttention
from hybridperf_calibration.published import ops as sources


def write(folder: Path, name: str, rows: list[dict]) -> Path:
    """A data folder with one table."""
    path = sources.table_path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False)
    return folder


LINEAR = {
    "device": "t4",
    "op": "linear",
    "dtype": "fp32",
    "neusight_split": "train",
    "m": 64,
    "n": 128,
    "k": 256,
    "time_s": 1e-4,
}
GEMM = {
    "device": "b200_sxm",
    "op": "gemm",
    "dtype": "fp8",
    "quant": "fp8_block",
    "framework": "vllm",
    "version": "1",
    "kernel": "k",
    "m": 64,
    "n": 128,
    "k": 256,
    "time_s": 1e-5,
}
MOE = {
    "device": "h100_sxm",
    "op": "moe",
    "dtype": "bf16",
    "quant": "bfloat16",
    "framework": "trtllm",
    "distribution": "power_law_1.2",
    "tokens": 128,
    "hidden": 1024,
    "inter": 512,
    "topk": 2,
    "experts": 16,
    "moe_tp": 1,
    "moe_ep": 1,
    "time_s": 1e-4,
}


def test_neusight_leaves_throttled_rows_out(tmp_path) -> None:
    write(
        tmp_path,
        "neusight_linear",
        [
            {**LINEAR, "throttled": 0},
            {**LINEAR, "throttled": 1},
            {**LINEAR, "throttled": 0, "time_s": 0},
        ],
    )
    frame, left_out = sources.read_rows(tmp_path, "neusight_linear")
    assert len(frame) == 1
    assert frame["split"].tolist() == ["train"]
    assert left_out == {
        "the card was thermally throttled": 1,
        "the time is no number above zero": 1,
    }


def test_the_line_by_which_a_timer_drifted_is_taken_off(tmp_path) -> None:
    """Made-up kernels in no order, 0.4 ms more by the end of the table; quicker ones than a quarter
    of what was measured are left out.
    """
    random, count = np.random.default_rng(0), 4000
    kernel_s = 1e-4 * 2 ** random.uniform(0, 5, count)
    drift_s = 4e-4 * np.arange(count) / count
    size = {"batch": 8, "c_in": 64, "c_out": 64, "kernel_size": 3, "h_in": 28, "h_out": 28}
    rows = pd.DataFrame({"device": "t4", "op": "conv", "dtype": "fp32", **size}, range(count))
    rows = rows.assign(time_s=kernel_s + drift_s)
    write(tmp_path, "neusight_conv", rows.to_dict("records"))
    frame, left_out = sources.read_rows(tmp_path, "neusight_conv")
    (reason,) = left_out
    assert "drift" in reason
    kept = kernel_s >= 0.25 * (kernel_s + drift_s)
    assert left_out[reason] == pytest.approx((~kept).sum(), abs=0.01 * count)
    late_s = frame["time_s"].to_numpy()[-500:]
    assert np.median(late_s) == pytest.approx(np.median(kernel_s[kept][-500:]), rel=0.05)


@pytest.mark.parametrize(("name", "read"), [("neusight_conv", "fp32"), ("deepbench_conv", "tf32")])
def test_convolutions_are_of_what_multiplied_them(tmp_path, name: str, read: str) -> None:
    """NeuSight's program forbids cuDNN TF32, which others leave it on a GPU that has it."""
    size = {"batch": 8, "c_in": 64, "c_out": 64, "kernel_size": 3, "h_in": 28, "h_out": 28}
    row = {"device": "a100_pcie_80g", "op": "conv", "dtype": "fp32", "time_s": 1e-3, **size}
    write(tmp_path, name, [row] * 8)
    found = sources.read_families(tmp_path, ["convolution"]).families["convolution"]
    assert set(found["a100_pcie_80g"].rows.implementation) == {f"conv||{read}|fwd"}


def test_published_convolutions_keep_no_trace_of_their_order(data_dir: Path) -> None:
    """Of ops larger than most, which all are kept, the quickest of the last quarter of each table
    took 17 to 46 % longer than those of the first.
    """
    before = read_table(sources.table_path(data_dir, "neusight_conv"))
    added = read_table(sources.table_path(data_dir / sources.ADDED, "neusight_conv"))
    before = pd.concat([before, added[~added["device"].isin(before["device"])]])
    after, _ = sources.read_rows(data_dir, "neusight_conv")

    def later(rows: pd.DataFrame) -> float:
        large = rows[rows["flops"] > before["flops"].median()]
        quarters = np.array_split(large["time_s"].to_numpy(), 4)
        return float(np.quantile(quarters[3], 0.1) / np.quantile(quarters[0], 0.1))

    for device, rows in after.groupby("device"):
        assert later(before[before["device"] == device]) > 1.15
        assert later(rows) == pytest.approx(1, abs=0.06), device


def test_vidur_leaves_out_what_its_clock_cannot_tell(tmp_path) -> None:
    rows = [
        {"device": "h100_sxm", "op": "gemm", "dtype": "fp16", "m": 8, "n": 8, "k": 8, "time_s": t}
        for t in (1e-6, 4e-6, 5e-6, 9e-6)
    ]
    frame, left_out = sources.read_rows(write(tmp_path, "vidur_gemm", rows), "vidur_gemm")
    assert frame["time_s"].tolist() == [5e-6, 9e-6]
    assert left_out == {"less than 5 µs by a clock of 1 µs": 2}


def test_deepbench_rows_of_other_machines_are_named(tmp_path) -> None:
    conv = {
        "op": "conv",
        "dtype": "fp32",
        "w_in": 28,
        "h_in": 28,
        "c_in": 64,
        "batch": 8,
        "c_out": 64,
        "kw": 3,
        "kh": 3,
        "w_out": 28,
        "h_out": 28,
        "time_s": 1e-3,
    }
    rows = [{**conv, "device": "t4", "pass": way} for way in ("fwd", "bwd_inputs", "sideways")]
    rows += [{**conv, "device": device, "pass": "fwd"} for device in ("knl7250", "abacus")]
    found = sources.read_families(write(tmp_path, "deepbench_conv", rows), ["convolution"])
    assert len(found.families["convolution"]["t4"]) == 2
    assert sorted(found.families["convolution"]["t4"].rows.implementation) == [
        "conv||fp32|bwd_inputs",
        "conv||fp32|fwd",
    ]
    reasons = found.left_out["deepbench_conv"]
    assert reasons["the device is no GPU"] == 1
    assert reasons["no facts of the device abacus are known"] == 1
    assert sum(count for reason, count in reasons.items() if "sideways" in reason) == 1


def test_aiconfigurator_rows_keep_their_implementation(tmp_path) -> None:
    write(
        tmp_path, "aiconfigurator_gemm", [GEMM, {**GEMM, "framework": "trtllm"}, {**GEMM, "m": -1}]
    )
    found = sources.read_families(tmp_path, ["matmul"])
    rows = found.families["matmul"]["b200_sxm"]
    assert sorted(rows.about["framework"]) == ["trtllm", "vllm"]
    assert len(set(rows.rows.implementation)) == 2
    assert rows.about["shape"].nunique() == 1  # both on one side
    ((reason, count),) = found.left_out["aiconfigurator_gemm"].items()
    assert (reason, count) == ("gemm: m must be a number above zero and at most 1e+13", 1)
    moe = sources.read_families(write(tmp_path, "aiconfigurator_moe", [MOE]), ["moe"]).families[
        "moe"
    ]["h100_sxm"]
    assert moe.about["quant"].tolist() == ["bfloat16"]


def test_a_table_that_is_not_there_is_named(tmp_path) -> None:
    found = sources.read_families(tmp_path, ["softmax"])
    assert found.families == {}
    assert found.left_out == {"neusight_softmax": {"the table is not there": 0}}


def test_a_table_without_times_is_one_sentence(tmp_path) -> None:
    write(
        tmp_path,
        "neusight_ln",
        [{"device": "t4", "op": "ln", "dtype": "fp32", "rows": 1, "cols": 1}],
    )
    with pytest.raises(InputError, match="neusight_ln of neusight needs a column 'time_s'"):
        sources.read_rows(tmp_path, "neusight_ln")


def test_a_shape_is_on_one_side_whatever_its_number_format() -> None:
    m = np.arange(1.0, 2001.0)
    half, single = (
        sources.shape_hash("matmul", Gemm(dtype, m, 64.0, 32.0), len(m))
        for dtype in ("bf16", "fp32")
    )
    np.testing.assert_array_equal(half, single)
    biased = sources.shape_hash("matmul", Gemm("bf16", m, 64.0, 32.0, bias=1.0), len(m))
    np.testing.assert_array_equal(half, biased)
    assert len(np.unique(half)) == len(m)
    assert abs(sources.is_test(half).mean() - 0.4) < 0.04
    assert (
        half != sources.shape_hash("matmul", Gemm("bf16", 64.0, m, 32.0), len(m))
    ).mean() > 0.99  # m and n are not the same


def test_sides_never_change() -> None:
    """A result may be compared with one of last year: the hash is part of the claim."""
    assert (
        sources.shape_hash("matmul", Gemm("bf16", 128.0, 256.0, 512.0), 1)[0]
        == 11264727430851405726
    )
    attention = PrefillAttention("bf16", batch=1.0, q_len=128.0, heads=8.0, head_dim=64.0)
    assert sources.shape_hash("prefill_attention", attention, 1).dtype == np.uint64


@pytest.mark.parametrize(
    ("name", "inputs", "result", "expected"),
    [
        (
            "Linear",
            [(16, 512, 1024)],
            (16, 512, 4096),
            {"op": "linear", "m": 8192, "n": 4096, "k": 1024},
        ),
        (
            "Linear",
            [(3840,), (4096, 1280), (1280, 3840)],
            (4096, 3840),
            {"op": "linear", "m": 4096, "n": 3840, "k": 1280},
        ),
        (
            "BMM",
            [(4, 20, 1024, 64), (4, 20, 64, 512)],
            (4, 20, 1024, 512),
            {"op": "bmm", "batch": 80, "m": 1024, "n": 512, "k": 64},
        ),
        ("VECadd", [(8, 32, 64), (8, 32, 64)], (8, 32, 64), {"op": "add", "rows": 256, "cols": 64}),
        (
            "VECadd",
            [(8, 32, 64), (8, 1, 64)],
            (8, 32, 64),
            {"op": "addu", "rows": 256, "cols": 64},
        ),  # broadcast
        ("VECdiv", [(8, 32), (1,)], (8, 32), {"op": "divu", "rows": 8, "cols": 32}),
        ("VECsoftmax", [(8, 32)], (8, 32), {"op": "softmax", "rows": 8, "cols": 32}),
        ("VECln", [(8, 4, 32)], (8, 4, 32), {"op": "ln", "rows": 32, "cols": 32}),
    ],
)
def test_ops_inside_models_by_their_shapes(tmp_path, name, inputs, result, expected) -> None:
    row = {
        "device": "t4",
        "op": name,
        "dtype": "fp32",
        "InputShapes": str(inputs),
        "OutputShape": str(result),
        "label_fw_s": 1e-3,
    }
    frame, left_out = sources.read_model_ops(write(tmp_path, sources.MODEL_OPS, [row]))
    assert left_out == {}
    assert {key: frame[key][0] for key in expected} == expected


def test_ops_inside_models_that_say_nothing_are_counted(tmp_path) -> None:
    good = {
        "device": "t4",
        "op": "VECrelu",
        "dtype": "fp32",
        "InputShapes": "[(8, 32)]",
        "OutputShape": "(8, 32)",
        "label_fw_s": 1e-3,
    }
    rows = [
        good,
        {**good, "op": "Fold"},
        {**good, "InputShapes": "what?"},
        {**good, "op": "BMM", "InputShapes": "[(8, 32), (8, 32)]"},
    ]
    frame, left_out = sources.read_model_ops(write(tmp_path, sources.MODEL_OPS, rows))
    assert frame["op"].tolist() == ["relu"]
    assert left_out == {
        f"the shapes of {name} fit no op of ours": 1 for name in ("Fold", "VECrelu", "BMM")
    }


def test_every_table_of_the_data_folder_has_a_loader(data_dir) -> None:
    there = {path.name.removesuffix(".csv.gz") for path in (data_dir / "compute").glob("*.csv.gz")}
    assert there <= {*sources.FILES, sources.MODEL_OPS}


def test_the_small_tables_are_read_whole(data_dir) -> None:
    found = sources.read_families(data_dir, ["softmax", "quantise"])
    counts = {device: len(rows) for device, rows in found.families["softmax"].items()}
    assert counts == {
        "a100_pcie_40g": 1324,
        "mi100": 1288,
        "p100_pcie_16g": 1382,
        "p4": 1324,
        "t4": 1324,
        "v100_pcie_32g": 1324,
        # of the second delivery
        "a100_pcie_80g": 81,
        "mi210": 1500,
    }
    assert sum(len(rows) for rows in found.families["quantise"].values()) == 3600 + 2 * 800
    assert not any(found.left_out.values())
    softmax = found.families["softmax"]["t4"]
    assert softmax.rows.sm_count[0] == load_device("t4").multiprocessors
    assert softmax.about["test"].mean() == pytest.approx(0.4, abs=0.05)


def test_ops_inside_models_are_all_read(data_dir) -> None:
    frame, left_out = sources.read_model_ops(data_dir)
    assert left_out == {}
    assert len(frame) == 307
