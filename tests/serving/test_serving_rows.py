"""Rows of operating points: their traps, what is refused, what a fit does."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hybridperf.cli.app import main
from hybridperf.fields.frameworks import last_release
from hybridperf.io import InputError, OldFile
from hybridperf.model.serving_effects import ServingEffects, believed
from hybridperf.ops.frameworks import ServingFramework, serving_frameworks
from hybridperf.serving.admission import NO_LIMIT
from hybridperf.serving.fit import ServingFit
from hybridperf.serving.machines import known_names, machine_of
from hybridperf.serving.rows import DISTRIBUTION, named_model, schemes_of, understood
from hybridperf.serving.served import believed_effects
from hybridperf.serving.table import COLUMNS, fit_of, predict_serving
from hybridperf.workloads.serving import Deployment
from hybridperf.workloads.transformer.zoo import load_shape, shape_names

DENSE = {
    "backend": "vllm", "model_path": "meta-llama/Llama-3.1-8B-Instruct", "system": "h100_sxm",
    "precision": "fp8", "mode": "agg", "isl": 1024, "osl": 1024, "concurrency": 16, "tp_size": 1,
}  # fmt: skip
EXPERTS = {**DENSE, "backend": "trtllm", "model_path": "deepseek-ai/DeepSeek-R1",
           "system": "b200_sxm", "tp_size": 8, "moe_ep_size": 8}  # fmt: skip


def table(*rows: dict) -> pd.DataFrame:
    return pd.DataFrame([*rows])


def engine(**columns: object) -> Deployment:
    found = understood(table({**EXPERTS, **columns}))[0].engine
    assert found is not None
    return found


@pytest.mark.parametrize(("tp", "dp"), [(64, 1), (1, 64)])
def test_layouts_of_n_times_n_experts_are_n_gpus(tp: int, dp: int) -> None:
    found = engine(tp_size=tp, attention_dp_size=dp, moe_tp_size=8, moe_ep_size=8)
    assert found.gpus == 8
    assert (found.tp, found.attention_dp) == ((8, 1) if tp > 1 else (1, 8))
    assert found.expert_ep == 8


def test_names_of_one_model_are_one() -> None:
    names = ("deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3", "nvidia/DeepSeek-V3.1-NVFP4")
    rows = understood(table(*({**EXPERTS, "model_path": name} for name in names)))
    assert {row.model for row in rows} == {"deepseek-v3"}
    assert len({row.engine for row in rows}) == 1


def test_rows_of_one_table_say_what_each_says_by_itself() -> None:
    """Rows alike but for their sizes are understood once: not lengths of a benchmark's scripts."""
    told = [
        *({**one, "isl": isl, "osl": 100, "concurrency": clients, "id": f"{isl} {clients}"}
          for one in (DENSE, EXPERTS) for isl in (7, 900.0, 1024) for clients in (1, 3.5)),
        *({**EXPERTS, "isl": 1024, "osl": 1024, "concurrency": clients} for clients in (1, 8, 512)),
        {**DENSE, "max_model_len": 2048}, {**DENSE, "max_model_len": 2047}, {**DENSE, "osl": 0.5},
        {**DENSE, "max_model_len": 2047, "isl": 1023}, {**DENSE, "concurrency": 1e30},
        {**DENSE, "concurrency": None, "source": "silicon_concurrency=5"},
        {**DENSE, "concurrency": None, "batch_size": 7}, {**DENSE, "isl": None},
        {**DENSE, "view": "engine"}, {**DENSE, "view": "engine", "isl": 5},
        {**EXPERTS, "tp_size": 12, "moe_tp_size": 12}, {**DENSE, "model_path": "bert-large"},
    ]  # fmt: skip
    together = understood(table(*told))
    alone = [understood(table(one))[0] for one in told]
    assert together == alone
    assert len({row.refused for row in together}) > 5
    assert understood(table(*told).iloc[:0]) == []


