"""Layers of unlike kind in one model: scans (Mamba-2, linear attention), windows, MLPs apart."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.io import InputError
from hybridperf.ops import BatchedGemm, Gemm, PrefillAttention
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.predict import predict_steps
from hybridperf.training.steps.rows import resolve
from hybridperf.workloads.memory import memory
from hybridperf.workloads.serving.deployment import Deployment, serving_memory
from hybridperf.workloads.transformer import Layout, Scan, TransformerShape, load_shape
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.parts import layer_passes
from hybridperf.workloads.transformer.passes import flops
from hybridperf.workloads.transformer.shape import layers_by_kind

SCAN = Scan(heads=16, head_dim=64, state=128, groups=2, conv=4, chunk=256)
HYBRID = TransformerShape(
    "hybrid", "llama", hidden=512, heads=8, kv_heads=2, layers=8, ffn=2048, vocab=32000, seq=4096,
    tied=False, positions="none", norm="rmsnorm", biases=False, scan=SCAN,
    mixers=("scan", "mlp", "scan", "mlp", "attention", "mlp", "scan", "mlp"),
)  # fmt: skip


def passes(shape, mixer, **layout):
    kind = next(at for at, one in enumerate(shape.layer_kinds) if one.mixer == mixer)
    layout = Layout(**layout)
    return layer_passes(TransformerConfig.run_by("megatron_core", shape, layout), kind)


def test_a_scan_is_the_products_of_its_chunks():
    """16 chunks of 256 tokens, 16 heads: states 64 x 128, scores once a group, results of both."""
    tokens, chunks = 4096, 16
    forward = passes(HYBRID, "scan").forward
    products = {step.name: step.op for step in forward if isinstance(step.op, BatchedGemm)}
    sizes = {name: (op.batch, op.m, op.n, op.k) for name, op in products.items()}
    assert sizes == {
        "states of chunks": (chunks * 16, 64, 128, 256),
        "scores of keys": (chunks * 2, 256, 256, 128),
        "results of chunks": (chunks * 16, 256, 64, 256 + 128),
    }
    matrices = [step.op for step in forward if isinstance(step.op, Gemm)]
    # gate, values, keys and queries of two groups, step sizes; and the way out
    assert [(op.n, op.k) for op in matrices] == [(2 * 1024 + 2 * 256 + 16, 512), (512, 1024)]
    own = sum(float(op.work().flops) for op in products.values())
    assert own == pytest.approx(2 * tokens * SCAN.flops)
    assert flops(forward) * 3 == pytest.approx(
        flops(passes(HYBRID, "scan").backward) * 1.5, rel=0.1
    )  # the backward pass makes states and scores again


def test_ranks_share_the_heads_of_a_scan():
    whole, half = (flops(passes(HYBRID, "scan", tp=tp).forward) for tp in (1, 2))
    assert whole == pytest.approx(2 * half)
    parameters = HYBRID.layer_kinds[0].parameters
    inner, keys = 1024, 512
    taps, own = (inner + keys) * 5, 3 * 16 + inner
    assert parameters.total == 512 * (2 * inner + keys + 16 + inner) + taps + own + 512


def test_flops_count_what_each_kind_of_layer_computes():
    shape = dataclasses.replace(HYBRID, layers=2, mixers=("scan", "mlp"))
    tokens = 4096
    expected = 2 * tokens * (512 * (SCAN.width + SCAN.inner) + SCAN.flops)
    expected += 2 * tokens * 2 * 512 * 2048 + 2 * tokens * 512 * 32000
    assert shape.forward_flops(1) == pytest.approx(expected)
    # a scan costs as much for each token, whatever the length
    assert shape.forward_flops(1, 8192) == pytest.approx(2 * expected)


def test_a_window_bounds_what_a_token_attends_to():
    shape = dataclasses.replace(
        load_shape("llama3-8b"), seq=8192, mixers=("window", "attention") * 16, window=1024
    )
    core = {
        mixer: next(step.op for step in passes(shape, mixer).forward if step.part == "attention")
        for mixer in ("window", "attention")
    }
    assert all(isinstance(op, PrefillAttention) for op in core.values())
    seen = (1024 * 1025 / 2 + (8192 - 1024) * 1024) / (8192 * 8193 / 2)
    ratio = float(core["window"].work().flops) / float(core["attention"].work().flops)
    assert ratio == pytest.approx(seen)
    # parts of a sequence see as much of it
    part = next(
        step.op for step in passes(shape, "window", cp=4).forward if step.part == "attention"
    )
    assert 4 * float(part.work().flops) == pytest.approx(
        float(core["window"].work().flops), rel=0.01
    )
    everywhere = dataclasses.replace(shape, mixers=("attention",) * 32)
    assert shape.parameters == everywhere.parameters
    less = everywhere.forward_flops(1, causal=True) - shape.forward_flops(1, causal=True)
    # scores and values of 32 heads of 128
    assert less == pytest.approx(16 * 4 * 4096 * (8192**2 / 2 - (8192 * 1024 - 1024**2 / 2)))


def test_layers_without_a_window_have_their_own_heads():
    """Gemma 4: four heads of 512 in place of sixteen of 256, one product for keys and values."""
    shape = load_shape("gemma4-31b")
    widths = {
        mixer: next(step.op for step in passes(shape, mixer).forward if step.name == "qkv").n
        for mixer in ("window", "attention")
    }
    assert widths == {"window": (32 + 2 * 16) * 256, "attention": (32 + 4) * 512}
    core = next(step.op for step in passes(shape, "attention").forward if step.part == "attention")
    assert (core.heads, core.head_dim, core.kv_heads) == (32, 512, 4)
    memory = serving_memory(Deployment(shape))
    assert memory.token == 10 * 2 * 4 * 512 * 2  # of ten layers, in two bytes a number
    assert memory.sequence == 50 * 2 * 16 * 256 * 2 * 1024


def test_attention_beside_a_scan_is_both():
    """Falcon-H1: as many FLOPs and as much cache as a layer of each, one norm less."""
    both, scan, attention = (
        dataclasses.replace(HYBRID, layers=1, mixers=(mixer,), scan=SCAN)
        for mixer in ("both", "scan", "attention")
    )
    (one,), (two,), (three,) = (one.layer_kinds for one in (both, scan, attention))
    mlp_and_norms = 3 * 512 * 2048 if HYBRID.gated else 2 * 512 * 2048
    assert one.parameters.total == (
        two.parameters.total + three.parameters.total - mlp_and_norms - 2 * 512
    )
    assert flops(passes(both, "both").forward) == pytest.approx(
        both.forward_flops(1, causal=True) - 2 * 4096 * 512 * 32000, rel=1e-3
    )
    kept = [serving_memory(Deployment(shape)) for shape in (both, scan, attention)]
    assert kept[0].token == kept[2].token
    assert kept[0].sequence == kept[1].sequence


def test_a_short_convolution_is_two_products_and_two_gates():
    """LFM2: three times the hidden width in, once out; a few taps as its state."""
    shape = dataclasses.replace(HYBRID, layers=1, mixers=("conv",), conv=3)
    forward = passes(shape, "conv").forward
    matrices = [(step.op.n, step.op.k) for step in forward if isinstance(step.op, Gemm)]
    assert matrices[:2] == [(3 * 512, 512), (512, 512)]
    (kind,) = shape.layer_kinds
    assert kind.parameters.heads == 4 * 512 * 512 + 3 * 512
    kept = serving_memory(Deployment(shape))
    assert (kept.token, kept.sequence) == (0.0, 3 * 512 * 4)


def test_compressed_keys_are_fewer_and_cost_what_a_token_looks_at():
    """DeepSeek-V4: 128 tokens and a quarter, of which 512 are picked, or a 128th of the others."""
    shape = load_shape("deepseek-v4-flash").replace(seq=65536)
    assert shape.active_parameters == pytest.approx(13e9, rel=0.08)  # as published
    cores = {
        mixer: [step.op for step in passes(shape, mixer).forward if step.part == "attention"]
        for mixer in ("window", "picked", "condensed")
    }
    assert {mixer: ops[-1].window for mixer, ops in cores.items()} == {
        "window": 128, "picked": 128 + 512, "condensed": 128 + 65536 / 2 / 128,
    }  # fmt: skip
    assert len(cores["picked"]) == 2  # the indexer's scores come first
    told, kinds = shape.compressed, {kind.mixer: kind.count for kind in shape.layer_kinds}
    kept = serving_memory(Deployment(shape))
    token = kinds["picked"] * (512 + told.index_dim) / 4 + kinds["condensed"] * 512 / 128
    assert kept.token == pytest.approx(2 * token)
    assert kept.sequence == 43 * 128 * 512 * 2
    # ten times as many keys of latents: what its publisher says of V3.2's cache
    assert serving_memory(Deployment(load_shape("deepseek-v3"))).token > 5 * kept.token


def test_streams_are_mixed_before_each_half_of_a_layer():
    shape = load_shape("deepseek-v4-flash")
    alone = shape.replace(streams=0)
    with_streams, without = (passes(one, "window").forward for one in (shape, alone))
    shares = [step.op for step in with_streams if step.name == "streams' shares"]
    assert [(op.n, op.k) for op in shares] == 2 * [(4 * 6, 4 * 4096)]
    assert len(with_streams) == len(without) + 2 * 3
    head = 4 * 4 * 4096 + 4 + 1
    each = 2 * (24 * 4 * 4096 + 24 + 3)
    assert shape.parameters - alone.parameters == 43 * each + head


def test_stages_hold_the_kinds_that_lie_on_them():
    order = HYBRID.layer_order
    assert order == (0, 1, 0, 1, 2, 1, 0, 1)
    held = [[int(one) for one in layers_by_kind(order, 4, stage)] for stage in range(4)]
    assert held == [[1, 1, 0], [1, 1, 0], [0, 1, 1], [1, 1, 0]]
    columns = layers_by_kind(order, np.array([1, 2]), np.array([0, 1]))
    assert [one.tolist() for one in columns] == [[3, 1], [4, 2], [1, 1]]
    kept = memory(HYBRID, Layout(pp=4, accumulation=4)).weights_bytes / 2
    own = [kind.parameters.total for kind in HYBRID.layer_kinds]
    assert kept[1] == own[0] + own[1]
    assert kept[2] == own[1] + own[2]


def test_tables_plans_and_graphs_agree_on_a_hybrid(tmp_path):
    """Long sequences cost an attention model more than its scan."""
    cache = PriceCache()
    own = "\n".join((
        'family = "llama"', "hidden = 4096", "heads = 32", "kv_heads = 8", "layers = 16",
        "ffn = 14336", "vocab = 32000", "seq = 8192", "tied = false", 'positions = "none"',
        'norm = "rmsnorm"', "biases = false", 'mixers = ["scan", "scan", "scan", "attention"]',
        "[scan]", "heads = 128", "head_dim = 64", "state = 128", "groups = 8", "conv = 4",
    ))  # fmt: skip
    (tmp_path / "mixed.toml").write_text(own)
    path = str(tmp_path / "mixed.toml")
    row = {"model": path, "gpu": "h100", "framework": "megatron_core", "n_gpus": 8, "tp": 1,
           "precision": "bf16", "micro_batch": 1, "global_batch": 32}  # fmt: skip
    rows = pd.DataFrame([row | {"pp": 1}, row | {"pp": 1, "tp": 4}, row | {"pp": 4, "vp": 1}])
    found = predict_steps(rows, cache=cache).frame["predicted_s"]
    for one, seconds in zip(resolve(rows).rows, found, strict=True):
        graph = hp.predict(cache.prices(one.machine).model, hp.transformer(one.config)).time_s
        assert graph == pytest.approx(seconds, rel=0.01)
    shape = load_shape(path)
    assert len(shape.mixers) == 16
    attending = dataclasses.replace(shape, mixers=())
    growth = [
        one.forward_flops(1, 65536) / one.forward_flops(1, 4096) for one in (shape, attending)
    ]
    assert 16 < growth[0] < growth[1]
    only = {"tp": [1, 2], "pp": [1, 2], "zero": [1], "cp": [1, 2]}
    planned = hp.plan(shape, "dgx_h100", 8, batch=32, only=only)
    assert set(planned.top(len(planned))["cp"]) == {1}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mixers": ("scan",)}, "mixers of hybrid must name each of its 8 layers"),
        ({"mixers": ("lstm",) * 8}, "unknown mixer of hybrid 'lstm'"),
        ({"scan": None}, "hybrid has layers with a scan; give its scan"),
        ({"mixers": ("window",) * 8}, "hybrid has layers with a window; give its window"),
    ],
)
def test_layers_that_are_none_are_refused(changes, says):
    with pytest.raises(InputError, match=says):
        dataclasses.replace(HYBRID, **changes)
    with pytest.raises(InputError, match="heads of a scan must be a multiple of its groups"):
        Scan(16, 64, 128, 3)
