"""Cells of a batch: a row is priced alike whatever stands beside it. The truth is each row by
itself, by prices that know nothing yet.
"""

import dataclasses
import random

import jax
import numpy as np
import pytest

from hybridperf.collectives.fit import fit_collectives
from hybridperf.engine.step_features import SHARED, StepFeatures
from hybridperf.hardware import load_device, load_system
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.training.steps.cells import Prices
from hybridperf.training.steps.features import features
from hybridperf.workloads.transformer import Layout, load_shape, parts
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.step import refuse_unmodelled

TIED, EXPERTS = (
    load_shape("gpt2-xl"),
    dataclasses.replace(load_shape("qwen3-30b-a3b"), layers=4, experts=8, topk=2),
)
SHAPES = (
    TIED,
    load_shape("llama3-8b"),
    EXPERTS,
    dataclasses.replace(EXPERTS, tied=True),
    load_shape("bert-large"),
)
LAYOUTS = {
    "tp": (1, 2),
    "pp": (1, 2),
    "dp": (2, 4),
    "cp": (1, 2),
    "ep": (1, 2),
    "expert_tp": (None, 1),
    "zero": (0, 1, 2, 3),
    "shard_ranks": (None, 2),
    "micro_batch": (1, 2),
    "accumulation": (1, 4),
    "recompute": ("none", "selective", "full"),
    "sequence_parallel": (False, True),
    "schedule": ("1f1b", "gpipe", "interleaved", "zero_bubble"),
    "order": (
        ("tp", "cp", "ep", "dp", "pp"),
        ("dp", "ep", "tp", "cp", "pp"),
        ("pp", "dp", "ep", "cp", "tp"),
    ),
}
CONFIGS = {
    "shape": SHAPES, "dtype": ("bf16", "fp16"), "quant": ("", "fp8"), "gpus_per_node": (2, 8),
    "attention": ("fused", "unfused"), "attention_kernel": ("", "flash1"),
    "expert_messages": ("copies", "nodes"), "framework": ("megatron", "eager", "compiled"),
    "dropout": (False, True), "fused_loss": (False, True), "vocab_multiple": (1, 128),
    "optimizer": ("adam", "sgd"), "gradient_bytes": (2, 4), "overlap_gradients": (False, True),
    "overlap_shards": (False, True), "overlap_weights": (False, True),
    "fp8_param_gather": (False, True),
    "checkpoints": ("blocks", "ops"),
    "overlap_sends": (False, True), "scatter_gather": (False, True),
    "stage_split": ("even", "cost"), "grouped_experts": (False, True),
    "bucket_bytes": (25e6, 1e6), "routing": ("balanced", "power_law_1.2"), "adapters": (0, 16),
    "context_messages": ("gather", "ring"),
}  # fmt: skip
LINKS = fit_collectives(None, load_system("aic_h100_sxm"))[0]


def prices() -> Prices:
    model = PerfModel.datasheet(load_device("h100_sxm")).with_collectives(LINKS)
    return Prices(dataclasses.replace(model, references=lambda: ()))


def legal(config: TransformerConfig) -> bool:
    try:
        config.layout.check(
            config.shape, gpus_per_node=min(config.gpus_per_node, config.layout.ranks), strict=False
        )
        refuse_unmodelled(config)
    except InputError:
        return False
    return (
        config.layout.cp == 1 or config.attention == "fused"
    )  # `context_parallel` refuses the others


def neighbours(seed: int, count: int) -> list[TransformerConfig]:
    """Each row differs from the one before it in one field: a key without that field takes the one
    for the other.
    """
    assumed = TransformerConfig(TIED, Layout(dp=4, pp=2, zero=3, accumulation=4), gpus_per_node=8)
    names = [field.name for field in dataclasses.fields(assumed)]
    # what is said stays where another framework has another habit
    first = assumed.replace(**{name: getattr(assumed, name) for name in names})
    rng, found = random.Random(seed), [first, first.replace(layout=first.layout.replace(pp=1))]
    while len(found) < count:
        name = rng.choice([*LAYOUTS, *LAYOUTS, *CONFIGS])
        try:
            if name in CONFIGS:
                other = found[-1].replace(**{name: rng.choice(CONFIGS[name])})
            else:
                layout = found[-1].layout.replace(**{name: rng.choice(LAYOUTS[name])})
                other = found[-1].replace(
                    layout=layout.replace(vp=2 if layout.schedule == "interleaved" else 1)
                )
        except InputError:
            continue
        if other != found[-1] and legal(other):
            found.append(other)
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_a_batch_is_each_row_by_itself(seed):
    configs = neighbours(seed, 60)
    alone = [features([config], prices()) for config in configs]
    for way in (1, -1):
        together = features(configs[::way], prices())
        for at, (config, own_features) in enumerate(zip(configs[::way], alone[::way], strict=True)):
            assert_alike(together, at, own_features, str(config))


