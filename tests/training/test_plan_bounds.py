"""Plans of spaces too large to price: bounds are below what they bound, and what branch and bound
keeps is what brute force ranks first, whoever prices it.
"""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from hybridperf.io import InputError
from hybridperf.training.plans import bounds
from hybridperf.training.plans.bounds import BoundedLayouts
from hybridperf.training.plans.costs import bytes_of, price_space
from hybridperf.training.plans.explain import naive
from hybridperf.training.plans.run import plan
from hybridperf.training.plans.sensitivity import lever_effects, memory_headroom
from hybridperf.training.plans.setup import training_setup
from hybridperf.training.plans.space import laid_out, partial_layouts
from hybridperf.training.plans.table import write_layouts
from hybridperf.workloads.transformer import load_shape

SYSTEM = "aic_a100_sxm"
DENSE = dataclasses.replace(load_shape("gpt3-1.3b"), name="eight layers", layers=8)
EXPERTS = dataclasses.replace(load_shape("mixtral-8x7b"), layers=6)
NARROW = {"cp": [1, 2], "zero": [0, 1, 3]}
CASES = {
    "dense": (DENSE, 16, 32, {}, ""),
    "experts": (EXPERTS, 16, 16, NARROW, ""),
    # layers are dealt out by cost, rings wait, and what is recomputed hangs on the whole layer
    "nanotron": (DENSE, 16, 16, NARROW, "nanotron"),
    "torchtitan": (EXPERTS, 8, 16, NARROW, "torchtitan"),
    # plans ZB-V and DualPipeV, too
    "torchtitan_eager": (DENSE, 16, 32, NARROW, "torchtitan_eager"),
}


@pytest.mark.parametrize("which", CASES)
def test_no_completion_is_below_its_bound(which):
    shape, gpus, batch, only, framework = CASES[which]
    memory_bytes = 80e9 if shape is EXPERTS else 20e9
    setup = training_setup(shape, SYSTEM, framework=framework, memory_bytes=memory_bytes)
    partial = partial_layouts(
        shape, gpus, setup.gpus_per_node, batch, only, setup.strict, setup.schedules
    )
    everything = partial.bases(np.arange(len(partial)))
    whole = laid_out(partial, everything)
    assert partial.completions.sum() == len(everything.tp)
    alike = np.array([place.alike for place in whole.places])
    assert partial.orders == alike[whole.place_of].sum()
    bounded, needed = BoundedLayouts(setup, partial), bytes_of(setup, whole.base)
    of_base = np.repeat(np.arange(len(partial)), partial.completions)
    may_fit = np.isin(of_base, bounded.at)
    assert (needed[~may_fit] > bounds.REACH * setup.capacity_bytes).all()
    case = price_space(setup, whole, needed)
    of = np.searchsorted(bounded.at, of_base[whole.base_of[case.rows]])
    ratio = bounded.least.step_s[of] / case.parts.step_s
    assert ratio.max() <= 1
    assert ratio.max() > 0.9, "a bound that is never near bounds little"
    assert (bounded.least.compute_s[of] <= case.parts.compute_s).all()


@pytest.mark.parametrize("which", ["dense", "experts"])
@pytest.mark.parametrize("objective", ["time", "energy"])
def test_what_is_kept_is_what_brute_force_ranks_first(which, objective, tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "_PIECE", 1000)
    shape, gpus, batch, only, _ = CASES[which]
    asked = {"batch": batch, "only": only, "objective": objective, "tokens": 1e9}
    every = plan(shape, SYSTEM, gpus, limit=None, **asked)
    some = plan(shape, SYSTEM, gpus, limit=300, **asked)
    assert some.slower > 0
    assert every.slower == 0
    assert len(some) == write_layouts(some, tmp_path / "some.parquet") == 300
    write_layouts(every, tmp_path / "every.parquet")
    kept, ranked = (pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("some", "every"))
    by = "energy_j" if objective == "energy" else "time_s"
    np.testing.assert_allclose(kept[by], ranked[by][:300], rtol=1e-12)
    # layouts that take the same can be told apart by nothing but their place in the space
    fields = [name for name in kept if kept[name].dtype.kind not in "f"]
    first = kept[kept[by] < kept[by].iloc[-1]][[*fields, "time_s", "memory_bytes"]]
    found = first.merge(ranked[: len(ranked)], on=fields, suffixes=("", "_all"))
    assert len(found) == len(first)
    np.testing.assert_allclose(found["time_s"], found["time_s_all"], rtol=1e-12)
    assert (found["memory_bytes"] == found["memory_bytes_all"]).all()
    assert some.best == every.best
    assert some.layout(naive(some)) == every.layout(naive(every))


