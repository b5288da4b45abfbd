"""Shapes: parameters as published, FLOPs as the formulas have them, the zoo's names."""

import dataclasses
import json
import re

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.io import InputError
from hybridperf.workloads.transformer import Latent, TransformerShape, load_shape, shape_names

# 2104.04473, table 1 (formulas.md 4.2): billions, heads, hidden, layers
MEGATRON = [
    (1.7, 24, 2304, 24), (3.6, 32, 3072, 30), (7.5, 32, 4096, 36), (18.4, 48, 6144, 40),
    (39.1, 64, 8192, 48), (76.1, 80, 10240, 60), (145.6, 96, 12288, 80), (310.1, 128, 16384, 96),
    (529.6, 128, 20480, 105), (1008.0, 160, 25600, 128),
]  # fmt: skip
GPT = TransformerShape("small", "gpt", hidden=64, heads=4, layers=3, ffn=256, vocab=1000, seq=32)


def gpt(heads, hidden, layers):
    return TransformerShape(
        "row",
        "gpt",
        hidden=hidden,
        heads=heads,
        layers=layers,
        ffn=4 * hidden,
        vocab=51200,
        seq=2048,
    )


@pytest.mark.parametrize(("billions", "heads", "hidden", "layers"), MEGATRON)
def test_megatrons_ten_sizes_to_a_tenth_of_a_billion(billions, heads, hidden, layers):
    shape, named = gpt(heads, hidden, layers), load_shape(f"gpt-{billions:g}b")
    assert (named.heads, named.hidden, named.layers, named.vocab, named.seq) == (
        heads,
        hidden,
        layers,
        51200,
        2048,
    )
    formula = (
        12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (51200 + 2048) / (12 * layers * hidden))
    )
    assert shape.parameters == pytest.approx(
        formula + 2 * hidden, rel=1e-15
    )  # the formula leaves out the last norm
    assert round(shape.parameters / 1e9, 1) == billions


@pytest.mark.parametrize("name", shape_names())
def test_parameters_as_published(name):
    """To the digits that were published: exactly where the whole number was."""
    shape = load_shape(name)
    assert shape.source
    if not shape.published:
        assert shape.note, "a model without a published count says why"
        return
    whole, part, unit = re.fullmatch(r"(\d+)(?:\.(\d+))?([MBT]?)", shape.published).groups()
    scale = {"": 1, "M": 1e6, "B": 1e9, "T": 1e12}[unit]
    said = float(f"{whole}.{part or 0}") * scale
    assert abs(shape.parameters - said) <= (0.5 * scale * 10 ** -len(part or "") if unit else 0)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 12.9),
        ("qwen3-30b-a3b", 3.4),
        ("qwen3-235b-a22b", 22.2),
        ("deepseek-v2", 21.4),
        ("kimi-k2", 32.9),
    ],
)
def test_parameters_a_token_meets(name, billions):
    """12.9 (2401.04088), 21 (2405.04434), 22 (2505.09388) and 32 billion (2507.20534; without the
    embedding 31.7).
    """
    assert load_shape(name).active_parameters / 1e9 == pytest.approx(billions, abs=0.05)


def test_counts_by_hand():
    """One layer: attention 4 h^2 + 4 h, MLP 8 h^2 + 5 h, two norms 4 h; GQA and a gated MLP beside
    it.
    """
    h = 64
    assert GPT.layer_parameters == 12 * h * h + 13 * h
    assert GPT.embedding_parameters == (1000 + 32) * h
    assert GPT.head_parameters == 2 * h
    assert GPT.replace(tied=False).head_parameters == 2 * h + 1000 * h
    llama = GPT.replace(
        kv_heads=2, gated=True, biases=False, norm="rmsnorm", positions="rotary", ffn=100
    )
    assert llama.layer_parameters == 2 * h * h + 2 * h * 32 + 3 * h * 100 + 2 * h
    assert llama.embedding_parameters == 1000 * h
    moe = llama.replace(experts=4, topk=2)
    assert moe.layer_parameters == 2 * h * h + 2 * h * 32 + 4 * 3 * h * 100 + 4 * h + 2 * h
    assert moe.parameters - moe.active_parameters == 3 * 2 * 3 * h * 100
    assert (
        moe.replace(dense_layers=1, dense_ffn=50).parameters
        == moe.parameters - (4 * 3 * h * 100 + 4 * h) + 3 * h * 50
    )


def test_flops_are_the_published_formulas():
    """72 B s l h^2 (1 + s/6h + V/12lh); 96 (.. V/16lh) with full, (1 + s/3h ..) with selective
    recompute: formulas.md 3.1.
    """
    for _, heads, h, layers in MEGATRON:
        shape, batch, s, vocab = gpt(heads, h, layers), 512, 2048, 51200
        tokens, core = batch * s, batch * s * layers * h**2
        assert shape.model_flops(tokens) == pytest.approx(
            72 * core * (1 + s / (6 * h) + vocab / (12 * layers * h)), rel=1e-12
        )
        full = 96 * core * (1 + s / (6 * h) + vocab / (16 * layers * h))
        assert shape.hardware_flops(tokens, "full") == pytest.approx(full, rel=1e-12)
        selective = 72 * core * (1 + s / (3 * h) + vocab / (12 * layers * h))
        assert shape.hardware_flops(tokens, "selective") == pytest.approx(selective, rel=1e-12)
        assert shape.hardware_flops(tokens) == shape.model_flops(tokens)


