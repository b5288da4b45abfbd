"""What a prior over devices learns, what a few rows add, and what must hold whatever was learned.

The devices are made up: the closed form with known knobs, a ripple over one size that all devices
share, one of their own, noise of 3 %.
"""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np
import pytest

from hybridperf.hardware import Device
from hybridperf.learning import gaussian_process as process
from hybridperf.learning.ensemble import BOUND
from hybridperf.learning.gaussian_process import Examples, HyperParameters
from hybridperf.learning.inputs import Inputs
from hybridperf.learning.prior import (
    Adapted,
    FamilyPrior,
    FamilyRows,
    adapt,
    adapted,
    concatenate,
    family,
    train_family,
    uninformed,
)
from hybridperf.learning.prior.form import WAVE_ROOFLINE, ClosedFormValues, Machine, slopes
from hybridperf.learning.prior.knobs import (
    ImplementationKnobs,
    Population,
    fit_each_implementation,
    fit_new,
    fit_together,
    population,
)
from hybridperf.learning.training import TrainingRecipe
from hybridperf.ops.roofline import RooflineKnobs, Work, op_seconds

NOISE = 0.03
KNOBS = len(WAVE_ROOFLINE.knobs)
IMPLEMENTATIONS = ("eager", "fused")
SPEEDS = {
    "old": (1e13, 5e11, 40.0),
    "middle": (5e13, 1e12, 80.0),
    "new": (2e14, 3e12, 120.0),
    "other": (9e13, 2e12, 100.0),
}
QUICK = TrainingRecipe(steps=400, batch=256)


def rows_of(
    device: str, number: int, seed: int, octaves: tuple[float, float] = (5.0, 12.0)
) -> FamilyRows:
    """Square-ish GEMMs with sizes over those octaves."""
    flops_per_s, bytes_per_s, sm_count = SPEEDS[device]
    random = np.random.default_rng(seed)
    m, n, k = 2.0 ** random.uniform(*octaves, (3, number))
    sizes = {"log_m": np.log2(m), "log_n": np.log2(n), "log_k": np.log2(k)}
    tail = {"tail": np.log(np.ceil(n / 64) * 64 / n)}
    values = np.stack([*sizes.values(), *tail.values()], 1)
    implementation = np.array(IMPLEMENTATIONS, object)[
        random.integers(0, len(IMPLEMENTATIONS), number)
    ]
    return FamilyRows(
        2 * m * n * k, 2 * (m * n + n * k + m * k), np.ceil(m / 128) * np.ceil(n / 128),
        np.full(number, flops_per_s), bytes_per_s, sm_count, implementation,
        Inputs((*sizes, *tail), values), tuple(sizes),
    )  # fmt: skip


def true_theta(device: str, implementation: np.ndarray) -> np.ndarray:
    at = list(SPEEDS).index(device)
    scatter = 0.15 * np.sin(np.arange(KNOBS) + at) * np.array([1, 1, 1, 0, 1, 0])
    theta = np.log([4e-6, 0.6, 0.75, 2.0, 4e-7, 2e-8]) + scatter
    return theta + np.where(implementation == "fused", 0.2, 0.0)[:, None] * np.array(
        [-1.0, 1, 0, 0, 0, 0]
    )


def time_of(device: str, rows: FamilyRows, seed: int, own: float = 0.05) -> np.ndarray:
    shared = 0.2 * np.sin(1.5 * rows.inputs.values[:, 0])
    of_device = own * np.sin(rows.inputs.values[:, 2] + list(SPEEDS).index(device))
    noise = NOISE * np.random.default_rng(seed).normal(size=len(rows))
    return np.exp(
        WAVE_ROOFLINE.log_s(true_theta(device, rows.implementation), rows.work())
        + shared
        + of_device
        + noise
    )


@pytest.fixture(scope="module")
def prior() -> FamilyPrior:
    devices = {name: rows_of(name, 800, seed) for seed, name in enumerate(("old", "middle", "new"))}
    return train_family(
        {name: (rows, time_of(name, rows, 9)) for name, rows in devices.items()}, recipe=QUICK
    )


