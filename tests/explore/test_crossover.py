"""Where sparse products pay: what papers found lies in our interval, and what moves it."""

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.explore.crossover import _where
from hybridperf.hardware import load_device
from hybridperf.io import InputError
from hybridperf.model import PerfModel, load_model

SIZES = (2048.0, 2048.0, 256.0)


@pytest.fixture(scope="module")
def v100() -> PerfModel:
    return load_model("v100_sxm2")


@pytest.mark.parametrize(("op", "published"), [("spmm", 0.7), ("sddmm", 0.9)])
def test_vector_sparse_products_pay_from_where_the_paper_found(
    v100: PerfModel, op: str, published: float
) -> None:
    """Chen et al., vectorSparse (2021): faster than dense half products on a V100 above 70 % of
    zeros (SpMM) and 90 % (SDDMM), 4x1. No product of theirs was fitted to.
    """
    found = hp.sparse_crossover(v100, *SIZES, dtype="fp16", op=op, block=4.0)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1 - published < found.high
    assert found.low < found.density < found.high
    assert found.sparsity == 1 - found.density
    assert any("gathers" in note for note in found.notes)


def test_rows_that_share_an_index_pay_sooner(v100: PerfModel) -> None:
    one, four, eight = (
        hp.sparse_crossover(v100, *SIZES, dtype="fp16", block=block).density
        for block in (1.0, 4.0, 8.0)
    )
    assert one < four < eight


def test_where_both_cost_as_much_they_do() -> None:
    found = hp.sparse_crossover("v100_sxm2", *SIZES, dtype="fp16")
    assert found.sparse_s == pytest.approx(found.dense_s, rel=0.25)  # at the nearest grid point


def test_a_datasheet_without_caches_has_no_interval() -> None:
    cpu = PerfModel.datasheet(load_device("here"))
    found = hp.sparse_crossover(cpu, *SIZES)
    assert found.low is found.high is None


def test_crossings_lie_between_points_of_the_grid() -> None:
    assert _where(np.full(41, -1.0)) == 1.0
    assert _where(np.full(41, 1.0)) == 0.0
    crossing = np.linspace(-1.0, 3.0, 41)  # zero at a quarter of four decades
    assert _where(crossing) == pytest.approx(1e-3, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"op": "gemm"}, "spmm or sddmm"), ({"rows": 0.0}, "above zero"), ({"n": "9"}, "n as a"),
        ({"block": -4.0}, "block"), ({"cv_degree": -1.0}, "cv_degree"), ({"dtype": "fp99"}, "fp99"),
    ],
)  # fmt: skip
def test_what_cannot_be_priced_is_refused(v100: PerfModel, changes: dict, says: str) -> None:
    sizes = dict(zip(("rows", "cols", "n"), SIZES, strict=True)) | changes
    with pytest.raises(InputError, match=says):
        hp.sparse_crossover(v100, **sizes)
