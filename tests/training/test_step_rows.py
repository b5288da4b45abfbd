"""What rows of training steps say: models, layouts, machines; what is assumed, what contradicts
itself, what is refused.
"""

import pandas as pd
import pytest

from benchmarks.claims.published_rows import with_told
from hybridperf.hardware import load_device, load_system
from hybridperf.hardware import machines as names
from hybridperf.io import InputError
from hybridperf.training.plans.setup import training_setup
from hybridperf.training.steps.rows import resolve
from hybridperf.workloads.transformer import load_shape, update
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.framework import framework_habits, of_release

ROW = {
    "id": "abc", "source": "ultrascale_playbook", "model": "made", "family": "llama",
    "hidden": 2048, "heads": 32, "layers": 16, "ffn": 8192, "vocab": 131072,
    "gpu": "H100-SXM5-80GB", "n_gpus": 16, "gpus_per_node": 8, "seq": 4096, "global_batch": 256,
    "micro_batch": 4, "grad_accum": 16, "tp": 2, "pp": 2, "dp": 4, "sharding": "zero1",
    "recompute": "none", "precision": "bf16",
}  # fmt: skip


def one(**changes):
    """The row above with some fields changed; None takes a field away."""
    (row,) = resolve(pd.DataFrame([{**ROW, **changes}]))
    return row


def test_a_full_row_says_everything() -> None:
    row = one()
    assert row.refused == ""
    layout, shape = row.config.layout, row.config.shape
    assert (
        layout.tp,
        layout.pp,
        layout.dp,
        layout.micro_batch,
        layout.accumulation,
        layout.zero,
    ) == (2, 2, 4, 4, 16, 1)
    assert (shape.hidden, shape.layers, shape.vocab, shape.gated) == (2048, 16, 131072, True)
    assert row.machine.device == row.machine.model == "h100_sxm"
    assert row.machine.system.id == "aws_p5_h100"
    assert row.flags == ()


def test_missing_fields_follow_from_others() -> None:
    row = one(dp=None, grad_accum=None)
    assert (row.config.layout.dp, row.config.layout.accumulation) == (4, 16)
    assert one(global_batch=None).config.layout.global_batch == 256


def test_what_a_framework_settles_is_said() -> None:
    row = one(recompute="unknown", sharding=None)
    assert row.config.layout.recompute == "none"
    assert "recompute none assumed" in row.note
    assert "ZeRO stage 1 assumed" in row.note


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tp": None, "pp": None, "dp": None}, "expected a layout"),
        (
            {"n_gpus": 12},
            "expected tp x pp x cp x dp to be n_gpus, got 2 x 2 x 1 x 4 = 16 for 12 GPUs",
        ),
        ({"dp": None, "n_gpus": 6}, "expected n_gpus to be a multiple of tp x pp x cp = 4, got 6"),
        (
            {"grad_accum": None, "micro_batch": 7},
            "expected micro_batch to divide the 64 samples of a replica",
        ),
        ({"hidden": -1}, "expected a whole number of 1 or more in hidden, got -1"),
        ({"layers": 2.5}, "expected a whole number of 1 or more in layers, got 2.5"),
        ({"tp": 0}, "expected a whole number of 1 or more in tp, got 0"),
        ({"micro_batch": -1.0}, "expected a whole number of 1 or more in micro_batch, got -1"),
        ({"hidden": None}, "expected hidden"),
        (
            {"model": "unet3d"},
            "expected a Transformer, got unet3d: not a Transformer but a convolutional network",
        ),
        ({"model": "dlrm"}, "recommendation model"),
        ({"adapters": "many"}, "expected a whole number of 1 or more in adapters, got 'many'"),
        ({"gpu": "abacus"}, "unknown gpu 'abacus'"),
        ({"gpu": None}, "name it by --device"),
        ({"precision": "int2"}, "expected a precision of"),
        ({"sharding": "sideways"}, "expected a sharding of"),
        ({"schedule": "chimera"}, "schedule 'chimera' with ZeRO-1 is not modelled"),
        (
            {"schedule": "sideways"},
            "expected a schedule of 1f1b, gpipe, interleaved, chimera, zero_bubble, zb_v, dualpipe,"
            " dualpipe_v, got 'sideways'",
        ),
        (
            {"recompute": "bananas"},
            "expected a recompute of none, selective, full, got 'bananas'",
        ),
        ({"seq_parallel": "bananas"}, "expected yes or no in seq_parallel, got 'bananas'"),
        ({"offload": True}, "expected offload false, got true"),
        ({"offload": "cpu"}, "expected yes or no in offload, got 'cpu'"),
        (
            {"family": "bananas"},
            "expected a family of gpt, llama, bert, t5, vit, moe, got 'bananas'",
        ),
        ({"gpu": "h1000"}, "unknown gpu 'h1000'"),
        ({"gpu": "xh100"}, "unknown gpu 'xh100'"),
        ({"gpu": "a1000"}, "unknown gpu 'a1000'"),
        ({"gpu": "NotAnA100"}, "unknown gpu 'NotAnA100'"),
        ({"source": "mine", "heads": 33, "hidden": 2112}, "heads"),
        ({"pp": 32, "dp": 1, "tp": 1, "n_gpus": 32}, "layers"),
    ],
)
def test_a_row_that_cannot_be_predicted_is_refused_by_name_and_rule(changes, says) -> None:
    row = one(**changes)
    assert row.config is None
    assert row.note.startswith("row 1 (abc): ")
    assert says in row.note
    assert "\n" not in row.note


