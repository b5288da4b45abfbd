"""Tables and files of ours: what cannot be used is refused in one sentence, and nobody ever sees
half a file.
"""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hybridperf.io import (
    InputError,
    parse_json,
    parse_toml,
    positive_column,
    read_json,
    read_table,
    read_tables,
    replacing,
    require_columns,
    write_json,
    write_table,
)

FRAME = pd.DataFrame({"op": ["gemm", "conv"], "m": [1, 2], "time_s": [0.5, 1 / 3]})


def refusal(call, *args) -> str:
    with pytest.raises(InputError) as error:
        call(*args)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
def test_tables_come_back_as_written(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "new" / f"rows{ending}"
    write_table(FRAME, path)
    pd.testing.assert_frame_equal(read_table(path), FRAME)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_tables_follow_one_another(tmp_path: Path) -> None:
    for i in range(2):
        write_table(FRAME.assign(**{f"only{i}": i}), tmp_path / f"{i}.csv")
    both = read_tables([tmp_path / "0.csv", tmp_path / "1.csv"])
    assert len(both) == 4
    assert both["only1"].isna().tolist() == [True, True, False, False]


def test_tables_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    assert "found nothing" in refusal(read_table, path)
    assert "found a folder" in refusal(read_table, tmp_path)
    path.write_text("")
    assert "is empty" in refusal(read_table, path)
    path.write_text("op,m\n")
    assert "header but no rows" in refusal(read_table, path)
    path.write_bytes(b"op,m\n\xff\xfe,1\n")
    assert "cannot read" in refusal(read_table, path)
    path.write_text("op,m\n1,2\n1,2,3,4,5\n")
    assert "cannot read" in refusal(read_table, path)
    other = tmp_path / "rows.txt"
    other.write_text("op\n1\n")
    assert ".parquet, got rows.txt" in refusal(read_table, other)
    assert "rename" in refusal(write_table, FRAME, other)


@pytest.mark.parametrize("column", ["id", "name"])
def test_names_are_text_as_written(tmp_path: Path, column: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"{column},x\n52e1234567,1\n0012345678,2\n007,3\n,4\n")
    frame = read_table(path)
    assert frame[column].tolist()[:3] == ["52e1234567", "0012345678", "007"]
    assert frame[column].isna().tolist() == [False, False, False, True]
    assert frame["x"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_columns_never_shift(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows{ending}"
    opened = gzip.open if ending == ".csv.gz" else open
    for text, said in {
        "op,m\ngemm,1,\nconv,2,\n": "line 2 has 3 cells, the header names 2 columns",
        "op,m\n0,gemm,1\n1,conv,2\n": "line 2 has 3 cells",
        "op,m\ngemm,1\nconv,2,3\n": "line 3",
        "op,m,m\ngemm,1,2\n": "column 'm' is named more than once",
    }.items():
        with opened(path, "wt") as handle:
            handle.write(text)
        assert said in refusal(read_table, path)


@pytest.mark.parametrize("ending", [".csv.gz", ".parquet"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "another format"])
def test_damaged_tables(tmp_path: Path, ending: str, damage: str) -> None:
    path = tmp_path / f"rows{ending}"
    write_table(pd.DataFrame({"x": np.random.default_rng(0).random(2000)}), path)
    whole = path.read_bytes()
    flipped = whole[:40] + bytes(b ^ 0xFF for b in whole[40:-40]) + whole[-40:]
    path.write_bytes(
        {"cut": whole[: len(whole) // 2], "flipped": flipped, "another format": b"hello"}[damage]
    )
    said = refusal(read_table, path)
    assert "cannot read" in said or ("was damaged" in said and damage == "flipped")


def test_misspelt_columns_are_suggested() -> None:
    assert "'time_s' (did you mean 'times_s'?)" in refusal(
        require_columns, pd.DataFrame({"times_s": [1]}), ["time_s"], "fitting"
    )
    assert "did you mean" not in refusal(
        require_columns, pd.DataFrame({"x": [1]}), ["time_s"], "fitting"
    )


@pytest.mark.parametrize("bad", [np.nan, -1.0, 0.0, np.inf, "fast", None])
def test_times_must_be_positive_numbers(bad: object) -> None:
    frame = pd.DataFrame({"time_s": [1.0, bad, bad]}, dtype=object)
    said = refusal(positive_column, frame, "time_s", "fitting")
    assert "row 2 has" in said
    assert "2 such rows" in said
    # its place in the table
    assert "row 3 has" in refusal(positive_column, frame[[False, False, True]], "time_s", "fitting")


def test_numbers_may_come_as_text() -> None:
    assert positive_column(pd.DataFrame({"x": ["1", " 2.5e-3"]}), "x", "a test").tolist() == [
        1.0,
        0.0025,
    ]


# --- replacing ------------------------------------------------------------------------------------


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")

    def interrupted() -> None:
        with replacing(path) as handle:
            handle.write("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]


def test_readers_see_the_old_file_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")
    with replacing(path) as handle:
        handle.write("new")
        handle.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    return int(
        subprocess.run(["sh", "-c", "umask"], capture_output=True, text=True, check=True).stdout, 8
    )


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "x.csv", Path("/proc/nothing/x.csv")):
        assert "cannot write" in refusal(write_table, FRAME, path)
    (tmp_path / "folder.csv").mkdir()
    assert "cannot write" in refusal(write_table, FRAME, tmp_path / "folder.csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.csv"]


FULL_DISK = """
import resource, sys
import numpy as np, pandas as pd
from hybridperf.io import InputError, write_json, write_table
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
big = np.random.default_rng(0).random(20_000)
try:
    if sys.argv[1].endswith(".json"):
        write_json(sys.argv[1], "test", 1, {"x": big.tolist()})
    else:
        write_table(pd.DataFrame({"x": big}), sys.argv[1])
except InputError as error:
    print(error)
    sys.exit(2)
"""


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.parquet", "x.json"])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert "cannot write" in done.stdout
    assert "\n" not in done.stdout.strip()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == [name]


# --- our JSON files -------------------------------------------------------------------------------


def test_json_comes_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, "test", 2, {"x": [1, 0.1, None, "é"]})
    assert read_json(path, "test", 2)["x"] == [1, 0.1, None, "é"]
    assert read_json(path, "test", 3)["schema_version"] == 2  # an older file


def test_json_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert "found none" in refusal(read_json, path, "test", 1)
    assert "cannot read" in refusal(read_json, tmp_path, "test", 1)
    write_json(path, "test", 2, {"x": 1})
    assert "expected a hybridperf/model file" in refusal(read_json, path, "model", 2)
    assert "upgrade hybridperf" in refusal(read_json, path, "test", 1)
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    assert "damaged" in refusal(read_json, path, "test", 2)
    path.write_bytes(gzip.compress(whole.encode()))
    assert "damaged" in refusal(read_json, path, "test", 2)
    for other in (
        [1],
        "text",
        {},
        {"schema": "hybridperf/test"},
        {"schema": "hybridperf/test", "schema_version": "2"},
    ):
        path.write_text(json.dumps(other))
        refusal(read_json, path, "test", 2)


def test_json_holds_no_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", "test", 1, {"x": float("nan")})
    assert not list(tmp_path.iterdir())


# --- streams and links ----------------------------------------------------------------------------


def test_a_link_stays_and_the_file_behind_it_is_replaced(tmp_path: Path) -> None:
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "real.csv")
    for count in (1, 2):  # where nothing is yet, and where something is
        write_table(FRAME.head(count), link)
        assert link.is_symlink()
        assert len(read_table(tmp_path / "real.csv")) == count


def test_a_pipe_stays_and_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        write_table(FRAME, pipe)
        assert reader.communicate()[0] == FRAME.to_csv(index=False)
    assert pipe.is_fifo()


def test_devices_stay() -> None:
    write_table(FRAME, "/dev/null")
    assert Path("/dev/null").is_char_device()
    assert "cannot write /dev/full: No space left" in refusal(write_table, FRAME, "/dev/full")


def test_own_output_is_written_to_where_it_stands(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    code = "import pandas as pd; from hybridperf.io import write_table; print('before');"
    code += "write_table(pd.DataFrame({'x': [1]}), '/dev/stdout'); print('after')"
    with out.open("w") as handle:
        subprocess.run([sys.executable, "-c", code], stdout=handle, check=True)
    assert out.read_text() == "before\nx\n1\nafter\n"


# --- limits ---------------------------------------------------------------------------------------


def test_a_table_that_unpacks_into_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridperf.io.budget._ALWAYS_BYTES", 2**22)
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"op,m\n" + b"gemm,1\n" * 2**20))
    assert "over the 4 MiB" in refusal(read_table, path)
    monkeypatch.setenv("HYBRIDPERF_READ_BYTES", str(2**22))
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"x": np.zeros(2**20, np.int8)}), path)
    assert "over the 4 MiB" in refusal(read_table, path)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 2_000, "[" * 150 + "]" * 150, "1" + "0" * 5_000, "{", "\x00"]
)
def test_json_that_is_too_deep_or_too_long_or_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"not JSON|nested") as error:
        parse_json(text)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a." * 100_000 + "a = 1",
        "[" + "a." * 5_000 + "a]",
        "a = 1" + "0" * 5_000,
        "a = 2020-13-45",
        "a = 1\n" * 2,
        "#" * 2**23,
    ],
)
def test_toml_that_is_too_deep_or_too_long_or_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"not TOML|nested|characters") as error:
        parse_toml(text)
    assert len(str(error.value)) < 200
