"""What is assumed of operating points where a row says nothing: naming it changes nothing."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.hardware import device_names, system_names
from hybridperf.io import InputError
from hybridperf.ops.frameworks import serving_frameworks
from hybridperf.serving.machines import machine_of
from hybridperf.serving.table import predict_serving
from hybridperf.workloads.serving import Deployment
from hybridperf.workloads.transformer import load_shape

MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct", "llama3-70b", "nvidia/Llama-3.1-8B-Instruct-FP8",
    "nvidia/DeepSeek-R1-0528-NVFP4-v2", "openai/gpt-oss-120b", "qwen3-30b-a3b",
)  # fmt: skip
# columns: (share of rows that have them, what stands there)
OTHERS: dict[str, tuple[float, tuple[object, ...]]] = {
    "backend": (0.8, ("vllm", "sglang", "trtllm", "nobody's")),
    "backend_version": (
        0.4, ("0.12.0", "0.18.0", "0.5.8.post1", "1.2.0rc6.post3", "1.1.0rc2.post2", "nightly")
    ),
    "measured": (0.3, ("2025-12-15", "2026-01-14", "2026-03-27")),
    "source_file": (0.2, ("aic-auto-gap-analysis/rows.csv", "mine.csv")),
    "precision": (0.4, ("bf16", "fp8", "nvfp4", "int4")), "gemm_quant_mode": (0.2, ("fp8", "bf16")),
    "moe_quant_mode": (0.2, ("fp8", "nvfp4")), "kv_dtype": (0.3, ("bf16", "fp8", "auto")),
    "max_num_seqs": (0.3, (8, 64, 512)), "max_num_batched_tokens": (0.3, (2048, 16384)),
    "scheduler_recv_interval": (0.2, (5,)), "attention_dp_timeout_iters": (0.2, (20,)),
    "batch_wait_timeout_iters": (0.2, (10,)), "batch_wait_max_tokens_ratio": (0.2, (0.5,)),
    "moe_backend": (0.1, ("deepgemm", "TRTLLM")), "requests_per_client": (0.2, (1, 5, 10)),
    "opening_burst": (0.2, ("yes", "no")), "drafted": (0.2, (0, 1, 3)),
    "cached_share": (0.2, (0.0, 0.5)), "lora_rank": (0.1, (16,)), "enforce_eager": (0.2, (0, 1)),
    "tp_size": (0.7, (1, 2, 4, 8)), "pp_size": (0.2, (1, 2)), "attention_dp_size": (0.2, (1, 8)),
    "moe_tp_size": (0.2, (1, 8)), "moe_ep_size": (0.3, (1, 8)),
    "prefill_num_workers": (0.3, (1, 2)), "decode_num_workers": (0.3, (1, 5)),
    "prefill_tp_size": (0.8, (1, 4, 8)), "decode_tp_size": (0.9, (1, 4, 8)),
    "prefill_attention_dp_size": (0.3, (1, 4)), "decode_attention_dp_size": (0.3, (1, 8)),
    "prefill_moe_ep_size": (0.3, (1, 4)), "decode_moe_ep_size": (0.3, (1, 8)),
}  # fmt: skip
SECONDS = ("predicted_ttft_s", "predicted_tpot_s")
ENDS = ("ttft_low_s", "ttft_high_s", "tpot_low_s", "tpot_high_s")


def row_of(random: np.random.Generator) -> dict[str, Any]:
    """A row with any part of its columns left out, of lengths that benchmarks have and others."""

    def any_of(some: Any) -> Any:
        return some[int(random.integers(len(some)))]

    lengths = any_of(((1024, 1024), (8192, 1024), (4000, 1000), (1000, 500), (700, 90)))
    clients = any_of((1, 4, 10, 16, 64, 90, 256, 1024))
    row = {
        "model_path": any_of(MODELS),
        "system": any_of(("h100_sxm", "b200_sxm", "gb200", "rtx_4090")),
        "isl": lengths[0], "osl": lengths[1],
    }  # fmt: skip
    row |= {any_of(("concurrency", "batch_size")): clients}
    if random.random() < 0.4:
        row["mode"] = any_of(("agg", "disagg", "disagg"))
    row |= {name: any_of(said) for name, (share, said) in OTHERS.items() if random.random() < share}
    if row.get("drafted") and random.random() < 0.5:
        row["acceptance"] = 0.6
    return row


def named_in_part(
    rows: list[dict], defaults: list[dict], places: list[int], share: float, random: Any
) -> pd.DataFrame:
    """Rows, each with any part of what is assumed of it."""
    found = []
    for place in places:
        own = {name: said for name, said in defaults[place].items() if said == said}
        found.append(rows[place] | {n: said for n, said in own.items() if random.random() < share})
    return pd.DataFrame(found, dtype=object)


def test_naming_what_is_assumed_changes_nothing() -> None:
    """Of 200 random rows any part of what is assumed is named: none, some, and all of it. Numbers
    of workers and drafts that nobody tells have an interval of their own, which naming narrows.
    """
    random = np.random.default_rng(45)
    rows = [row_of(random) for _ in range(420)]
    before = predict_serving(pd.DataFrame(rows, dtype=object)).frame
    places = np.flatnonzero(before["predicted_ttft_s"].notna())[:200].tolist()
    assert len(places) == 200
    then = before.loc[places].reset_index(drop=True)
    untold = then["note"].str.contains("not told|none assumed", regex=True)
    assert 5 < untold.sum() < 100
    defaults = hp.assumed(rows, "serve").to_dict("records")
    named = [named_in_part(rows, defaults, places, share, random) for share in (0.4, 1.0)]
    both = predict_serving(pd.concat(named, ignore_index=True)).frame  # priced together
    for some, now in zip(named, (both[:200], both[200:].reset_index(drop=True)), strict=True):
        refused = now["predicted_ttft_s"].isna()
        assert not refused.any(), (some[refused].to_dict("records"), [*now["note"][refused]])
        for name in (*SECONDS, "predicted_tokens_per_s_gpu", "memory_bytes", "fits"):
            np.testing.assert_allclose(
                now[name].astype(float), then[name].astype(float), rtol=1e-9, err_msg=name
            )
        for name in ENDS:
            np.testing.assert_allclose(now[name][~untold], then[name][~untold], rtol=1e-9)
        for short in ("ttft", "tpot"):
            wide, narrow = (
                frame[f"{short}_high_s"] / frame[f"{short}_low_s"] for frame in (then, now)
            )
            assert not (narrow[untold] > wide[untold] * (1 + 1e-9)).any()


def test_what_is_assumed_is_not_what_a_row_says_by_another_name() -> None:
    row = {"model": "llama3-8b", "gpu": "h100", "engine": "vllm", "version": "0.12.0", "tp": 2,
           "input_len": 512, "output_len": 64, "clients": 8, "kv_cache_dtype": "auto"}  # fmt: skip
    (found,) = hp.assumed(row, "serve").to_dict("records")
    said = {"model_path", "system", "backend", "backend_version", "tp_size", "isl", "osl",
            "concurrency", "kv_dtype"}  # fmt: skip
    assert not said & {*found}
    assert (found["precision"], found["mode"], found["pp_size"]) == ("bf16", "agg", 1)


@pytest.mark.parametrize(("question", "says"), [("ops", "steps or serve"), ("food", "question")])
def test_questions_of_which_nothing_is_assumed(question: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        hp.assumed([{"m": 1}], question)
    with pytest.raises(InputError, match="expected device in a column"):
        hp.assumed([{"model": "llama3-8b"}], "serve", device="h100_sxm")


def test_the_command_says_what_was_assumed_and_takes_it_back(run, tmp_path) -> None:
    """`--explain` as words; in a table of them the seconds are the same."""
    asked, out = tmp_path / "asked.csv", tmp_path / "out.csv"
    row = {"model": "llama3-8b", "gpu": "h100", "backend": "vllm", "isl": 512, "osl": 64,
           "concurrency": 8}  # fmt: skip
    pd.DataFrame([row]).to_csv(asked, index=False)
    assert run("serve", asked, "--out", out, "--explain")[0] == 0
    (first,) = pd.read_csv(out).to_dict("records")
    words = dict(word.split("=") for word in first["assumed"].split())
    pd.DataFrame([row | words]).to_csv(asked, index=False)
    assert run("serve", asked, "--out", out)[0] == 0
    (again,) = pd.read_csv(out).to_dict("records")
    assert [again[name] for name in SECONDS] == [first[name] for name in SECONDS]


def test_a_systems_own_device_may_be_named() -> None:
    """As `--device` of `--shape`: what prices it is what prices the system alone. A card is not
    priced over the links of its kin: an H100 PCIe has no NVSwitch.
    """
    names = [*device_names(), *system_names(), "h100", "h200", "b200", "a100", "l40s"]
    checked = 0
    for name in names:
        try:
            alone = machine_of(name)
        except InputError:  # a system without a device that is known
            continue
        named = machine_of(name, alone.device)
        parts = ("device", "model", "system", "per_node", "all_reduce")
        assert [getattr(named, one) for one in parts] == [getattr(alone, one) for one in parts]
        checked += 1
    assert checked > 100
    assert machine_of("h100_pcie").system != machine_of("h100").system


@pytest.mark.parametrize("device", ["", "h100_sxm"])
@pytest.mark.parametrize("more", [(), ("--drafted=0", "--cached-share=0", "--gpus=1", "--top=10")])
def test_what_shapes_assume_may_be_named(run, device: str, more: tuple, ranked: str) -> None:
    """Of `--shape`: options at what they are without, and all precisions of the GPU."""
    asked = ["serve", "--shape", "llama3-8b", "--system", "h100", "--gpus", "1", "--json", *more]
    asked += [f"--device={device}"] if device else []
    status, text, _ = run(*asked, "--precision", "bf16,fp8")
    assert status == 0
    assert json.loads(text)["deployments"] == json.loads(ranked)["deployments"]


@pytest.fixture
def ranked(run) -> str:
    """Deployments of which nothing but the model and the machine is named."""
    status, text, _ = run("serve", "--shape", "llama3-8b", "--system", "h100", "--gpus", "1",
                          "--json")  # fmt: skip
    assert status == 0
    return text


def tpot_of(**row: Any) -> float:
    usual = {"system": "h200_sxm", "isl": 128, "osl": 2048, "concurrency": 256}
    found = predict_serving(pd.DataFrame([usual | row])).frame
    return float(found["predicted_tpot_s"].iloc[0])


@pytest.mark.parametrize(
    ("model", "once"), [("meta-llama/Llama-2-70b-hf", True), ("mistralai/Mistral-7B-v0.1", False)]
)
def test_which_heads_read_their_cache_once_depends_on_the_release(model: str, once: bool) -> None:
    """TensorRT-LLM 0.9 has kernels for groups of 8 heads, none for groups of 4."""
    row = {"model_path": model, "backend": "trtllm", "precision": "fp8", "tp_size": 2}
    old, new = (tpot_of(**row, backend_version=one) for one in ("0.9.0", "1.0.0"))
    assert (old == new) == once
    assert old >= new


def test_pieces_of_a_prompt_fill_the_stages_of_a_pipeline() -> None:
    """Two pieces of llama.cpp through four stages take (2 + 3) / (2 x 4) of one GPU's seconds."""
    row = {"model_path": "meta-llama/Meta-Llama-3-8B", "system": "rtx_4090", "precision": "bf16",
           "backend": "llama.cpp", "isl": 1024, "osl": 2, "concurrency": 1,
           "view": "engine"}  # fmt: skip
    found = predict_serving(pd.DataFrame([row | {"pp_size": one} for one in (1, 4)])).frame
    alone, four = found["predicted_ttft_s"]
    assert 0.6 * alone < four < 0.9 * alone  # fewer rows of a product take longer each


