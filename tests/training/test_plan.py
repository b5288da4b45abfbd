"""A plan: which layouts are legal, that their columns say what one layout's features say, what wins
and why, what cannot run.
"""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridperf.engine.closed import step_seconds
from hybridperf.engine.economy import economy
from hybridperf.engine.pareto import undominated
from hybridperf.engine.step_features import StepFeatures, StepParts
from hybridperf.io import InputError
from hybridperf.training.plans import progress
from hybridperf.training.plans.costs import price_space, times
from hybridperf.training.plans.explain import compared, naive
from hybridperf.training.plans.ranked import plan_front
from hybridperf.training.plans.run import plan
from hybridperf.training.plans.sensitivity import changed, lever_effects
from hybridperf.training.plans.setup import training_setup
from hybridperf.training.plans.space import Division, places, space
from hybridperf.training.plans.table import write_layouts
from hybridperf.training.steps.cells import Prices
from hybridperf.training.steps.features import features
from hybridperf.workloads.memory import memory
from hybridperf.workloads.transformer import load_shape
from hybridperf.workloads.transformer.layout import ORDER, Layout

SYSTEM = "aic_a100_sxm"


@pytest.fixture(scope="module")
def shape():
    """Eight layers of GPT: small enough to enumerate by hand."""
    return dataclasses.replace(load_shape("gpt3-1.3b"), name="eight layers", layers=8)


@pytest.fixture(scope="module")
def found(shape):
    return plan(shape, SYSTEM, 16, batch=32, tokens=1e9)


@pytest.fixture(scope="module")
def narrow(shape):
    """A smaller space of the same model."""
    return plan(
        shape, SYSTEM, 16, batch=16, only={"zero": [0, 1], "recompute": ["none", "full"], "cp": [1]}
    )


def test_every_layout_is_legal_and_none_twice(shape):
    s = space(shape, 16, 8, 32)
    layouts = [s.layout(row) for row in range(0, len(s), 7)]
    for layout in layouts:
        layout.check(shape, gpus=16, gpus_per_node=8, global_batch=32)
    assert len({s.layout(row) for row in range(len(s))}) == len(s)


def test_the_enumeration_is_brute_force(shape):
    """Every combination of fields that the rules allow is there: tried one by one."""
    s = space(
        shape,
        4,
        4,
        4,
        only={
            "recompute": ["none"],
            "zero": [0, 1],
            "sequence_parallel": [0],
            "schedule": ["1f1b", "interleaved"],
        },
    )
    base = {tuple(int(column[at]) for column in s.base) for at in range(len(s.base.tp))}
    tried = set()
    sizes, chunks = (1, 2, 4), (1, 2, 4, 8)
    for tp, pp, dp, cp, vp, zero, micro in itertools.product(
        sizes, sizes, sizes, sizes, chunks, (0, 1), sizes
    ):
        if tp * pp * dp * cp != 4 or (zero and dp * cp == 1) or 4 % (dp * micro):
            continue
        layout = Layout(
            tp=tp, pp=pp, dp=dp, cp=cp, vp=vp, zero=zero, micro_batch=micro,
            accumulation=4 // dp // micro, schedule="interleaved" if vp > 1 else "1f1b",
        )  # fmt: skip
        try:
            layout.check(shape, gpus=4, gpus_per_node=4, global_batch=4)
        except InputError:
            continue
        tried.add(tuple(layout.columns))
    assert base == tried


def test_orders_that_mean_the_same_are_one():
    inside = places(Division(2, 1, 4, 1, 1, 2, False, 4), 8)
    assert len(inside) == 1, "everything lies on one node"
    assert inside[0].alike == 2
    assert inside[0].order == ORDER
    across = places(Division(8, 1, 1, 2, 1, 8, False, 1), 8)
    assert len(across) == 2, "either dimension may cross nodes"
    assert [place.spans["tp"].nodes for place in across] == [1, 2]


@pytest.fixture(scope="module")
def experts():
    """Eight experts, on nodes of eight GPUs and over them."""
    mixtral = dataclasses.replace(load_shape("mixtral-8x7b"), layers=4)
    return plan(
        mixtral,
        SYSTEM,
        16,
        batch=32,
        only={"zero": [0, 3], "recompute": ["none", "selective"], "cp": [1, 2]},
    )


