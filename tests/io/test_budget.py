"""What would become more than a reader may take is refused before it does; `benchmarks/bombs.py`
measures the same files at gigabytes.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.bombs import BOMBS

from hybridperf.cli import app
from hybridperf.io import InputError, read_table
from hybridperf.io.budget import TooLarge, check_json

SIZE_BYTES = 2**25  # what each would become; a sixteenth is allowed
OTHERWISE = {  # by what else it is refused
    "csv_columns": "10,000 columns", "parquet_lists": "holds list", "parquet_nested": "holds list",
    "parquet_columns": "", "many_gpus": "",
    "wide_sweep": "1 to 1,000,000 steps", "layers_2^63": "10,000 or less",
    "layers_1e9": "10,000 or less", "window_layers": "10,000 or less", "vocab_2^63": "a billion",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("HYBRIDPERF_READ_BYTES", str(SIZE_BYTES // 16))
    command = BOMBS[name](tmp_path, SIZE_BYTES)
    with pytest.raises(SystemExit) as ended:
        app.main([*command, "-q"])
    said = capsys.readouterr().err
    assert ended.value.code in (2, 3)
    assert OTHERWISE.get(name, "it would take ") in said, said
    assert "unexpected" not in said


def test_the_limit_is_said_and_can_be_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    pd.DataFrame({"m": np.arange(100_000)}).to_csv(path, index=False)
    monkeypatch.setenv("HYBRIDPERF_READ_BYTES", "1000000")
    with pytest.raises(InputError, match=r"over the 1 MiB.*set HYBRIDPERF_READ_BYTES"):
        read_table(path)
    monkeypatch.setenv("HYBRIDPERF_READ_BYTES", "10000000")
    assert len(read_table(path)) == 100_000
    monkeypatch.setenv("HYBRIDPERF_READ_BYTES", "2 GB")
    with pytest.raises(InputError, match="expected bytes in HYBRIDPERF_READ_BYTES, got '2 GB'"):
        read_table(path)


def test_what_is_reckoned_of_json_is_no_less_than_it_takes() -> None:
    """By what Python itself says that such lists and objects take."""
    import json
    import tracemalloc

    for text in ("[" + "[]," * 50_000 + "1]", '[{"a":{}},' * 1 + '{"a":{}},' * 20_000 + "1]",
                 "[" + "123456," * 50_000 + "1]", "[" + '"abc",' * 50_000 + "1]"):  # fmt: skip
        tracemalloc.start()
        held = json.loads(text)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HYBRIDPERF_READ_BYTES", str(most))
            with pytest.raises(TooLarge):
                check_json(text)