@pytest.fixture(scope="module")
def test_rows() -> tuple[FamilyRows, np.ndarray]:
    rows = rows_of("other", 1000, 77)
    return rows, time_of("other", rows, 78)


@pytest.fixture(scope="module")
def few(prior: FamilyPrior) -> Adapted:
    rows = rows_of("other", 120, 5)
    return adapt(prior, rows, time_of("other", rows, 6))


def error(model: Adapted, rows: FamilyRows, time_s: np.ndarray) -> float:
    return float(np.median(np.abs(np.exp(model.predict(rows).log_s) / time_s - 1)))


# --- knobs ----------------------------------------------------------------------------------------


def test_the_closed_form_by_hand() -> None:
    theta = np.log([1e-6, 0.5, 0.5, 1.0, 1e-6])  # p = 2
    log_work = np.log([[1.5e-6, 2e-6, 1e-30]])
    assert np.exp(WAVE_ROOFLINE.log_s(theta, log_work)) == pytest.approx(
        6e-6
    )  # 1 + sqrt(3^2 + 4^2)


def test_the_closed_form_is_monotone_in_work() -> None:
    random = np.random.default_rng(0)
    theta, log_work = random.normal(size=(200, KNOBS)), random.normal(0, 4, (200, 4))
    base = WAVE_ROOFLINE.log_s(theta, log_work)
    for column in range(4):
        more = log_work.copy()
        more[:, column] += 0.5
        assert (WAVE_ROOFLINE.log_s(theta, more) >= base).all()


def test_derivatives_of_the_closed_form_are_those_of_differences() -> None:
    random = np.random.default_rng(1)
    theta, log_work, step = random.normal(size=(20, KNOBS)), random.normal(0, 2, (20, 4)), 1e-6
    for knob in range(KNOBS):
        moved = np.eye(KNOBS)[knob] * step
        difference = (
            WAVE_ROOFLINE.log_s(theta + moved, log_work)
            - WAVE_ROOFLINE.log_s(theta - moved, log_work)
        ) / (2 * step)
        np.testing.assert_allclose(
            slopes(WAVE_ROOFLINE, theta, log_work)[:, knob], difference, atol=1e-7
        )


def test_the_closed_form_is_the_roofline_of_ops_with_waves() -> None:
    """Without waves both say the same seconds: a family's knobs are some of a group's."""
    flops_per_s, bytes_per_s, _ = SPEEDS["new"]
    flops, moved, theta = 3e9, 2e7, np.log([4e-6, 0.6, 0.7, 1.3, 1e-6])
    floor_s, compute, memory, above_one, _ = np.exp(theta)
    knobs = dataclasses.replace(
        RooflineKnobs.neutral(), floor_s=floor_s, compute_efficiency=compute,
        memory_efficiency=memory, smoothing=1 / (1 + above_one),
    )  # fmt: skip
    device = Device(flops_per_s, bytes_per_s, np.array([0.0, 0.0, 0.0, np.inf]))
    work = np.log([flops / flops_per_s, moved / bytes_per_s, 1e-30])
    with jax.enable_x64(True):
        expected = float(op_seconds(Work(flops=flops, bytes=moved), device, knobs))
    assert expected > 1.2 * floor_s
    assert np.exp(WAVE_ROOFLINE.log_s(theta, work)) == pytest.approx(expected, rel=1e-12)


class AlphaBytes:
    """A closed form as somebody adds it: latency and a share of the wire, nothing derived."""

    knobs = ("latency_s", "efficiency")
    position = ("bytes_over_latency",)
    start = np.log([1e-5, 0.5])
    start_spread = np.array([1.0, 1.0])
    least_spread = np.array([0.1, 0.1])
    known_spread: Mapping[str, float] = {}

    def shared(self, words: tuple[str, ...]) -> str:
        return words[0]

    def log_s(self, theta: np.ndarray, work: np.ndarray) -> np.ndarray:
        return np.log(np.exp(theta[..., 0]) + work[..., 0] / np.exp(theta[..., 1]))

    def closed(self, theta: np.ndarray, work: np.ndarray) -> ClosedFormValues:
        total = self.log_s(theta, work)
        return ClosedFormValues(total, (total - theta[..., 0])[:, None])


