"""Deployments ranked: what fits, what is on the front, how they are started."""

import dataclasses
import json
import re
from importlib import resources

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.engine.economy import economy
from hybridperf.io import InputError
from hybridperf.serving.deployment_latency import Question
from hybridperf.serving.deployments import deployments, precisions
from hybridperf.serving.launch_lines import launch_lines
from hybridperf.serving.machines import machine_of
from hybridperf.serving.open_loop import served_openly
from hybridperf.serving.requests import arriving, looping
from hybridperf.serving.table import chance_within, fit_of, predict_serving
from hybridperf.workloads.transformer.zoo import load_shape


@pytest.fixture(scope="module")
def asked() -> Question:
    machine = machine_of("h100")
    schemes = ({"quant": "bfloat16"}, {"quant": "fp8", "kv_dtype": "fp8"})
    return Question(
        load_shape("llama3-8b"), machine.load(), 2, 1000, 200, "vllm", 1.0, 0.02, schemes,
        all_reduce=machine.all_reduce,
    )  # fmt: skip


@pytest.fixture(scope="module")
def found(asked: Question) -> pd.DataFrame:
    return deployments(asked, economy(asked.model.device))


def test_the_chance_to_keep_the_limits_is_laplace_s(found: pd.DataFrame) -> None:
    predicted_s = np.array([2.0, 1.0, 4.0])
    ends = chance_within(2.0, predicted_s, predicted_s / 2, predicted_s * 2)
    np.testing.assert_allclose(ends, [0.5, 0.95, 0.05])
    assert found["chance"].between(0, 1).all()
    assert (found.loc[found["within"], "chance"] >= 0.25).all()  # a half for each of two limits


@pytest.mark.parametrize(
    ("system", "device", "priced", "links"),
    [
        ("8x_mi300x", "", "mi300x", "8x_mi300x"),  # of which nothing is measured
        ("8x_a100_pcie", "rtx_a6000", "rtx_a6000", "8x_a100_pcie"),
        ("aws_p5_h100", "", "h100_sxm", "aws_p5_h100"),
        ("h20", "", "h20_sxm", "hgx_h20"),
        ("gb200", "", "gb200", "aic_gb200"),
        ("h100_sxm", "", "h100_sxm", "aic_h100_sxm"),
    ],
)
def test_systems_and_devices_of_plans_are_served(
    system: str, device: str, priced: str, links: str
) -> None:
    model = machine_of(system, device).load()
    assert model.collectives is not None
    assert (model.device.id, model.collectives.system.id) == (priced, links)
    if system == "gb200":  # the chip of a B200, whose calibration counts; a rack is a node
        assert model.stand_in is not None
        assert model.collectives.system.accelerators_per_node == 64


def test_a_device_of_a_file_takes_longer_with_a_slower_memory(tmp_path) -> None:
    facts = resources.files("hybridperf.hardware").joinpath("devices.toml").read_text()
    own = "[mine]\n" + re.split(r"^\[", facts.split("[rtx_a6000]\n")[1], flags=re.M)[0]
    seconds = []
    for bytes_per_s in (768e9, 384e9):
        path = tmp_path / f"gpu{bytes_per_s:g}.toml"
        path.write_text(
            re.sub(r"memory_bytes_per_s = \S+", f"memory_bytes_per_s = {bytes_per_s:.4e}", own)
        )
        machine = machine_of("8x_a100_pcie", str(path))
        asked = Question(load_shape("llama3-8b"), machine.load(), 1, 500, 100)
        found = deployments(asked).query("sequences == 1 and chunk == 8192")
        seconds.append(float(found["tpot_s"].iloc[0]))
    assert 1.7 < seconds[1] / seconds[0] < 2.0  # a decode of one sequence reads weights


