"""Sparse products: their work by hand, what degrees say, and what kernels are called."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import load_device
from hybridperf.io import InputError
from hybridperf.ops import SDDMM, NMGemm, SpMM, columns_of, op_by_name
from hybridperf.ops.table import parse_ops
from hybridperf_calibration.published.sparse import kernel_and_dtype, spmm_rows

REGULAR = SpMM("fp32", 1000.0, 1e9, 4000.0, 64.0)  # so many columns that none is met twice


def test_traffic_by_hand() -> None:
    done, row = REGULAR.work(), 64 * 4
    assert float(done.flops) == 2 * 4000 * 64
    # a dense row for each nonzero, a result a row; an index and a value a nonzero, where rows begin
    assert float(done.bytes) == pytest.approx(5000 * row + 8 * 4000 + 4 * 1001, rel=1e-5)
    assert float(REGULAR.again_bytes()) == pytest.approx(0.0, abs=row)
    assert float(REGULAR.longest()) == 4.0


def test_dot_products_write_the_nonzeros_alone() -> None:
    done, row = SDDMM("fp32", 1000.0, 1e9, 4000.0, 64.0).work(), 64 * 4
    moved = 4000 * row + 1000 * row + 4 * 4000 + 4 * 4000 + 4 * 1001
    assert float(done.bytes) == pytest.approx(moved, rel=1e-5)


def test_rows_that_share_an_index_gather_once() -> None:
    whole, four = (
        float(dataclasses.replace(REGULAR, block=block).first_bytes()) for block in (1.0, 4.0)
    )
    assert four == pytest.approx(whole / 4, rel=1e-5)


def test_all_rows_are_met_where_nonzeros_abound() -> None:
    dense = SpMM("fp32", 1000.0, 1000.0, 1e6, 64.0)
    assert float(dense.distinct()) == pytest.approx(1000.0)
    assert float(dense.again_bytes()) == pytest.approx((1e6 - 1000) * 256)


@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_degrees_of_a_log_normal_distribution_are_recognised(spread: float) -> None:
    rows = 100_000
    degree = 20 * np.exp(spread * np.random.default_rng(0).standard_normal(rows))
    matrix = SpMM(
        "fp32", float(rows), float(rows), float(degree.sum()), 64.0,
        float(degree.std() / degree.mean()), float(degree.max()),
    )  # fmt: skip
    assert float(matrix.skew()) == pytest.approx(spread, rel=0.15)
    assert float(REGULAR.skew()) == 0.0


def test_two_degrees_alone_are_no_long_tail() -> None:
    """Half of the rows with 19 of 20 nonzeros: a large spread, and no row far above it."""
    two = SpMM("fp32", 1e5, 1e5, 1e6, 64.0, 0.9, 19.0)
    assert float(two.skew()) < 0.2 < float(np.sqrt(np.log1p(0.9**2)))


def test_two_of_four_take_half_of_the_dense_flops() -> None:
    sparse, dense = NMGemm("fp16", 64.0, 128.0, 256.0), op_by_name("gemm")[0]
    assert sparse.work().flops == dense("fp16", 64.0, 128.0, 256.0).work().flops / 2
    assert sparse.work().bytes < dense("fp16", 64.0, 128.0, 256.0).work().bytes


@pytest.mark.parametrize(
    ("word", "kernel", "dtype"),
    [
        ("CUSPARSE_FP32", "", "fp32"), ("CUSPARSE_FP16", "", "fp16"),
        ("TC_DIRECT", "tc_direct", "fp16"), ("TC_DIRECT_TF32", "tc_direct", "tf32"),
        ("CSR_DIRECT", "csr_direct", "fp32"),
    ],
)  # fmt: skip
def test_kernels_of_tables_are_named_as_ours(word: str, kernel: str, dtype: str) -> None:
    name, of = kernel_and_dtype(word)
    read = columns_of(SpMM).read_text
    assert read("kernel", name, of) == read("kernel", word, of) == kernel
    assert of == dtype


def test_a_table_without_kernels_is_refused() -> None:
    import pandas as pd

    with pytest.raises(InputError, match="kernel"):
        spmm_rows(pd.DataFrame({"gpu": ["RTX 3090"]}))


def test_an_optional_size_that_is_no_number_is_a_problem_not_its_default() -> None:
    row = {"op": "spmm", "dtype": "fp32", "rows": 10, "cols": 10, "nnz": 20, "n": 8}
    cells = [{**row, "cv_degree": one} for one in ("x", "", None, 0.5)]
    parsed = parse_ops(pd.DataFrame(cells), load_device("rtx_3090"))
    assert [bool(one) for one in parsed.problem] == [True, False, False, False]
    assert "cv_degree must be a number of at least zero" in parsed.problem[0]


def test_the_cards_of_the_table_are_known() -> None:
    small, large = load_device("rtx_3090"), load_device("rtx_4090")
    assert large.l2_bytes == 12 * small.l2_bytes


def test_sizes_that_contradict_each_other_are_problems_of_their_rows_alone() -> None:
    row = {"op": "spmm", "dtype": "fp32", "rows": 100, "cols": 10, "nnz": 200, "n": 8}
    kept = {"op": "nm_gemm", "dtype": "fp16", "m": 64, "n": 64, "k": 64, "of": 4}
    cells = [row, {**row, "nnz": 2000}, {**row, "max_degree": 1}, {**kept, "kept": 2},
             {**kept, "kept": 5}]  # fmt: skip
    problem = parse_ops(pd.DataFrame(cells), load_device("rtx_3090")).problem
    assert [bool(one) for one in problem] == [False, True, True, False, True]
    for at, why in {
        1: "nnz must be at most",
        2: "max_degree must be at",
        4: "kept must be",
    }.items():
        assert why in problem[at]
