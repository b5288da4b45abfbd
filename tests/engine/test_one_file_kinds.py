"""A new kind of op and a new collective are one file that registers itself: tables, prices, fits,
graphs and gradients take them, and nobody writes a derivative.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pandas as pd
import pytest

from hybridperf.collectives import algorithms
from hybridperf.collectives.fit import fit_collectives
from hybridperf.collectives.form import ALPHA_BETA, NO_DECAY
from hybridperf.collectives.model import CollectiveModel, load_collectives
from hybridperf.collectives.traced import CollectivePricer
from hybridperf.engine.elasticities import elasticities
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.prediction import predict
from hybridperf.engine.workload import Workload
from hybridperf.hardware import load_device, load_system
from hybridperf.io import InputError
from hybridperf.learning.prior.form import slopes
from hybridperf.model import PerfModel, load_model, neutral_knobs
from hybridperf.model.calls import CollectiveCall, kind_of, row_kinds
from hybridperf.model.fit.device import fit
from hybridperf.model.pricing import OpPricer
from hybridperf.ops import GROUPS, OpCall, base

OP = """
import dataclasses
from typing import ClassVar

from hybridperf.ops.base import Op, register
from hybridperf.ops.roofline import Work, streamed


@register("stencil")
@dataclasses.dataclass(frozen=True)
class Stencil(Op):
    group: ClassVar[str] = "stencil"

    rows: float
    cols: float
    points: float
    boundary: str = "zero"

    def work(self) -> Work:
        n = self.rows * self.cols
        return streamed(2 * n * self.element_bytes, flops=2 * self.points * n)
"""
ALGORITHM = """
from hybridperf.collectives.algorithms import direct
from hybridperf.collectives.algorithms.base import Collective, register

register(
    Collective(
        bus_factor=lambda n: n - 1,
        inside=lambda g, nodes: g - 1,
        across=lambda g, nodes: g * g * (nodes - 1),
        few_bytes_steps=direct.steps,
        many_bytes_steps=direct.steps,
    ),
    "direct_all_reduce", "one_shot",
)
"""
H100, SYSTEM = load_device("h100_sxm"), "aic_h100_sxm"
SIZES = {"rows": 700.3, "cols": 900.2, "points": 25.0}
BYTES, RANKS = 3.1e6, 8


def loaded(path: Path, text: str) -> ModuleType:
    """The file's module, as an import beside the others would give it."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What a test registers is gone after it."""
    known = [base._BY_NAME, algorithms.COLLECTIVES, algorithms.ALIASES]
    before, groups = [dict(one) for one in known], list(GROUPS)
    yield
    for one, was in zip(known, before, strict=True):
        one.clear()
        one.update(was)
    GROUPS[:] = groups


@pytest.fixture
def stencil(tmp_path: Path) -> ModuleType:
    return loaded(tmp_path / "stencil.py", OP)


@pytest.fixture
def direct(tmp_path: Path) -> ModuleType:
    return loaded(tmp_path / "direct_all_reduce.py", ALGORITHM)


# --- an op ----------------------------------------------------------------------------------------


def stencils(sizes: np.ndarray, **more: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"op": "stencil", "dtype": "fp32", **SIZES, "rows": sizes, **more})


def test_an_op_of_one_file_in_a_table_and_a_graph(stencil: ModuleType) -> None:
    model = PerfModel(H100, neutral_knobs())
    op = stencil.Stencil("fp32", **SIZES)
    said = model.predict_ops(stencils(np.array([SIZES["rows"]])))
    work = op.work()
    by_hand = max(work.flops / H100.peak("fp32", "vector"), work.bytes / H100.memory_bytes_per_s)
    assert said["predicted_s"][0] == pytest.approx(by_hand, rel=1e-6)
    builder = GraphBuilder()
    first = builder.op(1, label="stencil")
    builder.op(1, label="again", after=[first])
    step = Workload("two stencils", builder.build(), (OpCall(op),))
    result = predict(model, step)
    assert result.time_s == pytest.approx(2 * by_hand, rel=1e-5)
    assert set(result.breakdown()["group"]) == {"stencil"}
    by_knob = elasticities(result).set_index("knob")["elasticity"]
    assert by_knob["memory_bytes_per_s"] == pytest.approx(-1, rel=1e-4)


def test_an_op_of_one_file_is_fitted_and_has_gradients(stencil: ModuleType, tmp_path: Path) -> None:
    sizes = np.round(2.0 ** np.random.default_rng(0).uniform(4, 14, 60))
    frame = stencils(sizes, cols=np.full(60, 900.0))  # what was measured has whole sizes
    bare = PerfModel(H100, neutral_knobs()).predict_ops(frame)["predicted_s"]
    fit(frame.assign(time_s=4e-6 + bare / 0.6), H100, prior="none")[0].save(tmp_path / "fitted")
    model = load_model(tmp_path / "fitted")
    at = GROUPS.index("stencil")
    assert float(model.knobs.floor_s[at]) == pytest.approx(4e-6, rel=0.2)
    expected = model.predict_ops(stencils(np.array([SIZES["rows"]])))["predicted_s"][0]
    pricer = OpPricer.of(model, "stencil", dtype="fp32")
    assert float(pricer(model.platform(), **SIZES)) == pytest.approx(expected, rel=1e-4)
    with jax.enable_x64(True):
        slope = jax.grad(lambda dims: pricer(model.platform(), **dims))(SIZES)
        for name, size in SIZES.items():
            step = 1e-5 * size
            up, down = (
                pricer(model.platform(), **SIZES | {name: size + way * step}) for way in (1, -1)
            )
            difference = float(up - down) / 2
            assert float(slope[name]) * step == pytest.approx(
                difference, rel=1e-4, abs=1e-9 * expected
            ), name