def test_layouts_that_more_memory_would_admit_are_found():
    """By brute force: the fastest of what is too large and fits into half as much more."""
    asked = {"batch": 32, "only": NARROW, "limit": None}
    tight = plan(DENSE, SYSTEM, 16, memory_bytes=3e9, **asked)
    now_s = tight.step_s(tight.choice(0))
    best_s = {}
    for factor in (1.1, 1.5):
        ample = plan(DENSE, SYSTEM, 16, memory_bytes=factor * 3e9, **asked)
        best_s[factor] = ample.step_s(ample.choice(0))
    memory = next(one for one in lever_effects(tight) if one.lever == "memory")
    assert memory.best_s == pytest.approx(best_s[1.5], rel=1e-12)
    headroom = memory_headroom(tight)
    assert memory.best_s < now_s
    assert (headroom.missed is None) == (best_s[1.1] == now_s)
    if headroom.missed is not None:
        assert headroom.missed_s == pytest.approx(best_s[1.1], rel=1e-12)


def test_days_and_money_carry_the_interval_of_the_step():
    found = plan(DENSE, SYSTEM, 16, batch=32, tokens="1B", only=NARROW, limit=50)
    frame = found.top(5)
    assert (frame["low_s"] < frame["time_s"]).all()
    assert (frame["time_s"] < frame["high_s"]).all()
    for name in ("usd", "days", "total_usd"):
        for end in ("low", "high"):
            np.testing.assert_allclose(
                frame[f"{name}_{end}"] / frame[name], frame[f"{end}_s"] / frame["time_s"]
            )
    winner = found.compared().iloc[0]
    assert frame["low_s"].iloc[0] == pytest.approx(winner["low_s"])
    assert frame["high_s"].iloc[0] == pytest.approx(winner["high_s"])


def test_workers_find_the_same(monkeypatch):
    pytest.importorskip("distributed", reason="Dask is not installed (extra `distributed`)")
    monkeypatch.setattr(bounds, "_PIECE", 300)
    asked, done, each = {"batch": 16, "only": NARROW, "limit": 200}, [], bounds.workers_of_dask.each

    def counted(*given, **options):
        for piece, kept in each(*given, **options):
            done.append(piece)
            yield piece, kept

    monkeypatch.setattr(bounds.workers_of_dask, "each", counted)
    alone = plan(EXPERTS, SYSTEM, 16, **asked)
    assert not done
    shared = plan(EXPERTS, SYSTEM, 16, workers=1, **asked)
    assert done
    assert alone.slower == shared.slower > 0
    pd.testing.assert_frame_equal(alone.top(150), shared.top(150), check_exact=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"limit": 0}, "expected a whole number of 1 or more in limit, or several, got 0"),
        ({"workers": 0}, "expected --workers of 1 or more, got 0"),
        ({"workers": 2, "scheduler": "tcp://127.0.0.1:9"}, "one of --workers and --scheduler"),
        ({"tokens": -1.0}, "above zero"),
        ({"limit": 10, "memory_bytes": 1e9}, "GPUs would do"),
    ],
)
def test_what_cannot_be_is_one_sentence(options, says):
    with pytest.raises(InputError, match=says) as error:
        plan(DENSE, SYSTEM, 8, batch=16, **options)
    assert "\n" not in str(error.value)
