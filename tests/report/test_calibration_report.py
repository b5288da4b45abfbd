"""What a calibration's report warns of: each thing by its sentence, and nothing else."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hybridperf.model.fit.device import fit
from hybridperf.model.fit.this_machine import Calibration
from hybridperf.report.calibration import (
    calibration_pictures,
    calibration_report,
    careful_about,
)


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> Calibration:
    """Of 40 products and 12 allocations on one core that nobody else used: nothing to warn of but
    what it holds for.
    """
    rng = np.random.default_rng(0)
    sizes = np.round(2 ** rng.uniform(5, 10, (40, 3)))
    rows = pd.DataFrame(sizes, columns=["m", "n", "k"]).assign(op="gemm", dtype="fp32")
    rows["time_s"] = 1e-6 + 2.0 * sizes.prod(axis=1) / 5e10
    fresh = pd.DataFrame({"op": "allocation", "dtype": "fp32", "bytes": 1e6 * np.arange(1, 13)})
    fresh["time_s"] = fresh["bytes"] / 2e9
    rows = pd.concat([rows, fresh], ignore_index=True)
    rows["time_s"] *= np.exp(0.02 * rng.standard_normal(len(rows)))
    rows = rows.assign(noise=0.02, load=1.0, slowness=0.01, device="here", cores=1)
    facts = {"made_by": "hybridperf calibrate --quick", "cores": "3", "measured_completely": True}
    model, report = fit(rows, "here", prior="none", provenance=facts)
    return Calibration(model, report, rows, tmp_path_factory.mktemp("calibration"))


def warned(calibration: Calibration) -> list[str]:
    """Without what every calibration says."""
    said = careful_about(calibration)
    scope = [s for s in said if s.startswith(("Times are of memory", "It is of "))]
    return [s for s in said if s not in scope]


def test_a_calm_calibration_says_only_what_it_holds_for(calm: Calibration) -> None:
    assert not warned(calm)
    touched, cores = careful_about(calm)
    assert "fresh memory comes at 2 GB/s" in touched
    assert "`taskset -c 3`" in cores
    assert calibration_report(calm).endswith(f"Where to be careful:\n- {touched}\n- {cores}")


def changed_table(calibration: Calibration, **columns: object) -> Calibration:
    table = calibration.report.table.assign(**columns)
    return dataclasses.replace(
        calibration, report=dataclasses.replace(calibration.report, table=table)
    )


def changed_rows(calibration: Calibration, **columns: object) -> Calibration:
    return dataclasses.replace(calibration, rows=calibration.rows.assign(**columns))


def changed_model(calibration: Calibration, **fields: object) -> Calibration:
    return dataclasses.replace(calibration, model=dataclasses.replace(calibration.model, **fields))


def wider(calibration: Calibration, half_width: float | None) -> Calibration:
    groups = dict(calibration.model.groups)
    groups["gemm"] = dataclasses.replace(groups["gemm"], half_width=half_width)
    return changed_model(calibration, groups=groups)


def unfinished(calibration: Calibration) -> Calibration:
    facts = {**calibration.model.provenance, "measured_completely": False}
    return changed_model(calibration, provenance=facts)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: changed_table(c, roofline_ape=[1.0, 0.001]),
         r"than the datasheet roofline on held-out rows: gemm \(\d+ %, the roofline 0 %\)"),
        (lambda c: changed_table(c, rows=[4, 40]),
         r"Fewer than 10 rows: allocation \(4\); the full setting measures more\."),
        (lambda c: wider(c, 1.37), r"a factor of 2 or more either way: gemm \(x2\.4\)"),
        (lambda c: wider(c, None), r"Too few rows for any interval: gemm"),
        (lambda c: changed_rows(c, noise=0.2), r"two measurements of one case differ by 20\.0 %"),
        (lambda c: changed_model(c, drift=(-0.1, 0.0, 0.2)), r"speed changed by 35 % while"),
        (lambda c: changed_rows(c, slowness=0.3), r"100 % of the rows were measured while"),
        (lambda c: changed_rows(c, alone=0.7), r"beside 30 % of the calls, which do not count"),
        (lambda c: changed_rows(c, load=1e4), r"a load of 10000\.0"),
        (lambda c: dataclasses.replace(c, report=dataclasses.replace(c.report, kept=("sort",))),
         r"Kept at the datasheet roofline times a constant, which is nearer: sort"),
        (unfinished, r"the same call goes on"),
    ],
)  # fmt: skip
def test_each_thing_to_be_careful_about_has_its_sentence(
    calm: Calibration, change, says: str
) -> None:
    (sentence,) = warned(change(calm))
    assert re.search(says, sentence), sentence


def test_more_than_six_families_are_counted(calm: Calibration) -> None:
    table = calm.report.table
    many = pd.concat([table[table["op"] == "allocation"].assign(op=f"op{n}", rows=3)
                      for n in range(9)])  # fmt: skip
    report = dataclasses.replace(calm.report, table=many)
    (sentence,) = warned(dataclasses.replace(calm, report=report))
    assert "op5 (3) and 3 others" in sentence


def test_pictures_stand_in_the_folder_by_their_names(calm: Calibration) -> None:
    (calm.folder / "png").write_bytes(b"of an earlier version")
    drawn = calibration_pictures(calm)
    assert {path.name for path in calm.folder.iterdir()} == {*drawn, "learning_curve.csv"}
    assert all(Path(calm.folder, name).stat().st_size > 10_000 for name in drawn)
