"""Numbers that nothing has are refused where they enter, each in one sentence."""

import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.fuzz_targets import SYSTEM, section

import hybridperf as hp
from hybridperf.collectives.model import CollectiveModel
from hybridperf.explore.sharding.run import shard
from hybridperf.io import InputError, positive_column, real_numbers
from hybridperf.ops.embedding import Table
from hybridperf.serving.table import predict_serving

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


_GEMM = {"op": "gemm", "m": 64, "n": 64, "k": 64}
_PROMPTS = {"op": "context_attention", "batch": 2, "q_len": 128, "heads": 8, "head_dim": 64}
_MOE = {"op": "moe", "tokens": 128, "hidden": 1024, "inter": 512, "topk": 2, "experts": 8}
_CONV = {"op": "conv", "batch": 8, "c_in": 32, "c_out": 32, "h_in": 28, "h_out": 28, "kh": 3}
_BAG = {"op": "embedding_bag", "batch": 128, "pooling": 10, "rows": 1000, "dim": 64}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (_GEMM | {"m": 4.096}, "m must be a whole number, got 4.096"),
        (_GEMM | {"transposed_a": 5}, "transposed_a must be yes or no, got 5"),
        (_GEMM | {"reuse_bytes": -5}, "reuse_bytes must be a number of at least zero"),
        (_PROMPTS | {"kv_heads": 16}, "kv_heads must be at most heads"),
        (_PROMPTS | {"kv_heads": 3}, "kv_heads must divide heads"),
        (_PROMPTS | {"kv_heads": 8, "kv_len": 64}, "kv_len has the new tokens in it"),
        (_MOE | {"topk": 16}, "topk must be at most experts"),
        (_MOE | {"moe_ep": 3}, "moe_ep must divide experts"),
        (_MOE | {"moe_tp": 1024}, "moe_tp must be at most inter"),
        (_CONV | {"groups": 3}, "groups must divide c_in"),
        (_CONV | {"taps": 20}, "taps must be at most kh x kw"),
        (_BAG | {"unique": 2000}, "unique must be at most"),
        (_BAG | {"once": 1.5}, "once must be at most 1, got 1.5"),
    ],
)  # fmt: skip
def test_ops_that_cannot_be(row: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        hp.predict_ops([row | {"dtype": "bf16"}], "h100_sxm")


@pytest.mark.parametrize(
    ("load", "text", "field", "value", "meant"),
    [
        (hp.load_device, DEVICE, "memory_bytes_per_s", 900, "900 GB/s"),
        (hp.load_device, DEVICE, "memory_bytes", 32, "32 GB"),
        (hp.load_device, DEVICE, "clock_hz", 1380, "1380 MHz"),
        (hp.load_device, DEVICE, "peak_flops_per_s", "{ fp32 = 14 }", "14 TFLOP/s"),
        (hp.load_system, SYSTEM, "nic_bytes_per_s", 12.5, "12.5 GB/s"),
        (hp.load_system, SYSTEM, "latency_s", 10, "10 us"),
    ],
)
def test_machines_in_other_units(tmp_path, load, text, field, value, meant) -> None:
    with pytest.raises(InputError, match="did you mean") as refused:
        load(edited(tmp_path, text, field, str(value)))
    assert f"({meant})?" in str(refused.value)


def test_a_switch_that_is_none_is_refused() -> None:
    row = {"collective": "all_reduce", "bytes": 4096, "n_gpus": 8, "in_place": "maybe"}
    assert "expected yes or no in in_place" in hp.predict_collectives([row], "dgx_h100")["note"][0]


@pytest.mark.parametrize("times", [1e6, 1e3, 1e-4])
def test_messages_measured_in_other_units(times: float) -> None:
    rows = pd.DataFrame({"collective": "all_reduce", "bytes": [2.0**20, 2.0**28], "n_gpus": 8})
    rows["time_s"] = hp.predict_collectives(rows, "dgx_h100")["predicted_s"]
    hp.fit_collectives(rows, "dgx_h100")
    with pytest.raises(InputError, match="expected seconds in time_s"):
        hp.fit_collectives(rows.assign(time_s=rows["time_s"] * times), "dgx_h100")


def test_points_measured_in_other_units() -> None:
    point = {"model": "llama3-8b", "system": "h100_sxm", "backend": "vllm", "isl": 1024, "osl": 64}
    rows = pd.DataFrame([point | {"concurrency": 4, "ttft_s": 50, "tpot_s": 9}] * 2)
    with pytest.raises(InputError, match=r"expected seconds in t.*milliseconds"):
        predict_serving(rows, fit_on=rows)


def test_cells_of_any_kind() -> None:
    """Numbers that no float holds, words that no text holds, what is neither."""
    row = {"collective": "all_reduce", "bytes": 4096, "n_gpus": 8, "n_nodes": 1}
    for cell in (10**400, Decimal("sNaN"), pd.NA):
        found = hp.predict_collectives([row, row | {"n_gpus": cell}], "dgx_h100")
        assert found["predicted_s"].notna().tolist() == [True, False]
    for cell in (object(), [8], b"8"):
        with pytest.raises(InputError, match="expected a number or a word"):
            hp.predict_collectives([row, row | {"n_gpus": cell}], "dgx_h100")
    with pytest.raises(InputError, match="expected words"):
        hp.predict_collectives([row | {"lib": "\ud800"}], "dgx_h100")
