"""What known CPUs show is a prior for the next one; where the roofline is nearer, it is kept."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import load_device
from hybridperf.io import InputError, write_table
from hybridperf.learning.prior.shipped import load_prior
from hybridperf.model import PerfModel, neutral_knobs
from hybridperf.model.fit import device as device_fit
from hybridperf.model.fit import rows as fit_rows
from hybridperf.model.fit.device import fit
from hybridperf.ops import GROUPS
from hybridperf_calibration.ship import cpus

FACTS = """
[some_cpu]
name = "Some CPU"
vendor = "nobody"
arch = "x86_64"
kind = "cpu"
peak_flops_per_s = { fp32 = 1.5e11 }
memory_bytes_per_s = 2.5e10
memory_bytes = 2.5e10
l1_bytes = 32768
l2_bytes = 1048576
l3_bytes = 33554432
multiprocessors = 1
source = "made up"
"""
FEW = 5  # of each op, on the machine that is calibrated


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    path = tmp_path_factory.mktemp("measured") / "some_cpu" / "device.toml"
    path.parent.mkdir()
    path.write_text(FACTS)
    return path


def rows(facts, each: int, seed: int) -> pd.DataFrame:
    """Products and softmaxes whose efficiency ripples over a size, as it does on a real CPU."""
    random = np.random.default_rng(seed)
    size = lambda low, high: np.round(np.exp2(random.uniform(low, high, each)))  # noqa: E731
    frame = pd.concat([
        pd.DataFrame({"op": "gemm", "m": size(5, 10), "n": size(5, 10), "k": size(5, 10)}),
        pd.DataFrame({"op": "softmax", "rows": size(6, 11), "cols": size(5, 10)}),
    ], ignore_index=True).assign(dtype="fp32", library="jax")  # fmt: skip
    n = len(GROUPS)
    knobs = dataclasses.replace(
        neutral_knobs(), floor_s=np.full(n, 2e-6), compute_efficiency=np.full(n, 0.4),
        memory_efficiency=np.full(n, 0.6), transcendental_flops=np.full(n, 12.0),
    )  # fmt: skip
    device = load_device(facts)
    data = fit_rows.read_measurements(frame.assign(time_s=1.0), device)
    ripple = 0.4 * np.sin(2.5 * np.log2(data.rows["n"].fillna(data.rows["cols"])))
    noise = 0.02 * random.normal(size=len(data.rows))
    exact_s = PerfModel(device, knobs).op_seconds(data.table)
    return data.rows.assign(time_s=exact_s * np.exp(ripple + noise))


@pytest.fixture(scope="module")
def shipped(facts, tmp_path_factory):
    """The prior over a CPU with many rows, written as `calibrations --only cpus` does."""
    out, said = tmp_path_factory.mktemp("prior"), []
    write_table(rows(facts, 200, seed=1), facts.parent / "jax.csv.gz")
    cpus.run(facts.parent.parent, out, said.append)
    assert said == ["cpu_jax: some_cpu"]
    return out / "cpu_jax"


def mean_error(model: PerfModel, unseen: pd.DataFrame, device) -> float:
    data = fit_rows.read_measurements(unseen, device)
    predicted_s = model.predict_ops(data.rows.drop(columns="time_s"))["predicted_s"]
    return float(np.abs(np.log(predicted_s / data.measured_s)).mean())


def test_a_cpu_with_few_rows_is_predicted_by_what_another_showed(facts, shipped) -> None:
    device, few, unseen = load_device(facts), rows(facts, FEW, seed=2), rows(facts, 100, seed=3)
    after, report = fit(few, device, prior=str(shipped))
    alone, _ = fit(few, device, prior="none")
    assert report.kept == ()
    assert mean_error(after, unseen, device) < 0.5 * mean_error(alone, unseen, device)


def test_a_prior_of_other_cores_is_not_taken_unasked(facts, shipped, monkeypatch) -> None:
    monkeypatch.setattr(device_fit, "is_installed", lambda name: True)
    monkeypatch.setattr(device_fit, "load_prior", lambda name: load_prior(shipped))
    few, device = rows(facts, FEW, seed=2), load_device(facts)
    on_two = device.model_copy(update={"multiprocessors": 2})
    taken = [fit(few, one)[0].knobs.compute_efficiency for one in (device, on_two)]
    none = fit(few, device, prior="none")[0].knobs.compute_efficiency
    assert not np.allclose(taken[0], none)
    np.testing.assert_allclose(taken[1], none)


def test_a_folder_without_tables_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match=r"expected tables NAME/jax\.csv\.gz .* found none"):
        cpus.run(tmp_path, tmp_path)


def test_the_roofline_times_a_constant_is_kept_where_it_is_nearer(facts) -> None:
    device, frame = load_device(facts), rows(facts, 40, seed=4)
    data = fit_rows.read_measurements(frame, device)
    datasheet = PerfModel.datasheet(device)
    plain_s = datasheet.op_seconds(data.table)
    softmax = GROUPS.index("softmax")
    mine = data.table.group == softmax
    # softmaxes take 3 roofs, a fit errs by 20 %; products are as fitted
    times = np.where(mine, 3 * plain_s, data.measured_s)
    data = dataclasses.replace(data, measured_s=times)
    errors = np.where(mine, 0.2, 0.0)
    fold = fit_rows.deal_folds(data.table.group)
    without = [datasheet.knobs] * fit_rows.FOLDS
    knobs, kept = device_fit._guarded(data, device, datasheet.knobs, without, fold, errors)
    assert kept == [softmax]
    np.testing.assert_allclose(errors, 0.0, atol=1e-12)
    found_s = PerfModel(device, knobs).op_seconds(data.table)
    np.testing.assert_allclose(found_s[mine], times[mine])
    np.testing.assert_allclose(found_s[~mine], plain_s[~mine])
