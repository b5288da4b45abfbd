"""Ops of PyTorch through the measuring engine: cases of every family become rows of one op, and
wrong words are refused.
"""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import load_device
from hybridperf.io import InputError
from hybridperf.model.fit import this_machine
from hybridperf.model.fit.programs import usable_core
from hybridperf.ops import GROUPS
from hybridperf.ops.table import parse_ops
from hybridperf_calibration.microbench import cases
from hybridperf_calibration.microbench.timer import Budget, time_case

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
QUICK = Budget(cap_s=0.0, min_s=0.0, min_repeats=1, floor_repeats=1)


@pytest.fixture
def no_gradients():
    with torch.no_grad():
        yield


def families():
    if importlib.util.find_spec("torch") is None:
        return []
    from hybridperf_calibration.microbench.torch_families import FAMILIES

    return [one.name for one in FAMILIES]


@pytest.mark.parametrize("family", families())
def test_a_row_is_one_op_of_the_family(family, no_gradients) -> None:
    made = cases.op_cases("quick", [family], of="torch")
    small = sorted(made, key=_elements)[:4]
    for case in small:
        timing = time_case(case, QUICK, np.random.default_rng(0))
        row = {**timing.described, "time_s": timing.time_s}
        assert row["time_s"] > 0
        # of a sparse product the op itself says when gathered rows come again
        assert family == "spmm" or row["reuse_bytes"] > 0
        parsed = parse_ops(pd.DataFrame([row]), load_device("here"))
        assert not parsed.problem.any()


def _elements(case) -> float:
    _, arguments = case.make(np.random.default_rng(0))
    return sum(np.size(one) for one in arguments[0])


def test_gradients_of_attention_count_as_forward_passes(no_gradients) -> None:
    made = cases.op_cases("quick", ["attention"], of="torch")
    gradients = [case for case in made if "gradient" in case.key]
    others = [case for case in made if "gradient" not in case.key]
    assert gradients
    assert all(case.divisor % 1 == 0 for case in others)
    assert all(case.divisor >= 2.5 for case in gradients)


def test_a_step_s_overheads_are_rows_by_phase() -> None:
    try:
        made = [case for case in cases.host_cases("torch") if case.key.startswith("eager")]
        fn, _ = made[0].make(np.random.default_rng(0))
        assert fn() is not None
    finally:
        torch.distributed.destroy_process_group()
    assert {one for one in GROUPS if one.startswith("eager_")} == {
        case.columns["op"] for case in made
    }
    assert all(case.divisor > 1 for case in made)
    # three messages for each sharded layer of two; with eight parameters seven more of each
    hooks = {case.key: case.divisor for case in made if "layers" in case.key}
    assert hooks["eager gathered 2 layers"] == 6
    assert hooks["eager parameter 2 layers"] == 6 * 7


def test_the_program_measures_and_resumes(tmp_path) -> None:
    store = tmp_path / "ops.jsonl"
    command = [
        sys.executable, "-m", "hybridperf_calibration.measure", "--library", "torch",
        "--out", str(store), "--only", "fill", "--passes", "1", "--budget-s", "20",
        "--cores", usable_core(),
    ]  # fmt: skip
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "0 of them now" in done.stderr
    facts = json.loads((tmp_path / "ops.machine.json").read_text())
    assert facts["torch"] == torch.__version__
    assert set(pd.read_csv(tmp_path / "ops.csv")["op"]) == {"fused"}
    command[command.index("torch")] = "jax"
    other = subprocess.run(command, capture_output=True, text=True, check=False)
    assert other.returncode == 2
    assert "something else" in other.stderr


def test_an_unknown_library_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="unknown library 'tensorflow'"):
        this_machine.measure(tmp_path, setting="quick", library="tensorflow")