def test_a_system_says_its_accelerator() -> None:
    assumed, named = (one(gpu=gpu, system="dgx_h100") for gpu in (None, "h100_sxm"))
    assert assumed.config == named.config
    assert assumed.machine == named.machine
    assert "gpu h100_sxm assumed, which the system has" in assumed.note
    assert "expected an accelerator in gpu" in one(gpu=None).note
    assert "unknown system 'nope'" in one(gpu=None, system="nope").note


def test_what_submissions_have_otherwise_is_theirs_alone() -> None:
    """MLPerf's pipelines are cut into chunks of two layers where layers divide so, and exchange
    gradients of 16 bits; others' do not.
    """
    layout = {
        "model": "gpt3-175b",
        "gpu": "H100",
        "n_gpus": 512,
        "tp": 4,
        "pp": 8,
        "dp": 16,
        "global_batch": 2048,
        "micro_batch": 1,
    }
    sources = [
        {"source": "mlperf_training_v4.0"},
        {"source": "mlperf_training_v4.0", "layers": 100, "pp": 4, "dp": 32},
        {"source": "another", "framework": "megatron"},
    ]
    configs = [row.config for row in resolve(pd.DataFrame([{**layout, **one} for one in sources]))]
    assert [one.layout.vp for one in configs] == [6, 1, 1]
    assert [one.gradient_bytes for one in configs] == [2, 2, 4]


@pytest.mark.parametrize(
    ("framework", "wide", "narrow"),
    [("megatron", 4, 2), ("megatron_deepspeed", 4, 2), ("gpt_neox", 4, 2), ("megatron_2022", 4, 4)],
)
def test_megatron_sums_gradients_of_bf16_in_fp32(framework: str, wide: int, narrow: int) -> None:
    """And DeepSpeed sums them whole, whatever is sharded; a row's own word counts before both."""
    row = {"framework": framework, "sharding": "zero1"}
    bf16, fp16 = (one(**row, precision=name).config for name in ("bf16", "fp16"))
    assert (bf16.gradient_bytes, fp16.gradient_bytes) == (wide, narrow)
    assert one(**row, precision="bf16", gradient_bytes=2).config.gradient_bytes == 2
    (step,) = update.summed(bf16, update.stage_weights(bf16, 0))
    whole = framework in ("megatron_deepspeed", "gpt_neox")
    assert step.call.collective == ("all_reduce" if whole else "reduce_scatter")
    (step,) = update.summed(fp16, update.stage_weights(fp16, 0))
    assert step.call.collective == "reduce_scatter"


