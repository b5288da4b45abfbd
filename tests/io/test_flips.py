"""A bit that flips in what we wrote is refused, or changes nothing (`benchmarks/flips.py` has the
counts of thousands).
"""

import os
import random
import shutil
from pathlib import Path

import pandas as pd
import pytest
from support.artefacts import artefacts, flipped, outcome

from hybridperf.io import InputError, read_table, replacing, write_table

ARTEFACTS = artefacts()
FLIPS = 6


def kept_sums(folder: Path) -> bool:
    """Whether the file system keeps attributes of files."""
    (folder / "x").touch()
    try:
        os.setxattr(folder / "x", "user.x", b"1")
    except (OSError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("name", ARTEFACTS)
def test_flips(name: str, tmp_path: Path) -> None:
    if not kept_sums(tmp_path):
        pytest.skip("this file system keeps no attributes of files")
    whole, changed, rng = tmp_path / "whole", tmp_path / "changed", random.Random(name)
    whole.mkdir()
    ARTEFACTS[name].make(whole)
    said = ARTEFACTS[name].read(whole)
    files = sorted(one for one in whole.rglob("*") if one.is_file())
    found = []
    for _ in range(FLIPS):
        shutil.rmtree(changed, ignore_errors=True)
        shutil.copytree(whole, changed)
        flipped(changed / rng.choice(files).relative_to(whole), rng)
        found.append(outcome(ARTEFACTS[name], changed, said))
    assert set(found) <= {"refused", "harmless"}, found


@pytest.mark.parametrize("name", ["table.parquet", "plan.parquet", "rows", "page"])
def test_sums_within_a_file_are_of_its_copies_too(name: str, tmp_path: Path) -> None:
    ARTEFACTS[name].make(tmp_path)
    said, rng = ARTEFACTS[name].read(tmp_path), random.Random(name)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for _ in range(FLIPS):
        path.unlink()
        path.write_bytes(whole)  # a new file, without attributes
        assert ARTEFACTS[name].read(tmp_path) == said
        flipped(path, rng)
        assert outcome(ARTEFACTS[name], tmp_path, said) in ("refused", "harmless")


def test_other_readers_see_no_sum(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": range(1000), "b": "words"})
    write_table(frame, tmp_path / "a.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "a.parquet"), frame)
    before = (tmp_path / "a.parquet").read_bytes()
    with replacing(tmp_path / "b.parquet", "wb") as handle:  # what has a sum keeps it
        handle.write(before)
    assert (tmp_path / "b.parquet").read_bytes() == before


def test_an_edited_table_is_another_one(tmp_path: Path) -> None:
    write_table(pd.DataFrame({"a": [1, 2]}), path := tmp_path / "a.csv")
    path.write_text("a\n1\n22\n")
    assert list(read_table(path)["a"]) == [1, 22]
    write_table(pd.DataFrame({"a": [1, 2]}), path)
    path.write_text("a\n1\n3\n")  # as long as it was
    if kept_sums(tmp_path):
        with pytest.raises(InputError, match="damaged or changed"):
            read_table(path)
    shutil.copyfile(path, tmp_path / "b.csv")  # as the sentence says
    assert list(read_table(tmp_path / "b.csv")["a"]) == [1, 3]
