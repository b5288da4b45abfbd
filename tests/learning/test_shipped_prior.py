"""A prior as a folder, what is refused of it, and what lies in the installed folder of
calibrations.
"""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import load_device
from hybridperf.io import InputError, installed_hardware, read_json
from hybridperf.io.documents import with_checksum
from hybridperf.learning.prior import adapt, train_family
from hybridperf.learning.prior.shipped import (
    CPU_PRIORS,
    DEFAULT_PRIOR,
    PRIOR_SCHEMA_VERSION,
    Prior,
    load_prior,
)
from hybridperf.learning.training import TrainingRecipe
from hybridperf.model import load_model, shipped_models
from hybridperf.model.families import FAMILIES
from hybridperf.model.fit.device import fit
from hybridperf_calibration.published.ops import device_rows

MOST_BYTES = 40e6
RECIPE = TrainingRecipe(steps=5, batch=32)
T4 = load_device("t4")
_PRODUCT = {"op": "gemm", "m": 512, "n": 512, "k": 512}
_ATTENTION = {"dtype": "bf16", "batch": 4, "q_len": 512, "kv_len": 512, "heads": 8, "head_dim": 128}
_MATRIX = {"rows": 512, "cols": 512}
ROWS = {  # one of each family; fp16 where every GPU has it
    "matmul": {**_PRODUCT, "dtype": "fp16"},
    "matmul_fp32": {**_PRODUCT, "dtype": "fp32"},
    "prefill_attention": {"op": "context_attention", **_ATTENTION},
    "decode_attention": {"op": "generation_attention", **_ATTENTION, "q_len": 1},
    "encoder_attention": {"op": "encoder_attention", **_ATTENTION},
    "moe": {
        "op": "moe",
        "dtype": "bf16",
        "tokens": 128,
        "hidden": 1024,
        "inter": 512,
        "topk": 2,
        "experts": 16,
    },
    "convolution": {
        "op": "conv",
        "dtype": "fp32",
        "batch": 8,
        "c_in": 64,
        "c_out": 64,
        "h_in": 28,
        "w_in": 28,
        "h_out": 28,
        "w_out": 28,
        "kh": 3,
        "kw": 3,
    },
    "elementwise": {"op": "add", "dtype": "fp32", **_MATRIX},
    "softmax": {"op": "softmax", "dtype": "fp32", **_MATRIX},
    "norm": {"op": "ln", "dtype": "fp32", **_MATRIX},
    "gather": {"op": "embedding", "dtype": "fp16", **_MATRIX, "vocab": 1e5},
    "spmm": {"op": "spmm", "dtype": "fp16", "rows": 1e5, "cols": 1e5, "nnz": 1e6, "n": 64},
    "quantise": {"op": "scale_matrix", "dtype": "bf16", **_MATRIX},
}


def softmaxes(number: int, seed: int) -> pd.DataFrame:
    sizes = (2 ** np.random.default_rng(seed).uniform(5, 12, (number, 2))).astype(int)
    frame = pd.DataFrame(sizes, columns=["rows", "cols"]).assign(op="softmax", dtype="fp32")
    return frame.assign(time_s=1e-5 + 8 * sizes.prod(1) / (0.7 * T4.memory_bytes_per_s))


@pytest.fixture(scope="module")
def prior() -> Prior:
    ((_, rows),) = device_rows(softmaxes(200, 0), T4, "made up", Counter())
    return Prior(
        {"softmax": train_family({"t4": (rows.rows, rows.time_s)}, recipe=RECIPE)},
        {"made_by": "a test"},
    )


@pytest.fixture
def folder(prior: Prior, tmp_path: Path) -> Path:
    prior.save(tmp_path / "made")
    return tmp_path / "made"


def test_a_folder_holds_plain_numbers_and_weights(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["prior.json", "prior.npz"]
    document = json.loads((folder / "prior.json").read_text())
    assert (document["schema"], document["schema_version"]) == (
        "hybridperf/prior",
        PRIOR_SCHEMA_VERSION,
    )
    assert document["families"]["softmax"]["slots"] == ["softmax||fp32"]
    with np.load(folder / "prior.npz", allow_pickle=False) as stored:
        assert all(name.startswith("softmax/") for name in stored.files)
        assert not any("process/" in name for name in stored.files)


def test_what_is_read_back_is_the_same(prior: Prior, folder: Path) -> None:
    again = load_prior(folder)
    assert again.provenance == {"made_by": "a test"}
    assert set(again.families) == {"softmax"}
    ((_, rows),) = device_rows(softmaxes(50, 1), T4, "made up", Counter())
    for field in ("log_s", "low_log_s", "high_log_s", "outside"):
        said, before = (
            getattr(adapt(one.families["softmax"]).predict(rows.rows), field)
            for one in (again, prior)
        )
        np.testing.assert_array_equal(said, before)
    from_folder, in_hand = (
        fit(softmaxes(20, 2), "v100", prior=one)[0] for one in (str(folder), prior)
    )
    assert from_folder.fingerprint() == in_hand.fingerprint()


def test_a_prior_is_found_by_the_name_it_is_installed_under(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridperf.io.installed_hardware", lambda: folder.parent)
    assert set(load_prior("made").families) == {"softmax"}
    with pytest.raises(
        InputError,
        match=r"unknown prior 'mode' \(did you mean 'made'\?\): give the folder of a prior",
    ):
        load_prior("mode")


def test_where_nothing_is_installed_a_name_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridperf.io.installed_hardware", lambda: None)
    with pytest.raises(
        InputError,
        match=(
            "unknown prior 'prior': give the folder of a prior, the name of an installed one, or"
            " none"
        ),
    ):
        load_prior(DEFAULT_PRIOR)


def _less(document: dict, *keys: str) -> dict:
    """The document without one of its entries."""
    inner = document
    for key in keys[:-1]:
        inner = inner[key]
    del inner[keys[-1]]
    return document


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda d: _less(d, "families"), r"damaged \('families' is missing\)"),
        (lambda d: _less(d, "provenance"), r"damaged \('provenance' is missing\)"),
        (lambda d: _less(d, "weights_sha256"), "damaged"),
        (lambda d: _less(d, "families", "softmax", "slots"), "damaged"),
        (lambda d: d | {"families": ["softmax"]}, "damaged"),
        (lambda d: d | {"families": {"norm": d["families"]["softmax"]}}, "damaged"),
        (lambda d: d | {"provenance": None}, "damaged"),
        (
            lambda d: d | {"weights_sha256": "another"},
            "prior.npz beside it belongs to another model",
        ),
        (lambda d: d | {"schema_version": PRIOR_SCHEMA_VERSION + 1}, "upgrade hybridperf"),
        (lambda d: d | {"schema": "hybridperf/model"}, "expected a hybridperf/prior file"),
    ],
)
def test_a_damaged_document_is_one_sentence(folder: Path, spoil, says) -> None:
    path = folder / "prior.json"
    path.write_text(json.dumps(with_checksum(spoil(json.loads(path.read_text())))))
    with pytest.raises(InputError, match=says) as refused:
        load_prior(folder)
    assert "\n" not in str(refused.value)