def test_steps_one_after_the_other_bound_a_product_and_older_knobs_know_none() -> None:
    """Nothing but steps: their number times what each takes. Knobs from before them are five."""
    theta = np.log([1e-9, 1.0, 1.0, 9.0, 1e-9, 5e-8])
    work = np.log([1e-12, 1e-12, 1e-12, 1000.0])
    assert np.exp(WAVE_ROOFLINE.log_s(theta, work)) == pytest.approx(5e-5, rel=1e-4)
    older = WAVE_ROOFLINE.closed(theta[None, :5], work[None])
    assert np.exp(older.total[0]) < 1.1e-9
    assert older.position.shape == (1, len(WAVE_ROOFLINE.position))


def test_decode_on_a_new_architecture_stands_half_way_to_whose_kernels_it_takes() -> None:
    """Two devices where vLLM is twice as quick: elsewhere by the root, until it has rows of its own
    or a reference, and never the other way.
    """
    ours, theirs = "generation_attention|vllm|bf16|", "generation_attention|trtllm|bf16|"
    theta = np.tile(WAVE_ROOFLINE.start, (2, 1)) + np.log([[0.5], [1.0]]) * (np.arange(KNOBS) == 1)
    knobs = ImplementationKnobs((ours, theirs), theta, theta.mean(0))
    anywhere = population(WAVE_ROOFLINE, {"one": knobs, "two": knobs})
    assert anywhere.taking == {}
    usual = anywhere.on(Machine(takes_kernels=True))
    own, other = usual.mean_of((ours, theirs))
    assert usual.taking == {ours: theirs}
    start = usual.typical()
    np.testing.assert_allclose(start.theta[start.implementations.index(ours)], (own + other) / 2)
    np.testing.assert_allclose(start.theta[start.implementations.index(theirs)], other)
    assert usual.with_references(["one"]).taking == {}
    flagged = Inputs(("framework=trtllm", "framework=vllm"), np.tile([0.0, 1.0], (40, 1)))
    rows = dataclasses.replace(
        rows_of("new", 40, 2), implementation=np.full(40, ours, object), inputs=flagged, sizes=()
    )
    prior = dataclasses.replace(uninformed(rows), population=usual)
    np.testing.assert_array_equal(prior.in_place_of_sources(rows).inputs.values[:, 0], 1.0)
    time_s = np.exp(WAVE_ROOFLINE.log_s(own, rows.work()))
    found = fit_new(usual, rows, time_s).of(np.array([ours], object))[0]
    np.testing.assert_allclose(found, own, atol=0.02)


@pytest.mark.parametrize(("op", "alike"), [("gemm", 0), ("moe", 1)])
def test_rows_move_what_shares_a_format_or_a_framework(op: str, alike: int) -> None:
    """Rows of the first: products move with those of their format, others by their framework."""
    names = tuple(f"{op}|{rest}" for rest in ("eager|bf16", "served|bf16", "eager|fp8"))
    knobs = ImplementationKnobs(names, np.tile(WAVE_ROOFLINE.start, (3, 1)), WAVE_ROOFLINE.start)
    usual = population(WAVE_ROOFLINE, {"one": knobs, "two": knobs})
    rows = dataclasses.replace(rows_of("new", 60, 3), implementation=np.full(60, names[0], object))
    slow_s = 2 * np.exp(knobs.closed(rows).total)
    found = fit_new(usual, rows, slow_s)
    mean = usual.mean_of(found.implementations)
    moved = dict(zip(found.implementations, np.abs(found.theta - mean).max(1), strict=True))
    assert moved[names[0]] > 0.3
    assert moved[names[1 + alike]] > 0.1
    assert moved[names[2 - alike]] == 0


