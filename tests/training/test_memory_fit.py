"""Memory of many steps, knobs from measured peaks, and which steps cannot run."""

import numpy as np
import pytest

from benchmarks.claims.memory_fit import fit_memory, will_fail
from hybridperf.io import InputError
from hybridperf.training.steps.memory_fit import (
    USABLE,
    memory_knobs,
    peak_bytes,
    starved,
)
from hybridperf.workloads.memory import MEMORY_PRIORS, MemoryKnobs, memory
from hybridperf.workloads.transformer import Layout, TransformerShape
from hybridperf.workloads.transformer.config import TransformerConfig

SMALL = TransformerShape(
    name="small",
    family="llama",
    hidden=1024,
    heads=16,
    layers=8,
    ffn=4096,
    vocab=32000,
    seq=2048,
    gated=True,
    tied=False,
)
WIDE = TransformerShape(
    name="wide", family="gpt", hidden=4096, heads=32, layers=16, ffn=16384, vocab=50257, seq=1024
)
PAIRS = ((1, 1), (2, 1), (4, 2), (1, 4), (8, 2))


def some_configs() -> list[TransformerConfig]:
    return [
        TransformerConfig(
            shape,
            Layout(tp=tp, pp=pp, dp=2, micro_batch=b, accumulation=8, zero=zero),
            gradient_bytes=4,
        )
        for shape in (SMALL, WIDE)
        for tp, pp in PAIRS
        for b in (1, 4, 16)
        for zero in (0, 1)
    ]


def test_many_configs_are_priced_as_each_alone() -> None:
    configs = some_configs()
    mixed = [configs[at] for at in np.random.default_rng(0).permutation(len(configs))]
    alone = [
        float(
            memory(
                c.shape, c.layout, dtype=c.dtype, grad_bytes=c.gradient_bytes, attention=c.attention
            ).peak_bytes
        )
        for c in mixed
    ]
    np.testing.assert_allclose(peak_bytes(mixed), alone, rtol=1e-12)


def test_knobs_are_found_again() -> None:
    truth = MemoryKnobs(hidden=1.6, ffn=1.3, loss_bytes=8.0, stale_bytes=6.0, fixed_bytes=3e8)
    configs = some_configs()
    measured = peak_bytes(configs, truth) * np.exp(
        0.02 * np.random.default_rng(1).standard_normal(len(configs))
    )
    found = fit_memory(configs, measured)
    unseen = [config.replace(layout=config.layout.replace(micro_batch=2)) for config in configs]
    error = np.abs(peak_bytes(unseen, found) / peak_bytes(unseen, truth) - 1)
    assert error.mean() < 0.02
    assert np.abs(peak_bytes(unseen) / peak_bytes(unseen, truth) - 1).mean() > 0.1


def test_a_few_disturbed_peaks_bend_little() -> None:
    configs = some_configs()
    measured = peak_bytes(configs)
    measured[::15] *= 3
    assert (
        np.abs(peak_bytes(configs, fit_memory(configs, measured)) / peak_bytes(configs) - 1).mean()
        < 0.05
    )


def test_peaks_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="as many peaks above zero as configs"):
        fit_memory(some_configs()[:2], np.array([1e9, 0.0]))


def test_more_memory_never_makes_a_step_fail() -> None:
    configs = some_configs()
    needed = peak_bytes(configs)
    before = will_fail(configs, needed, 10e9)
    after = will_fail(configs, needed, 40e9)
    assert before.any()
    assert not (after & ~before).any()
    assert will_fail(configs[:1], np.array([USABLE * 1e9 * 1.001]), 1e9).all()


@pytest.mark.parametrize(
    ("layout", "fails"),
    [
        ({"pp": 4, "accumulation": 2}, True),
        ({"pp": 4, "accumulation": 3}, False),
        ({"pp": 8}, False),  # a layer each
    ],
)
def test_layouts_that_cannot_run(layout, fails) -> None:
    config = TransformerConfig(SMALL, Layout(**{"accumulation": 16, **layout}))
    assert will_fail([config], np.zeros(1), 80e9)[0] == fails


@pytest.mark.parametrize(
    ("sizes", "pp", "fails"),
    [  # the Ultra-Scale Playbook's 8B ran with a stage a layer wherever it fitted, its 1B did not
        ({"hidden": 4096, "heads": 32, "layers": 32, "ffn": 14336}, 32, False),
        ({"hidden": 2048, "heads": 32, "layers": 16, "ffn": 8192}, 16, True),
    ],
)
def test_a_split_by_cost_may_leave_the_last_stages_empty(sizes, pp, fails) -> None:
    shape = TransformerShape(name="llama", family="llama", vocab=131072, seq=4096, **sizes)
    config = TransformerConfig(shape, Layout(pp=pp, accumulation=64), stage_split="cost")
    assert bool(starved(config)) == fails


def test_shipped_knobs_say_where_they_come_from() -> None:
    shipped = memory_knobs("nanotron")
    assert shipped != MemoryKnobs()
    for name, width in MEMORY_PRIORS.items():
        default = getattr(MemoryKnobs(), name)
        if default:  # near the counts they started from
            assert abs(np.log(getattr(shipped, name) / default)) < 3.5 * width, name
    assert memory_knobs("unheard of") == MemoryKnobs()
