"""Results of claims as JSON, and the page made of them."""

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks.claims import harness
from benchmarks.claims.scores import scores


def test_scores_by_hand() -> None:
    found = scores([1.0, 2.0, 4.0], [1.1, 2.2, 4.4], [1.0, 2.1, np.nan], [1.21, 2.31, np.nan])
    assert (found.rows, found.mape, found.median) == (3, pytest.approx(0.1), pytest.approx(0.1))
    assert found.bias == pytest.approx(np.log(1.1))
    assert found.pearson == pytest.approx(1.0)
    assert found.coverage == 0.5  # of the two rows that have an interval
    assert found.half_width == pytest.approx(((1.1 - 1) + (np.sqrt(1.1) - 1)) / 2)
    alone = scores([1.0], [2.0], baselines={"flat": [4.0]})
    assert np.isnan([alone.pearson, alone.coverage, alone.half_width]).all()
    assert alone.baselines == {"flat": 3.0}


def test_a_page_of_two_claims(claim, tmp_path) -> None:
    one = harness.ResultLine.of("all steps", scores([1.0, 2.0], [1.1, 2.2]), goal=0.2)
    baselines = {"trees": 0.5, "flat": None}
    other = harness.ResultLine("a | b", 0.25, np.int64(7), None, baselines, "mean |error|")
    harness.write_results(tmp_path / "steps", "steps", [one])
    harness.write_results(tmp_path / "ops", "ops", [other])
    written = json.loads((tmp_path / "steps" / "results.json").read_text())
    assert written["schema"] == "hybridperf/validate-results"
    assert {"claim", "command", "date", "commit", "versions", "machine"} <= {*written}
    (line,) = written["lines"]
    assert (line["name"], line["n"], line["goal"]) == ("all steps", 2, 0.2)
    assert line["coverage"] is None
    files = (tmp_path / "steps" / "results.json", tmp_path / "ops")
    status, _, err = claim("page", *files, "--out", tmp_path / "accuracy.md")
    assert status in (0, None), err
    page = (tmp_path / "accuracy.md").read_text()
    assert "## steps" in page
    assert "| all steps | 2 | MAPE | 10.0 % | 20.0 % |" in page
    assert "1 of 1 goals are met; [all 1 lines](accuracy/steps.csv)." in page
    beside = pd.read_csv(tmp_path / "accuracy" / "ops.csv").iloc[0]
    assert (beside["what"], beside["ours"], beside["baseline"]) == ("a | b", 0.25, 0.5)
    assert "| a / b | 7 | mean \\|error\\| | 25.0 % |  | 50.0 % (trees) |" in page


def test_a_table_measured_again_replaces_the_first_and_nothing_else(claim, tmp_path) -> None:
    page = tmp_path / "accuracy.md"
    for error in (0.25, 0.5):
        harness.write_results(tmp_path, "steps", [harness.ResultLine("all", error, 7)])
        status, _, err = claim("page", tmp_path, "--out", page)
        assert status in (0, None), err
        page.write_text(page.read_text() + "\nStalled runs are the worst.\n")
    written = page.read_text()
    assert written.count("Stalled runs are the worst.") == 2
    assert written.count("| all | 7 | MAPE | 50.0 % |") == 1
    assert "25.0 %" not in written


def test_a_page_that_lost_a_mark_is_refused(claim_refused, tmp_path) -> None:
    harness.write_results(tmp_path, "steps", [harness.ResultLine("all", 0.5, 7)])
    page = tmp_path / "accuracy.md"
    page.write_text("# Accuracy\n<!-- steps: begin -->\n| mine |\n")
    assert "steps: end" in claim_refused("page", tmp_path, "--out", page)
    assert "| mine |" in page.read_text()


def test_results_are_for_the_page_alone(claim_refused, tmp_path) -> None:
    assert "expected results" in claim_refused("page")
    assert "expected no results with lin" in claim_refused("lin", tmp_path / "results.json")
    missing = tmp_path / "results.json"
    assert "expected a hybridperf/validate-results file" in claim_refused(
        "page", missing, "--out", tmp_path / "a.md"
    )