def test_a_step_of_whole_prompts_takes_room_from_the_cache() -> None:
    row = {"model_path": "meta-llama/Llama-3.1-405B-Instruct", "system": "h100_sxm",
           "backend": "vllm", "precision": "fp8", "kv_dtype": "bf16", "tp_size": 8, "isl": 2048,
           "osl": 2048, "concurrency": 128, "max_model_len": 91680}  # fmt: skip
    rows = pd.DataFrame([row | {"backend_version": one} for one in ("0.6.3", "0.12.0")])
    found = predict_serving(rows).frame
    old, new = found["predicted_tokens_per_s_gpu"]
    assert old < 0.7 * new
    assert "computed whole" in found["note"].iloc[0]
    told = predict_serving(rows.assign(max_num_batched_tokens=[91680, 8192])).frame
    assert (told["predicted_tpot_s"] == found["predicted_tpot_s"]).all()


def test_every_expert_is_in_a_graph_of_static_shapes() -> None:
    """On Gaudi the layer costs by the experts there are; weights named 16 bits are no MXFP4."""
    row = {"system": "gaudi3", "isl": 8, "osl": 100, "concurrency": 1, "precision": "bf16"}
    habana, nobody = (
        tpot_of(**row, model_path="Qwen/Qwen3-30B-A3B", backend=one)
        for one in ("optimum-habana", "nobody's")
    )
    assert habana - nobody > 15e-3  # 48 layers of 128 experts, five kernels each
    wide = tpot_of(**row, model_path="unsloth/gpt-oss-20b-BF16", backend="optimum-habana")
    all_of_them = 24 * 32 * 3 * 2880**2 * 2 / 3.7e12  # of 16 bits, over its bandwidth
    assert wide > all_of_them


@pytest.mark.parametrize("precision", ["bf16", "fp8", "int4_wo"])
@pytest.mark.parametrize("framework", ["", *serving_frameworks()])
def test_an_engine_is_the_same_by_row_and_by_function(framework: str, precision: str) -> None:
    """Whatever the framework adds on such a GPU and however it keeps weights and cache; in the
    first tokens of a pipeline, too: a prompt passes one stage after the other.
    """
    row = {"model_path": "meta-llama/Meta-Llama-3-8B", "system": "h100_sxm", "backend": framework,
           "precision": precision, "pp_size": 2, "isl": 1024, "osl": 128,
           "concurrency": 8}  # fmt: skip
    told = predict_serving(pd.DataFrame([row])).frame.iloc[0]
    quant = "bfloat16" if precision == "bf16" else precision
    engine = Deployment(load_shape("llama3-8b"), pp=2, quant=quant, framework=framework)
    model = hp.load_model("h100_sxm").with_collectives(hp.load_collectives("dgx_h100"))
    point = hp.serving_function(model, engine, clients=8, prompt=1024, output=128)
    found = point(point.knobs)
    for name in ("ttft_s", "tpot_s"):
        assert float(found[name]) == pytest.approx(told[f"predicted_{name}"], rel=1e-5), name