@pytest.mark.parametrize("tp", [12, 28, 36, 72])
def test_a_total_of_gpus_is_the_deployment_it_is_likest_to(tp: int) -> None:
    """InferenceX lists a deployment's GPUs as tp; its recipes tell engines of as many."""
    row = understood(table({**EXPERTS, "tp_size": tp, "moe_tp_size": tp}))[0]
    assert not row.refused
    assert any("deploys" in note and "to prefill" in note for note in row.notes)
    assert row.prefill is not None
    of_both = row.prefill_workers * row.prefill.gpus + row.workers * row.engine.gpus
    assert 1 / 3 < of_both / tp < 3  # of those that are published


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"tp_size": 2.5}, "whole number of 1 or more in tp_size, got 2.5"),
        ({"max_num_seqs": 0}, "whole number of 1 or more in max_num_seqs, got 0"),
        ({"mode": "disagg", "decode_num_workers": 0}, "1 or more in decode_num_workers, got 0"),
        ({"mode": "disagg"}, "expected decode_tp_size"),
        ({"concurrency": None}, "expected clients in a column concurrency"),
        ({"acceptance": 0.7}, "expected drafted"),
        ({"model_path": "bert-large"}, "expected a model that makes one token after the other"),
        ({"model_path": "t5-small"}, "got t5-small, which has none or an encoder, too"),
        ({"kv_dtype": "half a byte"}, "unknown dtype 'half a byte'"),
        ({"isl": None}, "expected a number in the column isl, got none"),
        ({"osl": "many"}, "number of zero or more in osl, got 'many'"),
    ],
)
def test_what_no_engine_has_is_refused_by_its_column(columns: dict, says: str) -> None:
    assert says in understood(table({**DENSE, **columns}))[0].refused


def test_a_gpu_that_nobody_measured_is_told() -> None:
    here, there = (
        predict_serving(table({**DENSE, "system": system})).frame["note"][0]
        for system in ("h100_sxm", "rtx_6000_ada")
    )
    assert "was measured" not in here
    assert "no op of rtx_6000_ada was measured" in there


def test_kernels_follow_scheme_and_machine() -> None:
    oss = {"model_path": "openai/gpt-oss-120b", "tp_size": 1, "moe_ep_size": 1}
    assert engine(**oss).of_experts() == "w4a8_mxfp4_mxfp8"
    assert engine(**oss, system="h100_sxm").of_experts() == "w4a16_mxfp4"
    narrow = engine(gemm_quant_mode="nvfp4", moe_quant_mode="nvfp4")
    assert (narrow.quant, narrow.of_experts(), narrow.kv_dtype) == ("bfloat16", "nvfp4", "fp8")
    assert engine(gemm_quant_mode="fp8", moe_quant_mode="fp8").quant == "fp8_block"


def test_names_of_the_hub_are_models_by_their_sizes() -> None:
    names = {
        "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b",
        "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
        "mistralai/Mistral-7B-Instruct-v0.3": "mistral-7b-v0.3",
        "meta-llama/Llama-2-70b-chat-hf": "llama2-70b",
        "TheBloke/Llama-2-7B-AWQ": "llama2-7b",
        "google/gemma-2-9b-it": "gemma2-9b",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": "llama3-70b",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": "qwen2.5-7b",
        "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": "qwen3-235b-a22b",
        "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": "qwen3-8b",
        "nvidia/DeepSeek-R1-0528-NVFP4-v2": "deepseek-v3",
        "deepseek-ai/DeepSeek-V3.1-Terminus": "deepseek-v3",
        "nvidia/Llama-4-Scout-17B-16E-Instruct-FP8": "llama4-scout",
        "amd/Llama-3.3-70B-Instruct-FP8-KV": "llama3-70b",
        "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": "llama3-8b",
        "zai-org/GLM-5-FP8": "glm-5",
    }
    assert {name: load_shape(name).name for name in names} == names
    assert {name: named_model(name)[0] for name in names} == names
    assert {*known_names()["model"]} <= {*shape_names()}
    with pytest.raises(InputError, match="unknown model"):
        load_shape("Llama-9-7B-Instruct")


