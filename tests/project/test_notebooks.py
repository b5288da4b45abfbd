"""The notebooks run from top to bottom, as a reader would run them, and are committed with what
they show.
"""

import json
import os
import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from support.notebooks import NOTEBOOKS, executed, shown

import hybridperf as hp

CALIBRATE = next(path for path in NOTEBOOKS if path.stem == "01_calibrate")
EVALUATE_GRID = next(path for path in NOTEBOOKS if path.stem == "02_evaluate_grid")
GRADIENT_SEARCH = next(path for path in NOTEBOOKS if path.stem == "03_gradient_search")
SHARD_TABLES = next(path for path in NOTEBOOKS if path.stem == "04_shard_tables")
SERVING = next(path for path in NOTEBOOKS if path.stem == "05_serving")
RUNS = next(path for path in NOTEBOOKS if path.stem == "06_runs")
CLUSTER = next(path for path in NOTEBOOKS if path.stem == "07_cluster")
FAMILIES = "few_rows loop_reduction"  # some of what its training step consists of


def printed(cell: nbformat.NotebookNode) -> str:
    return "".join(
        output.text
        for output in cell.get("outputs", [])
        if output.output_type == "stream" and output.name == "stdout"
    )


def as_committed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """It run now: each cell shows what the committed one shows."""
    mend = f"python tests/support/notebooks.py {path.stem}"
    ran = executed(path, folder)
    assert shown(ran) == shown(nbformat.read(path, as_version=4)), mend
    return ran


