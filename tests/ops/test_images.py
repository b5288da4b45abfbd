"""Closed forms of convolutions, batch norms, pools and products on GPUs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridperf as hp
from hybridperf.hardware import load_device
from hybridperf.io import read_table
from hybridperf.ops import BatchedGemm, Convolution, EncoderAttention, Gemm, OpCall
from hybridperf.ops.images import (
    LAUNCH_S,
    MOST,
    MOST_GROUPED,
    NORM_STEPS,
    ConvolutionForm,
    GpuFacts,
    ImageNorm,
    ImagePool,
    attention_s,
    convolution_s,
    image_norm_s,
    image_pool_s,
    product_s,
)
from hybridperf_calibration.ship.devices import own_table

CARDS = ("rtx_3090", "rtx_4090", "h200_sxm", "a100_sxm4_80g", "t4", "v100_sxm2")
DENSE = Convolution("fp16", 256.0, 128.0, 128.0, 28.0, 28.0, 3.0)
DEPTHWISE = dataclasses.replace(DENSE, groups=128.0)
GROUPED = dataclasses.replace(DENSE, groups=8.0)
PASSES = ("fwd", "bwd_inputs", "bwd_params")


def gpu(name: str, op) -> GpuFacts:
    facts = GpuFacts.of(load_device(name), op)
    assert facts is not None
    return facts


def seconds(op: Convolution, name: str = "rtx_3090") -> float:
    return float(convolution_s(op, gpu(name, op)))


@pytest.mark.parametrize("name", CARDS)
@pytest.mark.parametrize("direction", PASSES)
def test_convolutions_stay_between_their_bounds(name: str, direction: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        c_in, c_out = 2.0 ** rng.uniform(0, 11, 2) // 1
        groups = float(rng.choice([1.0, 1.0, c_in]))
        sizes = rng.integers(1, 300), c_in, c_in * (groups > 1) or c_out, *2 * [rng.integers(7, 99)]
        op = Convolution(
            "fp16", *map(float, sizes), float(rng.choice([1, 3, 7])), groups=groups,
            channels_first=float(rng.integers(2)), direction=direction,
        )  # fmt: skip
        facts, work = gpu(name, op), op.work()
        least_s = max(
            float(work.bytes) / facts.memory_bytes_per_s,
            (groups == 1) * float(work.flops) / (1.13 * facts.peak_flops_per_s),
        )
        lanes_s = (groups > 1) * float(work.flops) / facts.vector_flops_per_s
        found_s, most = seconds(op, name) - LAUNCH_S, MOST if groups == 1 else MOST_GROUPED
        assert least_s * 0.999 <= found_s <= 1.001 * most * max(least_s, lanes_s)


@pytest.mark.parametrize("op", [DENSE, DEPTHWISE, GROUPED])
@pytest.mark.parametrize("direction", PASSES)
def test_more_images_are_never_faster(op: Convolution, direction: str) -> None:
    for planes in (0.0, 1.0):
        one = dataclasses.replace(op, direction=direction, channels_first=planes)
        batches = [dataclasses.replace(one, batch=float(size)) for size in (1, 2, 32, 33, 512)]
        assert (np.diff([seconds(each) for each in batches]) > 0).all()


def test_a_depthwise_convolution_by_hand() -> None:
    """A million taps a multiprocessor and cycle leave the bytes, an endless memory the taps."""
    facts = gpu("rtx_4090", DEPTHWISE)
    taps = 256 * 128 * 28 * 28 * 9 / (ConvolutionForm.taps_per_cycle[1] * 128 * 2.52e9)
    endless = dataclasses.replace(facts, memory_bytes_per_s=1e18)
    assert float(convolution_s(DEPTHWISE, endless)) == pytest.approx(taps + LAUNCH_S, rel=1e-6)
    moved_s = float(DEPTHWISE.work().bytes) / (ConvolutionForm.depthwise_memory[1] * 1.008e12)
    quick = dataclasses.replace(facts, cycles_per_s=1e20)
    assert float(convolution_s(DEPTHWISE, quick)) == pytest.approx(moved_s + LAUNCH_S, rel=1e-6)


def test_layout_and_alignment_are_paid() -> None:
    planes = dataclasses.replace(DENSE, channels_first=1.0)
    x, y, _ = DENSE.parts_bytes()
    assert seconds(planes) - seconds(DENSE) > (x + y) / 936e9
    odd = dataclasses.replace(DENSE, c_in=130.0)
    assert seconds(odd) > 1.1 * seconds(dataclasses.replace(DENSE, c_in=136.0))
    # groups that cuDNN has no kernel for, pixel by pixel
    few = dataclasses.replace(DENSE, c_in=160.0, c_out=160.0, direction="bwd_inputs")
    eight, ten = (dataclasses.replace(few, groups=of) for of in (20.0, 16.0))
    assert seconds(ten) > 4 * seconds(eight)


def test_norms_and_pools_in_passes() -> None:
    sizes = (64.0, 256.0, 56.0 * 56.0)
    for last in (0.0, 1.0):
        ops = [ImageNorm("fp16", *sizes, 1.0 - last, step) for step in ("eval", "train", "bwd")]
        evaluated, trained, back = (float(image_norm_s(op, gpu("rtx_3090", op))) for op in ops)
        n_bytes = 2 * np.prod(sizes)
        assert evaluated == pytest.approx(2 * n_bytes / 936e9, rel=0.05)
        assert trained / evaluated == pytest.approx(
            1.5 / NORM_STEPS["train"].shares[int(last)], rel=0.01
        )
        assert back / evaluated == pytest.approx(
            2.5 / min(NORM_STEPS["bwd"].shares[int(last)], 1.0), rel=0.01
        )
    pool = ImagePool("fp16", 1e7, 4e7, 4.0)
    assert float(image_pool_s(pool, gpu("rtx_3090", pool))) > 2 * 2 * 5e7 / 936e9


def test_forms_are_one_for_numpy_and_jax() -> None:
    """And differentiable in what a device is and in sizes, as finite differences have it."""
    ops = [
        (DENSE, convolution_s, "batch"), (DEPTHWISE, convolution_s, "h_out"),
        (GROUPED, convolution_s, "c_out"), (Gemm("fp16", 4096.0, 512.0, 768.0), product_s, "m"),
        (BatchedGemm("fp16", 96.0, 197.0, 64.0, 197.0), product_s, "batch"),
        (ImageNorm("fp16", 64.0, 256.0, 3136.0), image_norm_s, "pixels"),
        (EncoderAttention("fp16", 64.0, 197.0, 12.0, 64.0), attention_s, "batch"),
    ]  # fmt: skip
    for op, form, size in ops:
        facts = gpu("rtx_4090", op)

        def log_s(logs, xp, op=op, form=form, size=size, facts=facts):
            moved = dataclasses.replace(
                facts, memory_bytes_per_s=facts.memory_bytes_per_s * xp.exp(logs[0]),
                peak_flops_per_s=facts.peak_flops_per_s * xp.exp(logs[1]),
                cycles_per_s=facts.cycles_per_s * xp.exp(logs[2]),
            )  # fmt: skip
            sized = dataclasses.replace(op, **{size: getattr(op, size) * xp.exp(logs[3])})
            return xp.log(form(sized, moved))

        with jax.enable_x64(True):
            value, slopes = jax.value_and_grad(lambda x, f=log_s: f(x, jnp))(jnp.zeros(4))
        assert float(value) == pytest.approx(float(log_s(np.zeros(4), np)), rel=1e-9)
        steps = 1e-5 * np.eye(4)
        differences = [(log_s(one, np) - log_s(-one, np)) / 2e-5 for one in steps]
        assert np.asarray(slopes) == pytest.approx(np.array(differences, float), abs=1e-6)


def test_what_was_learned_of_dense_ones_says_nothing_of_groups() -> None:
    """The V100 has rows of dense convolutions alone, the H200 of both."""
    for op in (DEPTHWISE, GROUPED):
        v100, h200 = hp.load_model("v100_sxm2"), hp.load_model("h200_sxm")
        form_s = seconds(op, "v100_sxm2")
        assert v100.op_seconds(v100.table([OpCall(op)]))[0] == pytest.approx(form_s, rel=1e-6)
        known_s = h200.op_seconds(h200.table([OpCall(op)]))[0]
        assert known_s != pytest.approx(seconds(op, "h200_sxm"), rel=1e-3)
    dense_s = v100.op_seconds(v100.table([OpCall(DENSE)]))[0]
    assert dense_s != pytest.approx(seconds(DENSE, "v100_sxm2"), rel=1e-3)


def test_cards_at_half_rate_are_nearer_their_peak() -> None:
    """Known of models that were saved before devices had the fact; others' shares do not count."""
    model, op = hp.load_model("rtx_3090"), Gemm("fp16", 201_728.0, 1536.0, 384.0)
    assert model.device.fp32_sums_rate == 0.5
    rate = float(op.work().flops) / model.op_seconds(model.table([OpCall(op)]))[0]
    assert 55e12 < rate < 75e12  # whole ViTs reach 65 Tflop/s
    a100 = hp.load_model("a100_sxm4_80g")
    assert a100.op_seconds(a100.table([OpCall(op)]))[0] != float(product_s(op, gpu("a100_sxm", op)))


def test_depthwise_convolutions_that_an_h200_ran() -> None:
    """No row of it had a part in the form; the roofline is three times too quick."""
    path = own_table("h200_sxm")
    assert path is not None
    rows = read_table(path)
    rows = rows[(rows["op"] == "conv") & (rows["groups"] == rows["c_in"]) & (rows["groups"] > 1)]
    rows = rows[rows["direction"].isna() & rows["key"].str.contains("last")]
    rows = rows[rows["dtype"].isin(["fp16", "bf16"]) & (rows["time_s"] > 1e-5)]
    assert len(rows) > 20
    names = ("batch", "c_in", "c_out", "h_in", "h_out", "kh", "kw", "w_in", "w_out", "groups")
    errors, bare = [], []
    for row in rows.itertuples():
        op = Convolution(row.dtype, **{name: float(getattr(row, name)) for name in names})
        errors.append(np.log(seconds(op, "h200_sxm") / row.time_s))
        bare.append(np.log(float(op.work().bytes) / 4.8e12 / row.time_s))
    assert abs(np.median(errors)) < 0.25
    assert np.median(np.abs(errors)) < 0.6 * np.median(np.abs(bare))
