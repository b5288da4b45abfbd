"""Surprising figures are explained where they are shown: below the roofline, over 100 % of a
datasheet, an interval of many times, the machine that a model is of.
"""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.cli.known import over_datasheet
from hybridperf.hardware.this_machine import this_cpu
from hybridperf.model.group_report import below_roofline
from hybridperf.report.prediction import machine_words, prediction_report

MIB = 2.0**20


@pytest.fixture(scope="module")
def cpu():
    return this_cpu(1).model_copy(
        update={"name": "some CPU", "l2_bytes": MIB, "l3_bytes": 32 * MIB}
    )


@pytest.fixture(scope="module")
def model(cpu):
    """Fitted to loops that run from a cache at four times the bandwidth of memory."""
    rng = np.random.default_rng(0)
    sizes = 2 ** rng.integers(6, 12, (40, 2))
    moved = 8.0 * sizes.prod(axis=1)
    rate = np.where(moved < 8e6, 4.0, 0.5) * cpu.memory_bytes_per_s
    columns = {"rows": sizes[:, 0], "cols": sizes[:, 1], "time_s": 2e-6 + moved / rate}
    return hp.fit(pd.DataFrame({"op": "relu", "dtype": "fp32", **columns}), cpu, prior=None)[0]


def test_below_the_roofline_is_a_cache_or_more_than_the_datasheet_knows(cpu):
    seconds, roofline_s = np.array([1.0, 1.0, 1.0]), np.array([2.0, 2.0, 0.5])
    cached, faster, above = below_roofline(cpu, seconds, roofline_s, np.array([MIB, 1e12, MIB]))
    assert "its data stays in a cache (l3, 32 MiB)" in cached
    assert "the memory is faster than assumed" in faster
    assert above == ""
    gpu = hp.load_device("a100_sxm4_80g")
    assert "assumed" not in below_roofline(gpu, seconds[:1], roofline_s[:1], np.array([1e12]))[0]


def test_rows_say_why_they_are_below_the_roofline(model):
    rows = pd.DataFrame({"op": "relu", "dtype": "fp32", "rows": [512, 2048], "cols": [512, 2048]})
    found = model.predict_ops(rows)
    below = found["predicted_s"] < found["roofline_s"]
    assert below.tolist() == [True, False]
    assert found["note"].str.contains("its data stays in a cache").tolist() == [True, False]


def wide(model, times):
    """The model with intervals `times` wide."""
    report = dataclasses.replace(
        model.groups["elementwise"],
        half_width=times**0.5 - 1,
        errors=tuple(np.linspace(-0.6, 0.6, 9) * np.log(times)),
    )
    return dataclasses.replace(model, groups={"elementwise": report})


def test_an_interval_of_many_times_names_op_size_and_what_narrows_it(model):
    rows = pd.DataFrame({"op": "relu", "dtype": "fp32", "rows": [512], "cols": [512]})
    (note,) = wide(model, 13.0).predict_ops(rows)["note"]
    said = "an interval of 13 times is of relu dtype=fp32 rows=512 cols=512: `hybridperf fit`"
    assert said in note
    assert "an interval" not in wide(model, 3.0).predict_ops(rows)["note"][0]


def test_a_step_names_its_machine_and_the_same(model):
    jax = pytest.importorskip("jax")
    workload = hp.from_jax(lambda x: jax.numpy.maximum(x, 0.0), np.ones((512, 512), np.float32))
    found = hp.predict(wide(model, 30.0), workload)
    assert any("its data stays in a cache" in note for note in found.notes)
    (note,) = (note for note in found.notes if "an interval" in note)
    assert "elements=262144" in note
    assert "(100% of the step" in note
    assert "model: one core of some CPU, 40 measured rows" in prediction_report(found)


def test_machines_and_shares_over_a_datasheet(model):
    provenance = {"machine": {"cores": 1}, "date": "2026-01-02"}
    pinned = dataclasses.replace(model, provenance=provenance)
    assert machine_words(pinned) == "one pinned core of some CPU, 40 measured rows, 2026-01-02"
    gpu = hp.PerfModel.datasheet(hp.load_device("t4"))
    assert machine_words(gpu).endswith("its datasheet alone")
    assert over_datasheet(hp.load_model("v100_sxm2"))[0].startswith("over 100 % of the datasheet's")
    assert over_datasheet(gpu) == []