def test_calibrate_runs_and_its_model_predicts_an_unseen_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = str(max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0)
    settings = {
        "SETTING": "quick", "OUT": "model", "CORES": core, "ONLY": FAMILIES, "BUDGET_S": "12",
        "STEPS": "1",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(f"HYBRIDPERF_{name}", value)
    ran = as_committed(CALIBRATE, tmp_path)
    outputs = [output for cell in ran.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    red = "".join(output.text for output in outputs if output.get("name") == "stderr")
    assert "hybridperf" not in red, red
    assert len([output for output in outputs if "image/png" in output.get("data", {})]) == 5
    said = "".join(map(printed, ran.cells))
    done, total = re.search(r"measuring ops .* (\d+) of (\d+)", said).groups()
    assert 0 < int(done) <= int(total)
    assert "Where to be careful:\n- " in said
    predicted, copied = re.search(
        r"^predicted  (.*?), \S+ % off.*^predicted by the copy: (.*?)$", said, re.M | re.S
    ).groups()
    assert predicted == copied
    off = float(re.search(r"^predicted  .*?, (\S+) % off", said, re.M).group(1))
    assert 1 / 3 < 1 + off / 100 < 3, said
    left = {path.name for path in (tmp_path / "model").iterdir()}
    assert left >= {
        "model.json", "residual.npz", "report.json", "held_out.csv", "fit.png", "errors.png",
        "roofline.png", "learning_curve.png", "ops.csv", "host.csv", "steps",
    }  # fmt: skip
    assert {path.name for path in (tmp_path / "model" / "to-send").iterdir()} == {
        "model.json", "residual.npz",
    }  # fmt: skip


def test_evaluate_grid_runs_and_its_front_holds_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SETTING": "quick", "OUT": "grid"}.items():
        monkeypatch.setenv(f"HYBRIDPERF_{name}", value)
    ran = as_committed(EVALUATE_GRID, tmp_path)
    outputs = [output for cell in ran.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    assert len([output for output in outputs if "image/png" in output.get("data", {})]) == 5
    said = "".join(map(printed, ran.cells))
    in_grid, alone, low, high = re.search(
        r"takes (\S+) s in the grid, (\S+) s asked alone\n90 % interval (\S+) to (\S+) s", said
    ).groups()
    assert in_grid == alone, said
    assert float(low) < float(alone) < float(high)
    for name, columns in (
        ("layouts", ("days", "gpu_hours")),
        ("served", ("tokens_per_s_user", "predicted_tokens_per_s_gpu")),
    ):
        cloud = pd.read_parquet(tmp_path / "grid" / f"{name}.parquet", columns=[*columns, "fits"])
        assert cloud["fits"].all()
        sign = -1 if name == "served" else 1
        for _, one in pd.read_csv(tmp_path / "grid" / f"{name}.front.csv").iterrows():
            better = [sign * cloud[column] < sign * one[column] for column in columns]
            assert not (better[0] & better[1]).any()


def test_the_planners_grid_takes_public_names_alone() -> None:
    code = "".join(
        cell.source + "\n"
        for cell in nbformat.read(EVALUATE_GRID, as_version=4).cells
        if cell.cell_type == "code"
    )
    assert "import hybridperf as hp" in code
    assert not re.search(r"from hybridperf|import hybridperf\.", code)
    names = re.findall(r"\bhp\.(\w+)", code)
    assert {"sweep", "predict_steps", "predict_runs", "plot_grid"} <= {*names} <= {*hp.__all__}


def test_gradient_search_runs_and_its_checks_hold(tmp_path: Path) -> None:
    ran = as_committed(GRADIENT_SEARCH, tmp_path)
    outputs = [output for cell in ran.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    assert len([output for output in outputs if "image/png" in output.get("data", {})]) == 2
    said = "".join(map(printed, ran.cells))
    assert (
        float(re.search(r"^gradient and finite difference are (\S+) apart", said, re.M).group(1))
        < 1e-4
    )
    ours, graphs = re.search(r"^(\S+) s, as hp.predict says: (\S+) s$", said, re.M).groups()
    assert ours == graphs
    assert float(re.search(r" cost (\S+)%$", said, re.M).group(1)) < -5
    searched, tried, random, points = (
        float(number.replace(",", ""))
        for number in re.search(
            r"^search (\S+) days from (\S+) points\nrandom (\S+) days from (\S+) points", said, re.M
        ).groups()
    )
    assert points == 10 * tried
    assert searched < random
    assert -1.2 < float(re.search(r"^budget .* (\S+)$", said, re.M).group(1)) < -0.8
    best, enumerated = re.search(
        r"^search: (\d+) sequences; the best of all 512: (\d+)$", said, re.M
    ).groups()
    assert best == enumerated


def test_no_notebook_of_gradients_asks_by_private_names() -> None:
    source = "\n".join(cell.source for cell in nbformat.read(GRADIENT_SEARCH, as_version=4).cells)
    assert re.findall(r"^[ \t]*(?:from|import) hybridperf\b.*$", source, re.M) == [
        "import hybridperf as hp"
    ]


def test_shard_tables_runs_and_its_placement_is_the_best_it_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SETTING": "quick", "OUT": "sharding"}.items():
        monkeypatch.setenv(f"HYBRIDPERF_{name}", value)
    ran = as_committed(SHARD_TABLES, tmp_path)
    outputs = [output for cell in ran.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    assert len([output for output in outputs if "image/png" in output.get("data", {})]) == 2
    tables, placed = (
        pd.read_csv(tmp_path / "sharding" / f"{name}.csv") for name in ("tables", "placement")
    )
    assert list(placed["table"]) == list(tables["name"])
    listed = pd.read_csv(tmp_path / "sharding" / "candidates.csv")
    fitting = listed[listed["fits"]]
    by_sums = fitting.loc[fitting["sums_s"].idxmin()]
    assert by_sums["fused"], "what is least by sums is priced kernel by kernel, too"
    assert listed["fused"].iloc[0]
    assert listed["step_s"].iloc[0] <= by_sums["step_s"]
    said = next(text for text in map(printed, ran.cells) if "best of the random ones" in text)
    assert float(re.search(r"random ones ([\d.]+) times ours", said).group(1)) >= 1, said


def test_serving_runs_and_its_answers_hold_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Path(__file__).parents[2] / ".." / "shared" / "data"
    data = Path(os.environ.get("HYBRIDPERF_DATA", shared)).resolve()  # made rows where it is not
    settings = {"SETTING": "quick", "OUT": "serving", "MODEL": "here", "DATA": str(data)}
    for name, value in settings.items():
        monkeypatch.setenv(f"HYBRIDPERF_{name}", value)
    ran = as_committed(SERVING, tmp_path)
    outputs = [output for cell in ran.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    assert len([output for output in outputs if "image/png" in output.get("data", {})]) == 4
    said = "".join(map(printed, ran.cells))
    assert "rows predicted, 0 refused" in said
    best, low, high = (
        float(number.replace(",", ""))
        for number in re.search(
            r"sequences: (\S+) tokens/s and GPU\n90 % interval (\S+) to (\S+),", said
        ).groups()
    )
    assert low < best < high
    rate = float(re.search(r"up to (\S+) requests/s at P90", said).group(1))
    assert rate > 0
    assert len(re.findall(r" (?:ttft|tpot)_s  ", said)) == 16  # four runs of the real loop
    if (data / "training_steps").is_dir():
        by_beliefs, with_rows = map(
            float, re.search(r"tpot: median error (\S+)% by beliefs, (\S+)% with", said).groups()
        )
        assert with_rows < by_beliefs


def test_runs_runs_and_its_best_interval_is_the_best_of_its_grid(tmp_path: Path) -> None:
    ran = as_committed(RUNS, tmp_path)
    outputs = [output for cell in ran.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    said = "".join(map(printed, ran.cells))
    best, grid = re.search(r"^best by gradient (\d+) s, of the grid (\d+) s", said, re.M).groups()
    assert float(best) == pytest.approx(float(grid), rel=0.03)
    ours = float(re.search(r"^goodput ([\d.]+)%, published: over 90 %$", said, re.M).group(1))
    assert 85 < ours < 95


def test_cluster_runs_and_its_answers_hold_what_they_say(tmp_path: Path) -> None:
    ran = as_committed(CLUSTER, tmp_path)
    outputs = [output for cell in ran.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    said = "".join(map(printed, ran.cells))
    steps_ms = {row[0]: float(row[-1]) for row in map(str.split, said.split("\n\n")[0].splitlines())
                if row[0] in ("naive", "aware", "worst")}  # fmt: skip
    assert steps_ms["aware"] < steps_ms["naive"] <= steps_ms["worst"]
    low, high = map(float, re.search(r"largest: ([\d.]+)% to ([\d.]+)% fewer", said).groups())
    assert 0 <= low < 56.2 < high
    slower = re.findall(r"one ([\d.]+) times as slow: a step ([\d.]+) times", said)
    assert all(float(step) == pytest.approx(float(one), rel=0.02) for one, step in slower)
    needed = float(re.search(r"keep up with 4 H100 from (\S+) GB/s on", said).group(1))
    assert 0.125 < needed < 50


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_notebooks_have_their_outputs(path: Path) -> None:
    """As tests/support/notebooks.py writes them: no counts of runs, no remarks, no paths."""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.execution_count is None
            assert all(output.get("name") != "stderr" for output in cell.outputs)
            assert "/tmp/" not in json.dumps(cell.outputs)