def test_words_that_say_nothing_fall_to_habits_and_the_note_says_so() -> None:
    assert one(family="LLaMA").config == one().config
    assert (
        one(recompute="recipe", offload=False, seq_parallel="unknown").config
        == one(recompute=None).config
    )
    assert "family gpt assumed" in one(family="llm").note
    row = one(ffn=None, gpus_per_node=None, gpu="XE8640x4H100-SXM-80GB")
    assert "ffn 8192 (4 x hidden) assumed" in row.note
    assert "gpus_per_node 4 assumed" in row.note
    assert "gpus_per_node" not in one().note


@pytest.mark.parametrize("system", ["aic_h100_sxm", "aic_a100_sxm"])
@pytest.mark.parametrize("framework", ["", *framework_habits()])
def test_a_row_and_a_plan_that_say_as_little_ask_the_same(framework, system) -> None:
    """What is left open one rule decides: of rows, of plans, of a config as it is run."""
    shape, device = load_shape("gpt3-1.3b"), load_system(system).device
    said = {"model": shape.name, "gpu": device, "n_gpus": 8, "tp": 2, "pp": 2, "dp": 2}
    said |= {"micro_batch": 2, "grad_accum": 4, "framework": framework}
    (row,) = resolve(pd.DataFrame([said]), system=system)
    setup = training_setup(shape, system, framework=framework)
    assert setup.config(row.config.layout) == row.config
    usual = framework_habits().get(framework, {}).get("precision")
    narrow = usual == "fp8" and device == "h100_sxm"
    assert (row.config.dtype, row.config.quant) == ("bf16", "fp8" if narrow else "")
    assumed = f"precision {'fp8' if narrow else 'bf16'} assumed"
    assert assumed in row.note
    assert f"{assumed}, give --dtype or --quant" in setup.notes
    if framework:
        layout, spec = row.config.layout, load_device(device)
        assert row.config == TransformerConfig.run_by(framework, shape, layout, device=spec)


@pytest.mark.parametrize("said", [{"dtype": "bf16"}, {"quant": "fp8"}])
def test_a_precision_that_is_said_is_taken_and_nothing_assumed(said) -> None:
    setup = training_setup(
        load_shape("gpt3-1.3b"), "aic_h100_sxm", framework="megatron_core", **said
    )
    assert (setup.template.dtype, setup.template.quant) == ("bf16", said.get("quant", ""))
    assert not any(note.startswith("precision") for note in setup.notes)


def test_the_sequence_of_a_published_model_is_said_to_be_assumed() -> None:
    sizes = dict.fromkeys(("hidden", "heads", "layers", "ffn", "vocab"))
    row = one(**sizes, seq=None, model="llama2_7b")
    assert f"seq {row.config.shape.seq} (the model's) assumed" in row.note
    assert "seq" not in one(**sizes, model="llama2_7b").note


@pytest.mark.parametrize("options", [{"device": "nosuch"}, {"system": "nosuch"}])
def test_options_that_nobody_knows_are_refused_at_once(options) -> None:
    with pytest.raises(InputError, match="nosuch"):
        resolve(pd.DataFrame([ROW]), **options)


def test_a_column_that_stands_there_twice_is_refused() -> None:
    frame = pd.DataFrame([ROW])
    with pytest.raises(InputError, match="expected each column once, got two of 'tp'"):
        resolve(pd.concat([frame, frame[["tp"]]], axis=1))


