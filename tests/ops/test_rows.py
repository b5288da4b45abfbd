"""The form of ops that go row by row on a GPU: by hand, its limits, slopes, and published norms."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from support.part_calls import rows_of

import hybridperf as hp
from hybridperf.learning.prior.form import ROW_ROOFLINE, slopes
from hybridperf.ops import Norm, RmsNorm, Softmax
from hybridperf.ops.rows import (
    KERNEL_S,
    ROW_CYCLES,
    RowMachine,
    goes_by_rows,
    kernels_of,
    row_seconds,
    row_work,
)

H200, V100 = hp.load_device("h200_sxm"), hp.load_device("v100_pcie_32g")
MACHINE, OLD = RowMachine.of(H200), RowMachine.of(V100)
PUBLISHED = Path(__file__).parents[3] / "shared/data/added/compute/published_kernels.csv.gz"


def seconds(op, library: str, machine: RowMachine = MACHINE) -> float:
    return float(row_seconds(row_work(op, machine, library).amounts))


def test_a_fused_norm_moves_its_bytes_once_however_short_its_rows_are() -> None:
    for cols in (64.0, 128.0, 4096.0):
        op = RmsNorm("bf16", 2.0**27 / cols, cols)
        streamed_s = (2 * 2.0**27 + cols) * 2 / (0.84 * H200.memory_bytes_per_s)
        assert seconds(op, "cudnn") == pytest.approx(KERNEL_S + streamed_s, rel=1e-9)


def test_a_row_that_left_the_cache_is_read_again_and_one_that_waits_there_is_not() -> None:
    near, far = Norm("fp32", 1e6, 256.0), Norm("fp32", 1e5, 65536.0)
    streams = [row_work(op, OLD, "pytorch").amounts.stream_s for op in (near, far)]
    bytes_s = [float(op.work().bytes) / OLD.stream_bytes_per_s for op in (near, far)]
    assert streams[0] / bytes_s[0] == pytest.approx(1.0, abs=0.1)
    assert streams[1] / bytes_s[1] == pytest.approx(1.5, abs=0.05)


def test_a_block_for_each_row_costs_cycles_and_a_warp_of_rows_none() -> None:
    rows = 1e6
    assert row_work(Softmax("fp32", rows, 64.0), MACHINE, "pytorch").amounts.block_s == 0
    block_s = row_work(Norm("fp32", rows, 64.0), MACHINE, "pytorch").amounts.block_s
    assert block_s == pytest.approx(rows / (132 * H200.clock_hz))
    short = seconds(Norm("fp32", rows, 1.0), "pytorch")
    assert short == pytest.approx(KERNEL_S + ROW_CYCLES * block_s, rel=0.01)


def test_single_loads_cost_the_same_cycles_on_any_bandwidth() -> None:
    op = RmsNorm("fp16", 8192.0, 4096.0)
    wide = RowMachine.of(H200.model_copy(update={"memory_bytes_per_s": 4e13}))
    assert seconds(op, "vllm_2023", wide) == pytest.approx(seconds(op, "vllm_2023"), rel=0.06)
    assert seconds(op, "cudnn", wide) < 0.3 * seconds(op, "cudnn")


def test_an_untold_library_is_what_libraries_do_on_average_and_as_unsure() -> None:
    op = RmsNorm("fp16", 8192.0, 4096.0)
    whole = row_work(op, MACHINE)
    each = [seconds(op, name) for name in ("cudnn", "pytorch", "vllm_2023")]
    assert min(each) < float(row_seconds(whole.amounts)) < max(each)
    assert whole.library_sd > 0.2
    assert row_work(op, MACHINE, "cudnn").library_sd == 0
    assert len(kernels_of("norm", "unheard of")) == len(kernels_of("norm"))
    assert goes_by_rows(op)


def test_the_form_is_the_one_that_knobs_of_a_family_bend() -> None:
    for library in ("", "cudnn", "pytorch", "vllm_2023"):
        op = RmsNorm("fp16", 4096.0, 5120.0)
        rows = rows_of(op, H200, library)
        work = rows.work()
        work[:, 0] = np.log(1e-30)  # a family counts arithmetic, too
        (by_knobs,) = np.exp(ROW_ROOFLINE.log_s(ROW_ROOFLINE.start[None], work))
        assert by_knobs == pytest.approx(seconds(op, library), rel=1e-6)
    work, theta = rows_of(op, H200, "pytorch").work(), ROW_ROOFLINE.start[None]
    step = 1e-6
    for knob, slope in enumerate(slopes(ROW_ROOFLINE, theta, work)[0]):
        moved = step * np.eye(theta.shape[1])[knob]
        ends = [ROW_ROOFLINE.log_s(theta + sign * moved, work)[0] for sign in (1, -1)]
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-6)


def test_jax_gives_the_same_seconds_and_their_slope_by_columns() -> None:
    def of(cols):
        return row_seconds(row_work(RmsNorm("bf16", 4096.0, cols), MACHINE, "pytorch").amounts)

    with jax.enable_x64(True):
        value, slope = jax.value_and_grad(of)(jnp.float64(4096.0))
    assert float(value) == pytest.approx(float(of(4096.0)), rel=1e-12)
    assert float(slope) == pytest.approx(float(of(4096.5) - of(4095.5)), rel=1e-4)


def test_other_devices_than_gpus_have_no_such_form() -> None:
    assert RowMachine.of(hp.load_device("here")) is None


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="the published kernels are not here")
def test_published_norms_of_an_h200_in_no_fit_are_near() -> None:
    """NVIDIA/cudnn-frontend, a laboratory that no constant was fitted to or chosen by."""
    frame = pd.read_csv(PUBLISHED)
    frame = frame[frame["op"].isin(["rmsnorm", "layernorm"])].reset_index(drop=True)
    found = hp.load_model("h200_sxm").predict_ops(
        frame[["device", "op", "dtype", "framework", "rows", "cols"]]
    )
    error = (found["predicted_s"] / frame["time_s"] - 1).abs()
    constant = (frame["time_s"] / found["roofline_s"]).median() * found["roofline_s"]
    baseline = (constant / frame["time_s"] - 1).abs()
    inside = (found["low_s"] <= frame["time_s"]) & (frame["time_s"] <= found["high_s"])
    for library in ("cudnn", "torch_compile", "pytorch"):
        mine = frame["framework"] == library
        assert error[mine].median() < 0.12
    assert error.median() < baseline.median()
    assert inside.mean() > 0.85