def assert_alike(together: StepFeatures, at: int, alone: StepFeatures, whose: str) -> None:
    """A row of a batch has the features of the row by itself."""
    assert together.pace is alone.pace
    for name in vars(alone).keys() - {"pace", "alike"}:
        of_block = name in ("layer", "embedding", "head")
        for one, own in zip(
            jax.tree.leaves(getattr(together, name)),
            jax.tree.leaves(getattr(alone, name)),
            strict=True,
        ):
            # networks count in float32, whose rounding hangs on how many rows they are given (JAX
            # 0.11)
            np.testing.assert_allclose(
                one[..., together.alike.of[at] if of_block else at],
                own[..., 0],
                rtol=1e-6,
                atol=1e-15,
                err_msg=f"{name} of {whose}",
            )


def test_every_field_of_a_config_and_a_layout_is_changed_here():
    fields = {one.name for one in dataclasses.fields(TransformerConfig)} - {"layout"}
    assert {*CONFIGS} == fields
    assert {*LAYOUTS, "vp"} == {one.name for one in dataclasses.fields(Layout)}


SHARDED = TransformerConfig(
    EXPERTS, Layout(tp=2, cp=2, dp=4, ep=2, zero=3, accumulation=4, sequence_parallel=True)
)
PIPED = TransformerConfig(TIED, Layout(tp=2, pp=2, dp=4, zero=1, accumulation=4))
UNFUSED = TransformerConfig(
    SHAPES[1], Layout(dp=4, zero=2, recompute="selective"), quant="fp8", attention="unfused"
)
REPEATED = PIPED.replace(framework="eager", checkpoints="ops")


@pytest.mark.parametrize("base", [SHARDED, PIPED, UNFUSED, REPEATED])
def test_a_field_that_changes_prices_changes_the_keys_that_they_are_kept_by(base):
    """Each field in turn, from prices that know the step before the change: as by those that know
    what calls take alone, none of the sums that keys stand for.
    """
    changes = [(name, value) for name, values in CONFIGS.items() for value in values]
    changes += [(name, value) for name, values in LAYOUTS.items() for value in values]
    others: list[tuple[str, TransformerConfig]] = []
    for name, value in changes:
        try:
            if name in CONFIGS:
                other = base.replace(**{name: value})
            else:
                vp = 2 if value == "interleaved" else 1
                other = base.replace(layout=base.layout.replace(**{"vp": vp, name: value}))
        except InputError:
            continue
        if other != base and legal(other):
            others.append((f"{name} {value}", other))
    calls = prices()  # of all at once
    features([base, *(other for _, other in others)], calls)

    def empty() -> Prices:
        return dataclasses.replace(calls, cells={}, kept={}, once={})

    known = empty()
    features([base], known)
    for changed, other in others:
        assert_alike(features([other], known), 0, features([other], empty()), changed)
        # the passes of graphs, too, which are kept by what `cell` leaves of a config
        assert parts.layer_passes(other) == parts._layer_passes(other, -1), changed
    tried = {changed.partition(" ")[0] for changed, _ in others}
    assert len(tried) > 28


def test_blocks_are_priced_by_nothing_that_rows_with_the_same_blocks_do_not_share():
    """A column that is not `SHARED` is not there, so that reading it would fail."""
    f = features([PIPED, PIPED.replace(overlap_sends=True)], prices())
    assert {*f.of_blocks.columns} == {*SHARED}
    assert {*SHARED} < {*f.columns}