@pytest.mark.parametrize(
    "types",
    [
        {"gpu": "category", "recompute": "category"},
        {"tp": "Int64", "pp": "float32", "dp": "string"},
        {"tp": object, "hidden": "float64", "precision": object},
    ],
)
def test_a_row_says_the_same_in_columns_of_any_type(types) -> None:
    (row,) = resolve(pd.DataFrame([ROW]).astype(types))
    assert row.config == one().config
    assert row.note == one().note


def test_one_bad_row_leaves_the_others_alone() -> None:
    rows = resolve(pd.DataFrame([ROW, {**ROW, "tp": 3}, ROW]))
    assert rows.predictable == [0, 2]
    assert rows.rows[1].note.startswith("row 2 (abc)")


def test_heads_that_do_not_divide_are_refused_where_the_framework_needs_it_else_noted() -> None:
    ragged = {"heads": 24, "hidden": 3072, "tp": 16, "pp": 1, "dp": 1, "grad_accum": 64}
    assert "heads" in one(**ragged).note
    assert one(**ragged).config is not None
    assert one(**ragged, source="torchtitan").config is None


def test_contradictions_are_flagged_and_predicted_by_the_global_batch() -> None:
    row = one(grad_accum=8)
    assert "micro-batch x accumulation x dp = 4 x 8 x 4 = 128, global batch 256" in row.flags[0]
    assert "accumulation 16 taken" in row.flags[0]
    assert row.config.layout.accumulation == 16
    assert one(grad_accum=8, global_batch=255).config.layout.accumulation == 8
    seconds = 256 * 4096 / 1e5
    assert one(step_time_s=seconds, tokens_per_s=1e5).flags == ()
    assert "tokens/s" in one(step_time_s=seconds, tokens_per_s=2e5).flags[0]
    assert "tokens/s of a GPU" in one(tokens_per_s=1e5, tokens_per_s_gpu=1e5).flags[0]
    assert "parameters" in one(params=9e9).flags[0]
    assert "MFU" in one(step_time_s=seconds, mfu=99.0).flags[0]


def test_options_override_what_rows_say() -> None:
    (row,) = resolve(pd.DataFrame([ROW]), device="a100_sxm4_80g", system="aic_a100_sxm")
    assert row.machine.device == "a100_sxm4_80g"
    assert row.machine.system.id == "aic_a100_sxm"
    with_gpu_unknown = resolve(pd.DataFrame([{**ROW, "gpu": None}]), device="h100_sxm")
    assert with_gpu_unknown.rows[0].config is not None


@pytest.mark.parametrize(
    ("gpu", "device", "per_node"),
    [
        ("XE8640x4H100-SXM-80GB", "h100_sxm", 4),
        ("System: DGX-GB200", "gb200", 64),
        ("h100_80gb", "h100_sxm", 8),
        ("a100_40gb", "a100_sxm4_40g", 8),
        ("A100-SXM4-80GB (Selene)", "a100_sxm4_80g", 8),
        ("eos_n434_ngc23.09_pytorch", "h100_sxm", 8),
        ("coreweave_hgxh100_n448_ngc23.04_mxnet", "h100_sxm", 8),
        ("8xH100", "h100_sxm", 8),
        ("Tesla V100-SXM2-32GB", "v100_sxm2_32g", 8),
        ("V100 SXM2", "v100_sxm2", 8),
        ("32GB V100", "v100_sxm2_32g", 8),
        ("NVIDIA A100 80GB PCIe", "a100_pcie_80g", 8),
        ("40GB A100", "a100_sxm4_40g", 8),
        ("R750xax4A100-PCIE-80GB", "a100_pcie_80g", 4),
        ("NVIDIA H200-SXM5-141GB", "h200_sxm", 8),
        ("H100-96GB-HBM2e-500W", "h100_sxm_96g", 8),
    ],
)
def test_accelerators_by_what_clusters_call_them(gpu, device, per_node) -> None:
    found = names.machine(gpu, "")
    assert (found.device, found.gpus_per_node) == (device, per_node)


