"""What is assumed where a row says nothing: naming it changes nothing, and it rules out nothing
that the row says.
"""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.fields.frames import assumed
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.predict import predict_steps
from hybridperf.training.steps.rows import resolve
from hybridperf.workloads.transformer.framework import framework_habits

MODELS = (
    "llama2-7b", "llama3-8b", "llama2-70b", "gpt3-13b", "gpt3-175b", "gpt2-xl", "bert-large",
    "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "t5-11b",
)  # fmt: skip
SIZES = {"hidden": 2048, "heads": 16, "layers": 24, "seq": 1024, "vocab": 32000}
GPUS = (
    "h100_sxm_80gb", "a100_sxm_80gb", "a100_40gb", "b200_sxm", "gb200", "h200", "v100_32g",
    "mi300x", "l40s", "h800", "t4",
)  # fmt: skip
FRAMEWORKS = (
    "megatron_core", "megatron_core_26_06", "megatron_core_graphs", "megatron", "megatron_2022",
    "megatron_deepspeed", "gpt_neox", "nanotron", "llm_foundry", "torchtitan", "torchtitan_eager",
    "torchtitan_async_tp", "eager_pytorch", "llm_c", "flash_attention", "flash_attention_1",
    "mlperf_bert", "mlperf_bert_few", "nobody's",
)  # fmt: skip
SOURCES = (
    "mlperf_training_v3.0", "mlperf_training_v4.0", "nemo_megatron_bridge_26", "torchtitan_docs",
    "vtrain_single_node", "ultrascale_playbook", "mosaicml_llmfoundry", "neusight_distributed",
    "The Llama 3 herd of models",
)  # fmt: skip
# columns: (share of rows that have them, what stands there)
OTHERS = {
    "precision": (0.45, ("bf16", "fp16", "fp32", "tf32", "fp8", "mxfp8")),
    "schedule": (0.35, ("1f1b", "gpipe", "interleaved", "zero_bubble", "zb_v", "dualpipe")),
    "sharding": (0.4, ("none", "zero1", "zero2", "fsdp", "hsdp")),
    "recompute": (0.4, ("none", "selective", "full", "recipe")),
    "seq_parallel": (0.3, ("yes", "no")), "vp": (0.2, (1, 2, 3, 4)),
    "attention": (0.15, ("fused", "unfused", "flash1", "flash2")),
    "optimizer": (0.1, ("adam", "lamb", "sgd")), "overlap_gradients": (0.15, ("yes", "no")),
    "gradient_bytes": (0.15, (2, 4)), "dropout": (0.1, ("yes", "no")),
    "expert_messages": (0.1, ("copies", "nodes")), "context_messages": (0.1, ("gather", "ring")),
    "checkpoints": (0.1, ("blocks", "ops")), "release": (0.15, ("26.02", "26.06")),
    "fused_loss": (0.1, ("yes", "no")), "expert_tp": (0.05, (1, 2)),
    "order": (0.05, ("tp cp ep dp pp", "tp cp ep pp dp")), "gpus_per_node": (0.1, (4, 8)),
    "adapters": (0.05, (16,)), "seq": (0.2, (1000, 2048, 8192)),
}  # fmt: skip
# what a refused row may leave open, and be tried with
LEFT_OPEN = {
    "vp": (1, 2, 3), "schedule": ("1f1b", "gpipe", "interleaved", "zb_v"),
    "sharding": ("none", "zero1", "zero2", "zero3"), "recompute": ("none", "full"),
    "seq_parallel": ("yes", "no"), "precision": ("bf16", "fp16", "fp32", "fp8"),
    "gpus_per_node": (1, 2, 3, 4, 6, 8), "attention": ("fused", "unfused"),
    "micro_batch": (1, 2, 3, 4),
}  # fmt: skip
TRIES = 20
LAYOUT = (
    "n_gpus", "tp", "pp", "dp", "cp", "ep", "vp", "expert_tp", "seq_parallel", "order",
    "micro_batch", "grad_accum", "sharding", "shard_ranks", "recompute", "schedule",
)  # fmt: skip
PREDICTED = ("predicted_s", "low_s", "high_s", "memory_bytes", "tokens_per_s", "mfu")


