"""Lin's lookup formulas, by hand; their blindness to skew, beside ours."""

import math

import pytest

from benchmarks.claims import lin_formulas as lin
from hybridperf.io import InputError
from hybridperf.ops.embedding import Table, Zipf

V100 = lin.gpu("v100_sxm2")
LARGE = Table("large", 1e6, 64, 100)  # DLRM_default: 8 of these


def seconds(formula: str, direction: str, tables: list[Table], batch: float = 2048) -> float:
    return lin.lookup_s(formula, direction, tables, batch, V100)


def test_all_traffic_to_memory_by_hand() -> None:
    """64 + 32 of offsets, 400 of indices to 416, 100 rows of 256, one result of 256."""
    moved = 8 * 2048 * (64 + 32 + 416 + 100 * 256 + 256)
    x = math.log2(moved)
    assert 16 < x < 30
    bandwidth = 1e9 * 10 ** (1.9472 / (1 + math.exp(-0.5556 * (x - 19.817))) + 0.9552)
    tables = [Table(str(i), 1e6, 64, 100) for i in range(8)]
    assert seconds("lin_plain", "forward", tables) == pytest.approx(moved / bandwidth)


def test_backward_moves_rows_twice() -> None:
    forward, backward = (
        seconds("lin_plain", one, [LARGE], 4096) for one in ("forward", "backward")
    )
    assert 1.8 * forward < backward < 2 * forward


def test_small_calls_cost_the_overhead() -> None:
    tiny = seconds("lin_plain", "forward", [Table("tiny", 10, 8, 1)], 8)
    assert tiny == pytest.approx(4.833e-6)


def test_hits_by_hand() -> None:
    """45 x 80 warps over 2048 bags: two tables in flight; 0.9 * 6 MiB / 2 / 256 rows of a table are
    held.
    """
    held = 0.9 * 6 * 2**20 / 2 / 256
    assert lin.forward_hit_rate(LARGE, 2048, V100) == pytest.approx(
        1 - (held + (204_800 - held) * (1e6 - held) / 1e6) / 204_800
    )
    small = Table("small", 1000, 64, 100)
    # all of it is held
    assert lin.forward_hit_rate(small, 2048, V100) == pytest.approx(1 - 1000 / 204_800)
    few = Table("few", 1e6, 64, 2)
    held = (6 * 2**20 // 2) / 256
    assert lin.backward_hit_rate(few, 2048, V100) == pytest.approx(
        held / 1e6 * (held - 1) / (1e6 - 1)
    )


def test_hits_save_time_and_narrow_rows_lose_some() -> None:
    small = [Table("small", 1000, 128, 100)]
    hits, plain = (seconds(one, "forward", small) for one in ("lin_hit_rate", "lin_plain"))
    assert hits < plain
    hits, plain = (seconds(one, "backward", small) for one in ("lin_hit_rate", "lin_plain"))
    assert hits <= plain
    narrow = [Table("narrow", 1e7, 32, 100)]
    hits, plain = (seconds(one, "forward", narrow) for one in ("lin_hit_rate", "lin_plain"))
    assert hits == pytest.approx(1.55 * plain, rel=0.02)


@pytest.mark.parametrize("formula", lin.FORMULAS)
def test_they_know_no_skew(formula: str) -> None:
    skewed = Table("large", 1e6, 64, 100, access=Zipf(1.2))
    for direction in ("forward", "backward"):
        assert seconds(formula, direction, [skewed]) == seconds(formula, direction, [LARGE])
    assert float(skewed.unique_rows(2048)) < 0.3 * float(LARGE.unique_rows(2048))


def test_gpus_without_constants_are_refused() -> None:
    with pytest.raises(InputError, match=r"unknown GPU of Lin et al\. 'p100_sxm2'"):
        lin.gpu("p100_sxm2")