def test_a_v100_of_32_gb_has_them() -> None:
    small, large = (names.machine(gpu, "") for gpu in ("v100", "V100-SXM2-32GB"))
    assert (small.memory_bytes, large.memory_bytes) == (16.945e9, 34.089e9)
    assert large.model == small.model == "v100_sxm2"


@pytest.mark.parametrize("gpu", ["H100_80GB_PCIe", "NVIDIA H100 PCIe", "h100_pcie"])
def test_an_h100_on_pcie_is_no_sxm_one(gpu) -> None:
    found = names.machine(gpu, "")
    assert found.system.id == "vidur_h100_pairwise_nvlink"
    assert found.spec == load_device("h100_pcie")
    assert any("priced by the calibration of an H100 SXM, slower" in note for note in found.notes)


def test_an_h100_nvl_is_a_card_of_its_own() -> None:
    found = names.machine("H100 NVL", "")
    assert found.system.id == "vidur_h100_pairwise_nvlink"
    assert found.spec == load_device("h100_nvl")
    assert found.spec.memory_bytes_per_s > load_device("h100_sxm").memory_bytes_per_s
    assert any("priced by the calibration of an H100 SXM" in note for note in found.notes)


@pytest.mark.parametrize("gpu", ["H100-SXM-80GB on PCIe 5 hosts", "H100 SXM NVLink", "h100_nvlink"])
def test_an_h100_beside_pcie_or_nvlink_stays_what_it_is(gpu) -> None:
    assert names.machine(gpu, "").system.id == "aic_h100_sxm"


def test_links_that_stand_for_those_of_a_v100_on_pcie_are_said() -> None:
    assert any("NVLinks of a DGX-1V" in note for note in names.machine("v100_pcie", "").notes)
    assert not any("NVLinks of a DGX-1V" in note for note in names.machine("v100", "").notes)


@pytest.mark.parametrize(
    ("gpu", "says"),
    [
        ("l40s_24g", "gpu l40s_24g means 24 GB, a l40s has 48.3: predicted with that"),
        ("h100 640GB", "gpu h100 640GB means 640 GB, a h100_sxm has 85.5: predicted with that"),
        ("l40s_48g", ""),
        ("B200-SXM-192GB", ""),
        ("XE9680x8H100-SXM-80GB", ""),
        ("h100_96gb", ""),
    ],
)
def test_another_memory_in_an_accelerators_name_is_said(gpu, says) -> None:
    found = [note for note in names.machine(gpu, "").notes if "GB, a " in note]
    assert found == ([says] if says else [])


def test_a_rack_is_a_node_and_open_precision_is_the_submitter_s() -> None:
    rack = {
        "source": "nemo_megatron_bridge",
        "gpu": "DGX-GB200",
        "gpus_per_node": 4,
        "tp": 1,
        "pp": 1,
        "dp": 64,
        "n_gpus": 64,
        "precision": None,
    }
    row = one(**rack, grad_accum=None, micro_batch=1, sharding=None)
    assert row.config.group("dp").nodes == 1
    assert row.config.quant == "fp8"
    assert "64 GPUs of a rack count as a node" in row.note
    assert "precision fp8 assumed" in row.note
    assert (
        one(
            **{**rack, "source": "mine"}, grad_accum=None, micro_batch=1, sharding=None
        ).config.quant
        == ""
    )
    on_ampere = one(
        **{**rack, "gpu": "a100_80gb", "gpus_per_node": 8},
        grad_accum=None,
        micro_batch=1,
        sharding=None,
    )
    assert (on_ampere.config.dtype, on_ampere.config.quant) == ("bf16", "")


def test_every_alias_leads_somewhere() -> None:
    for entry in names.aliases()["gpu"]:
        assert names.load_device(entry["device"])
        assert names.load_system(entry["system"])
    for entry in names.aliases()["network"].values():
        assert names.load_system(entry.get("system", "aic_a100_sxm"))
    frameworks = {names.publisher(one).get("framework") for one in names.publishers()}
    assert frameworks - {None} <= set(framework_habits())