def row_of(random):
    """A row with any part of its columns left out."""

    def one_of(some):
        return some[int(random.integers(len(some)))]

    row = dict(SIZES) if random.random() < 0.1 else {"model": one_of(MODELS)}
    if "hidden" in row:
        own = {"family": one_of(("gpt", "llama")), "ffn": 8192, "kv_heads": 8}
        row |= {name: value for name, value in own.items() if random.random() < 0.4}
    row["gpu"] = one_of(GPUS)
    tp, pp, dp = (one_of(some) for some in ((1, 1, 2, 4, 8), (1, 1, 2, 4, 8), (1, 2, 3, 4, 8, 16)))
    cp, ep = one_of((1, 1, 1, 1, 2)), one_of((1, 1, 1, 2, 4, 8))
    degrees = {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "n_gpus": tp * pp * cp * dp}
    if random.random() < 0.7:
        degrees.pop(one_of(("tp", "pp", "dp", "n_gpus")))
    if cp == 1 and random.random() < 0.8:
        degrees.pop("cp")
    row |= degrees
    if row.get("model") in ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3") and ep > 1:
        row["ep"] = ep
    micro, accumulation = one_of((1, 2, 3)), one_of((1, pp, 2 * pp, 4 * pp, 12))
    whole = micro * accumulation * dp
    batches = {"micro_batch": micro, "grad_accum": accumulation, "global_batch": whole}
    if random.random() < 0.8:
        batches.pop(one_of(tuple(batches)))
    if random.random() < 0.2 and "global_batch" in batches:
        batches = {"global_batch": whole}
    row |= batches
    if random.random() < 0.6:
        row["framework"] = one_of(FRAMEWORKS)
    if random.random() < 0.2:
        row["source"] = one_of(SOURCES)
    return row | {
        name: one_of(values) for name, (share, values) in OTHERS.items() if random.random() < share
    }


@pytest.fixture(scope="module")
def cache():
    """Prices once for all tests."""
    return PriceCache()


@pytest.fixture(scope="module")
def asked(cache):
    """(random rows, what is predicted of them)."""
    random = np.random.default_rng(45)
    rows = [row_of(random) for _ in range(500)]
    return rows, predict_steps(pd.DataFrame(rows), cache=cache).frame


def test_naming_what_is_assumed_changes_nothing(cache, asked):
    """Of 200 random rows any part of what is assumed is named: none, some, and all of it."""
    rows, before = asked
    random = np.random.default_rng(46)
    at = np.flatnonzero(before["predicted_s"].notna())[:200]
    assert len(at) == 200
    defaults = assumed(pd.DataFrame(rows)).to_dict("records")
    for share in (0.1, 0.5, 1.0):
        named = []
        for place in at.tolist():
            own = {name: one for name, one in defaults[place].items() if one == one}
            chosen = {name: one for name, one in own.items() if random.random() < share}
            named.append(rows[place] | chosen)
        after = predict_steps(pd.DataFrame(named), cache=cache).frame
        for number, place in enumerate(at.tolist()):
            then, now = before.loc[place], after.loc[number]
            told = (rows[place], named[number], now["note"])
            assert now["predicted_s"] == now["predicted_s"], told  # not refused
            for name in PREDICTED:
                assert now[name] == pytest.approx(then[name], rel=1e-9), told


