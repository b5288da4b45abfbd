"""A family of ops that go row by row: its law where nothing was measured, its bounds, old files."""

import dataclasses

import numpy as np
import pytest
from support.part_calls import rows_of as one_op

import hybridperf as hp
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.learning.prior import Adapted, FamilyRows, adapt, concatenate, uninformed
from hybridperf.learning.prior.form import ROW_ROOFLINE
from hybridperf.ops import Norm
from hybridperf.ops.rows import KERNEL_S, RowMachine, row_seconds, row_work

V100 = hp.load_device("v100_pcie_32g")


def rows_of(library: str, *sizes: tuple[float, float]) -> FamilyRows:
    return concatenate([one_op(Norm("fp32", *size), V100, library) for size in sizes])


SIZES = [(float(rows), float(cols)) for rows in (512, 2048, 8192) for cols in (512, 1024, 4096)]


@pytest.fixture(scope="module")
def launched() -> Adapted:
    """Adapted to layer norms that took 40 us of launch besides 1.2 times the law."""
    rows = rows_of("pytorch", *SIZES)
    law_s = np.exp(ROW_ROOFLINE.log_s(np.tile(ROW_ROOFLINE.start, (len(rows), 1)), rows.work()))
    return adapt(uninformed(rows), rows, 40e-6 + 1.2 * (law_s - KERNEL_S))


def test_a_library_that_nobody_measured_goes_by_the_law_as_sure_as_that_is(launched) -> None:
    for library, most in (("cudnn", 0.0), ("", 0.1)):
        rows = rows_of(library, (4096.0, 2048.0))
        found = launched.predict(rows)
        work = row_work(Norm("fp32", 4096.0, 2048.0), RowMachine.of(V100), library)
        assert np.exp(found.log_s) == pytest.approx(row_seconds(work.amounts), rel=0.05)
        sd = np.hypot(ROW_ROOFLINE.law_sd, work.library_sd)
        assert found.high_log_s - found.log_s == pytest.approx(NINE_OF_TEN * sd)
        assert work.library_sd >= most


def test_its_own_library_keeps_what_was_learned_and_pays_no_launch_issued_apart(launched) -> None:
    rows = rows_of("pytorch", (4096.0, 2048.0))
    work = row_work(Norm("fp32", 4096.0, 2048.0), RowMachine.of(V100), "pytorch")
    body_s = 1.2 * (float(row_seconds(work.amounts)) - KERNEL_S)
    (timed, apart) = (
        float(np.exp(launched.predict(rows, alone).log_s[0]))
        for alone in (None, np.array([KERNEL_S]))
    )
    assert timed == pytest.approx(40e-6 + body_s, rel=0.05)
    assert apart == pytest.approx(KERNEL_S + body_s, rel=0.15)


def test_what_was_learned_stays_within_bounds_far_from_what_was_measured(launched) -> None:
    moved = dataclasses.replace(launched.knobs, theta=launched.knobs.theta + np.log(30.0))
    wild = dataclasses.replace(launched, knobs=moved)
    for sizes in ((2.0**17, 64.0), (64.0, 2.0**17)):
        rows = rows_of("pytorch", sizes)
        floor_s = np.exp(wild.knobs.of(rows.implementation)[:, 0])
        assert wild.predict(rows).outside[0] > 0
        assert np.exp(wild.predict(rows).log_s) <= 1.0001 * (
            rows.most * np.exp(rows.log_roofline_s()) + floor_s
        )
    quick = dataclasses.replace(moved, theta=launched.knobs.theta - np.log(1e3))
    rows = rows_of("pytorch", *SIZES)
    least = dataclasses.replace(launched, knobs=quick).predict(rows).log_s
    assert (least >= rows.log_roofline_s() - 1e-9).all()


def test_a_family_of_an_older_file_is_priced_as_it_was() -> None:
    rows = rows_of("", *SIZES)
    old = rows.in_waves()
    time_s = np.exp(old.form.log_s(np.tile(old.form.start, (len(old), 1)), old.work()))
    then = adapt(uninformed(old), old, time_s)
    document = then.document()
    document["prior"].pop("form", None)
    again = Adapted.read(then.arrays(), document)
    assert again.predict(rows).log_s == pytest.approx(then.predict(old).log_s)
    assert np.exp(again.predict(rows).log_s) == pytest.approx(time_s, rel=0.1)