def test_a_new_form_is_fitted_without_a_derivative_by_hand() -> None:
    truth, random = np.log([3e-6, 0.8]), np.random.default_rng(0)

    class Rows(FamilyRows):
        def work(self) -> np.ndarray:
            return (self.bytes / self.memory_bytes_per_s)[:, None]

    rows = Rows(
        np.zeros(50), 10 ** random.uniform(4, 9, 50), 0.0, 1.0, 1e11, 1.0,
        np.full(50, "one", object), Inputs((), np.zeros((50, 0))), (), form=AlphaBytes(),
    )  # fmt: skip
    slope = slopes(rows.form, np.tile(truth, (50, 1)), rows.work())
    latency = np.exp(truth[0] - rows.form.log_s(truth, rows.work()))
    np.testing.assert_allclose(slope, np.stack([latency, latency - 1], 1), rtol=1e-12)
    time_s = np.exp(rows.form.log_s(truth, rows.work()))
    fitted = fit_each_implementation(rows, time_s)
    np.testing.assert_allclose(fitted.theta[0], truth, atol=5e-3)  # pulled to where fits start


def without_ripples(device: str, number: int, seed: int) -> tuple[FamilyRows, np.ndarray]:
    rows = rows_of(device, number, seed)
    noise = NOISE * np.random.default_rng(seed + 50).normal(size=number)
    return rows, np.exp(
        WAVE_ROOFLINE.log_s(true_theta(device, rows.implementation), rows.work()) + noise
    )


def test_knobs_are_recovered_from_rows() -> None:
    knobs = fit_each_implementation(*without_ripples("new", 2000, 0))
    assert knobs.implementations == IMPLEMENTATIONS
    np.testing.assert_allclose(
        knobs.of(np.array(IMPLEMENTATIONS, object))[:, :3],
        true_theta("new", np.array(IMPLEMENTATIONS, object))[:, :3],
        atol=0.08,
    )


def test_the_population_is_the_mean_of_devices_and_knobs_shrink_to_it() -> None:
    fitted = {
        name: fit_each_implementation(*without_ripples(name, 1500, seed))
        for seed, name in enumerate(("old", "middle", "new"))
    }
    usual = population(WAVE_ROOFLINE, fitted)
    mean = np.mean([knobs.theta for knobs in fitted.values()], 0)
    np.testing.assert_allclose(usual.mean_of(IMPLEMENTATIONS), mean, atol=0.15)
    never = (
        usual.typical()
        .including(usual, np.array(["never seen"], object))
        .of(np.array(["never seen"], object))
    )
    np.testing.assert_allclose(never[0], mean.mean(0), atol=0.15)
    assert (usual.spread > 0).all()


def test_knobs_that_rows_do_not_tell_apart_come_together() -> None:
    """One device's rows end where neither steps nor waves matter."""
    rows = {"old": rows_of("old", 400, 1), "new": rows_of("new", 400, 2, (11.0, 14.0))}
    rows = {name: dataclasses.replace(one, steps=one.blocks * 8) for name, one in rows.items()}
    measured = {name: (one, time_of(name, one, 3, own=0.0)) for name, one in rows.items()}
    alone = {name: fit_each_implementation(*one) for name, one in measured.items()}
    together = fit_together(measured, alone, {})
    apart = [np.abs(own["old"].theta - own["new"].theta).mean() for own in (alone, together)]
    assert apart[1] < 0.8 * apart[0]
    for name, (one, time_s) in measured.items():
        before, after = (
            np.median(np.abs(own[name].closed(one).total - np.log(time_s)))
            for own in (alone, together)
        )
        assert after < 1.2 * before  # they tell the rows as well