def test_networks_that_rows_say() -> None:
    assert names.machine("a100_sxm4_80g", "vtrain").system.node_bytes_per_s == 100e9
    known = "oci_bm_gpu_a100_v2_8"
    by_name, other, by_source = (
        one(gpu="a100_80gb", **more)
        for more in ({"network": known}, {"network": "vtrain"}, {"source": "vTrain, table 2"})
    )
    assert by_name.machine.system.id == known
    assert by_name.machine.system != other.machine.system == by_source.machine.system
    assert "expected a network of vtrain" in one(network="no such").refused
    with pytest.raises(InputError, match="unknown gpu"):
        names.machine("nothing at all", "")


def test_published_rows(data_dir) -> None:
    """Every row is either understood or refused with a reason; the ten that contradict themselves
    are flagged.
    """
    folder = data_dir / "training_steps"
    frame = with_told(pd.read_csv(folder / "train_steps_dev.csv.gz", low_memory=False))
    rows = resolve(frame)
    frame["note"], frame["good"] = (
        [row.note for row in rows],
        [row.config is not None for row in rows],
    )
    assert (frame.loc[~frame["good"], "note"].str.len() > 20).all()
    assert frame.loc[
        frame["source"].isin(["mosaicml_llmfoundry", "torchtitan", "nemo_megatron_bridge"]), "good"
    ].all()
    ultra = frame[frame["source"] == "ultrascale_playbook"]
    assert not ultra.loc[~ultra["good"] & (ultra["pp"] < ultra["layers"]), "note"].size
    product = ultra["micro_batch"] * ultra["grad_accum"] * ultra["dp"]
    flagged = ultra["note"].str.contains("micro-batch x accumulation")
    assert (flagged[ultra["good"]] == (product != ultra["global_batch"])[ultra["good"]]).all()
    assert resolve(pd.read_csv(folder / "vtrain_steps_dev.csv.gz")).predictable == list(range(768))


