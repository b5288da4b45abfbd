"""Numbers that nothing has are refused where they enter, each in one sentence."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.fuzz_targets import SYSTEM, section

import hybridperf as hp
from hybridperf.collectives.model import CollectiveModel
from hybridperf.explore.sharding.run import shard
from hybridperf.explore.sweeps.spec import read_spec
from hybridperf.io import InputError, positive_column, real_numbers
from hybridperf.ops.embedding import Table

DEVICE = section(Path(hp.__file__).parent / "hardware" / "devices.toml", "v100_pcie_32g")


def edited(tmp_path: Path, text: str, field: str, value: str) -> Path:
    """A device or system with one other value."""
    path = tmp_path / "one.toml"
    path.write_text(re.sub(rf"(?m)^{field} = .*$", f"{field} = {value}", text))
    return path


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("latency_s", "1e30"), ("latency_s", "1e-300"), ("nic_bytes_per_s", "inf"),
        ("nic_bytes_per_s", "true"), ("nic_bytes_per_s", "1e-300"),
        ("intra_bytes_per_s", "1e300"), ("accelerators_per_node", "true"),
        ("accelerators_per_node", "1" + "0" * 30),
    ],
)  # fmt: skip
def test_systems(tmp_path: Path, field: str, value: str) -> None:
    with pytest.raises(InputError, match=f"{field}: Input should be"):
        hp.load_system(edited(tmp_path, SYSTEM, field, value))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("memory_bytes", "inf"), ("memory_bytes", "1e-5"), ("memory_bytes", "true"),
        ("memory_bytes_per_s", "1e300"), ("multiprocessors", "true"), ("tdp_w", "1e300"),
        ("clock_hz", "nan"), ("year", "-5"),
    ],
)  # fmt: skip
def test_devices(tmp_path: Path, field: str, value: str) -> None:
    with pytest.raises(InputError, match=f"{field}: Input should be"):
        hp.load_device(edited(tmp_path, DEVICE, field, value))


@pytest.mark.parametrize(
    ("column", "value"),
    [("bytes", 1e300), ("bytes", 1e30), ("bytes", 0.001), ("n_gpus", 1e300), ("bytes", 1 + 2j)],
)
def test_collectives(column: str, value: complex) -> None:
    row = {"collective": "all_reduce", "bytes": 1e6, "n_gpus": 8, "n_nodes": 1} | {column: value}
    predicted = CollectiveModel.datasheet(hp.load_system("dgx2")).predict(pd.DataFrame([row]))
    assert predicted["predicted_s"].isna().all()
    assert f"expected {column}" in predicted["note"].iloc[0]


def test_complex_numbers_are_none() -> None:
    for column in (pd.Series([1 + 2j]), pd.Series([1, 1 + 2j], dtype=object)[1:]):
        assert np.isnan(real_numbers(column)).all()


@pytest.mark.parametrize("value", [1e300, 1e-300, 1e-30])
def test_times(value: float) -> None:
    with pytest.raises(InputError, match=r"1e-12 to 1e\+12.*row 2 has"):
        positive_column(pd.DataFrame({"time_s": [1.0, value]}), "time_s", "fitting")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": True}, "expected schema"),
        ({"schema": "hybridperf/other"}, "expected schema"),
        ({"schema_version": True}, "schema_version"),
        ({"parameters": {"bytes": 1e300}}, "at most"),
        ({"parameters": {"bytes": 0.001}}, "at least 1"),
        ({"parameters": {"bytes": 10**400}}, "must be numbers"),
        ({"parameters": {"bytes": 1 + 2j}}, "is a complex"),
    ],
)
def test_sweeps(change: dict, said: str) -> None:
    spec = {
        "target": {"question": "collectives", "model": "aic_h100_sxm"},
        "parameters": {"collective": "all_reduce", "n_gpus": 8, "n_nodes": 1, "bytes": 1e6},
    }
    whole = {**spec, **change, "parameters": spec["parameters"] | change.get("parameters", {})}
    with pytest.raises(InputError, match=said):
        read_spec(whole)


@pytest.mark.parametrize(
    ("sizes", "options", "said"),
    [
        ({"pooling": 1e300}, {}, "pooling of at most"), ({"rows": 1e308}, {}, "rows of at most"),
        ({}, {"batch": 1e308}, "expected a batch"), ({}, {"seed": 10**30}, "seed must be"),
        ({}, {"splits": {"a": "row:100000"}}, "1 to 4096 pieces"),
    ],
)  # fmt: skip
def test_tables(sizes: dict, options: dict, said: str) -> None:
    def placed() -> None:
        table = Table("a", **({"rows": 1e6, "dim": 64.0, "pooling": 1.0} | sizes))
        shard([table], 1, **({"model": "v100", "batch": 4096} | options))

    with pytest.raises(InputError, match=said):
        placed()