def test_kin_are_where_a_device_starts() -> None:
    """Their knobs where they were measured, and what is usual elsewhere; without a
    reference a device starts from all.
    """
    one, two, three = np.zeros(KNOBS), np.ones(KNOBS), np.full(KNOBS, 3.0)
    devices = {
        "a": ImplementationKnobs(("x",), one[None], one),
        "b": ImplementationKnobs(("x", "y"), np.stack([two, two]), two),
        "c": ImplementationKnobs(("x", "y"), np.stack([three, three]), three),
    }
    usual = population(WAVE_ROOFLINE, devices)
    x, y = usual.mean_of(("x", "y"))[:, 0]
    assert 1 < x < 2
    assert 1 < y < 2.5
    np.testing.assert_allclose(
        usual.with_references(["a", "b"]).mean_of(("x", "y"))[:, 0], [0.5, 1.0]
    )
    np.testing.assert_allclose(
        usual.with_references(["a"]).mean_of(("x", "y"))[:, 0], [0.0, y], atol=1e-12
    )
    np.testing.assert_allclose(
        usual.with_references(["a"]).spread_of(("x", "y")) / usual.spread,
        [[0.5] * KNOBS, [1.0] * KNOBS],
    )
    assert usual.with_references([]) is usual


def test_an_implementation_that_nobody_met_is_made_of_its_words() -> None:
    """Of three names of two words each, the fourth is their sum; a device measured in few names
    moves what is usual little.
    """
    theta = {"a|u": 0.0, "a|v": 1.0, "b|u": 2.0}
    devices = {
        name: ImplementationKnobs(
            tuple(theta), np.array([[t + moved] * KNOBS for t in theta.values()]), np.zeros(KNOBS)
        )
        for name, moved in (("one", 0.0), ("two", 0.2))
    }
    usual = population(WAVE_ROOFLINE, devices)
    met, (fourth,) = usual.mean_of(tuple(theta)), usual.mean_of(("b|v",))
    np.testing.assert_allclose(met[:, 0], [0.1, 1.1, 2.1], atol=0.3)
    assert fourth[0] > met[:, 0].mean() + 0.5
    far = ImplementationKnobs(("a|u",), np.full((1, KNOBS), 3.0), np.zeros(KNOBS))
    pulled = population(WAVE_ROOFLINE, {**devices, "three": far}).mean_of(tuple(theta)) - met
    assert pulled[0, 0] > 1.2 * pulled[2, 0] > 0


def test_versions_share_what_their_library_shows() -> None:
    """Rows of one version move the other versions of its library more than other libraries."""
    names = ("x#1", "x#2", "z#1")
    theta = np.tile(WAVE_ROOFLINE.start, (3, 1))
    usual = population(
        WAVE_ROOFLINE,
        {
            "old": ImplementationKnobs(names, theta, theta[0]),
            "older": ImplementationKnobs(names, theta, theta[0]),
        },
    )
    rows, _ = without_ripples("old", 300, 3)
    mine = dataclasses.replace(rows, implementation=np.full(len(rows), "x#1", object))
    slow = np.exp(WAVE_ROOFLINE.log_s(WAVE_ROOFLINE.start, mine.work())) * 1.5
    moved = np.abs(
        fit_new(usual, mine, slow).of(np.array(names, object)) - usual.mean_of(names)
    ).sum(1)
    assert moved[0] > moved[1] > moved[2] > 0


def test_rows_of_one_implementation_tell_something_of_the_others() -> None:
    theta = true_theta("old", np.array(IMPLEMENTATIONS, object))
    usual = Population(IMPLEMENTATIONS, np.full(KNOBS, 0.2), ("old",), theta[None])
    rows, time_s = without_ripples("old", 300, 3)
    eager = np.flatnonzero(rows.implementation == "eager")
    slower = fit_new(usual, rows.rows(eager), 1.3 * time_s[eager])
    change = slower.theta - usual.mean_of(IMPLEMENTATIONS)
    assert (change[:, 0] > 0.02).all(), "the floor rises in both"
    assert (change[:, 1] < -0.02).all(), "and the share of the peak falls"
    assert np.abs(change[0, 1]) > np.abs(change[1, 1]), "most where rows were"


# --- the process ----------------------------------------------------------------------------------


def some_examples(number: int = 40) -> Examples:
    random = np.random.default_rng(4)
    x = random.normal(size=(number, 6))
    f = 0.1 * random.normal(size=number)
    return Examples(x, f, 0.5 * f + 0.2 * np.sin(x[:, 0]) + 0.03 * random.normal(size=number))


