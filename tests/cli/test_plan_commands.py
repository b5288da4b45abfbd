"""Commands around plans, the library calls."""

import pytest

import hybridperf as hp
from hybridperf.cli.app import main
from hybridperf.io import InputError
from hybridperf.workloads.transformer.zoo import shape_names


def said(capsys, *words: str, status: int = 0) -> str:
    """What a command prints; on standard error where it refuses."""
    with pytest.raises(SystemExit) as done:
        main(list(words))
    out, err = capsys.readouterr()
    assert done.value.code == status, err
    return err if status else out


def test_the_library_plans_in_five_lines(tmp_path) -> None:
    import hybridperf.training.plans.run  # noqa: F401  (a loaded package of that name must not hide the function)

    found = hp.plan(
        "gpt3-125m",
        "aic_a100_sxm",
        8,
        batch=16,
        tokens=1e9,
        only={"cp": [1], "recompute": ["none"]},
    )
    assert isinstance(found.best, hp.Layout)
    assert found.top(3)["time_s"].iloc[0] == found.step_s(found.choice(0))
    assert found.write(tmp_path / "plan.parquet") == found.legal
    assert "best:" in hp.plan_report(found)
    with pytest.raises(InputError, match="would do"):
        hp.plan("gpt3-125m", "aic_a100_sxm", 7)


def test_models_can_be_listed_and_shown(capsys) -> None:
    listed = said(capsys, "models")
    assert len(listed.splitlines()) == len(shape_names()) + 3
    assert "gpt3-175b" in listed
    shown = said(capsys, "show", "gpt3-175b")
    assert "12288" in shown
    assert "174" in shown or "175" in shown
    assert "gpt3-175b" in said(capsys, "show", "gpt3-175c", status=2), "a misspelt one is told of"


def test_systems_say_their_other_names(capsys) -> None:
    listed = said(capsys, "systems")
    assert "dgx_h100" in listed
    assert "dgx_a100" in listed


def test_a_plan_says_before_its_work_what_cannot_be_written(capsys, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    asked = [
        "plan",
        "--shape",
        "gpt3-125m",
        "--system",
        "dgx_h100",
        "--gpus",
        "8",
        "--batch",
        "8",
        "--only",
        "cp=1",
        "--only",
        "pp=1",
    ]
    for option, place in (
        ("--html", "/proc/nowhere/plan.html"),
        ("--html", str(tmp_path / "file" / "plan.html")),
        ("--html", str(tmp_path)),
    ):
        text = said(capsys, *asked, "--out", str(tmp_path / "plan.csv"), option, place, status=2)
        assert option in text
        assert not (tmp_path / "plan.csv").exists(), "nothing was done"
    text = said(capsys, *asked, "--out", str(tmp_path / "new" / "plan.csv"))
    assert f"folder {tmp_path / 'new'} made for --out" in text