def test_no_default_refuses_what_a_row_says():
    """A row that is refused has no value for what it leaves open with which it would run; degrees
    that it leaves out are one.
    """
    random = np.random.default_rng(47)
    rows = [row_of(random) for _ in range(800)]
    refused = [place for place, row in enumerate(resolve(pd.DataFrame(rows))) if not row.config]
    assert len(refused) > 100
    tried, whose = [], []
    for place in refused * TRIES:
        row, tp = rows[place], rows[place].get("tp", 1)
        more = LEFT_OPEN | {"expert_tp": (1, tp)}
        if {"grad_accum", "global_batch"} <= row.keys():
            more.pop("micro_batch")  # which these two say
        chosen = {
            name: some[int(random.integers(len(some)))]
            for name, some in more.items()
            if row.get(name, "recipe") == "recipe" and random.random() < 0.4
        }
        tried.append(row | chosen)
        whose.append(place)
    found = resolve(pd.DataFrame(tried))
    assert not [
        (rows[place], row)
        for place, row, one in zip(whose, tried, found, strict=True)
        if one.config
    ]


ROW = {"model": "llama2-7b", "gpu": "h100", "n_gpus": 64, "dp": 8, "micro_batch": 1}


@pytest.mark.parametrize(
    ("said", "defaults"),
    [
        ({"pp": 8, "grad_accum": 8}, {"schedule": "interleaved", "vp": 2}),
        ({"pp": 8, "grad_accum": 8, "schedule": "1f1b"}, {"vp": 1}),
        ({"pp": 8, "grad_accum": 12}, {"schedule": "1f1b", "vp": 1}),  # 12 do not divide by 8
        ({"pp": 8, "grad_accum": 12, "vp": 1}, {"schedule": "1f1b"}),
        ({"pp": 8, "grad_accum": 8, "framework": "torchtitan"}, {"schedule": "1f1b", "vp": 1}),
        ({"pp": 8, "grad_accum": 16, "schedule": "zb_v", "framework": "torchtitan_eager"},
         {"vp": 2, "sharding": "zero2", "recompute": "none"}),
        ({"pp": 8, "grad_accum": 16, "schedule": "dualpipe"}, {"sharding": "none", "vp": 1}),
        ({"tp": 8, "grad_accum": 1, "seq": 1000 + 1}, {"seq_parallel": "no"}),
        ({"tp": 8, "grad_accum": 1}, {"seq_parallel": "yes", "precision": "bf16"}),
        ({"tp": 8, "grad_accum": 1, "gpu": "v100_32g"}, {"precision": "fp16"}),
        ({"tp": 2, "n_gpus": 12, "dp": 6, "grad_accum": 1}, {"gpus_per_node": 6}),
        ({"tp": 4, "n_gpus": 12, "dp": 3, "grad_accum": 1}, {"gpus_per_node": 4}),
        ({"tp": 8, "grad_accum": 1, "source": "mlperf_training_v3.0"},
         {"framework": "megatron_core", "precision": "fp8", "release": "23.04"}),
    ],
)  # fmt: skip
def test_a_default_gives_way_to_what_the_row_says(said, defaults):
    found = assumed(ROW | said).iloc[0]
    assert {name: found[name] for name in defaults} == defaults


def test_the_framework_and_its_release_are_assumed_as_if_named(cache):
    """Each with its precision; the release that is assumed stands in the note, and others in what a
    Blackwell takes for experts.
    """
    row = {"model": "mixtral-8x7b", "gpu": "b200_sxm", "n_gpus": 8, "tp": 1, "dp": 8, "ep": 8}
    row |= {"micro_batch": 4, "global_batch": 64, "precision": "mxfp8"}
    ways = ({}, {"framework": "megatron_core"}, {"release": "26.04"}, {"release": "26.06"})
    rows = pd.DataFrame([row | way for way in ways])
    open_, named, dated, newer = predict_steps(rows, cache=cache).frame.to_dict("records")
    assert open_["predicted_s"] == named["predicted_s"] == dated["predicted_s"]
    assert newer["predicted_s"] < 0.8 * open_["predicted_s"]
    assert "release 26.04 assumed" in open_["note"]
    assert "release 26.04 assumed" in named["note"]
    assert "release 26" not in newer["note"]


