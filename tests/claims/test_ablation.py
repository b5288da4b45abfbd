"""What each part of a price brings, on devices that follow a law by hand."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.claims import ablation, link_ablation
from benchmarks.claims.collective_judge import GROUP
from benchmarks.claims.device_judge import SPLITS, DeviceEffort, Setup
from hybridperf.hardware import load_device
from hybridperf.io import InputError
from hybridperf.learning.training import TrainingRecipe
from hybridperf_calibration.published import ops as sources
from hybridperf_calibration.published.ops import DeviceRows


def softmax_rows(device: str, seed: int) -> DeviceRows:
    """A floor, a share of the bandwidth, a bump over columns that no form has, 1 % of noise."""
    random = np.random.default_rng(seed)
    rows, cols = np.exp2(random.uniform(4, 13, (2, 900))).round()
    spec = load_device(device)
    time_s = 1e-5 + 8 * rows * cols / (0.5 * spec.memory_bytes_per_s)
    time_s = time_s * np.exp(0.2 * np.sin(np.log2(cols)) + random.normal(0, 0.01, len(rows)))
    frame = pd.DataFrame(
        {"op": "softmax", "dtype": "fp32", "rows": rows, "cols": cols, "time_s": time_s}
    )
    ((_, out),) = sources.device_rows(frame, spec, "neusight_softmax", {})
    return out


def test_each_stage_is_judged_on_the_same_unseen_rows(tmp_path) -> None:
    """The form takes most of the datasheet's error, the process the bump where there are rows;
    without rows it brings nothing, and networks that were not trained never do.
    """
    devices = {name: softmax_rows(name, at) for at, name in enumerate(("t4", "a100_sxm4_80g"))}
    split = next(split for split in SPLITS if split.name == ablation.JUDGED["t4"])
    effort = DeviceEffort(recipe=TrainingRecipe(steps=0, batch=32))
    setup = Setup(split, effort, tmp_path, {"made": "here"})
    cold, warm = ablation.ablated(devices, "softmax", "t4", setup, (0, 200, 10**6))
    assert (cold["rows"], warm["rows"]) == (0, 200)
    for found in (cold, warm):
        assert found["n"] == devices["t4"].about["test"].sum()
        assert found["closed form median"] < 0.5 * found["datasheet median"]
    assert cold["process median"] == pytest.approx(cold["closed form median"], rel=1e-6)
    assert cold["network median"] == pytest.approx(cold["closed form median"], rel=1e-6)
    assert warm["process median"] < 0.3 * warm["closed form median"]
    assert warm["datasheet mean"] == cold["datasheet mean"]
    shown = ablation.table(pd.DataFrame([cold, warm]))
    assert list(shown["rows"]) == [0, 200]
    assert {*ablation.STAGES} < {*shown}


def test_every_judged_device_is_left_out_with_its_siblings() -> None:
    left_out = {split.name: split.left_out for split in SPLITS}
    assert {device for split in SPLITS for device in split.judged} == {*ablation.JUDGED}
    assert all(device in left_out[split] for device, split in ablation.JUDGED.items())


@pytest.mark.parametrize("wrong", [{"families": ["softmx"]}, {"devices": ["t44"]}])
def test_an_unknown_family_or_device_is_one_sentence(tmp_path, wrong) -> None:
    with pytest.raises(InputError, match="known are"):
        ablation.run(tmp_path, tmp_path, **wrong)


def test_an_unknown_system_is_one_sentence(data_dir, tmp_path) -> None:
    with pytest.raises(InputError, match="unknown system 'abacus': known are"):
        link_ablation.run(data_dir, tmp_path, systems=["abacus"], quick=True)


def test_all_arms_are_judged_on_the_same_groups_of_a_system_left_out(data_dir, tmp_path) -> None:
    """A network for each link type, asked for without rows, is judged beside the others."""
    left_out = ["aic_a100_sxm"]
    found = link_ablation.run(
        data_dir, tmp_path, systems=left_out, rows=[0], quick=True, say=lambda _: None
    )
    written = pd.read_csv(tmp_path / "ablation.csv")
    pd.testing.assert_frame_equal(written, found, check_dtype=False)
    groups = found.groupby("arm")[["collective", "link"]].agg(tuple)
    assert set(groups.index) == {*link_ablation.ARMS}
    assert groups["collective"].nunique() == groups["link"].nunique() == 1
    errors = found.pivot(index=list(GROUP)[1:], columns="arm", values="error")
    # the process has nothing to stand on without rows; a network is heard
    assert (errors["+ process"] == errors["closed form"]).all()
    assert (errors["+ network"] != errors["closed form"]).any()