def test_leaving_one_row_out_equals_learning_without_it() -> None:
    hyper, rows = process.start_hyper(6), some_examples()
    _, error, deviation = process.learn(hyper, rows)
    for i in range(0, len(rows), 7):
        without, *_ = process.learn(hyper, rows.rows(np.arange(len(rows)) != i))
        added, sd = without.predict(rows.x[i : i + 1], rows.f[i : i + 1])
        assert error[i] == pytest.approx(hyper.belief * rows.f[i] + added[0] - rows.r[i], abs=1e-5)
        assert deviation[i] == pytest.approx(sd[0], rel=1e-4)


def test_derivatives_of_the_likelihood_are_those_of_differences() -> None:
    rows, flat, step = some_examples(), process.start_hyper(6).flat(), 1e-5
    _, slope = process.unlikeliness(HyperParameters.of(flat), rows)
    for i, wanted in enumerate(slope.flat()):
        up, down = (
            process.unlikeliness(
                HyperParameters.of(flat + sign * step * np.eye(len(flat))[i]), rows
            )[0]
            for sign in (1, -1)
        )
        assert wanted == pytest.approx((up - down) / (2 * step), abs=2e-4)


# --- no rows, few rows, many rows -----------------------------------------------------------------


def test_without_rows_the_usual_knobs_and_the_trunk_speak(
    prior: FamilyPrior, test_rows: tuple[FamilyRows, np.ndarray]
) -> None:
    rows, _ = test_rows
    said = adapt(prior).predict(rows)
    on = prior.population.typical().closed(rows)
    _, f, _ = prior.trunk(rows, on)
    np.testing.assert_array_equal(said.closed_log_s, on.total)
    np.testing.assert_allclose(said.log_s, on.total + family.bounded(prior.hyper.belief * f))


def test_each_step_of_knowledge_helps(
    prior: FamilyPrior, few: Adapted, test_rows: tuple[FamilyRows, np.ndarray]
) -> None:
    rows, time_s = test_rows
    closed_only = float(np.median(np.abs(np.exp(few.predict(rows).closed_log_s) / time_s - 1)))
    cold = adapt(prior)
    assert error(cold, rows, time_s) < float(
        np.median(np.abs(np.exp(cold.predict(rows).closed_log_s) / time_s - 1))
    )
    assert error(few, rows, time_s) < min(0.6 * closed_only, error(cold, rows, time_s))


def test_intervals_hold_what_they_promise(
    prior: FamilyPrior, few: Adapted, test_rows: tuple[FamilyRows, np.ndarray]
) -> None:
    rows, time_s = test_rows
    for model, least in ((adapt(prior), 0.8), (few, 0.82)):
        said = model.predict(rows)
        assert (
            least
            <= ((said.low_log_s <= np.log(time_s)) & (np.log(time_s) <= said.high_log_s)).mean()
        )
    assert len(few.held_out) == few.rows


def test_without_rows_all_ops_in_range_are_as_unsure(
    prior: FamilyPrior, test_rows: tuple[FamilyRows, np.ndarray]
) -> None:
    cold = adapt(prior)
    said = cold.predict(test_rows[0])
    near = said.outside == 0
    np.testing.assert_allclose((said.high_log_s - said.log_s)[near], prior.log_width)
    assert cold.typical_log_width == prior.log_width


def test_devices_are_left_out_alone_and_with_their_kin() -> None:
    kinds = {"h100": "hopper", "h200": "hopper", "a100": "ampere"}
    alone = [("a100",), ("h100",), ("h200",)]
    assert family._folds(["a100", "h100", "h200"], kinds) == [*alone, ("h100", "h200")]
    assert family._folds(["h100", "h200"], kinds) == [("h100",), ("h200",)], "nobody would be left"
    assert family._folds(["a100", "h100", "h200"], {}) == alone, "of unknown kind"