@pytest.mark.parametrize(
    ("model", "system", "gpus", "framework"),
    [
        ("llama2-7b", "aic_h100_sxm", 16, ""), ("gpt3-13b", "aic_a100_sxm", 32, "megatron"),
        ("mixtral-8x7b", "aic_b200_sxm", 16, "megatron_core_26_06"),
        ("qwen3-30b-a3b", "aic_gb200", 144, "megatron_core"),
        ("llama3-8b", "8x_mi300x", 8, "nanotron"), ("gpt2-xl", "deepbench_nv_v100", 8, ""),
        ("t5-11b", "aic_h100_sxm", 8, "torchtitan"),
    ],
)  # fmt: skip
def test_a_layout_of_a_plan_is_predicted_alike_as_a_row(cache, model, system, gpus, framework):
    """With all that was assumed of it, and without what `steps` assumes alike."""
    found = hp.plan(
        model, system, gpus, batch=4 * gpus, framework=framework, memory_bytes=1e13, limit=500,
        cache=cache,
    )  # fmt: skip
    rows, top = found.as_steps(5), found.top(5)
    assert rows.index.equals(top.index)
    few = rows[["model", "gpu", "system", *LAYOUT, *(["framework"] if framework else [])]]
    for asked in (rows, few):
        steps = predict_steps(asked.reset_index(drop=True), cache=cache).frame
        for ours, theirs in (("predicted_s", "time_s"), ("low_s", "low_s"), ("high_s", "high_s")):
            np.testing.assert_allclose(steps[ours], top[theirs], rtol=1e-9)


def test_a_written_plan_says_what_its_layouts_have_in_common(cache, tmp_path):
    """With its layouts' columns, under names that `steps` reads, it is a table of rows."""
    found = hp.plan("llama2-7b", "aic_h100_sxm", 8, batch=32, limit=20, cache=cache)
    found.write(tmp_path / "plan.csv")
    table = pd.read_csv(tmp_path / "plan.csv")
    table = table[table["time_s"].notna()]
    steps = predict_steps(table.reset_index(drop=True), cache=cache).frame
    np.testing.assert_allclose(steps["predicted_s"], table["time_s"], rtol=1e-9)


def test_what_a_column_says_by_another_name_is_not_assumed(cache):
    row = {
        "model": "llama2-7b", "accelerator": "h100_sxm", "world_size": 16, "tensor_parallel": 2,
        "zero_stage": 3, "sequence_length": 1024, "gbs": 64, "recomputation": "recipe",
    }  # fmt: skip
    found = hp.assumed(row).iloc[0]
    assert not {"gpu", "n_gpus", "tp", "sharding", "seq", "global_batch"} & {*found.dropna().index}
    assert found["recompute"] == "none"
    one, full = (
        predict_steps(pd.DataFrame([asked]), cache=cache).frame["predicted_s"][0]
        for asked in (row, row | found.dropna().to_dict())
    )
    assert one == full


@pytest.mark.parametrize("framework", ["", "megatron_core", "nanotron", "gpt_neox", "torchtitan"])
def test_a_config_has_the_habits_of_rows(framework):
    """Of a row whose framework is assumed, and of one that is named."""
    way = {"framework": framework} if framework else {}
    row = ROW | way | {"tp": 2, "pp": 4, "vp": 1, "schedule": "1f1b", "grad_accum": 8}
    (asked,) = resolve(pd.DataFrame([row]))
    config = hp.TransformerConfig(hp.load_shape("llama2-7b"), asked.config.layout, **way)
    assert config == asked.config


