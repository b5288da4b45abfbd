"""Ops of PyTorch as a GPU measures them, as far as a machine without one can run them: which row a
case becomes, how indices are drawn, what of a step's kernels is busy.
"""

import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import load_device
from hybridperf.ops.table import parse_ops
from hybridperf_calibration.microbench.lookups import Lookups
from hybridperf_calibration.microbench.op_programs import GPU, Reach, reaching, size
from hybridperf_calibration.microbench.timer import Budget, time_case

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
gpu = pytest.importorskip("hybridperf_calibration.microbench.gpu")


@pytest.fixture
def on_cpu(monkeypatch):
    """Programs made and called here, small; the events of a GPU do not exist here."""
    monkeypatch.setattr(gpu, "_DEVICE", "cpu")
    monkeypatch.setattr(gpu, "GPU", Reach())
    monkeypatch.setattr(gpu, "_COLD_BYTES", 1e5)
    monkeypatch.setattr(gpu, "_replayed", lambda call, sets, budget: ([1e-5, 1e-5], 1e-6, True))


def cases_of(name):
    return gpu.gpu_cases([one for one in gpu.FAMILIES if one.name == name], "quick")


@pytest.mark.parametrize("family", ["softmax", "embedding_bag", "reduction", "lists", "gather"])
def test_a_row_is_one_op_that_a_gpu_can_be_fitted_to(family, on_cpu) -> None:
    for case in cases_of(family)[:4]:
        timing = time_case(case, Budget(), np.random.default_rng(0))
        row = {**timing.described, "time_s": timing.time_s}
        assert not parse_ops(pd.DataFrame([row]), load_device("h100_sxm")).problem.any()


def test_an_op_of_several_kernels_says_so(on_cpu) -> None:
    cases = cases_of("bag_gradient")[:6]
    told = [time_case(one, Budget(), np.random.default_rng(0)).described for one in cases]
    assert any("sort" in one.get("not_one_op", "") for one in told)


def test_a_gpu_s_ops_are_larger() -> None:
    with reaching(GPU):
        larger = [size(u, 8, 1024, 0.9) for u in (0.0, 0.5, 1.0)]
    assert larger[0] == size(0.0, 8, 1024, 0.9)
    assert larger[1] > size(0.5, 8, 1024, 0.9)
    assert larger[2] == 4 * 1024 + 1


def test_indices_drawn_by_torch_are_as_those_by_numpy() -> None:
    of = Lookups(5000, 8, 4000, 4, 1.1, 0.0)
    ours = gpu._drawn(of, (4000, 4), torch.Generator().manual_seed(0)).numpy()
    theirs = of.draw(np.random.default_rng(0), (4000, 4))
    shares = [np.sort(np.bincount(one.ravel(), minlength=5000))[::-1] for one in (ours, theirs)]
    assert np.argmax(np.bincount(ours.ravel())) == np.argmax(np.bincount(theirs.ravel()))
    assert shares[0][:20].sum() == pytest.approx(shares[1][:20].sum(), rel=0.05)


def test_busy_seconds_count_what_runs_at_once_only_once() -> None:
    from hybridperf_calibration.training_steps.gpu import _union

    busy_s, span_s = _union([(0.0, 4.0), (1.0, 2.0), (3.0, 6.0), (8.0, 9.0)], 1.0)
    assert (busy_s, span_s) == (7.0, 9.0)
    assert _union([], 1.0) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        ("nowhere", "expected a module of steps in --steps, got nowhere"),
        (
            "benchmarks.claims.gpu_jax_steps",
            "expected TORCH in benchmarks.claims.gpu_jax_steps",
        ),
        ("benchmarks.claims.gpu_steps", "expected a GPU that torch can use, found none"),
    ],
)
def test_steps_that_cannot_run_are_refused_in_a_sentence(steps, sentence, tmp_path, capsys) -> None:
    from hybridperf_calibration.training_steps.gpu import main

    if torch.cuda.is_available() and "GPU" in sentence:
        pytest.skip("there is a GPU")
    given = ["--library", "torch", "--out", str(tmp_path), "--steps", steps]
    assert main(given) == 2
    assert sentence in capsys.readouterr().err