def test_without_rows_the_trunk_fades_sooner_than_with(prior: FamilyPrior, few: Adapted) -> None:
    """An octave beyond the slack the closed form is left, but for a fiftieth; a device's rows vouch
    for the trunk for longer.
    """
    beyond = rows_of("other", 400, 8, octaves=(13.0, 14.0))
    cold = adapt(prior).predict(beyond)
    away = cold.outside > 1
    on = prior.population.typical().closed(beyond)
    _, f, _ = prior.trunk(beyond, on)
    assert away.any()
    assert (np.abs(cold.log_s - cold.closed_log_s) <= 0.02 * np.abs(prior.hyper.belief * f) + 1e-9)[
        away
    ].all()
    warm = few.predict(beyond)
    assert np.abs(warm.log_s - warm.closed_log_s)[away].max() > 0.02


def test_kin_have_an_interval_of_their_own() -> None:
    """Two devices of a kind vouch for each other; a stranger among three is judged by folds without
    any reference device.
    """
    devices = {name: rows_of(name, 300, seed) for seed, name in enumerate(("old", "middle", "new"))}
    measured = {name: (rows, time_of(name, rows, 9)) for name, rows in devices.items()}
    recipe = TrainingRecipe(steps=20, batch=64)
    some = train_family(
        measured, recipe=recipe, architectures={"old": "a", "middle": "b", "new": "b"}
    )
    assert some.reference_log_width is not None
    assert some.with_references(["new"]).log_width == some.reference_log_width
    assert some.with_references([]).log_width == some.log_width
    assert train_family(measured, recipe=recipe).reference_log_width is None
    assert some.log_widths == {}


def test_an_implementation_that_is_told_well_has_a_narrower_interval() -> None:
    """One implementation follows the form on all devices, the other by a factor that nothing
    tells: without rows the first is surer, and a name that nobody met is as unsure as the family.
    """
    measured = {}
    for seed, name in enumerate(("old", "middle", "new")):
        rows = rows_of(name, 800, seed)
        odd = np.where(rows.implementation == "fused", np.exp(1.2 * (seed - 1)), 1.0)
        measured[name] = rows, odd * time_of(name, rows, 9)
    known = train_family(measured, recipe=QUICK, width_by_implementation=True)
    widths = known.half_widths(np.array(["eager", "fused", "unknown"], object))
    assert widths[0] < 0.6 * widths[1]
    assert widths[2] == known.log_width
    rows = rows_of("other", 200, 3)
    said = adapt(known).predict(rows)
    half, eager = said.high_log_s - said.log_s, rows.implementation == "eager"
    assert half[eager & (said.outside == 0)].max() < half[~eager].min()
    again = FamilyPrior.read(known.arrays(), known.document())
    assert again.log_widths == known.log_widths


def test_few_rows_of_a_near_relative_cost_nothing(prior: FamilyPrior) -> None:
    """Where a device is all but one of the prior, rows of much noise have little to add; where it
    is not, they take over, although the prior says the same of both.
    """
    from_new = prior.with_references(["new"])
    test = rows_of("new", 1000, 31)
    measured = time_of("new", test, 32)
    rows = rows_of("new", 25, 33)
    noisy = time_of("new", rows, 34) * np.exp(0.15 * np.random.default_rng(35).normal(size=25))
    cold, near = adapt(from_new), adapt(from_new, rows, noisy)
    assert near.cold_share > 0.5
    assert error(near, test, measured) < 1.1 * error(cold, test, measured)
    by_rows_alone = dataclasses.replace(near, cold_share=0.0)
    assert error(near, test, measured) < 0.9 * error(by_rows_alone, test, measured)
    assert_read_back(near, test)

    slower = adapt(from_new, rows, 2 * time_of("new", rows, 34))
    assert slower.cold_share < 0.1
    assert error(slower, test, 2 * measured) < 0.3 * error(cold, test, 2 * measured)
    assert adapt(prior, rows, noisy).cold_share == 0  # no device of its architecture


def test_corrections_fade_far_from_everything(prior: FamilyPrior, few: Adapted) -> None:
    far = rows_of("other", 50, 8, octaves=(30.0, 31.0))
    for model in (adapt(prior), few):
        said = model.predict(far)
        assert (said.outside > 10).all()
        np.testing.assert_allclose(said.log_s, said.closed_log_s, atol=1e-6)
    near = few.predict(rows_of("other", 50, 8, octaves=(8.0, 9.0)))
    assert np.median(few.predict(far).high_log_s - few.predict(far).low_log_s) > np.median(
        near.high_log_s - near.low_log_s
    )


