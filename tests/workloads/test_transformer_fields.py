"""Wrong kinds of values in shapes, layouts and configs: one sentence each,
with the field's name.
"""

import json
import math
import pickle
import re

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.io import InputError
from hybridperf.workloads.transformer import Latent, load_shape

GPT2 = load_shape("gpt2")
NAN = math.nan


def refused(make, says):
    with pytest.raises(InputError) as error:
        make()
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"shape": "gpt2"},
            (
                "shape must be a TransformerShape, got 'gpt2'; hp.load_shape('gpt2') gives that of"
                " a published model"
            ),
        ),
        ({"shape": None}, "shape must be a TransformerShape, got None"),
        ({"layout": {"tp": 2}}, "layout must be a Layout, got {'tp': 2}"),
        ({"layout": hp.Layout(tp=0)}, "tp must be a whole number of 1 or more, got 0"),
        ({"layout": hp.Layout(pp=True)}, "pp must be a whole number of 1 or more, got True"),
        ({"layout": hp.Layout(dp=NAN)}, "dp must be a whole number of 1 or more, got nan"),
        ({"layout": hp.Layout(dp=np.int64(8))}, "got np.int64(8); int(dp) would do"),
        (
            {"layout": hp.Layout(sequence_parallel="yes", tp=2)},
            "sequence_parallel must be true or false, got 'yes'",
        ),
        (
            {"layout": hp.Layout(recompute=False)},
            "recompute must be one of none, selective, full, got False",
        ),
        ({"bucket_bytes": "big"}, "bucket_bytes must be a number above zero, got 'big'"),
        ({"bucket_bytes": NAN}, "bucket_bytes must be a number above zero, got nan"),
        ({"bucket_bytes": True}, "bucket_bytes must be a number above zero, got True"),
        ({"gradient_bytes": "4"}, "gradient_bytes must be a number above zero, got '4'"),
        ({"gradient_bytes": -4}, "gradient_bytes must be a number above zero, got -4"),
        ({"dropout": "no"}, "dropout must be true or false, got 'no'"),
        ({"fused_loss": "no"}, "fused_loss must be true or false, got 'no'"),
        ({"overlap_gradients": 2}, "overlap_gradients must be true or false, got 2"),
        ({"gpus_per_node": True}, "gpus_per_node must be a whole number of 1 or more, got True"),
        ({"gpus_per_node": 8.0}, "gpus_per_node must be a whole number of 1 or more, got 8.0"),
        ({"vocab_multiple": -1}, "vocab_multiple must be a whole number of 1 or more, got -1"),
        ({"dtype": ""}, "unknown dtype ''"),
        ({"quant": 8}, "quant must be a str, got 8"),
    ],
)
def test_a_config_of_wrong_kinds_is_refused(changes, says):
    refused(lambda: hp.TransformerConfig(**{"shape": GPT2, **changes}), says)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden": True}, "hidden of gpt2 must be a whole number of 1 or more, got True"),
        ({"hidden": 768.0}, "hidden of gpt2 must be a whole number of 1 or more, got 768.0"),
        ({"seq": -1}, "seq of gpt2 must be a whole number of 1 or more, got -1"),
        ({"layers": NAN}, "layers of gpt2 must be a whole number of 1 or more, got nan"),
        ({"vocab": "50k"}, "vocab of gpt2 must be a whole number of 1 or more, got '50k'"),
        ({"heads": np.int64(12)}, "got np.int64(12); int(heads of gpt2) would do"),
        ({"gated": "no"}, "gated of gpt2 must be true or false, got 'no'"),
        ({"tied": None}, "tied of gpt2 must be true or false, got None"),
        ({"norm_bias": "yes"}, "norm_bias of gpt2 must be true or false, got 'yes'"),
        ({"latent": {"kv_rank": 512}}, "latent of gpt2 must be a Latent, got {'kv_rank': 512}"),
        ({"name": 7}, "name of a model must be a str, got 7"),
        ({"published": 124e6}, "published of gpt2 must be a str"),
    ],
)
def test_a_shape_of_wrong_kinds_is_refused(changes, says):
    refused(lambda: GPT2.replace(**changes), says)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: hp.memory(hp.TransformerConfig(GPT2)),
            "got a TransformerConfig; give config.shape, config.layout",
        ),
        (lambda: hp.memory(GPT2), "layout must be a Layout, got None; hp.Layout() is one rank"),
        (lambda: hp.memory(GPT2, {"tp": 2}), "layout must be a Layout, got {'tp': 2}"),
        (
            lambda: hp.transformer(GPT2),
            (
                "a step is of a TransformerConfig, got a TransformerShape; TransformerConfig(shape,"
                " layout) makes one"
            ),
        ),
    ],
)
def test_one_of_them_in_place_of_another_is_refused(make, says):
    refused(make, says)


def test_a_latent_of_wrong_kinds_is_refused():
    refused(
        lambda: Latent(None, 0, 128, 64, 128),
        "kv_rank of a latent must be a whole number of 1 or more, got 0",
    )
    assert Latent(None, 512, 128, 64, 128).query_rank is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("gated", "no"), ("hidden", "768"), ("hidden", True), ("seq", NAN), ("tied", 0.5)],
)
def test_a_shape_file_of_wrong_kinds_is_refused_by_the_files_name(tmp_path, field, value):
    sizes = {
        "family": "gpt",
        "hidden": 768,
        "heads": 12,
        "layers": 12,
        "ffn": 3072,
        "vocab": 50257,
        "seq": 1024,
    }
    (tmp_path / "mine.json").write_text(json.dumps({**sizes, field: value}))
    with pytest.raises(
        InputError, match=rf"mine\.json: {field} of mine must be .*, got {re.escape(repr(value))}$"
    ):
        load_shape(tmp_path / "mine.json")


def test_true_and_false_of_numpy_pass():
    assert hp.TransformerConfig(GPT2, dropout=np.bool_(True)).dropout
    assert hp.TransformerConfig(GPT2, bucket_bytes=math.inf).bucket_bytes == math.inf


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: GPT2.replace(vocab=10**12), "vocab of gpt2 must be a billion or less"),
        (lambda: GPT2.replace(layers=10**6), "layers of gpt2 must be 10,000 or less"),
        (lambda: GPT2.replace(predicted_share=1.5), "of gpt2 must be at most 1, got 1.5"),
        (
            lambda: hp.Layout(micro_batch=10**18).check(GPT2),
            "micro_batch must be a billion or less",
        ),
        (
            lambda: hp.Layout(tp=10**6, dp=10**6).check(GPT2),
            "tp x cp x dp x pp must be a billion or less, got 1000000000000",
        ),
    ],
)
def test_sizes_beyond_64_bits_are_refused(make, says):
    refused(make, says)


def test_another_layout_changes_nothing_else():
    config = hp.TransformerConfig.run_by("nanotron", GPT2, bucket_bytes=1e6)
    layout = hp.Layout(tp=2, dp=4)
    found = config.with_layout(layout, gpus_per_node=4)
    assert found == config.replace(layout=layout, gpus_per_node=4)
    assert hash(found) == hash(config.replace(layout=layout, gpus_per_node=4))
    assert found != config


def test_a_config_takes_no_hash_to_another_process():
    """There words hash otherwise, and a config would not be found among its equals."""
    config = hp.TransformerConfig(GPT2)
    before = pickle.dumps(config)
    hash(config)
    assert pickle.dumps(config) == before
    assert pickle.loads(before) == config