def test_days_to_train_gpt3_as_megatron_says():
    """300 billion tokens on 1,536 GPUs at 141 TFLOP/s: 23 days, with everything recomputed (table
    2).
    """
    flops = load_shape("gpt3-175b").hardware_flops(300e9, "full")
    assert flops / (1536 * 141e12) / 86400 == pytest.approx(23, abs=0.5)


def test_flops_without_attention_are_two_per_parameter_and_token():
    """The layers' matrices and the head; a sequence of one token has almost no attention."""
    shape = load_shape("llama3-8b")
    matrices = shape.parameters - shape.embedding_parameters - (2 * 32 + 1) * 4096
    assert shape.forward_flops(1, 1) == pytest.approx(2 * matrices, rel=1e-4)
    moe = load_shape("mixtral-8x7b")
    active = moe.active_parameters - moe.embedding_parameters - (2 * 32 + 1) * 4096
    assert moe.forward_flops(1, 1) == pytest.approx(2 * active, rel=1e-4)
    deepseek = load_shape("deepseek-v3")
    active = deepseek.active_parameters - deepseek.embedding_parameters
    assert deepseek.forward_flops(1, 1) == pytest.approx(2 * active, rel=1e-3)


def test_causal_attention_is_half_and_batches_add_up():
    shape = load_shape("llama3-8b")
    core = 4 * 32 * 8192**2 * 4096
    assert shape.forward_flops(1) - shape.forward_flops(1, causal=True) == pytest.approx(core / 2)
    assert shape.forward_flops(3, 4096) == pytest.approx(3 * shape.forward_flops(1, 4096))
    assert shape.model_flops(8192 * 5) == pytest.approx(3 * shape.forward_flops(5))


def test_t5_and_vit_flops_by_hand():
    """T5: encoder 24 h^2 per token, decoder 32 h^2 with the cross attention's keys and values over
    the encoder's tokens.
    """
    t5 = TransformerShape(
        "t5",
        "t5",
        hidden=64,
        heads=4,
        layers=2,
        decoder_layers=3,
        ffn=256,
        vocab=100,
        seq=32,
        decoder_seq=8,
        positions="relative",
    )
    h, s, d = 64, 32, 8
    encoder = 2 * (24 * h * h * s + 4 * s * s * h)
    decoder = 3 * (24 * h * h * d + 4 * d * d * h + 4 * h * h * d + 4 * h * h * s + 4 * d * s * h)
    assert t5.forward_flops(7) == pytest.approx(7 * (encoder + decoder + 2 * d * h * 100))
    vit = load_shape("vit-b-16")
    assert vit.forward_flops(1) / 2e9 == pytest.approx(
        17.56, abs=0.005
    )  # as torchvision says of vit_b_16


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("LLAMA3_70B", "llama3-70b"),
        ("llama3.1-8b", "llama3-8b"),
        ("GPT OSS 120B", "gpt-oss-120b"),
        ("gpt3-175B", "gpt3-175b"),
        ("Qwen3_235B_a22B (tokendrop)", "qwen3-235b-a22b"),
        ("nanotron-llama-80B", "nanotron-llama-80b"),
        ("gpt3", "gpt3-175b"),
        ("gpt-1008.0B", "gpt-1008b"),
        ("bert", "bert-large"),
        ("megatron-22B", "megatron-22b"),
    ],
)
def test_names_as_people_write_them(said, name):
    assert load_shape(said) == load_shape(name)
    assert load_shape(said).name == name


def test_no_name_stands_for_two_models():
    from hybridperf.workloads.transformer import zoo

    said = [
        zoo._plain(alias) for entry in zoo._entries().values() for alias in entry.get("aliases", ())
    ]
    assert len({*said, *shape_names()}) == len(said) + len(shape_names())
    assert [zoo._plain(name) for name in shape_names()] == shape_names()


def test_unknown_names_get_the_nearest():
    with pytest.raises(
        InputError, match=r"unknown model 'lama3-8b' \(did you mean 'llama3-8b'\?\)"
    ):
        load_shape("lama3-8b")


