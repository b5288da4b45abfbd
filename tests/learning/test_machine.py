"""What a datasheet says of knobs: taken off measured devices, put on the one asked for."""

import dataclasses

import numpy as np
import pytest

from hybridperf.learning.prior.family import FamilyPrior, uninformed
from hybridperf.learning.prior.form import NO_FACTS, WAVE_ROOFLINE, Machine
from hybridperf.learning.prior.knobs import ImplementationKnobs, Population, fit_new, population
from tests.learning.test_prior import rows_of

NAMES = ("gemm|eager|bf16", "gemm|eager|fp32")
KNOBS = WAVE_ROOFLINE.knobs
FLOOR, PEAK = KNOBS.index("floor_s"), KNOBS.index("compute_efficiency")


def knobs(floor_s: float, efficiency: tuple[float, float]) -> ImplementationKnobs:
    theta = np.log([[floor_s, share, 0.75, 2.0, 4e-7, 2e-8] for share in efficiency])
    return ImplementationKnobs(NAMES, theta, theta.mean(0))


def of_two(machines: dict[str, Machine] | None) -> Population:
    """Two devices: floors of 8,000 cycles at 1 and 2 GHz; one holds half its fp32 peak."""
    devices = {"slow": knobs(8e-6, (0.8, 0.4)), "quick": knobs(4e-6, (0.8, 0.8))}
    return population(WAVE_ROOFLINE, devices, machines)


FACTS = {"slow": Machine(1e9, {"fp32": 0.5}), "quick": Machine(2e9)}


def test_a_device_starts_from_cycles_and_from_what_its_power_lets_it_hold() -> None:
    asked = of_two(FACTS).on(Machine(4e9, {"fp32": 0.25}, 0.5))
    start = np.exp(asked.mean_of(NAMES))
    np.testing.assert_allclose(start[:, FLOOR], 2e-6)
    np.testing.assert_allclose(start[:, PEAK], [0.8, 0.2])
    # what facts explain is no scatter among devices
    for knob in (FLOOR, PEAK):
        assert of_two(FACTS).spread[knob] < 0.5 * of_two(None).spread[knob]


def test_references_are_taken_over_by_the_same_facts() -> None:
    asked = of_two(FACTS).with_references(["slow"]).on(Machine(2e9))
    np.testing.assert_allclose(np.exp(asked.mean_of(NAMES))[:, FLOOR], 4e-6)
    np.testing.assert_allclose(np.exp(asked.mean_of(NAMES))[:, PEAK], [0.8, 0.8])


def test_what_was_not_measured_stays_below_the_peak() -> None:
    """The slow device sustains half its fp32 peak and reaches 1.2 of that; none other tells."""
    devices = {"slow": knobs(8e-6, (0.8, 0.6)), "quick": knobs(4e-6, (0.8, 0.8))}
    only = ImplementationKnobs(NAMES[:1], devices["quick"].theta[:1], devices["quick"].other)
    usual = population(WAVE_ROOFLINE, {**devices, "quick": only}, FACTS).on(Machine(2e9))
    assert np.exp(usual.mean_of(NAMES))[1, PEAK] > 0.9
    at_most = pytest.approx(0.8)
    assert np.exp(usual.typical().theta)[1, PEAK] == at_most
    # a device of the quick one's kind with rows of the other implementation
    rows = dataclasses.replace(rows_of("new", 60, 1), implementation=np.full(60, NAMES[0], object))
    kin = usual.with_references(["quick"])
    time_s = np.exp(
        ImplementationKnobs(NAMES[:1], kin.mean_of(NAMES[:1]), only.other).closed(rows).total
    )
    assert np.exp(fit_new(kin, rows, time_s).theta)[1, PEAK] == pytest.approx(0.8, rel=0.05)
    everything = dataclasses.replace(rows, implementation=np.array(NAMES * 30, object))
    assert len(fit_new(kin, everything, time_s).implementations) == 2


def test_without_facts_of_the_devices_none_of_another_count() -> None:
    usual = of_two(None)
    assert usual.on(Machine(4e9)) is usual
    np.testing.assert_array_equal(NO_FACTS.moves(NAMES, len(KNOBS)), 0.0)


def test_facts_are_written_and_read_back() -> None:
    bare = uninformed(rows_of("old", 40, 0))
    prior = FamilyPrior(of_two(FACTS), *list(vars(bare).values())[1:]).on(Machine(3e9))
    again = FamilyPrior.read(prior.arrays(), prior.document())
    assert again.population.machines == tuple(FACTS.values())
    np.testing.assert_array_equal(again.population.mean_of(NAMES), prior.population.mean_of(NAMES))
    # a file written before facts were known
    old = {k: v for k, v in prior.document().items() if k not in ("machine", "machines")}
    older = FamilyPrior.read(prior.arrays(), old).population
    np.testing.assert_array_equal(older.mean_of(NAMES), of_two(None).mean_of(NAMES))