@pytest.mark.parametrize("framework", ["", "megatron_core", "torchtitan", "megatron_deepspeed"])
@pytest.mark.parametrize("seq", [8192, 8196])
def test_a_layout_that_says_nothing_is_a_row_that_says_nothing(framework: str, seq: int) -> None:
    """Of sequence parallelism, which a length must allow."""
    said = {"model": "llama3-8b", "gpu": "h100_sxm", "n_gpus": 8, "tp": 8, "global_batch": 8}
    rows = pd.DataFrame([said | {"seq": seq} | ({"framework": framework} if framework else {})])
    (found,) = resolve(rows).rows
    layout = hp.Layout(tp=8)
    shape = hp.load_shape("llama3-8b").replace(seq=seq)
    config = hp.TransformerConfig(shape, layout, framework=framework)
    assert config.layout.sequence_parallel == found.config.layout.sequence_parallel
    assert config.layout.sequence_parallel == (framework != "megatron_deepspeed" and seq == 8192)
    other = config.replace(framework="megatron_deepspeed")
    assert not other.layout.sequence_parallel
    assert config.with_layout(layout, 8).layout == config.layout
    for given in (True, False):
        own = layout.replace(sequence_parallel=given)
        assert hp.TransformerConfig(shape, own, framework=framework).layout == own


CONFIG_SHAPES = ("llama3-8b", "gpt2-xl", "mixtral-8x7b", "deepseek-v3", "bert-large", "t5-11b")


def test_naming_what_a_config_settles_changes_nothing() -> None:
    """Of 200 random configs any part of the fields that a framework settles, sequence parallelism
    of its layout among them.
    """
    random = np.random.default_rng(48)
    settled = [one.name for one in dataclasses.fields(hp.TransformerConfig)
               if one.name not in ("shape", "layout", "quant", "gpus_per_node")]  # fmt: skip
    frameworks = ["", *framework_habits()]
    for _ in range(200):
        tp, cp = (int(random.choice(some)) for some in ((1, 2, 4), (1, 1, 2)))
        layout = hp.Layout(tp=tp, cp=cp, pp=int(random.choice((1, 2))), accumulation=4)
        shape = hp.load_shape(str(random.choice(CONFIG_SHAPES)))
        framework = str(random.choice(frameworks))
        said = {"framework": framework} if framework else {}
        if random.random() < 0.5:
            said["dtype"] = str(random.choice(("bf16", "fp16", "fp32")))
        whole = hp.TransformerConfig(shape, layout, **said)
        for share in (0.2, 1.0):
            own = {n: getattr(whole, n) for n in settled if random.random() < share}
            named = whole.layout if random.random() < share else layout
            assert hp.TransformerConfig(shape, named, **(own | said)) == whole, (own, said)


@pytest.mark.parametrize(
    ("model", "framework", "system"),
    [
        ("llama2-7b", "", "aic_h100_sxm"), ("llama2-7b", "megatron_core_26_06", "aic_h100_sxm"),
        ("llama2-7b", "torchtitan", "8x_mi300x"), ("bert-large", "mlperf_bert", "aic_h100_sxm"),
    ],
)  # fmt: skip
def test_naming_what_a_plan_assumes_changes_nothing(
    cache: PriceCache, model: str, framework: str, system: str
) -> None:
    """Each option apart and all of them: its layouts, seconds, interval and memory."""
    asked = {"batch": 32, "limit": 50, "cache": cache} | (
        {"framework": framework} if framework else {}
    )
    found = hp.plan(model, system, 16, **asked)
    case, row = found.cases[0].setup, found.as_steps(1).to_dict("records")[0]
    quant = "quant" if case.template.quant else "dtype"
    options = {
        "framework": row["framework"], quant: row["precision"], "seq": row["seq"],
        "device": row["gpu"], "memory_bytes": case.machine.memory_bytes,
    }  # fmt: skip
    for own in (*({name: said} for name, said in options.items()), options):
        named = hp.plan(model, system, 16, **(asked | own))
        pd.testing.assert_frame_equal(named.top(10), found.top(10))


def test_a_plan_without_a_batch_takes_the_one_that_it_says(cache: PriceCache) -> None:
    open_ = hp.plan("llama2-7b", "aic_h100_sxm", 8, limit=50, cache=cache)
    batch = open_.best.global_batch
    assert any(f"a global batch of {batch} samples assumed" in note for note in open_.notes)
    named = hp.plan("llama2-7b", "aic_h100_sxm", 8, batch=batch, limit=50, cache=cache)
    pd.testing.assert_frame_equal(named.top(5), open_.top(5))
