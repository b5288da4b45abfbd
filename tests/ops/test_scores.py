"""Attention in cycles of scores: by hand, its limits, and rows of two libraries that no fit saw."""

import numpy as np
import pytest

from hybridperf.hardware import load_device
from hybridperf.learning.prior.form import SCORE_ROOFLINE
from hybridperf.ops import EncoderAttention, PrefillAttention
from hybridperf.ops.scores import ScoreGpu, library_of, library_s, score_amounts


def gpu(op, device="h100_sxm"):
    spec = load_device(device)
    return ScoreGpu.of(spec, spec.peak(op.dtype, "matrix"), 1.0, spec.memory_bytes_per_s)


def amounts(op, device="h100_sxm"):
    return score_amounts(op, gpu(op, device))


def seconds(op, device):
    """By the form's own constants."""
    work = np.log([[max(float(one), 1e-30) for one in amounts(op, device)]])
    return float(np.exp(SCORE_ROOFLINE.closed(SCORE_ROOFLINE.start, work).total[0]))


def test_by_hand():
    """4,096 causal queries are 32 blocks of 32 x 33 / 2 tiles in all; a tile's scores cost their
    products at 0.83 of the peak, and 0.46 of an exponential of 16 a cycle.
    """
    op, spec = PrefillAttention("bf16", 2.0, 4096.0, 8.0, 128.0), load_device("h100_sxm")
    found = amounts(op)
    score_s = 4 * 128 / (0.83 * 989.4e12) + 0.46 / (16 * 132 * 1.98e9)
    assert found.products_s == pytest.approx(2 * 8 * 32 * 33 / 2 * 128**2 * score_s)
    assert found.longest_s == pytest.approx(32 * 128**2 * score_s * 132)
    assert found.block_s == pytest.approx(2 * 8 * 32 / (132 * 1.98e9))
    assert found.memory_s == pytest.approx(op.work().bytes / spec.memory_bytes_per_s)


def test_an_encoder_sees_all_and_a_window_few():
    causal = PrefillAttention("bf16", 1.0, 8192.0, 8.0, 128.0)
    whole = EncoderAttention("bf16", 1.0, 8192.0, 8.0, 128.0)
    windowed = PrefillAttention("bf16", 1.0, 8192.0, 8.0, 128.0, 0.0, 512.0)
    all_s, half_s, few_s = (amounts(one).products_s for one in (whole, causal, windowed))
    assert half_s / all_s == pytest.approx((64 + 1) / (2 * 64))
    # five tiles a row but at the beginning
    assert few_s / all_s == pytest.approx((64 * 5 - 10) / 64**2)


def test_narrow_heads_reach_less_of_the_peak():
    ops = [PrefillAttention("bf16", 1.0, 32768.0, 8.0, size) for size in (64.0, 128.0, 256.0)]
    shares = [float(op.work().flops) / 989.4e12 / amounts(op).products_s for op in ops]
    assert shares == sorted(shares)
    assert shares[0] < 0.65 < 0.75 < shares[2] < 0.83


def test_more_queries_are_never_quicker():
    each = [seconds(PrefillAttention("bf16", 1.0, n, 8.0, 128.0), "h100_sxm")
            for n in np.unique(np.geomspace(1, 65536, 200).round())]  # fmt: skip
    assert (np.diff(each) >= 0).all()


@pytest.mark.parametrize(
    ("device", "dtype", "causal", "measured_s"),
    # cuDNN 9.19, 32,768 queries, 64 heads of 128 (NVIDIA/cudnn-frontend @3929da2)
    [
        ("h200_sxm", "bf16", 1.0, 25.57e-3), ("h200_sxm", "bf16", 0.0, 50.77e-3),
        ("h200_sxm", "fp8", 1.0, 16.88e-3), ("h200_sxm", "fp8", 0.0, 33.12e-3),
    ],
)  # fmt: skip
def test_a_library_that_no_fit_saw(device, dtype, causal, measured_s):
    op = PrefillAttention(dtype, 1.0, 32768.0, 64.0, 128.0, 8.0, causal=causal)
    assert seconds(op, device) == pytest.approx(measured_s, rel=0.2)


@pytest.mark.parametrize(
    ("word", "device", "dtype", "head_dim", "published_flops_per_s"),
    [  # FlashAttention 2 and 3: their papers; 4 and cuDNN 9.13 on a B200: FlashAttention-4's
        ("flash2", "a100_sxm4_80g", "fp16", 128.0, 225e12),
        ("FA3", "h100_sxm", "fp16", 256.0, 740e12),
        ("FlashAttention-3", "h100_sxm", "fp8", 256.0, 1200e12),
        ("flash-attn 4", "b200_sxm", "bf16", 128.0, 1605e12),
        ("cudnn", "b200_sxm", "bf16", 128.0, 1235e12),
    ],
)  # fmt: skip
def test_rates_that_authors_publish(word, device, dtype, head_dim, published_flops_per_s):
    """Long sequences without a mask."""
    op = PrefillAttention(dtype, 1.0, 16384.0, 16.0, head_dim, causal=0.0)
    library = library_of(word, load_device(device).arch)
    rate = float(op.work().flops) / library_s(op, gpu(op, device), library)
    assert rate == pytest.approx(published_flops_per_s, rel=0.15)


def test_a_library_is_told_where_it_runs():
    assert library_of("flashinfer", "Hopper sm_90") == library_of("fa3", "Hopper sm_90")
    assert library_of("flash-attn 2", "Hopper sm_90") != library_of("pytorch", "Hopper sm_90")
    assert library_of("fa3", "Blackwell sm_100") is None
    assert library_of("", "Hopper sm_90") is None
