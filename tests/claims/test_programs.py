"""Programs captured without a GPU beside those that ran on one."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.claims import example_steps, programs, timm_models
from hybridperf.io import InputError

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")


def test_every_measured_step_is_one_that_can_be_captured() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed (`dev`)")
    from benchmarks.claims import gpu_jax_steps, gpu_published, gpu_steps

    rows = programs.measured_steps()
    known = {"torch": gpu_steps.TORCH | gpu_published.TORCH, "jax": gpu_jax_steps.JAX}
    assert set(rows["device"]) == {"h100_sxm", "h200_sxm"}
    assert all(step in known[of] for of, step in zip(rows["library"], rows["step"], strict=True))
    assert (rows["step_s"] > 0.9 * rows["busy_s"]).all()


def test_a_few_steps_are_nearer_than_the_roofline(tmp_path: Path) -> None:
    programs.run(None, tmp_path, quick=True, tasks=["compiled"], say=lambda text: None)
    frame = programs.pd.read_csv(tmp_path / "programs_compiled.csv")
    ours = (frame["predicted_s"] / frame["step_s"] - 1).abs().median()
    roofline = (frame["roofline_s"] / frame["step_s"] - 1).abs().median()
    assert len(frame) == 3
    assert ours < roofline


def test_architectures_are_dealt_once(data_dir: Path) -> None:
    """By name: what is judged does not move with rows, checkpoints or sizes of images."""
    rows = timm_models.measured(data_dir)
    half = timm_models.halves(rows["arch"])
    assert len(half) == 2 * timm_models.DRAWN
    assert half == timm_models.halves(sorted(rows["arch"], reverse=True))
    assert half["nfnet_f4"] == timm_models.DEV
    assert half["swinv2_cr_tiny_224"] == timm_models.ASIDE
    assert not {"regnetz_e8", "dla34"} & set(half)  # spent
    assert not rows.duplicated(["arch", "setting"]).any()


@pytest.mark.parametrize("arch", ["dla34", "hardcorenas_d", "resnest26d"])
def test_architectures_left_out_are_near(data_dir: Path, arch: str) -> None:
    """A dense, a depthwise and a grouped network in inference, in each layout on two cards."""
    try:
        timm_models.libraries()
    except InputError as error:
        pytest.skip(str(error))
    rows = timm_models.measured(data_dir)
    rows = rows[(rows["arch"] == arch) & (rows["task"] == "infer") & (rows["compiled"] == "no")]
    frame = timm_models.judged(rows.assign(half=timm_models.ASIDE))
    assert len(frame) == 5
    wrong = np.log(frame["predicted_s"] / frame["step_time_s"]).abs()
    assert wrong.median() < 0.15
    assert (frame["predicted_s"] > frame["roofline_s"]).all()
    assert frame["step_time_s"].between(frame["low_s"], frame["high_s"]).mean() > 0.5


def test_examples_are_read_by_their_units(data_dir: Path) -> None:
    """Every row is judged or left out with its reason; what the README joins is taken apart."""
    rows, left_out = example_steps.measured(data_dir)
    shared = rows[rows["model"].isin(["SSD", "nnUNet", "BERT", "NCF"])]
    assert len(shared) + sum(left_out.values()) == 408
    assert {one.partition(":")[0] for one in left_out} == {
        "GPUNet", "MoFlow", "TFT", "DLRM", "QuartzNet", "FastPitch", "BERT",
    }  # fmt: skip
    ncf = rows[(rows["model"] == "NCF") & (rows["task"] == "infer")]
    assert (ncf["batch"] / ncf["step_time_s"]).between(1e6, 1e8).all()  # given in 1e6 and 1e7
    assert set(ncf["precision"]) == {"fp32", "tf32", "amp_fp16"}
    assert not ncf.duplicated(["device", "precision", "batch"]).any()
    assert set(rows.loc[rows["precision"] == "tf32", "device"]) == {
        "a100_sxm4_40g", "a100_sxm4_80g",
    }  # fmt: skip
    assert rows["step_time_s"].between(1e-4, 2.0).all()


def test_an_example_is_near_and_learns_from_no_row_of_its_model(data_dir: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed (`dev`)")
    rows, _ = example_steps.measured(data_dir)
    bert = rows[(rows["model"] == "BERT") & (rows["task"] == "infer")]
    frame = example_steps.judged(bert)
    assert len(frame) == 2
    assert (frame["predicted_s"] / frame["step_time_s"] - 1).abs().max() < example_steps.GOAL
    assert frame["step_time_s"].between(frame["low_s"], frame["high_s"]).all()
    alone = example_steps.beside_baselines(frame)
    assert alone[["share_s", "constant_s"]].isna().all(axis=None)
