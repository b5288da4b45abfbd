"""Diffusion Transformers: parameters and FLOPs as published, what their layers run, one answer of
tables and graphs.
"""

import dataclasses

import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.io import InputError
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.predict import predict_steps
from hybridperf.training.steps.rows import resolve
from hybridperf.workloads.transformer import Diffusion, Layout, load_shape
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.parts import embedding_passes, head_passes, layer_passes
from hybridperf.workloads.transformer.passes import flops

FLUX = load_shape("flux.1-dev")
DIT = load_shape("dit-xl-2")
ROW = {
    "gpu": "h100", "n_gpus": 8, "tp": 1, "pp": 1, "micro_batch": 1, "global_batch": 16,
    "precision": "bf16", "framework": "megatron_core", "sharding": "zero1",
}  # fmt: skip


@pytest.fixture(scope="module")
def cache():
    return PriceCache()


@pytest.mark.parametrize(
    ("name", "billions"),
    [("dit-s-2", 6.06), ("dit-b-2", 23.01), ("dit-l-2", 80.71), ("dit-xl-2", 118.64)],
)
def test_a_forward_pass_multiplies_as_often_as_published(name, billions):
    """Gflops of DiT's paper (2212.09748) are multiply-adds of a sample."""
    assert load_shape(name).forward_flops() / 2e9 == pytest.approx(billions, rel=1e-3)


def test_parameters_by_hand():
    """18 h^2 + 15 h of a DiT's layer, twice that of Flux's joint ones, 15 h^2 + 11 h of a parallel
    one; Flux has two norms of a head's width besides.
    """
    h = DIT.hidden
    assert DIT.layer_parameters == 18 * h**2 + 15 * h
    h, norms = FLUX.hidden, 2 * FLUX.dim
    joint, parallel = FLUX.layer_kinds
    assert (joint.count, parallel.count) == (19, 38)
    assert joint.parameters.total == 2 * (18 * h**2 + 15 * h + norms)
    assert parallel.parameters.total == 15 * h**2 + 11 * h + norms


@pytest.mark.parametrize("shape", [DIT, FLUX], ids=lambda one: one.name)
def test_passes_multiply_what_is_counted(shape):
    config = TransformerConfig(shape, Layout(micro_batch=4))
    done = flops(embedding_passes(config).forward) + flops(head_passes(config).forward)
    for kind, one in enumerate(shape.layer_kinds):
        done += one.count * flops(layer_passes(config, kind).forward)
    assert done == pytest.approx(shape.forward_flops(4), rel=1e-6)


def test_a_sample_is_modulated_once_whatever_its_tokens():
    """A longer sequence and more tensor-parallel ranks leave the modulation as it is."""
    longer = DIT.replace(image=64, seq=1024)
    found = {
        tuple(step.op.m for step in layer_passes(TransformerConfig(shape, layout)).forward
              if step.name == "modulation")
        for shape in (DIT, longer)
        for layout in (Layout(micro_batch=2), Layout(tp=2, micro_batch=2))
    }  # fmt: skip
    assert found == {(2.0,)}


def test_joint_layers_multiply_text_by_weights_of_its_own():
    steps = layer_passes(TransformerConfig(FLUX, Layout(micro_batch=2)), 0).forward
    tokens = {step.name: step.op.m for step in steps if step.part == "gemm"}
    assert (tokens["image qkv"], tokens["text qkv"]) == (2 * 4096, 2 * 512)
    (attention,) = (step.op for step in steps if step.part == "attention")
    assert attention.q_len == 4608, "image and text attend to each other"
    parallel = layer_passes(TransformerConfig(FLUX, Layout()), 1).forward
    assert [step.op.n for step in parallel if step.part == "gemm"] == [3 * 3072, 7 * 3072, 3072]


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "flux.1-schnell"},
        {"model": "flux.1-schnell", "cp": 2, "recompute": "full"},
        {"model": "flux.1-dev", "tp": 2, "seq_parallel": False},
        {"model": "dit-xl-2", "tp": 2, "pp": 2, "micro_batch": 16, "global_batch": 256},
    ],
)
def test_table_and_graph_agree(cache, changes):
    (row,) = resolve(pd.DataFrame([ROW | changes])).rows
    found = predict_steps(pd.DataFrame([ROW | changes]), cache=cache).frame.predicted_s[0]
    graph = hp.predict(cache.prices(row.machine).model, hp.transformer(row.config)).time_s
    assert graph == pytest.approx(found, rel=0.02)


def test_what_is_no_diffusion_transformer_is_said():
    with pytest.raises(InputError, match="family dit, and no other, has a diffusion"):
        DIT.replace(diffusion=None)
    with pytest.raises(InputError, match=r"seq is .* of whole patches and its text"):
        DIT.replace(seq=257)
    with pytest.raises(InputError, match="text of a diffusion has tokens and a width"):
        Diffusion((256,), text_tokens=77)
    without = dataclasses.replace(FLUX.diffusion, text_tokens=0, text_width=0)
    with pytest.raises(InputError, match="layers with a joint; give its diffusion with a text"):
        FLUX.replace(diffusion=without, seq=4096)
    with pytest.raises(InputError, match="sequence parallelism of joint attention"):
        Layout(tp=2, sequence_parallel=True).check(FLUX)
