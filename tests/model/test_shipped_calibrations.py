"""What is shipped, made from a small data folder written here: softmax on three GPUs, one of them
measured too little.
"""

import dataclasses
import datetime
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import load_device
from hybridperf.io import InputError, read_json
from hybridperf.learning.prior import adapted, train_family
from hybridperf.learning.prior.shipped import load_prior
from hybridperf.learning.training import TrainingRecipe
from hybridperf.model import load_model
from hybridperf_calibration.published import ops as sources
from hybridperf_calibration.ship import devices as calibrations

ROWS = {"t4": 250, "v100_pcie_32g": 240, "p100_pcie_16g": 150}  # the last: too few
LEAST_PRIOR_ROWS = 200
FAMILY = "softmax"


def softmaxes(device: str, number: int, seed: int) -> pd.DataFrame:
    """Rows in the columns of NeuSight's table."""
    random = np.random.default_rng(seed)
    sizes = (2 ** random.uniform(5, 12, (number, 2))).astype(int)
    bytes_per_s = 0.7 * load_device(device).memory_bytes_per_s
    time_s = (1e-5 + 8 * sizes.prod(1) / bytes_per_s) * np.exp(0.03 * random.normal(size=number))
    frame = pd.DataFrame(sizes, columns=["rows", "cols"]).assign(
        source="neusight", device=device, op="softmax", dtype="fp32"
    )
    return frame.assign(neusight_split="train", time_s=time_s)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return pd.concat(
        [softmaxes(device, number, seed) for seed, (device, number) in enumerate(ROWS.items())],
        ignore_index=True,
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, table: pd.DataFrame) -> Path:
    folder = tmp_path_factory.mktemp("data")
    path = sources.table_path(folder, "neusight_softmax")
    path.parent.mkdir()
    table.to_csv(path, index=False)
    return folder


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Short training, on one device (of more, trunks are trained that leave each out): what is
    tested is what is made of it.
    """
    recipe = TrainingRecipe(steps=5, batch=32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            calibrations,
            "train_family",
            lambda devices, **known: train_family({"t4": devices["t4"]}, recipe=recipe, **known),
        )
        patch.setattr(adapted, "_LEAST_TUNING_STEPS", 20)
        patch.setattr(calibrations, "LEAST_PRIOR_ROWS", LEAST_PRIOR_ROWS)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, data: Path) -> tuple[Path, list[str]]:
    """(folder, what was said)."""
    out, said = tmp_path_factory.mktemp("hardware"), []
    calibrations.run(data, out, families=[FAMILY], devices=list(ROWS), say=said.append)
    return out, said


def test_a_prior_and_a_folder_per_device(made: tuple[Path, list[str]]) -> None:
    out, said = made
    assert sorted(path.name for path in out.iterdir()) == ["prior", "t4", "v100_pcie_32g"]
    assert sorted(path.name for path in (out / "t4").iterdir()) == [
        "model.json",
        "report.json",
        "residual.npz",
    ]
    assert "490 rows of 2 devices" in said[0]
    assert said[1].startswith("t4: 250 rows, ")
    assert said[3] == "p100_pcie_16g: fewer than 200 rows of every family, left to the prior"


def test_a_shipped_calibration_predicts(made: tuple[Path, list[str]]) -> None:
    model = load_model(made[0] / "t4")
    frame = softmaxes("t4", 100, 50).assign(framework="pytorch")  # as the table's rows are read
    out = model.predict_ops(frame)
    assert (out["predicted_s"] / frame["time_s"] - 1).abs().median() < 0.1
    assert frame["time_s"].between(out["low_s"], out["high_s"]).mean() > 0.75
    assert (out.loc[out["in_range"], "note"] == "").all()
    assert out["in_range"].mean() > 0.9


def test_provenance_says_where_everything_is_from(made: tuple[Path, list[str]]) -> None:
    out, _ = made
    model = load_model(out / "t4")
    for said in (load_prior(out / "prior").provenance, model.provenance):
        assert datetime.date.fromisoformat(said["date"])
        assert said["versions"]["hybridperf"]
        assert said["made_by"] == "hybridperf calibrations"
        source = said["sources"]["neusight"]
        assert source == {
            "repository": "https://github.com/sitar-lab/NeuSight",
            "commit": "6945927",
            "license": "MIT",
        }
    assert load_prior(out / "prior").provenance["measured"] == {
        FAMILY: {
            device: {"neusight_softmax": number}
            for device, number in ROWS.items()
            if number >= LEAST_PRIOR_ROWS
        }
    }
    assert model.provenance["measured"] == {FAMILY: {"neusight_softmax": 250}}
    assert model.provenance["rows"] == 250
    assert model.provenance["prior"]["date"] == load_prior(out / "prior").provenance["date"]
    (line,) = model.provenance["fit"]["ops"]
    assert (line["op"], line["rows"]) == (FAMILY, 250)  # of so few each is left out once
    assert 0 < line["median_ape"] < 0.2
    report = read_json(out / "t4" / "report.json", "fit-report", 1)
    assert report["ops"] == model.provenance["fit"]["ops"]
    assert report["rows"] == 250


def test_families_that_are_not_asked_for_stay(
    made: tuple[Path, list[str]], table: pd.DataFrame, tmp_path: Path
) -> None:
    out, data = tmp_path / "hardware", tmp_path / "data"
    shutil.copytree(made[0], out)
    path = sources.table_path(data, "neusight_ln")
    path.parent.mkdir(parents=True)
    table.assign(op="ln").to_csv(path, index=False)
    calibrations.run(data, out, families=["norm"], devices=["t4"], say=lambda _: None)
    before, after = load_model(made[0] / "t4"), load_model(out / "t4")
    assert list(after.families) == [FAMILY, "norm"]
    assert set(after.groups) == {"softmax", "norm"}
    frame = softmaxes("t4", 50, 51).assign(framework="pytorch")
    pd.testing.assert_frame_equal(after.predict_ops(frame), before.predict_ops(frame))
    assert after.predict_ops(frame.assign(op="ln"))["note"].eq("").all()
    report = read_json(out / "t4" / "report.json", "fit-report", 1)
    assert [line["op"] for line in after.provenance["fit"]["ops"]] == ["norm", FAMILY]
    assert after.provenance["rows"] == report["rows"] == 500


def test_no_row_is_kept(made: tuple[Path, list[str]], table: pd.DataFrame) -> None:
    out, _ = made
    times = table["time_s"].to_numpy()
    looked_for = [times, np.log(times), times.astype(np.float32), np.log(times).astype(np.float32)]
    for path in out.rglob("*.npz"):
        with np.load(path, allow_pickle=False) as stored:
            for name in stored.files:
                assert "process/" not in name
                assert not any(
                    np.isin(stored[name], wanted.astype(stored[name].dtype)).any()
                    for wanted in looked_for
                ), name
    for path in out.rglob("*"):
        if path.suffix in (".json", ".csv"):
            content = path.read_text()
            assert not any(repr(float(time_s)) in content for time_s in times), path


def test_a_second_run_keeps_what_is_there(made: tuple[Path, list[str]], data: Path) -> None:
    out, _ = made
    before = {path: path.read_bytes() for path in out.rglob("prior.*")}
    fingerprints = {name: load_model(out / name).fingerprint() for name in ("t4", "v100_pcie_32g")}
    other = (out / "v100_pcie_32g" / "model.json").stat().st_mtime_ns
    said: list[str] = []
    calibrations.run(data, out, families=[FAMILY], devices=["t4"], say=said.append)
    assert said[0] == "prior of softmax: kept"
    assert {path: path.read_bytes() for path in out.rglob("prior.*")} == before
    assert (out / "v100_pcie_32g" / "model.json").stat().st_mtime_ns == other
    assert {
        name: load_model(out / name).fingerprint() for name in ("t4", "v100_pcie_32g")
    } == fingerprints


def test_a_prior_that_was_cut_off_is_refused_and_not_trained_over(
    data: Path, tmp_path: Path, made: tuple[Path, list[str]]
) -> None:
    document = json.loads((made[0] / "prior" / "prior.json").read_text())
    (tmp_path / "prior").mkdir()
    (tmp_path / "prior" / "prior.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"prior\.npz is missing beside it"):
        calibrations.run(data, tmp_path, families=[FAMILY], devices=["t4"], say=lambda text: None)


def test_too_few_rows_for_any_prior_is_one_sentence(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrations, "LEAST_PRIOR_ROWS", 1000)
    with pytest.raises(
        InputError, match="no GPU has 1000 rows of softmax; nothing to train a prior on"
    ):
        calibrations.run(
            data, tmp_path / "out", families=[FAMILY], devices=["t4"], say=lambda text: None
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"families": ["softmux"]}, r"unknown family 'softmux' \(did you mean 'softmax'\?\)"),
        ({"devices": ["t5"]}, r"unknown device 't5': `hybridperf devices` lists them"),
        ({"families": ["norm"]}, "no row of norm in .*compute; expected the tables"),
        (
            {"data": Path("nowhere")},
            "expected the measured data in nowhere .*, found none; give --data DIR",
        ),
    ],
)
def test_wrong_words_are_one_sentence(
    data: Path, tmp_path: Path, arguments: dict, says: str
) -> None:
    given = {
        "data": data,
        "out": tmp_path / "out",
        "families": [FAMILY],
        "devices": ["t4"],
        **arguments,
    }
    with pytest.raises(InputError, match=says) as refused:
        calibrations.run(given.pop("data"), given.pop("out"), **given)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_families_of_our_own_rows_are_fitted_again_and_keep_their_record() -> None:
    """Others that were not asked for stay; what `with_own` adds is not taken for published."""
    before = load_model("h200_sxm")
    own = {line["op"] for line in before.provenance["own"]["fit"]["ops"]} & {*before.families}
    assert own
    new = dataclasses.replace(before, families={}, groups={})
    kept = calibrations._with_families_of(before, new).families
    assert {*kept} == {*before.families} - own


def test_devices_that_are_shipped_are_known(data_dir: Path) -> None:
    measured = sources.read_families(data_dir, ["softmax", "quantise"])
    for device in calibrations.DEVICES:
        assert load_device(device).id == device
    assert {"t4", "b200_sxm"} <= {device for rows in measured.families.values() for device in rows}