@pytest.fixture(scope="module")
def tied():
    """A tied embedding on two numbers of GPUs: the last of two stages holds and gathers it once
    more, one stage does not.
    """
    gpt = dataclasses.replace(load_shape("gpt2-xl"), layers=4)
    return plan(
        gpt,
        SYSTEM,
        [8, 16],
        batch=64,
        only={"zero": [2, 3], "recompute": ["full"], "cp": [1], "tp": [1], "micro_batch": [1]},
    )


@pytest.mark.parametrize("which", ["found", "experts", "tied"])
def test_columns_say_what_features_of_one_layout_say(which, request):
    """The whole way through representatives, against each config by itself and by prices that know
    nothing of others.
    """
    case = request.getfixturevalue(which).cases[-1]
    rng = np.random.default_rng(3)
    at = rng.choice(len(case.rows), min(25, len(case.rows)), replace=False)
    configs = [case.setup.config(case.space.layout(int(row))) for row in case.rows[at]]
    prices = case.setup.prices
    alone = [
        (features([config], Prices(prices.model)), np.array([at]))
        for at, config in enumerate(configs)
    ]
    f = StepFeatures.joined(alone, len(configs))
    alone = step_seconds(f, case.setup.adapted.effects)
    for name in ("step_s", "compute_s", "exposed_comm_s", "bubble_s", "host_s"):
        # networks count in float32, whose rounding hangs on how many rows they are given (JAX 0.11)
        np.testing.assert_allclose(
            getattr(case.parts, name)[at], getattr(alone, name), rtol=1e-6, atol=1e-12
        )
    c = case.setup.template
    for one, layout in zip(at[:10], (config.layout for config in configs), strict=False):
        use = memory(
            c.shape,
            layout,
            dtype=c.dtype,
            grad_bytes=c.gradient_bytes,
            attention=c.attention,
            knobs=case.setup.memory_knobs,
        )
        assert case.row_memory_bytes[one] == pytest.approx(use.peak_bytes, rel=1e-12)


def test_threads_change_nothing(found):
    case = found.cases[0]
    np.testing.assert_array_equal(
        times(case.columns, case.setup, threads=1).step_s, case.parts.step_s
    )


def test_ranks_are_by_time_and_only_of_what_fits(found):
    case = found.cases[0]
    at = found.ranked[:, 1]
    assert (np.diff(case.parts.step_s[at]) >= 0).all()
    fits = case.memory_bytes[case.space.base_of] <= case.setup.capacity_bytes
    assert fits[case.rows[at]].all()
    assert len(at) == fits.sum()
    assert found.legal == len(case.space) >= len(found)


def test_top_table_adds_up(found):
    frame = found.top(5)
    assert len(frame) == 5
    tokens = 32 * found.setup.shape.seq
    np.testing.assert_allclose(frame["tokens_per_s"], tokens / frame["time_s"])
    np.testing.assert_allclose(frame["days"], 1e9 / tokens * frame["time_s"] / 86400)
    np.testing.assert_allclose(
        frame["total_usd"], frame["days"] * 24 * 16 * found.economy.usd_per_hour
    )
    assert (frame["mfu"] < 1).all()


def test_everything_is_written(found, tmp_path):
    for name in ("plan.parquet", "plan.csv"):
        assert write_layouts(found, tmp_path / name) == found.legal
    frame = pd.read_parquet(tmp_path / "plan.parquet")
    assert len(frame) == len(pd.read_csv(tmp_path / "plan.csv")) == found.legal
    assert frame["fits"].sum() == len(found)
    assert frame["fits"][: len(found)].all(), "those that fit come first"
    assert frame.loc[0, "tp"] == found.best.tp
    with pytest.raises(InputError, match=r"\.parquet or \.csv"):
        write_layouts(found, tmp_path / "plan.json")


def test_several_numbers_of_devices_are_ranked_together(shape):
    both = plan(
        shape,
        SYSTEM,
        [8, 16],
        batch=32,
        objective="cost",
        only={"cp": [1], "zero": [1], "recompute": ["none"]},
    )
    assert {case.space.gpus for case in both.cases} == {8, 16}
    frame = both.top(len(both))
    per_token = frame["usd"] / (32 * shape.seq)
    assert (np.diff(per_token) >= -1e-18).all()
    ranks = plan_front(both, "time", "cost")
    shown = frame.iloc[ranks]
    assert (np.diff(shown["time_s"]) > 0).all()
    assert (np.diff(shown["usd"]) < 0).all()