def test_shapes_from_files(tmp_path):
    said = {
        field.name: getattr(GPT, field.name)
        for field in dataclasses.fields(GPT)
        if getattr(GPT, field.name) != field.default
    }
    (tmp_path / "mine.json").write_text(json.dumps(said))
    assert hp.load_shape(tmp_path / "mine.json") == GPT
    toml = (
        '[small]\nfamily = "gpt"\nhidden = 64\nheads = 4\nlayers = 3\nffn = 256\nvocab = 1000\nseq'
        " = 32\n"
    )
    (tmp_path / "mine.toml").write_text(toml)
    assert hp.load_shape(tmp_path / "mine.toml") == GPT
    (tmp_path / "latent.toml").write_text(
        toml + "[small.latent]\nkv_rank = 8\nplain_dim = 8\nrotary_dim = 4\nvalue_dim = 8\n"
    )
    assert hp.load_shape(tmp_path / "latent.toml").latent == Latent(None, 8, 8, 4, 8)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "expected a file of a model's sizes at .*none.toml, found none"),
        ("hidden = ", "mine.toml is not TOML"),
        (
            "[a]\nhidden = 1\n[b]\nhidden = 1\n",
            "expected the sizes of one model in .*mine.toml, found 2",
        ),
        ("[a]\nhiden = 1\n", r"unknown .*field 'hiden' \(did you mean 'hidden'\?\)"),
        ("[a]\nhidden = 64\n", "mine.toml: a lacks family, heads, layers, ffn, vocab, seq"),
        (
            '[a]\nfamily="gpt"\nhidden=64\nheads=5\nlayers=3\nffn=256\nvocab=1000\nseq=32\n',
            "hidden of a must be a multiple of its heads",
        ),
        (
            '[a]\nfamily="rnn"\nhidden=64\nheads=4\nlayers=3\nffn=256\nvocab=1000\nseq=32\n',
            "unknown family of a 'rnn'",
        ),
        (
            '[a]\nfamily="gpt"\nhidden=64\nheads=4\nlayers=0\nffn=256\nvocab=1000\nseq=32\n',
            "layers of a must be a whole number of 1 or more",
        ),
        (
            '[a]\nfamily="gpt"\nhidden=64.0\nheads=4\nlayers=1\nffn=256\nvocab=1000\nseq=32\n',
            "hidden of a must be a whole number",
        ),
        (
            'family="gpt"\nhidden=64\nheads=4\nlayers="3"\nffn=256\nvocab=1000\nseq=32\n'
            'mixers=["attention"]\n',
            "mine.toml: layers of mine must be a whole number of 0 or more, got '3'",
        ),
        (
            'family="gpt"\nhidden=64\nheads=4\nlayers=3\nffn=256\nvocab=1000\nseq=32\nmixers=5\n',
            "mixers of mine must be a list of words, got 5",
        ),
    ],
)
def test_files_that_make_no_model(tmp_path, text, says):
    path = tmp_path / ("mine.toml" if text else "none.toml")
    if text:
        path.write_text(text)
    with pytest.raises(InputError, match=says) as error:
        load_shape(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kv_heads": 3}, "heads of small must be a multiple of kv_heads, got heads 4, kv_heads 3"),
        ({"experts": 4}, "topk of small must be 1 to its 4 experts, 0 where it has none, got 0"),
        ({"experts": 4, "topk": 5}, "topk of small must be 1 to its 4 experts"),
        (
            {"dense_layers": 1},
            "dense_layers of small come first in a model with experts and have a dense_ffn",
        ),
        (
            {"family": "vit", "image": 224, "patch": 16, "seq": 196},
            r"a ViT's seq is \(image / patch\)\^2 \+ 1",
        ),
        ({"hidden": None}, "hidden of small must be a whole number of 1 or more, got None"),
        ({"vocab": True}, "vocab of small must be a whole number"),
    ],
)
def test_sizes_that_make_no_model(changes, says):
    with pytest.raises(InputError, match=says):
        GPT.replace(**changes)


def test_rows_that_state_sizes_agree_with_the_zoo(data_dir):
    """Every model of the training steps whose sizes the rows state, and their parameters where the
    rows say them.
    """
    path = data_dir / "training_steps" / "train_steps_dev.csv.gz"
    if not path.is_file():
        pytest.skip(f"no training steps at {path}")
    rows = pd.read_csv(path, low_memory=False)
    stated = rows[rows.hidden.notna()]
    assert stated.model.nunique() > 15
    for name, group in stated.groupby("model"):
        shape = load_shape(name)
        for column in ("hidden", "heads", "layers", "ffn"):
            assert set(group[column]) == {getattr(shape, column)}, (name, column)
        assert set(group.vocab.dropna()) <= {shape.vocab}, name
        for row in group[group.params.notna()].itertuples():
            counted = shape.replace(seq=int(row.seq)).parameters
            digits = 0.03 if row.source.startswith("megatron") else 5e-4
            assert counted == pytest.approx(row.params, rel=digits), (name, row.params)
    transformers = rows[
        ~rows.model.isin(
            [
                "dlrm",
                "dlrm_dcnv2",
                "maskrcnn",
                "resnet",
                "rnnt",
                "ssd",
                "unet3d",
                "gnn",
                "stable_diffusion",
            ]
        )
    ]
    for name in transformers.model.unique():
        assert np.isfinite(load_shape(name).parameters), name