def test_damaged_files_are_one_sentence_each(folder: Path) -> None:
    weights, document = folder / "prior.npz", folder / "prior.json"
    whole = weights.read_bytes()
    for content, says in (
        (whole[: len(whole) // 2], "cannot be read"),
        (b"", "cannot be read"),
        (b"nonsense", "cannot be read"),
    ):
        weights.write_bytes(content)
        with pytest.raises(InputError, match=f"prior.json is damaged .*prior.npz beside it {says}"):
            load_prior(folder)
    weights.unlink()
    with pytest.raises(InputError, match=r"prior\.npz is missing beside it"):
        load_prior(folder)
    weights.write_bytes(whole)
    document.write_text(document.read_text()[:100])
    with pytest.raises(InputError, match=r"is not JSON: .*damaged"):
        load_prior(folder)
    document.unlink()
    with pytest.raises(InputError, match="unknown prior"):
        load_prior(folder)


# --- what is installed ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hardware() -> Path:
    folder = installed_hardware()
    if folder is None or not folder.is_dir():
        pytest.skip(
            "no shipped calibrations; `hybridperf calibrations --data DIR --out"
            " calibration/hardware` makes them"
        )
    return folder


def test_the_shipped_prior_knows_every_family(hardware: Path) -> None:
    prior = load_prior(DEFAULT_PRIOR)
    assert set(prior.families) == set(FAMILIES)
    assert set(prior.provenance["measured"]) == set(FAMILIES)
    assert {"date", "versions", "sources"} <= set(prior.provenance)


def test_every_shipped_calibration_loads_by_name_and_says_where_it_is_from(hardware: Path) -> None:
    names = shipped_models()
    assert names
    for name in names:
        model = load_model(name)
        assert model.device.id == name
        assert model.families
        said = model.provenance
        ours = {line["op"] for line in said.get("own", {"fit": {"ops": []}})["fit"]["ops"]}
        published = {name: one for name, one in model.families.items() if name not in ours}
        assert all(adapted.process is None for adapted in published.values())
        assert {"date", "versions", "sources", "measured", "rows", "fit", "prior"} <= set(said)
        assert all(
            {"repository", "commit", "license"} <= set(source)
            for source in said["sources"].values()
        )
        assert said["rows"] == sum(adapted.rows for adapted in published.values())
        assert {line["op"] for line in said["fit"]["ops"]} == set(published)
        report = read_json(hardware / name / "report.json", "fit-report", 1)
        assert report["rows"] == said["rows"]
        out = model.predict_ops(pd.DataFrame([ROWS[family] for family in model.families]))
        assert out["predicted_s"].between(1e-7, 1).all(), out
        assert ((out["low_s"] < out["predicted_s"]) & (out["predicted_s"] < out["high_s"])).all()


def test_no_row_is_shipped(hardware: Path) -> None:
    """But our own, which are in `calibration/measured`."""
    for path in hardware.rglob("*.npz"):
        if path.parent.name in CPU_PRIORS.values():
            machines = json.loads((path.parent / "prior.json").read_text())["provenance"][
                "measured"
            ]
            assert all((hardware.parent / "measured" / one).is_dir() for one in machines)
            continue
        with np.load(path, allow_pickle=False) as stored:
            named = (name.removeprefix("family/") for name in stored.files if "process/" in name)
            kept = {name.split("/")[0] for name in named}
        document = path.parent / "model.json"
        own = json.loads(document.read_text())["provenance"].get("own") if kept else None
        assert kept <= {line["op"] for line in own["fit"]["ops"]} if own else not kept, path
    assert {path.name for path in hardware.rglob("*") if path.is_file()} <= {
        "model.json", "residual.npz", "report.json", "fit.png", "prior.json", "prior.npz",
        "README.md", "collectives.json", "collectives.npz",
    }  # fmt: skip


def test_what_is_shipped_is_small(hardware: Path) -> None:
    assert sum(path.stat().st_size for path in hardware.rglob("*") if path.is_file()) < MOST_BYTES