def test_what_a_row_does_not_tell_is_said() -> None:
    least = {name: DENSE[name] for name in ("system", "isl", "osl", "concurrency")}
    for name, formats in {
        "llama3-8b": "bf16",
        "nvidia/Llama-3.1-8B-Instruct-NVFP4": "nvfp4",
    }.items():
        (row,) = understood(table({**least, "model_path": name}))
        assert f"precision not given: {formats} assumed" in row.notes
        assert "layout not given: tp_size 1 assumed" in row.notes
        assert "kv_dtype not given: bf16 assumed" in row.notes
        own = {**least, "model_path": name, "precision": formats, "tp_size": 1}
        (named,) = understood(table({**own, "kv_dtype": "bf16"}))
        assert named.engine == row.engine
    (row,) = understood(table({**DENSE, "drafted": 2}))
    assert "acceptance of drafted tokens not given: 0.7 assumed" in row.notes


def test_number_formats_go_by_the_frameworks_words() -> None:
    columns = ({"kv_dtype": "auto"}, {"kv_dtype": "bfloat16"}, {"kv_dtype": "fp8_e5m2"},
               {"precision": "FP8"}, {"precision": "awq"}, {"precision": "w8a8"})  # fmt: skip
    found = [row.engine for row in understood(table(*({**DENSE, **one} for one in columns)))]
    kept = [(one.quant, one.kv_dtype) for one in found if one]
    assert kept == [("fp8", "bf16"), ("fp8", "bf16"), ("fp8", "fp8"), ("fp8", "fp8"),
                    ("int4_wo", "fp8"), ("sq", "fp8")]  # fmt: skip


def test_an_adapter_takes_time_and_one_token_has_no_time_per_token() -> None:
    rows = table(*({**DENSE, **one} for one in ({}, {"lora_rank": 64}, {"osl": 1})))
    found = predict_serving(rows).frame
    assert 1.0 < found["predicted_tpot_s"][1] / found["predicted_tpot_s"][0] < 1.2
    assert np.isnan(found["predicted_tpot_s"][2])
    assert found["predicted_ttft_s"][2] > 0
    assert "has no time per output token" in found["note"][2]


def test_a_mode_that_nobody_knows_is_refused() -> None:
    (odd,) = understood(table({**DENSE, "mode": "foo"}))
    assert odd.refused.startswith("expected a mode of agg, disagg, got 'foo'")
    workers = {"prefill_tp_size": 4, "decode_tp_size": 8}
    apart, whole = understood(table(
        *({**EXPERTS, **workers, "mode": mode} for mode in ("disaggregated", "aggregated"))
    ))  # fmt: skip
    assert apart.prefill is not None
    assert whole.prefill is None


def test_clients_stand_in_a_column_or_in_a_text() -> None:
    text = {"silicon_data_source": "x; silicon_concurrency=48; measured=2026"}
    row = {name: value for name, value in DENSE.items() if name != "concurrency"}
    assert understood(table({**row, **text}))[0].clients == 48.0


@pytest.fixture(scope="module")
def measured() -> pd.DataFrame:
    """Rows that are 1.4 times the law's, by one framework."""
    rows = table(*({**DENSE, "concurrency": clients, "tp_size": tp}
                   for clients in (1, 4, 16, 64) for tp in (1, 2)))  # fmt: skip
    found = predict_serving(rows).frame
    rows["tpot_s"] = 1.4 * found["predicted_tpot_s"]
    rows["ttft_s"] = 1.4 * found["predicted_ttft_s"]
    return rows


