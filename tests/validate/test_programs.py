"""Programs captured without a GPU beside those that ran on one."""

from pathlib import Path

import pytest

from hybridperf.validate import programs

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")


def test_every_measured_step_is_one_that_can_be_captured() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed (`dev`)")
    from hybridperf.validate import gpu_jax_steps, gpu_published, gpu_steps

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