def test_a_front_keeps_what_nothing_beats():
    first, second = np.array([3.0, 1.0, 2.0, 2.0, 1.0]), np.array([1.0, 5.0, 2.0, 3.0, 6.0])
    assert undominated(np.stack([first, second], 1)).tolist() == [1, 2, 0]


def test_the_naive_layout_is_the_rule_of_thumb(found):
    layout = found.layout(naive(found))
    assert layout.tp == 8
    assert layout.pp == 1
    assert layout.recompute == "full"
    assert layout.micro_batch == 1


def test_what_stands_beside_the_winner_is_slower_and_says_how_surely(found):
    beside = compared(found)
    assert [one.what for one in beside][:2] == ["winner", "runner-up"]
    assert all(0.5 <= one.chance <= 1.0 for one in beside)
    naive_one = beside[-1]
    assert naive_one.chance > 0.9
    assert beside[0].low_s < found.cases[0].parts.step_s[found.choice(0).at] < beside[0].high_s


def test_more_never_hurts_and_elasticities_have_their_sign(narrow):
    """More memory, bandwidth, arithmetic or links never worsens the best plan."""
    now_s = narrow.cases[0].parts.step_s[narrow.choice(0).at]
    for one in lever_effects(narrow):
        assert one.elasticity <= 1e-9, one.lever
        assert one.best_s <= now_s * (1 + 1e-9), one.lever


@settings(max_examples=12, deadline=None)
@given(
    lever=st.sampled_from(
        [
            "arithmetic",
            "memory bandwidth",
            "links inside nodes",
            "links between nodes",
            "launches",
            "memory",
        ]
    ),
    factor=st.floats(1.0, 4.0),
)
def test_a_better_machine_never_has_a_worse_plan(narrow, lever, factor):
    case = narrow.cases[0]
    better, knobs = changed(case.setup, lever, factor)
    again = price_space(better, case.space)
    step_s = times(again.columns, better, knobs).step_s
    assert step_s.min() <= case.parts.step_s.min() * (1 + 1e-9)


PRICES = """schema = "hybridperf/prices"
schema_version = 1
[a100_usd_per_hour]
value = 1.0
unit = "USD"
date = "2026-01"
source = "our contract"
[gpu_w]
value = 300
unit = "W"
date = "2026-01"
source = "our meter"
"""