def test_a_fit_learns_what_rows_share_and_is_kept(measured: pd.DataFrame, tmp_path: Path) -> None:
    rows = measured.drop(columns=["tpot_s", "ttft_s"])
    fit = fit_of(measured)
    found = predict_serving(rows, fit=fit).frame
    ratio = found["predicted_tpot_s"] / measured["tpot_s"]
    assert np.abs(np.log(ratio)).median() < 0.05
    before = predict_serving(rows).frame
    narrower = (found["tpot_high_s"] / found["tpot_low_s"]).mean()
    assert narrower < (before["tpot_high_s"] / before["tpot_low_s"]).mean()
    fit.save(tmp_path / "serving.json")
    again = predict_serving(rows, fit=ServingFit.load(tmp_path)).frame
    np.testing.assert_allclose(again["predicted_ttft_s"], found["predicted_ttft_s"])


def test_rows_that_draft_are_fitted_by_tokens_not_by_steps() -> None:
    """Measured as predicted: effects stay, and so do other rows of the framework."""
    rows = table(*({**DENSE, "concurrency": clients, "drafted": drafted}
                   for clients in (1, 4, 16, 64) for drafted in (1, 2)))  # fmt: skip
    found = predict_serving(rows).frame
    rows["tpot_s"], rows["ttft_s"] = found["predicted_tpot_s"], found["predicted_ttft_s"]
    fit = fit_of(rows)
    plain = table(*({**DENSE, "concurrency": clients} for clients in (1, 16, 64)))
    for some in (rows[[*plain, "drafted"]], plain):
        before, after = predict_serving(some).frame, predict_serving(some, fit=fit).frame
        for name in ("predicted_tpot_s", "predicted_ttft_s"):
            np.testing.assert_allclose(after[name], before[name], rtol=1e-3)