def test_a_model_from_before_an_op_is_refused(tmp_path: Path) -> None:
    before = PerfModel(H100, neutral_knobs())
    loaded(tmp_path / "stencil.py", OP)
    with pytest.raises(InputError, match=r"knobs of stencil, .* load the model again"):
        before.predict_ops(stencils(np.array([SIZES["rows"]])))


# --- a collective ---------------------------------------------------------------------------------


def messages(*sizes: float) -> pd.DataFrame:
    rows = {"collective": "Direct-All-Reduce", "bytes": sizes, "n_gpus": RANKS, "n_nodes": 1}
    return pd.DataFrame(rows)


def step_of(size: float) -> Workload:
    builder = GraphBuilder()
    builder.collective(1, label="sum", ranks=list(range(RANKS)))
    call = CollectiveCall("direct_all_reduce", size, RANKS)
    return Workload("one sum", builder.build(), (call,))


def test_a_collective_of_one_file_by_hand(direct: ModuleType) -> None:
    system = load_system(SYSTEM)
    model = CollectiveModel.datasheet(system)
    said = model.predict(messages(BYTES))
    by_hand = system.latency_s + BYTES * (RANKS - 1) / system.intra_bytes_per_s
    assert said["predicted_s"][0] == pytest.approx(by_hand, rel=3e-5)
    assert said["bus_bytes_per_s"][0] == pytest.approx(BYTES / by_hand * (RANKS - 1), rel=3e-5)
    whole = PerfModel(H100, neutral_knobs()).with_collectives(model)
    result = predict(whole, step_of(BYTES))
    assert result.time_s == pytest.approx(by_hand, rel=3e-5)
    assert row_kinds()[kind_of(step_of(BYTES).calls[0])] == "direct_all_reduce"
    assert set(result.breakdown()["group"]) == {"direct_all_reduce"}


def test_a_collective_of_one_file_on_a_measured_system(direct: ModuleType) -> None:
    fabric = load_collectives(SYSTEM)
    said = fabric.predict(messages(64.0, 1e4, BYTES))
    assert (np.diff(said["predicted_s"]) > 0).all()
    assert said["note"].str.contains("no such collective, library and link was measured").all()
    whole = PerfModel(H100, neutral_knobs()).with_collectives(fabric)
    assert predict(whole, step_of(BYTES)).time_s == pytest.approx(said["predicted_s"][2], rel=1e-5)
    pricer, links = CollectivePricer.of(fabric, "one_shot", n_gpus=RANKS), fabric.links()
    with jax.enable_x64(True):
        slope = float(jax.grad(pricer, argnums=1)(links, BYTES))
        up, down = (float(pricer(links, BYTES * (1 + way * 1e-5))) for way in (1, -1))
    assert slope * BYTES * 2e-5 == pytest.approx(up - down, rel=1e-4)


def test_a_collective_of_one_file_is_fitted_by_its_own_steps(direct: ModuleType) -> None:
    """Its hops are one, whatever the ranks, and so are their slopes in the fit."""
    frame = pd.concat([
        messages(*2.0 ** np.arange(4.0, 24.0)).assign(n_gpus=ranks) for ranks in (2, 4, 8)
    ])  # fmt: skip
    system = load_system(SYSTEM)
    # by hand: 6 us, one hop of 2 us, all copies over 60 % of the link
    rate = 0.6 * system.intra_bytes_per_s
    frame["time_s"] = 8e-6 + frame["bytes"] * (frame["n_gpus"] - 1) / rate
    model, report = fit_collectives(frame, SYSTEM)
    assert "direct_all_reduce|nccl|nvlink" in model.groups()
    assert report.by_collective()["knobs_ape"].max() < 0.05
    steps = algorithms.COLLECTIVES["direct_all_reduce"].steps(np.array([1.0, 2, 8]), np.ones(3))
    np.testing.assert_array_equal(steps, [[0, 0, 0, 0], [1, 0, 1, 0], [1, 0, 1, 0]])
    work = np.array([[1e-9, 0, 8, 1, *steps[2]], [1e-9, 0, 2, 1, *steps[1]]])
    decay = ALPHA_BETA.knobs.index("rank_decay")
    theta = np.tile(ALPHA_BETA.start, (2, 1))
    theta[:, decay] = np.log(NO_DECAY)
    np.testing.assert_allclose(np.diff(ALPHA_BETA.log_s(theta, work)), 0, atol=1e-12)
    by_knob = np.delete(slopes(ALPHA_BETA, theta, work), decay, 1)
    np.testing.assert_allclose(*by_knob, atol=1e-12)


def test_a_name_that_is_taken_is_refused(direct: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'direct_all_reduce', which is taken"):
        loaded(tmp_path / "again.py", ALGORITHM.replace(', "one_shot"', ""))