@pytest.mark.parametrize(
    ("system", "says"),
    [
        ("nowhere", "or of `hybridperf systems`, got 'nowhere'"),
        ("t4", "a rate for none"),
    ],
)
def test_what_cannot_be_served_says_what_to_do(system: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        precisions(machine_of(system).load())


def test_a_gpu_whose_nodes_nobody_describes_is_served() -> None:
    """By the links of a usual server of its slot, which one GPU does not use."""
    row = {"model": "llama3-8b", "backend": "vllm", "tp": 1, "isl": 512, "osl": 64}
    found = hp.predict_serving([row | {"gpu": name, "concurrency": 1} for name in ("l4", "l40s")])
    assert found["predicted_tpot_s"][0] > 2 * found["predicted_tpot_s"][1]
    assert "no system of l4 is known: links of 8x_a100_pcie assumed" in found["note"][0]


def test_those_within_the_limits_come_first_by_throughput(
    asked: Question, found: pd.DataFrame
) -> None:
    within = found[found["within"]]
    assert 0 < len(within) < len(found)
    assert found["within"].iloc[: len(within)].all()
    assert within["tokens_per_s_gpu"].is_monotonic_decreasing
    assert (within["tpot_s"] <= asked.tpot_s).all()
    assert {*found["mode"]} == {"aggregated", "disaggregated"}
    assert (found["memory_bytes"] <= asked.model.device.memory_bytes).all()
    assert (found["gpus"] <= 2).all()
    assert (found["tpot_s_low"] < found["tpot_s"]).all()
    assert (found["tpot_s"] < found["tpot_s_high"]).all()


def test_where_none_is_within_the_limits_the_nearest_comes_first(asked: Question) -> None:
    found = deployments(dataclasses.replace(asked, ttft_s=1e-4, tpot_s=1e-5))
    assert not found["within"].any()
    beyond = np.maximum(found["ttft_s"] / 1e-4, found["tpot_s"] / 1e-5)
    assert (np.diff(beyond) >= 0).all()


def test_engines_that_decode_alone_are_as_quick_as_in_the_simulation(
    asked: Question, found: pd.DataFrame
) -> None:
    """Prompts of one GPU are too few for all slots of the other: fewer decode, and faster."""
    rows = found[found["mode"] == "disaggregated"].sort_values("sequences")
    few, apart = rows.iloc[0], rows.iloc[-1]
    assert apart["requests_per_s"] * asked.output * apart["tpot_s"] < 0.95 * apart["sequences"]
    assert few["tpot_s"] < apart["tpot_s"]
    settings = [name for name in (*rows.columns[:17], "prefill_tp") if name != "sequences"]
    assert not rows.duplicated([*settings, "ttft_s", "tpot_s"]).any()  # slots that nobody fills
    # as many clients as slots; answers of unlike length, lest they stay in step
    clients, rng = int(apart["sequences"] * apart["replicas"]), np.random.default_rng(0)
    lengths = rng.integers(160, 241, 5 * clients)
    requests = looping(clients, np.full(5 * clients, asked.prompt), lengths)
    served = served_openly(asked, apart.to_dict(), requests)
    kept = slice(2 * clients, 4 * clients)
    assert float(apart["tpot_s"]) == pytest.approx(served.tpot_s[kept].mean(), rel=0.03)


def test_measured_rows_move_deployments_like_them(asked: Question, found: pd.DataFrame) -> None:
    """Rows 1.5 times as slow as predicted: those that are like them are slower, and surer."""
    rows = pd.DataFrame(
        {
            "model_path": "llama3-8b", "system": "h100", "backend": "vllm", "precision": "bf16",
            "isl": 1000, "osl": 200, "tp_size": 1, "concurrency": [1, 2, 4, 8, 16, 32, 64],
        }
    )  # fmt: skip
    told = predict_serving(rows).frame
    rows["ttft_s"], rows["tpot_s"] = (
        1.5 * told[f"predicted_{name}"] for name in ("ttft_s", "tpot_s")
    )
    again = deployments(dataclasses.replace(asked, fit=fit_of(rows), system="h100_sxm"))
    of = ["mode", "quant", "tp", "pp", "sequences", "chunk", "replicas", "prefill_replicas"]
    both = found.merge(again, on=of, suffixes=("", "_fitted"))
    assert len(both) > 0.9 * len(found)  # a chunk may matter by the one and not by the other
    whole = both[both["mode"] == "aggregated"]
    slower = whole["tpot_s_fitted"] / whole["tpot_s"]
    like = whole.eval("quant == 'bfloat16' and tp == 1 and pp == 1 and sequences < 65")
    assert slower[like].between(1.35, 1.6).all()
    assert slower[~like].median() < slower[like].median()
    wide, narrow = (
        np.log(whole[f"tpot_s_high{name}"] / whole[f"tpot_s_low{name}"])[like].mean()
        for name in ("", "_fitted")
    )
    assert narrow < 0.8 * wide
    speed = whole["tokens_per_s_gpu_fitted"] / whole["tokens_per_s_gpu"]
    np.testing.assert_allclose(speed[like] * slower[like], 1.0, atol=0.1)


def test_the_front_is_what_no_other_beats(found: pd.DataFrame) -> None:
    both = found[["tokens_per_s_gpu", "tokens_per_s_user"]].to_numpy()
    beaten = [((both >= one).all(1) & (both > one).any(1)).any() for one in both]
    front = found["front"].to_numpy()
    assert front.any()
    assert not (front & beaten).any()
    assert np.asarray(beaten)[~front].mean() > 0.99  # the rest are copies of equal points


def test_a_million_tokens_cost_what_the_gpus_do(found: pd.DataFrame, asked: Question) -> None:
    rates = economy(asked.model.device)
    first = found.iloc[0]
    assert first["usd_per_million"] == pytest.approx(
        rates.usd_per_hour * 1e6 / first["tokens_per_s_gpu"] / 3600
    )


def test_a_model_that_does_not_fit_is_told(asked: Question) -> None:
    large = dataclasses.replace(asked, shape=load_shape("llama3-70b"), gpus=1)
    with pytest.raises(InputError, match="expected a model that fits on 1 GPUs of 8"):
        deployments(dataclasses.replace(large, schemes=({"quant": "bfloat16"},)))


def test_commands_say_the_layout() -> None:
    row = {"tp": 2, "pp": 1, "attention_dp": 4, "expert_ep": 8, "sequences": 64, "chunk": 2048,
           "kv_dtype": "fp8", "drafted": 2}  # fmt: skip
    lines = launch_lines(row, "some/model")
    assert "--data-parallel-size 4 --enable-expert-parallel --max-num-seqs 64" in lines["vllm"]
    assert "--tp-size 8 --dp-size 4 --enable-dp-attention --ep-size 8" in lines["sglang"]
    assert "--max-running-requests 256 --chunked-prefill-size 8192" in lines["sglang"]
    assert "--tp_size 8 --pp_size 1 --ep_size 8" in lines["trtllm"]
    assert "enable_attention_dp: true" in lines["trtllm"]
    assert '"num_speculative_tokens":2}' in lines["vllm"]
    assert "--speculative-num-steps 2 --speculative-eagle-topk 1" in lines["sglang"]
    assert "num_nextn_predict_layers: 2}" in lines["trtllm"]


def test_engines_of_prompts_are_started_to_send_their_keys() -> None:
    row = {"tp": 1, "pp": 1, "attention_dp": 1, "expert_ep": 1, "sequences": 64, "chunk": 2048,
           "kv_dtype": "bf16", "drafted": 0}  # fmt: skip
    alone, first, then = (launch_lines(row, "m", role) for role in ("", "prefill", "decode"))
    for name, words in {"vllm": "kv_", "sglang": "disaggregation", "trtllm": "transceiver"}.items():
        assert words not in alone[name]
        assert words in first[name]
        assert first[name] != then[name]
    config = then["vllm"].split("--kv-transfer-config ")[1].strip("'")
    assert json.loads(config)["kv_role"] == "kv_consumer"
    assert "disable_overlap_scheduler: true" in first["trtllm"]


def test_the_command_ranks_a_shape(run, refused, tmp_path) -> None:
    out, page = tmp_path / "found.csv", tmp_path / "found.html"
    asked = ("serve", "--shape", "llama3-8b", "--system", "h100", "--gpus", "1", "--precision",
             "fp8", "--out", out, "--html", page)  # fmt: skip
    status, text, _ = run(*asked, "--sla", "ttft=1s,tpot=30ms")
    assert status == 0
    assert "within the limits" in text
    assert "vllm serve llama3-8b" in text
    assert "tokens/s/GPU" in page.read_text()
    assert len(pd.read_csv(out)) > 10
    assert "expected --sla such as" in refused(*asked, "--sla", "fast")
    assert "expected --system" in refused("serve", "--shape", "llama3-8b")
    assert "expected a table of rows" in refused("serve")
    assert "expected --drafted with" in refused(*asked, "--acceptance", "0.5")


def test_recorded_requests_are_served_by_the_best_deployment(run, refused, tmp_path) -> None:
    path = tmp_path / "requests.csv"
    rows = pd.DataFrame(
        {
            "trace": ["a"] * 40 + ["b"] * 40,
            "arrival_s": [0.05 * (at % 40) for at in range(80)],
            "prompt_tokens": [300] * 40 + [3000] * 40,
            "output_tokens": 20,
        }
    )
    rows.to_csv(path, index=False)
    asked = ("serve", "--shape", "llama3-8b", "--system", "h100", "--gpus", "1", "--precision",
             "fp8", "--requests", path, "--json")  # fmt: skip
    found = {}
    for trace in "ab":
        status, text, _ = run(*asked, "--trace", trace)
        assert status == 0
        found[trace] = json.loads(text)["open_loop"]
    first = {trace: next(iter(told)) for trace, told in found.items()}
    # 300 tokens take as long as the launches of their kernels
    assert first["b"]["ttft_s"] > 1.5 * first["a"]["ttft_s"]
    assert "expected --trace of a, b, got none" in refused(*asked)
    assert "expected --requests FILE" in refused(*asked[:-3], "--trace", "a")


def test_a_row_is_answered_as_the_same_deployment(found: pd.DataFrame) -> None:
    """Aggregated engines (a row has one of them) and engines apart: one law for both questions."""
    some = found[(found["quant"] == "bfloat16") & (found["mode"] != "aggregated")
                 | (found["replicas"] == 1)].query("quant == 'bfloat16'")  # fmt: skip
    rows = []
    for one in some.to_dict("records"):
        apart = one["mode"] == "disaggregated"
        kind = "decode_" if apart else ""
        row = {
            "model_path": "llama3-8b", "system": "h100", "backend": "vllm", "precision": "bf16",
            "isl": 1000, "osl": 200, "mode": "disagg" if apart else "agg",
            "concurrency": one["sequences"] * one["replicas"] * one["attention_dp"],
            "max_num_batched_tokens": one["chunk"], f"{kind}tp_size": one["tp"],
            f"{kind}pp_size": one["pp"],
        }  # fmt: skip
        if apart:
            row |= {"prefill_tp_size": one["prefill_tp"], "prefill_pp_size": one["prefill_pp"],
                    "prefill_num_workers": one["prefill_replicas"],
                    "decode_num_workers": one["replicas"]}  # fmt: skip
        rows.append(row)
    told = predict_serving(pd.DataFrame(rows)).frame
    assert {*some["mode"]} == {"aggregated", "disaggregated"}
    for name in ("ttft_s", "tpot_s"):
        np.testing.assert_allclose(told[f"predicted_{name}"], some[name], rtol=1e-9)
    gpus = some["gpus"].to_numpy() / 2  # of the two that are there
    speed = told["predicted_tokens_per_s_gpu"].to_numpy() * gpus
    np.testing.assert_allclose(speed, some["tokens_per_s_gpu"], rtol=1e-9)


def test_a_benchmark_s_row_begins_with_a_burst() -> None:
    row = {
        "model_path": "llama3-8b", "system": "h100", "backend": "vllm", "precision": "bf16",
        "isl": 900, "osl": 200, "concurrency": 64,
    }  # fmt: skip
    rows = pd.DataFrame([row, row | {"requests_per_client": 10}, row | {"requests_per_client": 2}])
    told = predict_serving(rows).frame
    steady_s, ten_s, two_s = told["predicted_ttft_s"]
    assert steady_s < ten_s < two_s
    assert told["note"].str.contains("steady").tolist() == [True, False, False]


def test_recorded_requests_that_come_alone_take_what_the_law_says(
    asked: Question, found: pd.DataFrame
) -> None:
    """The simulation of requests and the law of clients: one framework's first tokens."""
    alone = found.query("sequences == 1 and attention_dp == 1 and chunk == 8192")
    gone_s = np.arange(20) * 100.0
    requests = arriving(gone_s, np.full(20, asked.prompt), np.full(20, asked.output))
    for mode in ("aggregated", "disaggregated"):
        row = alone[alone["mode"] == mode].iloc[0]
        served = served_openly(asked, row.to_dict(), requests)
        assert served.ttft_s.mean() == pytest.approx(row["ttft_s"], rel=0.01), mode
        assert served.tpot_s.mean() == pytest.approx(row["tpot_s"], rel=0.01), mode