def test_a_fit_of_an_earlier_law_says_so(measured: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "serving.json"
    fit_of(measured).save(path)
    saved = json.loads(path.read_text())
    del saved["sha256"]
    path.write_text(json.dumps(saved | {"schema_version": 4}))
    with pytest.warns(OldFile, match="fit the rows again"):
        ServingFit.load(path)


def test_measured_rows_without_seconds_are_refused(measured: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="seconds above zero in ttft_s and tpot_s"):
        fit_of(measured.assign(ttft_s=-1.0))


def test_columns_pass_through_in_order(measured: pd.DataFrame) -> None:
    rows = measured.drop(columns=["tpot_s", "ttft_s"]).assign(mine="x")
    found = predict_serving(rows).frame
    assert [*found] == [*rows, *COLUMNS]
    assert (found["ttft_low_s"] < found["predicted_ttft_s"]).all()
    assert (found["predicted_ttft_s"] < found["ttft_high_s"]).all()
    assert found["fits"].all()
    assert (np.diff(found["predicted_tpot_s"][::2]) > 0).all()


def test_a_model_that_does_not_fit_is_said() -> None:
    found = predict_serving(table({**EXPERTS, "tp_size": 2, "moe_ep_size": 2})).frame
    assert not found["fits"][0]
    assert "does not fit" in found["note"][0]


LLAMA = {**DENSE, "backend": "trtllm", "model_path": "meta-llama/Llama-3.1-70B", "tp_size": 4}
SGLANG = {**EXPERTS, "backend": "sglang"}


@pytest.mark.parametrize(("row", "told"), [
    (LLAMA, (1, 20, 0.9 * 16384, 16384)), ({**LLAMA, "tp_size": 8}, (1, 0, NO_LIMIT, 16384)),
    ({**LLAMA, "osl": 1000}, (1, 0, NO_LIMIT, 8192)),
    (SGLANG, (30, 0, NO_LIMIT, 32768)), ({**SGLANG, "concurrency": 8}, (10, 0, NO_LIMIT, 32768)),
    ({**SGLANG, "system": "h200_sxm"}, (1, 0, NO_LIMIT, 32768)),
    ({**EXPERTS, "tp_size": 1, "attention_dp_size": 8}, (60, 0, NO_LIMIT, 1024 + 16 + 64)),
    (DENSE, (1, 0, NO_LIMIT, 8192)),
])  # fmt: skip
def test_settings_of_published_benchmarks_are_taken_unless_told(row: dict, told: tuple) -> None:
    found = understood(table(row))[0]
    assert (*found.admission, found.chunk) == pytest.approx(told)
    assert any("as InferenceX's scripts set" in note for note in found.notes) == (
        told != (1, 0, NO_LIMIT, 8192)
    )
    own = {"scheduler_recv_interval": 5, "batch_wait_timeout_iters": 0,
           "batch_wait_max_tokens_ratio": 0.0, "max_num_batched_tokens": 4096,
           "attention_dp_timeout_iters": 1, "requests_per_client": 10, "max_num_seqs": 256,
           "moe_backend": "TRTLLM"}  # fmt: skip
    said = understood(table({**row, **own}))[0]
    assert (*said.admission, said.chunk) == pytest.approx((5, 0, NO_LIMIT, 4096))
    assert not any("InferenceX" in note for note in said.notes)


def test_published_drafts_are_told_by_a_date_or_by_clients() -> None:
    """One image of TensorRT-LLM drafts from a date on; SGLang drafts wherever clients are many."""
    old = {**EXPERTS, "backend": "trtllm", "precision": "fp8", "system": "b200_sxm",
           "gemm_quant_mode": "fp8_block", "moe_quant_mode": "fp8_block",
           "backend_version": "1.1.0rc2.post2"}  # fmt: skip
    dated = [{**old, "silicon_data_source": f"measured={date}"} for date in
             ("2025-12-15", "2026-01-14")]  # fmt: skip
    without, drafting = understood(table(*dated))
    assert (without.engine.drafted, drafting.engine.drafted) == (0, 3)  # type: ignore[union-attr]
    assert without.engine.moe_backend == "deepgemm"  # type: ignore[union-attr]
    by_sglang = {**old, "backend": "sglang", "backend_version": "0.5.9"}
    few, many = understood(table(*({**by_sglang, "concurrency": n} for n in (32, 256))))
    assert (few.engine.drafted, few.drafts_known, few.fitted_on) == (0, False, False)  # type: ignore[union-attr]
    assert "published with drafted tokens and without: none assumed" in few.notes
    assert not any("may_draft" in note for note in few.notes)
    assert (many.engine.drafted, many.engine.max_sequences) == (2, 512)  # type: ignore[union-attr]


def test_runs_of_other_lengths_have_settings_of_their_own() -> None:
    own = {
        **DENSE,
        "isl": 4000,
        "osl": 100,
        "backend_version": "0.12.0",
        "silicon_data_source": "source_file=/aic-auto-gap-analysis/llama.csv; gtl_job_id=3",
    }
    eager = {"backend": "trtllm", "osl": 1000, "backend_version": "1.3.0rc1"}
    rows = understood(
        table(
            own, {**own, "silicon_data_source": "mine"}, {**own, "cached_share": 0.5},
            {**own, **eager}, {**DENSE, "enforce_eager": 1},
        )
    )  # fmt: skip
    engines = [row.engine for row in rows if row.engine]
    assert [one.cached_share for one in engines] == [0.75, 0.0, 0.5, 0.0, 0.0]
    assert [one.launches for one in engines] == ["graph"] * 3 + ["eager"] * 2
    assert "as aiconfigurator's scripts set: cached_share 0.75" in rows[0].notes


def test_routers_of_groups_fill_few_experts_in_rows_and_in_deployments() -> None:
    assert engine().distribution == "power_law_1.2"
    assert engine(model_path="zai-org/GLM-5").distribution == DISTRIBUTION
    machine = machine_of("b200_sxm")
    found = {
        name: schemes_of(name, ("fp4",), machine)[0]["distribution"]
        for name in ("deepseek-ai/DeepSeek-R1", "moonshotai/Kimi-K2.5")
    }
    assert [*found.values()] == ["power_law_1.2", DISTRIBUTION]


def test_prompts_that_are_held_back_wait_longer() -> None:
    rows = [{**SGLANG, "scheduler_recv_interval": every} for every in (1, 30)]
    at_once, held_back = predict_serving(table(*rows)).frame["predicted_ttft_s"]
    tpot_s = predict_serving(table(rows[0])).frame["predicted_tpot_s"][0]
    assert held_back == pytest.approx(at_once + 12.5 * tpot_s, abs=3.0 * tpot_s)


def test_a_prompt_lasts_as_long_as_its_kernels_are_launched() -> None:
    """61 layers of latent attention and experts, not fused on an H200: 3,000 kernels, 0.14 s."""
    row = {**SGLANG, "concurrency": 1, "isl": 128, "osl": 100, "system": "h200_sxm"}
    found = predict_serving(table(row)).frame["predicted_ttft_s"][0]
    assert 0.15 < found < 0.25
    on_blackwell = predict_serving(table({**row, "system": "b200_sxm"})).frame["predicted_ttft_s"]
    assert on_blackwell[0] < 0.8 * found


def test_workers_that_are_not_told_widen_the_interval() -> None:
    sides = {f"{kind}_{name}": 8 for kind in ("prefill", "decode") for name in
             ("tp_size", "moe_ep_size")}  # fmt: skip
    row = {**EXPERTS, "mode": "disagg", **sides}
    told = {"prefill_num_workers": 1, "decode_num_workers": 3}
    known, unknown = (predict_serving(table(one)).frame.iloc[0] for one in ({**row, **told}, row))
    assert "numbers of workers are not told" in unknown["note"]
    assert known["predicted_tpot_s"] == pytest.approx(unknown["predicted_tpot_s"])
    assert known["tpot_high_s"] < unknown["tpot_high_s"]


def apart(**columns: object) -> dict:
    """A row of TensorRT-LLM's DeepSeek in 4 bits, whose engines' numbers are not told."""
    sides = {"prefill_tp_size": 4, "prefill_moe_ep_size": 4, "decode_tp_size": 8,
             "decode_moe_ep_size": 8, "moe_quant_mode": "nvfp4"}  # fmt: skip
    return {**EXPERTS, **sides, "mode": "disagg", **columns}


def test_published_deployments_tell_what_rows_do_not() -> None:
    ranks, seen = {"decode_tp_size": 1, "decode_attention_dp_size": 8}, []
    prefill = {"prefill_tp_size": 1, "prefill_attention_dp_size": 4}
    told = {**prefill, "prefill_num_workers": 1, "decode_num_workers": 6}
    for row in (
        apart(concurrency=1214), apart(concurrency=450, **told), apart(concurrency=45),
        apart(concurrency=1213), apart(concurrency=450, **told, **ranks),
    ):  # fmt: skip
        one = understood(table(row))[0]
        assert one.engine is not None
        seen.append((one.workers, one.engine.attention_dp, one.engine.drafted,
                     one.engine.max_sequences, one.workers_known, one.drafts_known))  # fmt: skip
    assert seen == [
        (2, 8, 2, 64, True, True), (6, 1, 0, 64, True, True), (5, 1, 0, 32, True, False),
        (3, 1, 0, 1024, False, True), (6, 8, 0, 1024, True, True),
    ]  # fmt: skip
    notes = understood(table(apart(concurrency=45)))[0].notes
    note = next(one for one in notes if one.startswith("as InferenceX"))
    assert "as InferenceX deploys: to prefill 1 of 4 GPUs" in note
    assert note.endswith("; or " + note.split(": ")[1].split("; or ")[0] + ", 3 tokens drafted")


def test_clients_beyond_the_sequences_of_engines_wait_for_one() -> None:
    """450 clients on six engines of 64: (450 / 384 - 1) answers of 1,024 tokens."""
    told = {"prefill_tp_size": 1, "prefill_attention_dp_size": 4, "prefill_num_workers": 1,
            "decode_num_workers": 6}  # fmt: skip
    wait, none = (
        predict_serving(table(apart(concurrency=450, **told, max_num_seqs=most))).frame.iloc[0]
        for most in (64, 512)
    )
    queue_s = (450 / 384 - 1) * 1024 * wait["predicted_tpot_s"]
    assert wait["predicted_ttft_s"] - none["predicted_ttft_s"] == pytest.approx(queue_s, rel=0.1)


def test_drafts_of_a_published_version_shorten_a_token() -> None:
    drafting = engine(backend_version="1.2.0rc6.post3")
    assert (drafting.drafted, engine(backend_version="1.2.0rc6.post2").drafted) == (3, 0)
    assert engine(backend_version="1.2.0rc6.post3", drafted=1, acceptance=0.5).drafted == 1
    rows = table(*({**EXPERTS, "backend_version": f"1.2.0rc6.post{one}"} for one in (2, 3)))
    plain, drafted = predict_serving(rows).frame["predicted_tpot_s"]
    assert drafting.tokens_per_pass == pytest.approx(1 + 0.7 + 0.7**2 + 0.7**3)
    assert plain / drafting.tokens_per_pass < drafted < 0.8 * plain  # a step checks four tokens


def test_command_notes_what_it_cannot_predict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = table(DENSE, {**DENSE, "system": "no_such_gpu"}, {**DENSE, "osl": 0})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(tmp_path / "rows.csv"), "--out", str(tmp_path / "out.csv")])
    assert ended.value.code == 3
    found = pd.read_csv(tmp_path / "out.csv")
    assert found["predicted_tpot_s"].notna().tolist() == [True, False, False]
    assert "expected a system of" in found["note"][1]
    assert "1 of 3 rows predicted" in capsys.readouterr().out