@pytest.mark.parametrize(
    ("changes", "shards", "replicas"),
    [
        ({"tp": 1, "dp": 128}, 8, 16),
        ({"tp": 2, "dp": 64}, 4, 16),
        ({"tp": 2, "dp": 32, "cp": 2}, 4, 16),  # parts of a sequence are data ranks too
        ({"tp": 8, "dp": 16}, 1, 16),
        ({"tp": 4, "dp": 2, "n_gpus": 8}, 2, 1),  # one node: all of them
    ],
)
def test_hsdp_shards_inside_a_node_and_copies_over_nodes(changes, shards, replicas) -> None:
    row = one(
        **{"sharding": "hsdp", "pp": 1, "n_gpus": 128, "micro_batch": 1, "grad_accum": None}
        | changes
    )
    shard, replica = row.config.group("shard"), row.config.group("replica")
    assert (shard.ranks, shard.nodes, replica.ranks) == (shards, 1, replicas)
    assert ("hsdp taken to shard" in row.note) == (replicas > 1)
    assert ("so nothing is" in row.note) == (shards == 1)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_word_that_is_neither_yes_nor_no_is_refused_at_any_degree(tp) -> None:
    assert (
        "expected yes or no in seq_parallel, got 'maybe'"
        in one(seq_parallel="maybe", tp=tp, dp=8 // tp).refused
    )


_TOML = (
    "hidden",
    "heads",
    "layers",
    "ffn",
    "vocab",
    "seq",
    "kv_heads",
    "head_dim",
    "experts",
    "topk",
    "decoder_layers",
    "image",
    "patch",
)


@pytest.mark.parametrize(
    "name", ["bert-large", "llama3-8b", "mixtral-8x7b", "t5-11b", "vit-l-16", "gpt3-1.3b"]
)
def test_a_family_given_by_its_sizes_is_the_same_model_in_a_row_and_in_a_file(
    name, tmp_path
) -> None:
    published = load_shape(name)
    sizes = {field: value for field in _TOML if (value := getattr(published, field))}
    (tmp_path / "made.toml").write_text(
        f'family = "{published.family}"\n'
        + "".join(f"{field} = {value}\n" for field, value in sizes.items())
    )
    layout = dict(tp=1, pp=1, dp=16, micro_batch=1, grad_accum=16)
    shape = one(**{**sizes, **layout, "model": "made", "family": published.family}).config.shape
    assert shape == load_shape(tmp_path / "made.toml")
    assert shape.parameters == pytest.approx(published.parameters, rel=0.002)


def test_a_vit_may_be_given_by_its_sizes() -> None:
    sizes = {
        "hidden": 1024,
        "heads": 16,
        "layers": 24,
        "ffn": 4096,
        "vocab": 1000,
        "image": 224,
        "patch": 14,
        "seq": None,
    }
    layout = dict(tp=1, pp=1, dp=16, micro_batch=1, grad_accum=16)
    shape = one(**sizes, **layout, family="vit").config.shape
    assert (shape.seq, shape.head, shape.patch) == (257, "classes", 14)
    assert (
        "expected patch of a family vit"
        in one(**{**sizes, "patch": None, "seq": 257}, **layout, family="vit").refused
    )
    wider = one(
        model="vit-l-16",
        **{field: None for field in sizes if field != "image"},
        **layout | {"image": 384},
        family="vit",
    )
    assert wider.config.shape.seq == (384 // 16) ** 2 + 1
    without_seq = pd.DataFrame(
        [
            {
                field: value
                for field, value in {**ROW, **sizes, **layout, "family": "vit"}.items()
                if value is not None
            }
        ]
    )
    (row,) = resolve(without_seq.drop(columns="model"))
    assert row.config.shape.seq == 257


def test_what_a_submission_leaves_unsaid_does_not_replace_what_it_says() -> None:
    said = {"model": "bert", "source": "mlperf_training", "gpu": "H100-SXM5-80GB", "n_gpus": 8}
    said |= {"global_batch": 384, "micro_batch": 48}
    unsaid = resolve(pd.DataFrame([said])).rows[0]
    assert unsaid.framework == "mlperf_bert"
    assert "MLPerf's BERT assumed data parallel" in unsaid.note
    other = resolve(pd.DataFrame([said | {"framework": "megatron_core"}])).rows[0]
    assert other.framework == "megatron_core"


@pytest.mark.parametrize(
    ("said", "framework"),
    [
        ("26.06.01 NeMo Container", "megatron_core_26_06"),
        ("26.04", "megatron_core"),
        ("up to 80.99 TFLOP/s", "megatron_core"),
        ("56.13 s on average", "megatron_core"),
    ],
)
def test_only_a_year_and_a_month_are_a_release(said, framework) -> None:
    assert of_release("megatron_core", names.release_of(said)) == framework


@pytest.mark.parametrize(
    ("said", "framework"),
    [
        ({"section": "26.06 NeMo Container / Pre-Training Performance"}, "megatron_core_26_06"),
        ({"section": "26.06 NeMo Container", "release": "26.04"}, "megatron_core"),
        ({"section": "tracked throughput samples/s"}, "megatron_core"),
    ],
)
def test_a_heading_tells_a_release_where_no_column_does(said, framework) -> None:
    assert one(framework="megatron_core", **said).framework == framework


def test_shards_over_all_gpus_need_no_degrees() -> None:
    bare = {"tp": None, "pp": None, "dp": None, "cp": None, "n_gpus": 16, "global_batch": 64}
    found = one(**bare, sharding="fsdp", micro_batch=1, grad_accum=None)
    assert (found.config.layout.tp, found.config.layout.pp, found.config.layout.dp) == (1, 1, 16)
    assert any("tp 1, pp 1 assumed" in note for note in found.notes)
    assert "expected a layout" in one(**bare, sharding="zero1").note