def test_no_correction_leaves_the_bound(prior: FamilyPrior) -> None:
    rows = rows_of("other", 40, 5)
    model = adapt(prior, rows, 1e4 * time_of("other", rows, 6))
    said = model.predict(rows_of("other", 200, 6))
    assert (np.abs(said.log_s - said.closed_log_s) <= BOUND).all()


def test_many_rows_tune_the_networks_and_none_is_kept(
    prior: FamilyPrior, test_rows: tuple[FamilyRows, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapted, "MOST_KEPT_ROWS", 1000)
    monkeypatch.setattr(adapted, "_LEAST_TUNING_STEPS", 400)
    rows = rows_of("other", 1500, 12)
    model = adapt(prior, rows, time_of("other", rows, 13))
    assert model.process is None
    assert len(model.held_out) == 300
    assert (
        max(np.size(array) for name, array in model.arrays().items() if "trunk" not in name) < 500
    )
    held, time_s = test_rows
    assert error(model, held, time_s) < 0.05
    said = model.predict(held)
    assert (
        (said.low_log_s <= np.log(time_s)) & (np.log(time_s) <= said.high_log_s)
    ).mean() == pytest.approx(0.9, abs=0.06)
    assert_read_back(model, held)


def assert_read_back(model: Adapted, rows: FamilyRows) -> None:
    again = Adapted.read(model.arrays(), model.document())
    for field in dataclasses.fields(again.predict(rows)):
        np.testing.assert_array_equal(
            getattr(again.predict(rows), field.name), getattr(model.predict(rows), field.name)
        )


def test_what_is_saved_predicts_the_same(
    prior: FamilyPrior, few: Adapted, test_rows: tuple[FamilyRows, np.ndarray]
) -> None:
    assert_read_back(few, test_rows[0])
    assert_read_back(adapt(prior), test_rows[0])
    again = FamilyPrior.read(prior.arrays(), prior.document())
    np.testing.assert_array_equal(
        adapt(again).predict(test_rows[0]).log_s, adapt(prior).predict(test_rows[0]).log_s
    )


def test_the_same_rows_give_the_same_model(
    prior: FamilyPrior, few: Adapted, test_rows: tuple[FamilyRows, np.ndarray]
) -> None:
    rows = rows_of("other", 120, 5)
    again = adapt(prior, rows, time_of("other", rows, 6))
    np.testing.assert_array_equal(
        again.predict(test_rows[0]).log_s, few.predict(test_rows[0]).log_s
    )


def test_a_row_does_not_depend_on_its_neighbours(
    few: Adapted, test_rows: tuple[FamilyRows, np.ndarray]
) -> None:
    rows, _ = test_rows
    whole, part = few.predict(rows), few.predict(rows.rows(np.arange(10)))
    np.testing.assert_allclose(whole.log_s[:10], part.log_s, atol=1e-4)


def test_devices_with_one_implementation_or_one_device_still_make_a_prior() -> None:
    rows = rows_of("old", 300, 0)
    alone = train_family(
        {"old": (rows, time_of("old", rows, 1))}, recipe=TrainingRecipe(steps=20, batch=64)
    )
    assert alone.quantile > 0
    assert np.isfinite(adapt(alone).predict(rows).log_s).all()


def test_times_that_cannot_be_are_an_error(prior: FamilyPrior) -> None:
    rows = rows_of("other", 20, 5)
    with pytest.raises(ValueError, match="above zero"):
        adapt(prior, rows, np.zeros(20))


def test_rows_of_several_devices_below_each_other() -> None:
    both = concatenate([rows_of("old", 5, 0), rows_of("new", 3, 1)])
    assert len(both) == 8
    np.testing.assert_array_equal(both.rows(np.arange(5, 8)).work(), rows_of("new", 3, 1).work())