def test_rows_to_fit_on_need_both_times() -> None:
    with pytest.raises(InputError, match="expected a column tpot_s"):
        fit_of(table(DENSE))


def test_a_default_that_changed_with_a_release_follows_the_row() -> None:
    """vLLM schedules beside the GPU from 0.14.0 on: by a version, else by the day, else now."""
    said = [
        {"backend_version": "0.12.0"}, {"backend_version": "0.14.1"}, {"backend_version": "0.9.2"},
        {"measured": "2025-12-30"}, {"measured": "2026-03-01"},
        {"backend_version": "nightly-5b8c", "measured": "2025-11-02"}, {},
    ]  # fmt: skip
    rows = understood(pd.concat([table({**DENSE, **one}) for one in said], ignore_index=True))
    assert [row.release for row in rows] == ["", "0.14.0", "", "", "0.14.0", "", "0.14.0"]
    per_token_s = believed_effects(rows).sequence_s
    old_s, new_s = ServingEffects().sequence_s, believed("vllm").sequence_s
    assert per_token_s.tolist() == [old_s, new_s, old_s, old_s, new_s, old_s, new_s]
    noted = [[one for one in row.notes if "backend_version" in one] for row in rows]
    assert noted[:3] == [[], [], []]
    assert "one before 0.14.0 assumed, as it was measured on 2025-12-30" in noted[3][0]
    assert "0.14.0 or later assumed, the newest" in noted[6][0]


def test_releases_are_ordered_by_their_numbers_not_their_letters() -> None:
    known = ("0.9.0", "0.14.0", "26.06")
    found = [last_release(known, one) for one in ("0.8", "0.10.1", "v0.14.0rc1", "26.05", "main")]
    assert found == ["", "0.9.0", "0.14.0", "0.14.0", ""]


@pytest.mark.parametrize("framework", serving_frameworks().values())
def test_effects_begin_with_releases_that_are_known(framework: ServingFramework) -> None:
    known = [one.version for one in framework.releases]
    assert {one.since for one in framework.effects} <= {"", *known}
    assert [one.date for one in framework.releases] == sorted(
        one.date for one in framework.releases
    )
    assert all(one.source for one in framework.releases)
