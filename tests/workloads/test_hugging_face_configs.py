"""Configs of the Hugging Face hub: parameters as published, and a sentence for what cannot be read.

Each config has the sizes of the published file; what does not bear on sizes is left out.
"""

import json

import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.io import InputError
from hybridperf.workloads.transformer import load_shape
from hybridperf.workloads.transformer.huggingface import architectures, fields_of

_DEEPSEEK = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
             "v_head_dim": 128, "moe_layer_freq": 1, "max_position_embeddings": 163840}  # fmt: skip


def config(model_type, hidden, heads, layers, ffn, vocab, **more):
    """The keys that most architectures share."""
    return {
        "model_type": model_type, "hidden_size": hidden, "num_attention_heads": heads,
        "num_hidden_layers": layers, "intermediate_size": ffn, "vocab_size": vocab,
        "torch_dtype": "bfloat16", **more,
    }  # fmt: skip


PUBLISHED = {  # model: (parameters of the published weights, its config)
    "Llama-3.1-8B": (8030261248, config(
        "llama", 4096, 32, 32, 14336, 128256, num_key_value_heads=8, tie_word_embeddings=False,
        attention_bias=False, mlp_bias=False, max_position_embeddings=131072,
        rope_scaling={"factor": 8.0, "rope_type": "llama3"})),
    "Llama-3.2-1B": (1235814400, config(
        "llama", 2048, 32, 16, 8192, 128256, num_key_value_heads=8, head_dim=64,
        tie_word_embeddings=True)),
    "Mistral-7B-v0.1": (7241732096, config(
        "mistral", 4096, 32, 32, 14336, 32000, num_key_value_heads=8, sliding_window=4096,
        tie_word_embeddings=False, max_position_embeddings=32768)),
    "Qwen2.5-7B": (7615616512, config(
        "qwen2", 3584, 28, 28, 18944, 152064, num_key_value_heads=4, tie_word_embeddings=False,
        sliding_window=131072, use_sliding_window=False)),
    "Qwen3-0.6B": (596049920, config(
        "qwen3", 1024, 16, 28, 3072, 151936, num_key_value_heads=8, head_dim=128,
        tie_word_embeddings=True, attention_bias=False)),
    "Qwen3-30B-A3B": (30532122624, config(
        "qwen3_moe", 2048, 32, 48, 6144, 151936, num_key_value_heads=4, head_dim=128,
        num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, decoder_sparse_step=1,
        mlp_only_layers=[], tie_word_embeddings=False)),
    "Qwen1.5-MoE-A2.7B": (14315784192, config(
        "qwen2_moe", 2048, 16, 24, 5632, 151936, num_key_value_heads=16, num_experts=60,
        num_experts_per_tok=4, moe_intermediate_size=1408, tie_word_embeddings=False,
        shared_expert_intermediate_size=5632, decoder_sparse_step=1)),
    "Mixtral-8x7B": (46702792704, config(
        "mixtral", 4096, 32, 32, 14336, 32000, num_key_value_heads=8, num_local_experts=8,
        num_experts_per_tok=2, tie_word_embeddings=False, sliding_window=None)),
    "Mistral-Small-4-119B": (119e9, config(
        "mistral4", 4096, 32, 36, 12288, 131072, n_routed_experts=128, n_shared_experts=1,
        num_experts_per_tok=4, moe_intermediate_size=2048, q_lora_rank=1024, kv_lora_rank=256,
        qk_nope_head_dim=64, qk_rope_head_dim=64, v_head_dim=128)),
    "DeepSeek-V2-Lite": (15706484224, config(
        "deepseek_v2", 2048, 16, 27, 10944, 102400, num_key_value_heads=16, q_lora_rank=None,
        n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6, first_k_dense_replace=1,
        moe_intermediate_size=1408, tie_word_embeddings=False, **_DEEPSEEK)),
    "DeepSeek-V3": (671026419200, config(
        "deepseek_v3", 7168, 128, 61, 18432, 129280, num_key_value_heads=128, q_lora_rank=1536,
        n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8, first_k_dense_replace=3,
        moe_intermediate_size=2048, num_nextn_predict_layers=1, tie_word_embeddings=False,
        quantization_config={"quant_method": "fp8"}, **_DEEPSEEK)),
    "Kimi-K2": (1026e9, config(
        "kimi_k2", 7168, 64, 61, 18432, 163840, num_key_value_heads=64, q_lora_rank=1536,
        n_routed_experts=384, n_shared_experts=1, num_experts_per_tok=8, first_k_dense_replace=1,
        moe_intermediate_size=2048, tie_word_embeddings=False, **_DEEPSEEK)),
    "gemma-2b": (2506172416, config(
        "gemma", 2048, 8, 18, 16384, 256000, num_key_value_heads=1, head_dim=256)),
    "gemma-2-9b": (9241705984, config(
        "gemma2", 3584, 16, 42, 14336, 256000, num_key_value_heads=8, head_dim=256,
        sliding_window=4096, max_position_embeddings=8192)),
    "gemma-3-1b": (999885952, config(
        "gemma3_text", 1152, 4, 26, 6912, 262144, num_key_value_heads=1, head_dim=256,
        sliding_window=512)),
    # a config with images leaves out what its text model's class has by itself
    "gemma-3-4b": (3880263168, {
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
            "num_hidden_layers": 34, "sliding_window": 1024},
        "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27}}),
    "gpt2": (124439808, {
        "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
        "n_ctx": 1024, "vocab_size": 50257}),
    "gpt-neox-20b": (20554567680, config(
        "gpt_neox", 6144, 64, 44, 24576, 50432, max_position_embeddings=2048,
        tie_word_embeddings=False)),
    "opt-1.3b": (1315758080, {
        "model_type": "opt", "hidden_size": 2048, "num_attention_heads": 32, "ffn_dim": 8192,
        "num_hidden_layers": 24, "vocab_size": 50272, "max_position_embeddings": 2048,
        "word_embed_proj_dim": 2048, "do_layer_norm_before": True}),
    "bloom": (176247271424, {
        "model_type": "bloom", "n_embed": 14336, "hidden_size": 14336, "n_head": 112,
        "n_layer": 70, "vocab_size": 250880, "seq_length": 2048}),
    "falcon-7b": (6921720704, {
        "model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71,
        "num_hidden_layers": 32, "vocab_size": 65024, "bias": False, "multi_query": True,
        "new_decoder_architecture": False, "parallel_attn": True, "alibi": False}),
    "falcon-40b": (41303293952, {
        "model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128,
        "num_hidden_layers": 60, "num_kv_heads": 8, "vocab_size": 65024, "bias": False,
        "new_decoder_architecture": True, "parallel_attn": True, "alibi": False}),
    "phi-2": (2779683840, config(
        "phi", 2560, 32, 32, 10240, 51200, qk_layernorm=False, tie_word_embeddings=False)),
    "Phi-3-mini": (3821079552, config(
        "phi3", 3072, 32, 32, 8192, 32064, num_key_value_heads=32, tie_word_embeddings=False,
        sliding_window=2047, max_position_embeddings=4096)),
    "gpt-oss-20b": (20914757184, config(
        "gpt_oss", 2880, 64, 24, 2880, 201088, num_key_value_heads=8, head_dim=64,
        num_local_experts=32, num_experts_per_tok=4, attention_bias=True, sliding_window=128,
        tie_word_embeddings=False)),
    "OLMo-2-7B": (7298617344, config(
        "olmo2", 4096, 32, 32, 11008, 100352, num_key_value_heads=32, attention_bias=False,
        tie_word_embeddings=False)),
    "starcoder2-3b": (3030371328, config(
        "starcoder2", 3072, 24, 30, 12288, 49152, num_key_value_heads=2, use_bias=True,
        max_position_embeddings=16384)),
    "GLM-4-9B-0414": (9400279040, config(
        "glm4", 4096, 32, 40, 13696, 151552, num_key_value_heads=2, head_dim=128,
        attention_bias=True, tie_word_embeddings=False)),
    "GLM-4.5-Air": (106852251264, config(
        "glm4_moe", 4096, 96, 46, 10944, 151552, num_key_value_heads=8, head_dim=128,
        attention_bias=True, use_qk_norm=False, n_routed_experts=128, n_shared_experts=1,
        num_experts_per_tok=8, first_k_dense_replace=1, moe_intermediate_size=1408,
        num_nextn_predict_layers=1, tie_word_embeddings=False)),
    "Minitron-4B": (4.19e9, config(
        "nemotron", 3072, 24, 32, 9216, 256000, num_key_value_heads=8, head_dim=128,
        attention_bias=False, mlp_bias=False, tie_word_embeddings=False)),
    "Nemotron-H-8B": (8.1e9, config(
        "nemotron_h", 4096, 32, 52, 21504, 131072, num_key_value_heads=8, head_dim=128,
        hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        mamba_num_heads=128, mamba_head_dim=64, ssm_state_size=128, n_groups=8, conv_kernel=4,
        chunk_size=128, tie_word_embeddings=False, max_position_embeddings=8192)),
    "Nemotron-3-Nano-30B-A3B": (31.58e9, config(
        "nemotron_h", 2688, 32, 52, 1856, 131072, num_key_value_heads=2, head_dim=128,
        hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        mamba_num_heads=64, mamba_head_dim=64, ssm_state_size=128, n_groups=8, conv_kernel=4,
        chunk_size=128, tie_word_embeddings=False, n_routed_experts=128, num_experts_per_tok=6,
        n_shared_experts=1, moe_intermediate_size=1856,
        moe_shared_expert_intermediate_size=3712)),
    # experts between two products to and from a narrower state
    "Nemotron-3-Super-120B-A12B": (120.6e9, config(
        "nemotron_h", 4096, 32, 88, 2688, 131072, num_key_value_heads=2, head_dim=128,
        hybrid_override_pattern=(
            "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
        ),
        mamba_num_heads=128, mamba_head_dim=64, ssm_state_size=128, n_groups=8, conv_kernel=4,
        chunk_size=128, tie_word_embeddings=False, n_routed_experts=512, num_experts_per_tok=22,
        n_shared_experts=1, moe_intermediate_size=2688, moe_latent_size=1024,
        moe_shared_expert_intermediate_size=5376)),
    # of 81.3e9 with the layer that predicts further tokens
    "Qwen3-Next-80B-A3B": (79.7e9, config(
        "qwen3_next", 2048, 16, 48, 5120, 151936, num_key_value_heads=2, head_dim=256,
        num_experts=512, num_experts_per_tok=10, moe_intermediate_size=512,
        shared_expert_intermediate_size=512, full_attention_interval=4, linear_conv_kernel_dim=4,
        linear_key_head_dim=128, linear_value_head_dim=128, linear_num_key_heads=16,
        linear_num_value_heads=32, decoder_sparse_step=1, mlp_only_layers=[],
        tie_word_embeddings=False)),
    "Bamba-9B": (9.78e9, config(
        "bamba", 4096, 32, 32, 14336, 128256, num_key_value_heads=8,
        attn_layer_indices=[9, 18, 27], mamba_n_heads=128, mamba_d_head=64, mamba_d_state=128,
        mamba_n_groups=1, mamba_d_conv=4, mamba_chunk_size=256, tie_word_embeddings=False)),
    "MiniMax-Text-01": (456e9, config(
        "minimax", 6144, 64, 80, 9216, 200064, num_key_value_heads=8, head_dim=128,
        num_local_experts=32, num_experts_per_tok=2, block_size=256, tie_word_embeddings=False,
        layer_types=10 * [*7 * ["linear_attention"], "full_attention"])),
    "MiniMax-M1": (456e9, config(
        "minimax_m1", 6144, 64, 80, 9216, 200064, num_key_value_heads=8, head_dim=128,
        num_local_experts=32, num_experts_per_tok=2, attn_type_list=10 * [0, 0, 0, 0, 0, 0, 0, 1],
        shared_intermediate_size=0, max_position_embeddings=10240000)),
    # of 109e9 with its vision model
    "Llama-4-Scout": (107.77e9, {"model_type": "llama4", "text_config": config(
        "llama4_text", 5120, 40, 48, 8192, 202048, num_key_value_heads=8, head_dim=128,
        interleave_moe_layer_step=1, intermediate_size_mlp=16384, num_local_experts=16,
        num_experts_per_tok=1, attention_chunk_size=8192, tie_word_embeddings=False)}),
    "c4ai-command-r": (34980831232, config(
        "cohere", 8192, 64, 40, 22528, 256000, num_key_value_heads=64, use_qk_norm=False)),
}  # fmt: skip
LLAMA = PUBLISHED["Llama-3.1-8B"][1]


def written(folder, content):
    """A config.json in a folder of its own."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content))
    return folder / "config.json"


@pytest.mark.parametrize("model", PUBLISHED)
def test_parameters_of_a_config_are_those_published(tmp_path, model):
    published, content = PUBLISHED[model]
    shape = hp.load_shape(written(tmp_path / model, content))
    assert shape.parameters == pytest.approx(published, rel=1e-3)
    assert shape.name == model
    assert "in Transformers, sequences of" in shape.note


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Llama-3.1-8B", "llama3-8b"),
        ("Qwen2.5-7B", "qwen2.5-7b"),
        ("Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("DeepSeek-V3", "deepseek-v3"),
        ("Kimi-K2", "kimi-k2"),
        ("gpt-oss-20b", "gpt-oss-20b"),
        ("GLM-4.5-Air", "glm-4.5-air"),
        ("gemma-3-4b", "gemma3-4b"),
        ("falcon-7b", "falcon-7b"),
        ("opt-1.3b", "opt-1.3b"),
        ("Nemotron-3-Nano-30B-A3B", "nemotron-3-nano"),
        ("Nemotron-3-Super-120B-A12B", "nemotron-3-super"),
    ],
)
def test_a_config_gives_the_shape_that_is_shipped(tmp_path, model, name):
    """Part by part: parameters of layers, embedding and head, and FLOPs of one sequence."""
    ours, shipped = hp.load_shape(written(tmp_path / model, PUBLISHED[model][1])), load_shape(name)
    assert ours.layer_kinds == shipped.layer_kinds
    assert ours.embedding_parameters == shipped.embedding_parameters
    assert ours.head_parameters == shipped.head_parameters
    assert ours.active_parameters == shipped.active_parameters
    assert ours.forward_flops(1, 2048) == shipped.forward_flops(1, 2048)


def test_every_architecture_is_counted_by_something_here():
    """By published parameters, or by Hugging Face's own code, below. `minimax_text_01` is
    `minimax_m1` under its older name.
    """
    tested = {one.get("text_config", one)["model_type"] for _, one in PUBLISHED.values()}
    left = set(_WITHOUT_SIZES) - tested
    assert left == {"minimax_text_01", "dbrx", "longcat_flash", *_TEXT_MODELS}


def test_the_experts_of_a_dbrx(tmp_path):
    """132 billion parameters of which a token meets 36 (its model card)."""
    content = {
        "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352,
        "max_seq_len": 32768, "attn_config": {"kv_n_heads": 8},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    }  # fmt: skip
    shape = hp.load_shape(written(tmp_path / "dbrx", content))
    assert shape.parameters == pytest.approx(132e9, rel=0.005)
    assert shape.active_parameters == pytest.approx(36e9, rel=0.015)


def test_a_layer_with_two_attentions_is_two(tmp_path):
    """LongCat-Flash: 560 billion parameters (2509.01322). Transformers makes room for those of the
    256 experts that pass a token on, too, which have none.
    """
    content = {
        "model_type": "longcat_flash", "vocab_size": 131072, "hidden_size": 6144, "num_layers": 28,
        "num_attention_heads": 64, "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048,
        "n_routed_experts": 512, "zero_expert_num": 256, "moe_topk": 12, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    }  # fmt: skip
    shape = hp.load_shape(written(tmp_path / "longcat", content))
    assert shape.parameters == pytest.approx(560e9, rel=0.002)
    assert shape.same_model(load_shape("longcat-flash"))
    assert [kind.count for kind in shape.layer_kinds] == [28, 28]


def test_what_a_config_leaves_open_is_said(tmp_path):
    llama = hp.load_shape(written(tmp_path / "a", LLAMA))
    assert llama.seq == 4096
    assert "sequences of 4096 tokens of at most 131072" in llama.note
    mistral = hp.load_shape(written(tmp_path / "b", PUBLISHED["Mistral-7B-v0.1"][1]))
    assert (set(mistral.mixers), mistral.window) == ({"window"}, 4096)
    assert not hp.load_shape(written(tmp_path / "c", PUBLISHED["Qwen2.5-7B"][1])).mixers
    deepseek = hp.load_shape(written(tmp_path / "d", PUBLISHED["DeepSeek-V3"][1]))
    assert "without the layers that predict further tokens" in deepseek.note
    gemma = hp.load_shape(written(tmp_path / "e", PUBLISHED["gemma-3-4b"][1]))
    assert "its text model alone" in gemma.note
    assert hp.load_shape(written(tmp_path / "f", PUBLISHED["gpt2"][1])).seq == 1024


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "lama"}, r"unknown model_type 'lama' \(did you mean 'llama'\?\)"),
        ({"model_type": "mamba"}, "unknown model_type 'mamba'"),
        ({"model_type": None, "architectures": ["X"]}, "unknown model_type 'None'"),
        ({"hidden_size": None}, "expected hidden_size in the config of a llama, found none"),
        ({"intermediate_size": None}, "expected intermediate_size in the config of a llama"),
        ({"mlp_bias": True}, "a llama with mlp_bias True is no model that sizes alone describe"),
        (
            {**PUBLISHED["Qwen3-30B-A3B"][1], "decoder_sparse_step": 2},
            "a qwen3_moe with decoder_sparse_step 2 is no model",
        ),
        ({"hidden_size": "wide"}, "hidden of .* must be a whole number of 1 or more, got 'wide'"),
        (
            {**PUBLISHED["Nemotron-H-8B"][1], "hybrid_override_pattern": "MR*R" * 13},
            "a nemotron_h with 'R' layers is not modelled; full, sliding and linear attention",
        ),
        (
            {**PUBLISHED["Nemotron-H-8B"][1], "hybrid_override_pattern": "ME*E" * 13},
            "expected moe_intermediate_size, n_routed_experts, num_experts_per_tok in the config",
        ),
        (
            {**PUBLISHED["Nemotron-H-8B"][1], "hybrid_override_pattern": "ME*-" * 13},
            "a nemotron_h with both MLPs and experts as layers is not modelled",
        ),
        (
            {**PUBLISHED["Bamba-9B"][1], "mamba_d_head": None},
            "expected mamba_head_dim in the config of a bamba, found none",
        ),
        (
            {**PUBLISHED["Nemotron-H-8B"][1], "hybrid_override_pattern": "M-"},
            "expected a word or letter for each of the 52 layers of a nemotron_h .* got 2",
        ),
        (
            {**PUBLISHED["Nemotron-H-8B"][1], "hybrid_override_pattern": None},
            "expected a word or letter for each of the 52 layers of a nemotron_h .* got 0",
        ),
        ({"layer_types": ["chunked_attention"] * 32}, "a llama with 'chunked_attention' layers is"),
        ({"model_type": None, "_class_name": "FluxTransformer2DModel"}, "unknown model_type 'Flux"),
        ({"num_key_value_heads": 5}, "heads of .* must be a multiple of kv_heads"),
        ({"max_position_embeddings": "long"}, "sizes of a config are whole numbers"),
    ],
)
def test_a_config_that_cannot_be_read_is_one_sentence(tmp_path, changes, says):
    path = written(tmp_path / "model", {**LLAMA, **changes})
    with pytest.raises(InputError, match=says) as error:
        load_shape(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_a_plan_of_a_config(tmp_path, run):
    """The command takes a config where it takes a published name, and gives the same seconds."""
    path = written(tmp_path / "llama", PUBLISHED["Llama-3.2-1B"][1])
    words = ("--system", "dgx_h100", "--gpus", "8", "--batch", "64", "--seq", "4096")
    times = []
    for model in (str(path), "llama3.2-1b"):
        out = tmp_path / f"{len(times)}.csv"
        status, _, err = run("plan", "--shape", model, *words, "--out", out)
        assert status == 0, err
        times.append(pd.read_csv(out).time_s)
    pd.testing.assert_series_equal(*times)


@pytest.mark.parametrize(("said", "windowed"), [({"max_window_layers": 2}, 2), ({}, 0)])
def test_the_first_layers_of_a_qwen_attend_to_all(said, windowed):
    """`Qwen2Config`: windows begin at max_window_layers, 28 where nothing is said."""
    given = config(
        "qwen2", 1024, 8, 4, 4096, 32000, num_key_value_heads=8, max_position_embeddings=32768,
        sliding_window=4096, use_sliding_window=True, **said,
    )  # fmt: skip
    assert [*fields_of(given).get("mixers", ())][2:] == ["window"] * windowed
    assert fields_of(given).get("mixers", ["attention"] * 2)[:2] == ["attention"] * 2


@pytest.mark.parametrize(
    ("model_type", "windowed"),
    [("qwen2", [2, 3]), ("qwen2_moe", [0]), ("qwen3_moe", [0, 1, 2, 3])],
)
def test_windows_of_qwens_are_where_transformers_has_them(model_type, windowed):
    """Of its later layers, of every other of the first ones, of all; as their configs say."""
    given = config(
        model_type, 1024, 8, 4, 4096, 32000, num_key_value_heads=8, max_position_embeddings=32768,
        sliding_window=4096, use_sliding_window=True, max_window_layers=2, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=512, shared_expert_intermediate_size=512,
    )  # fmt: skip
    mixers = fields_of(given)["mixers"]
    assert [at for at, one in enumerate(mixers) if one == "window"] == windowed


def test_layers_of_a_nemotron_as_transformers_saves_them():
    """Words for each layer in place of a pattern and a number."""
    with_pattern = {**PUBLISHED["Nemotron-H-8B"][1]}
    pattern = with_pattern["hybrid_override_pattern"]
    words = {"M": "linear_attention", "*": "full_attention", "-": "mlp"}
    saved = {**with_pattern, "layers_block_type": [words[one] for one in pattern]}
    for key in ("hybrid_override_pattern", "num_hidden_layers"):
        del saved[key]
    assert fields_of(saved) == fields_of(with_pattern)


# text models of those that see, which have the sizes of the architecture that they are like
_TEXT_MODELS = ("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text")
# of these no sizes are given where a config says nothing, or only their publisher's code knows them
_WITHOUT_SIZES = (
    "nemotron", "nemotron_h", "deepseek_v2", "kimi_k2", "minimax_text_01", "minimax_m1", "dbrx",
    "mistral4", "longcat_flash",
    *_TEXT_MODELS,
)  # fmt: skip
# what four layers of others need besides
_SAID = {
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "hunyuan_v1_dense": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "gemma4_text": {
        "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "deepseek_v4": {
        "layer_types": [
            "sliding_attention", "heavily_compressed_attention",
            *2 * ["compressed_sparse_attention"],
        ],
    },
    "kimi_linear": {"layer_types": [*3 * ["linear_attention"], "full_attention"]},
    "laguna": {
        "layer_types": ["full_attention", *3 * ["sliding_attention"]],
        "num_attention_heads_per_layer": [48, 64, 64, 64],
    },
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "dots1": {
        "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1,
        "topk_group": 1, "routed_scaling_factor": 1.0, "first_k_dense_replace": 1,
    },
}  # fmt: skip
_HEADS = {
    "bert": "PreTraining", "t5": "Seq2SeqLM", "mt5": "Seq2SeqLM", "vit": "ImageClassification",
    **dict.fromkeys(
        ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "data2vec-text", "ernie",
         "megatron-bert"), "MaskedLM",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [one for one in architectures() if one not in _WITHOUT_SIZES])
def test_parameters_are_those_that_transformers_makes(name, tmp_path):
    """Of four layers, made without memory by Hugging Face's own code from its own defaults."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
    transformers = pytest.importorskip("transformers", reason="transformers is missing (`dev`)")
    if name not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    own = transformers.AutoConfig.for_model(name, num_hidden_layers=4, **_SAID.get(name, {}))
    own.to_json_file(tmp_path / "config.json", use_diff=False)
    kind = getattr(transformers, f"AutoModelFor{_HEADS.get(name, 'CausalLM')}")
    with torch.device("meta"):
        net = kind.from_config(own)
    theirs = sum(one.numel() for one in net.parameters())
    assert load_shape(tmp_path / "config.json").parameters == pytest.approx(theirs, rel=1e-3)


def test_experts_beside_an_mlp_and_heads_as_transformers_saves_them(tmp_path):
    """Gemma 4's 26B-A4B: both in each layer; what its hub file says means the same heads."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
    transformers = pytest.importorskip("transformers", reason="transformers is missing (`dev`)")
    if "gemma4_text" not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no gemma4_text")
    heads = {"global_head_dim": 512, "num_global_key_value_heads": 2, "attention_k_eq_v": True}
    said = {
        "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"],
        "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 8,
        "top_k_experts": 2, "moe_intermediate_size": 704, **heads,
    }  # fmt: skip
    own = transformers.AutoConfig.for_model("gemma4_text", **said)
    own.to_json_file(tmp_path / "config.json", use_diff=False)
    with torch.device("meta"):
        net = transformers.AutoModelForCausalLM.from_config(own)
    shape = load_shape(tmp_path / "config.json")
    theirs = sum(one.numel() for one in net.parameters())
    assert shape.parameters == pytest.approx(theirs, rel=1e-4)
    saved = json.loads((tmp_path / "config.json").read_text())
    del saved["per_layer_config"]
    assert load_shape(written(tmp_path / "hub", {**saved, **heads})).same_model(shape)


@pytest.mark.parametrize("experts", [0, 8])
def test_a_granite_is_mamba_or_attention_before_experts_or_one_mlp(experts, tmp_path):
    """Granite 4.0's dense models have `num_local_experts` 0 and the MLP of their shared expert."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
    transformers = pytest.importorskip("transformers", reason="transformers is missing (`dev`)")
    own = transformers.AutoConfig.for_model(
        "granitemoehybrid", num_hidden_layers=4, num_local_experts=experts,
        num_experts_per_tok=min(experts, 2), shared_intermediate_size=8192,
        layer_types=["mamba", "mamba", "mamba", "attention"],
    )  # fmt: skip
    own.to_json_file(tmp_path / "config.json", use_diff=False)
    with torch.device("meta"):
        net = transformers.AutoModelForCausalLM.from_config(own)
    shape = load_shape(tmp_path / "config.json")
    assert shape.mixers == ("scan", "scan", "scan", "attention")
    assert shape.parameters == sum(one.numel() for one in net.parameters())


def test_what_sizes_do_not_tell_is_built_by_transformers(tmp_path, run):
    """An encoder of sound; words are its labels, and no weights are fetched."""
    pytest.importorskip("transformers", reason="transformers is missing (`dev`)")
    small = {
        "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"],
        "d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
        "vocab_size": 1000, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }  # fmt: skip
    words = ("predict", "--model", "h100_sxm", "--hf")
    status, out, _ = run(*words, written(tmp_path / "a", small))
    assert status == 0
    assert "WhisperForConditionalGeneration of Transformers" in out
    status, _, error = run(*words, written(tmp_path / "b", {"model_type": "nobodys_model"}))
    assert status == 2
    assert "cannot build this model" in error
    status, _, error = run(*words, written(tmp_path / "c", {"model_type": "jamba"}))
    assert status == 2
    assert "a kernel of a package of its own" in error
