"""What `hybridperf doctor` finds, and what it says to do."""

import json
from pathlib import Path

import pytest

import hybridperf as hp
from hybridperf.hardware import load_device
from hybridperf.model import PerfModel


def test_a_calibration_is_found_and_a_broken_one_is_said(tmp_path: Path) -> None:
    PerfModel.datasheet(load_device("h100_sxm")).save(tmp_path / "mine")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.json").write_text("{")
    found = hp.doctor(folder=tmp_path)
    broken, mine = found.calibrated
    assert (mine["device"], mine["problem"]) == ("h100_sxm", "")
    assert broken["problem"]
    assert not found.well
    assert any("mend" in one and "broken" in one for one in found.next)


def test_what_is_needed_is_there_and_what_is_optional_may_be_missing() -> None:
    found = hp.doctor()
    assert all(one["version"] for one in found.packages if one["needed"])
    assert found.cpu["cores"] >= 1
    assert "h100_sxm" in found.shipped


def test_a_device_known_by_its_datasheet_alone_is_to_be_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho NVIDIA GeForce RTX 5080\necho NVIDIA Mystery\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    found = hp.doctor(folder=tmp_path)
    assert [one.device for one in found.accelerators] == ["rtx_5080", ""]
    assert sum("calibrate the" in one for one in found.next) == 2
    assert "fit-check llama3-8b rtx_5080" in found.next[-1]


def test_no_home_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "someone"))
    cache = tmp_path / "someone" / "cache"
    cache.mkdir(parents=True)
    (cache / "one").write_bytes(b"1234")
    found = hp.doctor(cache, tmp_path)
    assert (found.cache["folder"], found.cache["bytes"]) == ("~/cache", 4)
    assert "someone" not in str(found)


def test_the_command_prints_a_page_of_80_columns_and_json(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, _ = run("doctor")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 90  # names of CPUs and folders
    status, out, _ = run("doctor", "--json")
    assert json.loads(out)["well"] is True
