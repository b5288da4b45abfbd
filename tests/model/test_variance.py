"""Components of variance: who shares them, what sums of calls make of them, and the ends."""

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.workload import Workload
from hybridperf.model.calls import CallChain, Exposed, GivenSeconds
from hybridperf.model.variance import Components, beyond_by_stalls, ends
from hybridperf.ops import Gemm, OpCall, RmsNorm

DEVIATION, OWN = np.array([0.5, 0.3, 0.4, 0.2]), np.array([0.3, 0.0, 0.0, 0.1])
FOUR = Components.of(DEVIATION, OWN, ["family: a", "family: a", "class: ops", ""])


def in_a_row(*calls) -> Workload:
    builder = GraphBuilder()
    for row in range(1, len(calls) + 1):
        builder.op(row)
    return Workload("in a row", builder.build(), calls)


def test_what_is_shared_and_what_is_a_call_s_own_add_up_to_its_deviation() -> None:
    assert FOUR.names == ("family: a", "class: ops")
    assert FOUR.deviation == pytest.approx(DEVIATION)
    assert FOUR.shared[0] == pytest.approx([0.4, 0.3, 0.0, 0.0])
    assert FOUR.own == pytest.approx([0.3, 0.0, 0.0, 0.2])


def test_the_variance_of_a_sum_is_that_of_draws_by_hand() -> None:
    shares, rng = np.array([0.4, 0.3, 0.2, 0.1]), np.random.default_rng(0)
    family, of_class = rng.standard_normal((2, 200_000))
    own = rng.standard_normal((4, 200_000))
    logs = FOUR.own[:, None] * own + FOUR.shared[0][:, None] * family
    logs += FOUR.shared[1][:, None] * of_class
    assert FOUR.variance(shares) == pytest.approx((shares @ logs).var(), rel=0.02)
    # where effects of a step say what a family has in common, that is each call's own
    left = FOUR.but("class")
    assert left.names == ("class: ops",)
    assert left.own == pytest.approx([0.5, 0.3, 0.0, 0.2])
    assert left.deviation == pytest.approx(DEVIATION)


def test_parts_keep_what_they_share_wherever_they_are_placed() -> None:
    found = Components.placed(9, [([7, 1], few(2)), ([4], few(1))])
    assert found.names == ("family: a",)
    assert found.shared[0, [1, 4, 7]] == pytest.approx([0.3, 0.4, 0.4])
    assert found.deviation[[0, 2, 3, 5, 6, 8]].tolist() == [0.0] * 6


def few(count: int) -> Components:
    return Components.of(DEVIATION[:count], OWN[:count], ["family: a"] * count)


def test_ends_hold_nine_of_ten_and_heed_what_only_lengthens() -> None:
    logs = 0.2 * np.random.default_rng(0).standard_normal(100_000)
    low, high = ends(np.array(2.0), np.array(0.2))
    assert np.mean((2 * np.exp(logs) > low) & (2 * np.exp(logs) < high)) == pytest.approx(
        0.9, abs=0.005
    )
    longer = ends(np.array(2.0), np.array(0.2), longer=0.4, least_s=1.9)
    assert longer[0] == 1.9
    assert np.log(longer[1] / 2) == pytest.approx(np.hypot(np.log(high / 2), 0.4))
    assert ends(np.array(2.0), np.array(0.2), least_s=5.0)[0] == 2.0  # never above the middle
    assert beyond_by_stalls(0.04, 10.0, np.array([1.0])).tolist() == [0.0]  # too seldom


@pytest.mark.parametrize("device", ["h100_sxm", "t4"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_step_of_one_op_is_as_sure_as_its_row(device, dtype) -> None:
    """Measured, and borrowed from another device."""
    model = hp.load_model(device)
    if dtype not in model.device.peak_flops_per_s:
        pytest.skip(f"{device} has no {dtype}")
    row = {"op": "gemm", "dtype": dtype, "m": 4096, "n": 4096, "k": 4096}
    table = model.predict_ops(pd.DataFrame([row])).iloc[0]
    step = hp.predict(model, in_a_row(OpCall(Gemm(dtype, 4096.0, 4096.0, 4096.0))))
    for end in ("low_s", "high_s"):
        wide = np.log(table[end] / table["predicted_s"])
        assert np.log(getattr(step, end) / step.time_s) == pytest.approx(wide, abs=0.01)


def test_two_ops_of_a_family_are_off_together_and_of_two_apart() -> None:
    model = hp.load_model("h100_sxm")
    product = [OpCall(Gemm("bf16", size, 4096.0, 4096.0)) for size in (2048.0, 4096.0)]
    norm = OpCall(RmsNorm("bf16", 65536.0, 8192.0))

    def half(*calls) -> float:
        found = hp.predict(model, in_a_row(*calls))
        return float(np.log(found.high_s / found.low_s) / 2)

    together = hp.price(model, product)
    weight = together.seconds / together.seconds.sum()
    assert half(*product) == pytest.approx(1.645 * weight @ together.spread, rel=1e-3)
    both = hp.price(model, [product[1], norm])
    weight = both.seconds / both.seconds.sum()
    assert half(product[1], norm) == pytest.approx(
        1.645 * np.hypot(*(weight * both.spread)), rel=1e-3
    )


def test_rows_that_are_made_of_others_pass_on_what_these_are_off_by() -> None:
    """A chain of two messages, one of which outlasts what it travels beside."""
    model = hp.load_model("h100_sxm")
    calls = (
        GivenSeconds(1.0, log_spread=0.1), GivenSeconds(3.0, log_spread=0.2),
        Exposed(2, 1, "all_reduce"), CallChain(((1, 2), (2, 1))),
    )  # fmt: skip
    for rows, slopes in (((4,), [2.0, 3.0]), ((3,), [-1.0, 3.0]), ((3, 4), [1.0, 6.0])):
        builder = GraphBuilder()
        for row in rows:
            builder.op(row)
        found = hp.predict(model, Workload("made", builder.build(), calls))
        wide = abs(np.dot(slopes, [0.1, 0.2])) / found.time_s  # given seconds are off together
        assert np.log(found.high_s / found.time_s) == pytest.approx(1.645 * wide, rel=1e-3)
