"""Does a model fit: each number is the answer of the question that prices it, and the fewest GPUs
are the fewest that it says fit.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.hardware import load_device
from hybridperf.hardware.attached import attached
from hybridperf.io import InputError

NEW = (  # of 2022 to 2026, which nobody measured here
    "rtx_5070_laptop", "rtx_pro_6000_workstation", "rx_7900_xtx", "radeon_8060s", "rx_9070_xt",
    "arc_b580", "jetson_thor", "apple_m4_pro", "tpu_v7", "trainium3", "rubin", "mi455x",
    "rubin_cpx", "b300a", "apple_m5_max", "xeon_6980p", "epyc_9755",
)  # fmt: skip
CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "num_attention_heads": 32,
    "num_hidden_layers": 16, "intermediate_size": 8192, "num_key_value_heads": 8,
    "vocab_size": 128256, "tie_word_embeddings": True, "max_position_embeddings": 131072,
}  # fmt: skip


@pytest.fixture(scope="module")
def on_h200() -> hp.FitCheck:
    return hp.fit_check("llama3-70b", "h200")


def test_served_numbers_are_those_of_serve(on_h200: hp.FitCheck) -> None:
    use = on_h200.uses.set_index("how").loc["fp8"]
    row = {
        "model": "llama3-70b", "system": "h200_sxm", "backend": "vllm", "precision": "fp8",
        "isl": 3584, "osl": 512, "concurrency": 1, "tp_size": int(use.gpus), "pp_size": 1,
    }  # fmt: skip
    said = hp.predict_serving([row]).iloc[0]
    assert use.memory_bytes == said.memory_bytes
    assert use.tokens_per_s == pytest.approx(said.predicted_tokens_per_s_gpu * use.gpus)
    assert use.low_tokens_per_s < use.tokens_per_s < use.high_tokens_per_s


def test_trained_numbers_are_those_of_steps_and_no_fewer_gpus_do(on_h200: hp.FitCheck) -> None:
    use = on_h200.uses[on_h200.uses.what == "train"].iloc[0]
    counts = [int(use.gpus) // 2, int(use.gpus)]
    rows = [
        {
            "model": "llama3-70b", "gpu": "h200_sxm", "framework": "torchtitan", "tp": 1, "pp": 1,
            "dp": n, "n_gpus": n, "seq": 4096, "global_batch": n, "micro_batch": 1,
            "sharding": "zero3", "recompute": "full", "precision": "bf16",
        }
        for n in counts
    ]  # fmt: skip
    said = hp.predict_steps(rows)
    assert said.fits.fillna(False).tolist() == [False, True]
    assert use.memory_bytes == said.memory_bytes[1]
    assert use.tokens_per_s == said.tokens_per_s[1]
    low = said.tokens_per_s[1] * said.predicted_s[1] / said.high_s[1]
    assert use.low_tokens_per_s == pytest.approx(low)


def test_fewer_bits_and_fewer_trained_weights_never_need_more_gpus(on_h200: hp.FitCheck) -> None:
    served = on_h200.uses[on_h200.uses.what == "serve"]
    assert served.gpus.is_monotonic_decreasing
    least = on_h200.uses.groupby("what").gpus.min()
    assert least["serve"] <= least["LoRA"] <= least["train"]


def test_the_cheapest_is_the_least_rent_and_the_widest_numbers_among_equals(
    on_h200: hp.FitCheck,
) -> None:
    best = on_h200.cheapest.set_index("what")
    assert (best.loc["serve", "how"], best.loc["serve", "gpus"]) == ("fp8", 1)
    assert best.loc["train", "usd_per_hour"] == pytest.approx(best.loc["train", "gpus"] * 3.6)


def test_the_page_is_narrow_and_says_what_it_rests_on(on_h200: hp.FitCheck) -> None:
    lines = str(on_h200).splitlines()
    commands = ("vllm ", "hybridperf ")
    assert all(len(line) <= 80 for line in lines if not line.startswith(commands))
    assert any("measured rows of it" in line for line in lines)
    assert any(line.startswith("vllm bench latency --model llama3-70b") for line in lines)


def test_a_folder_a_config_and_a_hubs_cache_are_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    kept = tmp_path / "hub" / "models--someone--small-1b" / "snapshots" / "0a1b"
    for place in (folder, kept):
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    names = [str(folder), str(folder / "config.json"), "someone/small-1b"]
    found = [hp.fit_check(name, "rtx_4090") for name in names]
    numbers = [one.uses.drop(columns=["measure"]) for one in found]
    for one in numbers[1:]:
        pd.testing.assert_frame_equal(one, numbers[0])
    assert [one.shape.name for one in found] == ["mine", "mine", "small-1b"]


def test_a_device_without_bfloat16_is_asked_in_its_own_halves() -> None:
    found = hp.fit_check("llama3.2-1b", "t4").uses
    assert found[found.what == "train"].how.tolist() == ["all, fp16"]
    assert found[found.what == "train"].gpus.notna().all()


def test_without_a_gpu_common_ones_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert attached() == []
    found = hp.fit_check("llama3.2-1b")
    assert len(found.devices) > 1
    assert "no accelerator found here" in str(found)


def test_a_driver_that_answers_names_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho NVIDIA H200\necho NVIDIA H200\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    (one,) = attached()
    assert (one.device, one.count) == ("h200_sxm", 2)
    program.write_text("#!/bin/sh\necho No devices were found; exit 6\n")
    assert [found for found in attached() if "found" in found.called] == []


@pytest.mark.parametrize(
    "words",
    [
        ("no-such-model", "h100"),
        ("someone/no-such-model", "h100"),
        ("llama3-8b", "h1000"),
        ("llama3-8b", "mine.toml"),
        ("llama3-8b", "h100", "--context", "1"),
        ("llama3-8b", "h100", "--batch", "0"),
        ("llama3-8b", "h100", "--rank", "-1"),
        ("llama3-8b", "h100", "--prices", "none.toml"),
        ("none/config.json", "h100"),
        ("none.gguf", "h100"),
    ],
)
def test_wrong_words_are_refused_in_a_sentence(refused, words: tuple[str, ...]) -> None:
    assert refused("fit-check", *words)


def test_the_command_says_the_same_as_json(run) -> None:
    status, out, _ = run("fit-check", "llama3.2-1b", "l4", "--json")
    said = json.loads(out)
    assert status == 0
    asked = hp.fit_check("llama3.2-1b", "l4").uses
    assert [one["memory_bytes"] for one in said["uses"]] == asked.memory_bytes.tolist()
    assert {"cheapest", "basis", "parameters"} <= said.keys()


@pytest.mark.parametrize("device", [5, ["l4"], b"l4"])
def test_a_device_that_is_no_name_is_refused(device: object) -> None:
    with pytest.raises(InputError, match="expected the name of a device, got a "):
        hp.fit_check("llama3.2-1b", device)


def test_a_model_that_no_use_is_for_ends_with_status_3(run, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        hp.fit_check(tmp_path / "none.json", "h100")
    status, out, _ = run("fit-check", "t5-base", "t4", "--context", "7")
    assert status in (0, 3)
    assert "serve" in out


ASKED = {  # what people type, and how many parameters it is published with
    "deepseek-v3.2": 672e9, "deepseek-v4": 1.6e12, "deepseek-v4-flash": 284e9, "kimi-k2.5": 1.03e12,
    "kimi-k3": 2.78e12, "minimax-m2.5": 229e9, "minimax-m3": 426e9, "glm-5": 744e9,
    "qwen3.5": 397e9, "qwen3-next": 80e9, "gpt-oss": 117e9, "llama-4": 108e9, "gemma-3": 27e9,
    "gemma-4": 30.7e9, "gemma-4-26b-a4b": 25.2e9, "nemotron-3-nano": 31.6e9,
    "mistral-large-3": 673e9, "longcat-flash": 560e9, "mimo-v2-flash": 309e9, "mamba2": 2.7e9,
    "kimi-linear": 49e9, "flux": 12e9, "sd3.5": 8.1e9, "hunyuan-video": 12.8e9, "whisper": 1.54e9,
    "bge-m3": 0.568e9, "all-MiniLM-L6-v2": 22.7e6, "Qwen3-Embedding-8B": 8.2e9,
}  # fmt: skip


def test_models_that_people_ask_for_are_known_and_priced() -> None:
    """Parameters within 2.5 % of what is published, a step no quicker than its arithmetic."""
    shapes = {name: hp.load_shape(name) for name in ASKED}
    for name, parameters in ASKED.items():
        assert shapes[name].parameters == pytest.approx(parameters, rel=0.025), name
        assert shapes[name].source
        assert shapes[name].published or shapes[name].note, name
    layout = {"tp": 1, "pp": 1, "dp": 8, "n_gpus": 8, "global_batch": 8, "micro_batch": 1}
    words = layout | {"gpu": "b200_sxm", "sharding": "zero3", "recompute": "full"}
    found = hp.predict_steps([{"model": name, "precision": "bf16"} | words for name in ASKED])
    least = [one.model_flops(one.seq, causal=True) for one in shapes.values()]
    peak = load_device("b200_sxm").peak("bf16", "matrix")
    assert (found.predicted_s > np.array(least) / peak).all(), found.note.tolist()
    assert (found.low_s < found.high_s).all()


def test_new_accelerators_serve_a_small_model_at_a_price() -> None:
    """A device's block alone is enough: memory, seconds no quicker than reading the weights."""
    row = {"model": "llama3.2-1b", "backend": "vllm", "isl": 512, "osl": 64, "concurrency": 1}
    found = hp.predict_serving([row | {"system": name, "precision": "bf16"} for name in NEW])
    assert (found.fits.astype(bool) & (found.tpot_low_s < found.tpot_high_s)).all()
    read_s = [2 * 1.2e9 / load_device(name).memory_bytes_per_s for name in NEW]
    assert (found.predicted_tpot_s > np.array(read_s)).all()
