"""Attention of PyTorch on Hopper: the law beside the kernels that steps ran, and its limits."""

import pytest

import hybridperf as hp
from hybridperf.io import installed_hardware, read_table
from hybridperf.model import PerfModel, model_or_datasheet
from hybridperf.model.price import price
from hybridperf.ops import EncoderAttention, Gemm, OpCall, PrefillAttention
from hybridperf.ops.attention_kernels import has_law
from hybridperf.ops.scores import ScoreGpu, library_of, library_s

MEASURED = {  # by step of `benchmarks/claims/gpu_steps.py`, without dropout: attention of one layer
    "gpt2": PrefillAttention("bf16", 12.0, 1024.0, 12.0, 64.0),
    "gpt2_medium_half": PrefillAttention("bf16", 4.0, 1024.0, 16.0, 64.0),
    "llama": PrefillAttention("bf16", 2.0, 4096.0, 32.0, 64.0, kv_heads=8.0),
    "llama_prompt": PrefillAttention("bf16", 1.0, 2048.0, 32.0, 64.0, kv_heads=8.0),
    "vit": EncoderAttention("fp16", 64.0, 196.0, 12.0, 64.0),
    "vit_training": EncoderAttention("bf16", 32.0, 196.0, 16.0, 64.0),
    "diffusion_transformer": EncoderAttention("bf16", 32.0, 256.0, 12.0, 64.0),
}


@pytest.mark.parametrize("step", MEASURED)
def test_the_law_is_near_the_kernels_of_steps(step: str) -> None:
    kernels = read_table(installed_hardware().parent / "measured" / "h200_sxm" / "kernels.csv.gz")
    mine = kernels[(kernels["step"] == step) & (kernels["mode"] == "eager")]
    forward = mine[mine["kernel"].str.contains("sdpa_sm90_flash_fprop")]
    measured_s = (forward["seconds"] / forward["count"]).item()
    op, h200 = MEASURED[step], hp.load_device("h200_sxm")
    gpu = ScoreGpu.of(h200, h200.peak(op.dtype, "matrix"), 1.0, h200.memory_bytes_per_s)
    library = library_of("sdpa", h200.arch)
    assert library == library_of("cuDNN", h200.arch) == library_of("pytorch", h200.arch)
    assert library_s(op, gpu, library) == pytest.approx(measured_s, rel=0.14)


def test_it_is_hopper_s_alone_and_whole_sequences_alone() -> None:
    h100 = hp.load_device("h100_sxm")
    op = MEASURED["gpt2"]
    assert has_law("sdpa", op, h100)
    assert not has_law("sdpa", op, hp.load_device("a100_sxm4_80g"))
    assert not has_law("flash2", op, h100)
    assert not has_law("sdpa", Gemm("bf16", 64.0, 64.0, 64.0), h100)
    windowed = PrefillAttention("bf16", 1.0, 8192.0, 8.0, 128.0, window=1024.0)
    model = hp.load_model("h100_sxm")
    seconds = price(model, [OpCall(windowed, kernel=name) for name in ("", "sdpa")]).seconds
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-12)


def test_no_attention_is_quicker_than_its_arithmetic_and_the_law_is_named() -> None:
    """An H20 has most of an H100's multiprocessors and a seventh of its arithmetic."""
    h20 = hp.load_device("h20").model_copy(update={"clock_hz": 1.98e9})
    for model in (hp.PerfModel.datasheet(h20), hp.load_model("h100_sxm")):
        for op in (MEASURED["llama"], EncoderAttention("bf16", 8.0, 4096.0, 16.0, 256.0)):
            found = price(model, [OpCall(op, kernel="sdpa", issued_apart=True)])
            arithmetic_s = float(op.work().flops) / model.device.peak("bf16", "matrix")
            assert found.seconds[0] >= arithmetic_s
            assert "cuDNN" in found.remarks[0]


def test_a_format_that_was_not_measured_goes_by_its_library() -> None:
    """No row of the H100's encoder attention is in FP8: its calls cost what TensorRT-LLM's do
    beside the kernel, and the law of libraries that nobody measured is for these alone.
    """
    sizes = {"op": "encoder_attention", "batch": 63, "q_len": 512, "heads": 16, "kv_heads": 16,
             "head_dim": 64}  # fmt: skip
    rows = [sizes | {"dtype": dtype, "framework": name} for dtype, name in
            (("bf16", "trtllm"), ("fp8", "trtllm"), ("fp8", "cudnn"))]  # fmt: skip
    found = hp.predict_ops(rows, "h100_sxm")
    wide, narrow, stranger = found["predicted_s"]
    assert 0.5 * wide < narrow < wide
    assert stranger < 0.75 * narrow
    assert found["note"][1] == "no fp8 of trtllm was measured: by its bf16"
    assert "by cycles of scores, as cudnn" in found["note"][2]
    assert found["in_range"].tolist() == [True, False, False]


def test_a_card_without_a_power_limit_is_capped_in_its_own_format() -> None:
    """Shares of the peak that formats reach differ by more than devices do: the prior has one card
    that its power limits, and large products of another keep what free cards reach in bf16.
    """
    row = {"op": "gemm", "dtype": "bf16", "m": 4096, "n": 6144, "k": 4096, "framework": "vllm"}
    (found,) = hp.predict_ops([row], "rtx_pro_6000_server").to_dict(orient="records")
    assert 1.0 < found["predicted_s"] / found["roofline_s"] < 1.4


@pytest.mark.parametrize("name", ["gaudi2", "gaudi3", "h20_sxm"])
def test_attention_of_devices_without_a_known_clock_is_no_sum_of_cycles(name: str) -> None:
    """Knobs of cycles have no seconds without a clock: a share of the roofline, and a launch."""
    model = model_or_datasheet(name)
    for length in (8.0, 4096.0):
        op = PrefillAttention("bf16", 1.0, length, 32.0, 128.0, 8.0, 0.0, length, 1.0)
        seconds = float(price(model, [OpCall(op)]).seconds[0])
        roofline_s = float(price(PerfModel.datasheet(model.device), [OpCall(op)]).seconds[0])
        assert roofline_s <= seconds < 10.0 * roofline_s + 3e-5