def test_a_users_prices_come_first(tmp_path, found):
    (tmp_path / "mine.toml").write_text(PRICES)
    rates = economy(found.setup.device, tmp_path / "mine.toml")
    assert rates.usd_per_hour == 1.0
    assert rates.full_w == 300
    assert found.economy.full_w == found.setup.device.tdp_w
    assert any("our contract, 2026-01" in said for said in rates.notes)
    parts = StepParts(2.0, 1.0, 0.5, 0.25, 0.25, 0.0)
    # by hand: 2 devices, one second at work of two
    assert rates.energy_j(2, parts) == pytest.approx(
        2 * 1.25 * ((120 + 300) * 2 + (300 - 120) * (1 + 0.4 * 0.5))
    )
    assert rates.usd(2, parts._replace(step_s=3600.0)) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"gpus": 7}, "4 or 8 would do"),
        ({"gpus": 12}, "8 or 16 would do"),
        ({"model": "gpt3-175c"}, "gpt3-175b"),
        ({"model": "gpt3-175b", "gpus": 8}, "GPUs would do"),
        ({"model": "gpt3-175b", "gpus": 8, "batch": 7}, "would do"),
        ({"gpus": 64, "batch": 1, "only": {"tp": [1], "pp": [1], "cp": [1]}}, "without --only"),
        ({"gpus": 8, "batch": 8, "only": {"tp": [8], "zero": [1]}}, "zero 1; without --only"),
        ({"objective": "joy"}, "time, tokens_per_s, cost, energy"),
        ({"only": {"tpp": [1]}}, "tp"),
        ({"system": "cscs_alps_gh200"}, "--device"),
        ({"framework": "jaxx"}, "known are"),
        ({"tokens": -1.0}, "above zero"),
        ({"tokens": "many"}, "such as 300e9 or 300B, in tokens, got 'many'"),
        ({"gpus": 0}, "expected a whole number of 1 or more in gpus, or several, got 0"),
        ({"gpus": 8.5}, "in gpus, or several, got 8.5"),
        ({"gpus": "8"}, "in gpus, or several, got '8'"),
        ({"gpus": []}, "in gpus, or several, got none"),
        ({"gpus": [8, None]}, "in gpus, or several, got None"),
        ({"gpus": float("inf")}, "in gpus, or several, got inf"),
        ({"batch": [0]}, "in batch, or several, got 0"),
        ({"batch": 10**12}, "expected batch of a billion or less, got 1000000000000"),
        (
            {"model": "gpt3-13b", "gpus": 1, "only": {"cp": 1}},
            "no layout of gpt3-13b fits on 1 GPU with",
        ),
        ({"only": "tp=1"}, "expected only as a mapping"),
        ({"only": {"zero": 1, "sharding": "zero3"}}, "expected zero once in only, got it again as"),
        ({"only": {"recompute": "some"}}, "recompute can be none, selective, full, got 'some'"),
        (
            {"only": {"sequence_parallel": "maybe"}},
            "sequence_parallel must be yes or no, got 'maybe'",
        ),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(options, says):
    given_ = {"model": "gpt3-1.3b", "system": SYSTEM, "gpus": 8, "batch": 64, **options}
    with pytest.raises(InputError) as error:
        plan(given_.pop("model"), given_.pop("system"), given_.pop("gpus"), **given_)
    said = str(error.value)
    assert says in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ({"gpus": np.int64(8)}, {}),
        ({"gpus": np.array([8])}, {}),
        ({"gpus": 8.0, "batch": np.int64(16)}, {}),
        ({"tokens": "1B"}, {"tokens": 1e9}),
        (
            {"only": {"tp": 2, "recompute": "none", "cp": 1}},
            {"only": {"tp": [2], "recompute": ["none"], "cp": [1]}},
        ),
        (
            {"only": {"tp": 2, "sequence_parallel": "yes", "cp": 1}},
            {"only": {"tp": [2], "sequence_parallel": [1], "cp": [1]}},
        ),
        (  # names and words of columns of steps
            {"only": {"tensor_parallel_size": 2, "zero_stage": ["fsdp", 1], "cp_size": 1}},
            {"only": {"tp": [2], "zero": [3, 1], "cp": [1]}},
        ),
    ],
)
def test_what_is_plainly_meant_is_taken(shape, asked, meant):
    plain = {"gpus": 8, "batch": 16, "only": {"tp": [2], "cp": [1], "recompute": ["none"]}}
    ours, other = ({**plain, **one} for one in (asked, meant))
    a, b = (plan(shape, SYSTEM, given_.pop("gpus"), **given_) for given_ in (ours, other))
    assert (len(a), a.best, a.tokens) == (len(b), b.best, b.tokens)


def test_a_long_plan_says_how_far_it_is_and_a_short_one_nothing(shape, monkeypatch):
    said = []
    plan(shape, SYSTEM, 8, batch=16, only={"cp": 1}, say=said.append)
    assert not said
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    plan(shape, SYSTEM, 8, batch=16, only={"cp": 1}, say=said.append)
    for what in (
        "divisions laid out on nodes",
        "memory of layouts",
        "times of layouts",
    ):
        assert any(what in line for line in said), (what, said)


def test_no_rows_cannot_be_asked_for(found):
    with pytest.raises(InputError, match="whole number of 1 or more in top"):
        found.top(0)


def test_experts_are_spread_too():
    mixtral = dataclasses.replace(load_shape("mixtral-8x7b"), layers=8)
    s = space(mixtral, 16, 8, 16, only={"zero": [1], "recompute": ["none"], "cp": [1]})
    assert {1, 2, 4, 8} <= set(np.asarray(s.base.ep).tolist())
    one = price_space(training_setup(mixtral, SYSTEM), s)
    assert np.isfinite(one.parts.step_s).all()


def test_the_command(tmp_path, capsys):
    from hybridperf.cli.app import main

    out = tmp_path / "plan.csv"
    asked = ["plan", "--shape", "gpt3-125m", "--system", SYSTEM, "--batch", "32", "--out", str(out)]
    with pytest.raises(SystemExit) as done:
        main(
            [
                *asked,
                "--gpus",
                "8",
                "--tokens",
                "1B",
                "--top",
                "3",
                "--only",
                "cp=1",
                "--confirm",
                "1",
            ]
        )
    assert done.value.code == 0
    said = capsys.readouterr().out
    for words in (
        "best:",
        "Why",
        "How sure",
        "What would move it",
        "Pareto front",
        "days",
        "assumption",
    ):
        assert words in said
    assert out.exists()
    with pytest.raises(SystemExit) as done:
        main([*asked, "--gpus", "7"])
    assert done.value.code == 2
    assert "4 or 8 would do" in capsys.readouterr().err
