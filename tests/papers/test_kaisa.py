"""KAISA's share of gradient workers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from papers import kaisa as choices
from papers.kaisa import balanced

from hybridperf.io import InputError
from hybridperf.workloads.transformer.zoo import load_shape

H = 1024
LAYER = [choices.Factored(H, H)] * 4 + [choices.Factored(H, 4 * H), choices.Factored(4 * H, H)]
COSTS = choices.SecondOrderCosts.of_layer(
    LAYER, 0.1267, 0.0149, bytes_per_s=10e9
)  # measured on a P100 (KAISA, SC21)


def test_factors_of_a_bert_layer() -> None:
    assert sum(layer.factors for layer in LAYER) == 42 * H**2
    assert sum(layer.factors for layer in LAYER) * 4 / 2**20 == 168.0  # MiB, as measured


def test_ends_of_the_trade() -> None:
    layers, world = LAYER * 24, 16
    total = sum(layer.factors + layer.weights for layer in layers) * 4
    gradients = sum(layer.weights for layer in layers) * 4
    everywhere, once = (
        choices.second_order(layers, world, share, COSTS) for share in (1.0, 1 / world)
    )
    assert (everywhere.memory_bytes, everywhere.received_bytes) == (total, 0)
    assert (once.groups, once.inverse_bytes) == (world, 0)
    assert once.memory_bytes == pytest.approx(total / world, rel=0.15)
    assert once.received_bytes == pytest.approx(gradients * (1 - 1 / world), rel=0.02)


@pytest.mark.parametrize("m", [1, 2, 4, 8, 16])
def test_between_the_ends(m) -> None:
    layers = LAYER * 32
    found = choices.second_order(layers, 16, m / 16, COSTS)
    total = sum(layer.factors + layer.weights for layer in layers) * 4
    gradients = sum(layer.weights for layer in layers) * 4
    assert found.memory_bytes == pytest.approx(m / 16 * total, rel=0.1)
    assert found.received_bytes == pytest.approx((1 - m / 16) * gradients, rel=0.05)
    assert 1 <= found.imbalance < 1.3


def test_one_rank_inverts_what_was_measured() -> None:
    alone = choices.second_order(LAYER, 1, 1.0, COSTS)
    assert alone.invert_s * COSTS.every == pytest.approx(0.1267)
    assert alone.precondition_s == pytest.approx(0.0149)
    assert alone.communication_s == 0


def test_front_of_memory_and_time() -> None:
    slow = choices.SecondOrderCosts.of_layer(LAYER, 0.1267, 0.0149 / 50, bytes_per_s=1e9)
    front = choices.second_order_front(LAYER * 24, 16, slow)
    memory_bytes, step_s = [one.memory_bytes for one in front], [one.step_s for one in front]
    assert memory_bytes == sorted(memory_bytes)
    assert step_s == sorted(step_s, reverse=True)
    every = [choices.second_order(LAYER * 24, 16, m / 16, slow) for m in (1, 2, 4, 8, 16)]
    for one in every:
        assert any(
            kept.memory_bytes <= one.memory_bytes and kept.step_s <= one.step_s for kept in front
        )
    assert len(front) > 1


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=40), st.integers(1, 8))
def test_the_fullest_holds_one_job_or_little_more_than_the_mean(costs, bins) -> None:
    """Largest first: a second job of a rank is no larger than the one behind the `bins` largest."""
    load = np.bincount(balanced(costs, bins), weights=costs, minlength=bins)
    largest = [*sorted(costs, reverse=True), *[0.0] * bins]
    assert load.sum() == pytest.approx(sum(costs))
    assert load.max() <= max(largest[0], sum(costs) / bins + largest[bins]) + 1e-9


def test_shares_that_make_no_grid() -> None:
    with pytest.raises(
        InputError, match=r"gradient workers must divide 16 ranks, got 3 .*take 0\.125"
    ):
        choices.second_order(LAYER, 16, 0.2, COSTS)
    with pytest.raises(InputError, match="a share in"):
        choices.second_order(LAYER, 16, 0.0, COSTS)


@pytest.mark.parametrize(
    ("device", "system", "gpus"),
    [("v100_sxm2", "aws_p3dn_v100", 64), ("a100_sxm4_80g", "dgx_a100", 128)],
)
def test_memory_buys_time_and_not_in_the_format_that_every_rank_repeats(
    device: str, system: str, gpus: int
) -> None:
    """Pauloski et al., SC21: the more ranks keep inverses, the fewer messages and the quicker the
    step. In half precision that is so until products outweigh messages; in fp32, which each rank
    would repeat, keeping all everywhere is slowest.
    """
    half, single = (
        choices.priced(device, system, gpus, load_shape("bert-large"), dtype=dtype)
        for dtype in ("fp16", "fp32")
    )
    quickest = min(half, key=lambda one: one.step_s)
    assert quickest.memory_bytes > 5 * half[0].memory_bytes
    assert quickest.step_s < 0.75 * half[0].step_s
    assert max(single, key=lambda one: one.step_s) is single[-1]
    assert [one.communication_s for one in half] == sorted(
        (one.communication_s for one in half), reverse=True
    )


def test_preconditioning_of_a_v100_is_near_what_was_published() -> None:
    """8.9 ms a layer of BERT-large, by inverses in fp32; no product of it was given."""
    layer = choices.factored(load_shape("bert-large"))[:6]
    found_s = choices.precondition_s("v100_sxm2", layer, "fp32", sides=1)
    assert found_s == pytest.approx(choices.PUBLISHED_PRECONDITION_S, rel=0.2)


def test_preconditioning_grows_with_the_cube_of_a_matrix() -> None:
    """By hand: both sides' eigenvectors times the gradient are products of a g (a + g)."""
    small, large = choices.Factored(100, 50), choices.Factored(1200, 600)
    costs = choices.SecondOrderCosts.of_layer([small], 1.0, 1.0, bytes_per_s=1e9)
    assert choices.second_order([large], 1, 1.0, costs).precondition_s == pytest.approx(12**3)


def test_inversions_are_scaled_by_peaks() -> None:
    """80.8 ms of a V100 at 15.7 TFLOP/s are 65.1 ms at 19.5."""
    layers, alone = 24, choices.priced("a100_sxm4_80g", "dgx_a100", 1, load_shape("bert-large"))[0]
    assert alone.invert_s * 10 == pytest.approx(layers * 0.0651, rel=1e-3)
    with pytest.raises(InputError, match="not of experts"):
        choices.factored(load_shape("mixtral-8x7b"))
