"""Pricers say what tables say, and their gradients are finite differences: of every op, collective,
dimension and knob.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from support.sizes import CASES, TEXT

from hybridperf.collectives.model import CollectiveModel, load_collectives
from hybridperf.collectives.traced import CollectivePricer
from hybridperf.hardware import LEVELS, load_device
from hybridperf.io import InputError
from hybridperf.io.namespace import QUICKLY_COMPILED
from hybridperf.learning.inputs import Box, Inputs, inputs_of
from hybridperf.learning.prior import alone
from hybridperf.learning.training import train
from hybridperf.model import (
    GROUP_KNOBS,
    LEVEL_KNOBS,
    GroupReport,
    PerfModel,
    Platform,
    load_model,
    neutral_knobs,
)
from hybridperf.model.families import family_of
from hybridperf.model.pricing import OpPricer
from hybridperf.ops import GROUPS, op_by_name, op_names
from hybridperf.ops.roofline import RooflineKnobs

H100 = load_device("h100_sxm")
STEP = 1e-5  # of finite differences, relative
jitted = functools.partial(jax.jit, compiler_options=QUICKLY_COMPILED)


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def dtype_of(op: str) -> str:
    return "bf16" if op_by_name(op)[0].unit == "matrix" else "fp32"


def row(op: str, dims: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "op": op,
            "dtype": dtype_of(op),
            **TEXT.get(op, {}),
            **{name: np.atleast_1d(size) for name, size in dims.items()},
        }
    )


def pricer_of(model: PerfModel, op: str) -> OpPricer:
    return OpPricer.of(model, op, dtype=dtype_of(op), text=TEXT.get(op, {}))


def group_of(op: str, dims: dict[str, float]) -> str:
    cls, fixed = op_by_name(op)
    return GROUPS[int(cls(dtype_of(op), **dims, **fixed).group_index())]


@pytest.fixture(scope="module")
def learned() -> PerfModel:
    """An H100 with caches around it; knobs away from neutral, each group's different, and
    corrections learned from made-up rows.
    """
    rng = np.random.default_rng(0)
    n = len(GROUPS)
    knobs = RooflineKnobs(
        floor_s=rng.uniform(1e-6, 5e-6, n), compute_efficiency=rng.uniform(0.4, 0.9, n),
        memory_efficiency=rng.uniform(0.4, 0.9, n), transcendental_flops=rng.uniform(5, 30, n),
        strided_factor=rng.uniform(0.5, 2, n), step_s=rng.uniform(1e-13, 1e-12, n),
        smoothing=rng.uniform(0.05, 0.6, n), level_speedup=np.array([7.0, 3.0, 2.0, 1.0]),
        line_s=np.array([3e-12, 1e-11, 1e-11, 2e-10]),
        level_capacity=np.array([0.9, 0.8, 0.3, 1.0]),
    )  # fmt: skip
    device = H100.model_copy(update={"l1_bytes": 2.5e5, "l3_bytes": 3e8})
    groups, inputs, targets = [], [], []
    for op, dims in CASES.items():
        around = {name: size * np.exp2(rng.uniform(-0.4, 0.4, 40)) for name, size in dims.items()}
        cls, fixed = op_by_name(op)
        rows = cls(dtype_of(op), **around, **fixed)
        inputs.append(inputs_of(rows, rows.work(), 40))
        groups.append(group_of(op, dims))
        targets.append(0.3 * np.sin(2 * inputs[-1].values.sum(1)) + 0.2)
    reports = {}
    for group, rows, target in zip(groups, inputs, targets, strict=True):
        blank, seen = alone._nothing_learned(rows, target)
        params = train([(alone._padded(seen.x), target)], np.ones((1, 1), bool), alone._RECIPE, 0)
        both = dataclasses.replace(
            blank, params=params, process=alone._process(seen), trunk_share=0.5, process_share=0.4
        )
        reports[group] = report_of(both.sizes, rows, both)
    return PerfModel(device, knobs, reports)


def report_of(box: Box, rows: Inputs, residual: Any) -> GroupReport:
    ends = (dict(zip(box.names, end.tolist(), strict=True)) for end in (box.low, box.high))
    return GroupReport(len(rows.values), 0.2, *ends, residual=residual)


@pytest.fixture(scope="module")
def shipped() -> PerfModel:
    """By its own rows alone: what other devices say of an op has no slope, pricers leave it out."""
    return dataclasses.replace(load_model("h100_sxm"), references=None)


def test_every_op_and_dimension_is_a_case() -> None:
    kinds = {op_by_name(op)[0] for op in op_names()}
    # without a size (what is spent around an eager op) there is nothing that a slope is of
    assert {op_by_name(op)[0] for op in CASES} == {kind for kind in kinds if kind.dimensions()}
    for op, dims in CASES.items():
        cls, fixed = op_by_name(op)
        assert {*dims} == {*cls.dimensions()} - {*fixed}


# --- one op ---------------------------------------------------------------------------------------


def what_learns(op: str) -> tuple[str, ...]:
    """Names of what a network sees of an op."""
    cls, fixed = op_by_name(op)
    sized = cls(dtype_of(op), **CASES[op], **fixed)
    return inputs_of(sized, sized.work(), 1).names


# with corrections one op of each set of what networks see; all by `-m slow`
CORRECTED = [*{what_learns(op): op for op in reversed(CASES)}.values()]


@pytest.mark.parametrize("op", [op for op in CASES if op not in CORRECTED])
def test_an_op_by_the_datasheet(op: str) -> None:
    check_op(PerfModel.datasheet(H100), op, 1e-9)


@pytest.mark.parametrize(
    "op", [pytest.param(op, marks=[] if op in CORRECTED else pytest.mark.slow) for op in CASES]
)
def test_an_op_with_corrections_and_by_the_datasheet(learned: PerfModel, op: str) -> None:
    """Tables are corrected in float32, in which rows of a process that lie near lose digits:
    pricers go on in what they are traced in. What was learned is a factor that no number of the
    machine moves: at a datasheet's numbers, with fewer caches, the same compiled function says the
    datasheet's seconds times that.
    """
    both = check_op(learned, op, 3e-5)
    bare, sheet = dataclasses.replace(learned, groups={}), PerfModel.datasheet(H100)
    learned_s, bare_s, sheet_s = (
        model.predict_ops(row(op, CASES[op]))["predicted_s"][0] for model in (learned, bare, sheet)
    )
    assert abs(np.log(learned_s / bare_s)) > 1e-3
    here, there = (float(both(one.platform(), CASES[op])[0]) for one in (learned, sheet))
    assert there * bare_s == pytest.approx(here * sheet_s, rel=1e-9)
    check_slopes(both, sheet.platform(), op)


H100_FAMILIES = {
    "matmul",
    "prefill_attention",
    "decode_attention",
    "encoder_attention",
    "moe",
    "quantise",
    "gather",
    "norm",
    "elementwise",
    "matmul_fp32",
}
OF_FAMILIES = [
    op for op, dims in CASES.items() if family_of(group_of(op, dims), dtype_of(op)) in H100_FAMILIES
]
QUICK = ("gemm", "moe")  # the others compile for a minute and say no more


@pytest.mark.parametrize(
    "op", [pytest.param(op, marks=[] if op in QUICK else pytest.mark.slow) for op in OF_FAMILIES]
)
def test_an_op_of_a_family(shipped: PerfModel, op: str) -> None:
    assert {*shipped.families} == H100_FAMILIES
    check_op(shipped, op, 1e-6)


def check_op(model: PerfModel, op: str, exact: float) -> Callable[..., Any]:
    """The table's seconds, and slopes of the log of time over the log of each number.

    Seconds and slopes are one compiled function, which is returned: two take twice as long to
    compile.
    """
    both = seconds_and_slopes(model, op)
    expected = model.predict_ops(row(op, CASES[op]))["predicted_s"][0]
    assert float(both(model.platform(), CASES[op])[0]) == pytest.approx(expected, rel=exact)
    check_slopes(both, model.platform(), op)
    return both


def check_slopes(both: Callable[..., Any], platform: Platform, op: str) -> None:
    dims = CASES[op]
    found, (by_platform, by_dims) = both(platform, dims)
    seconds = float(found)

    def pricer(platform: Platform, **dims: Any) -> Any:
        return both(platform, dims)[0]

    for name, size in dims.items():
        if size > 0:
            check(
                lambda moved, name=name: pricer(platform, **{**dims, name: moved}),
                size,
                by_dims[name],
                seconds,
                name,
            )
    at = GROUPS.index(group_of(op, dims))
    for name in GROUP_KNOBS:
        slopes = np.asarray(getattr(by_platform.knobs, name))
        assert (np.delete(slopes, at) == 0).all(), "only its own group's"
        check(
            lambda moved, name=name: pricer(with_knob(platform, name, at, moved), **dims),
            getattr(platform.knobs, name)[at],
            slopes[at],
            seconds,
            name,
        )
    for name in LEVEL_KNOBS:
        for level in range(len(LEVELS)):
            check(
                lambda moved, name=name, level=level: pricer(
                    with_knob(platform, name, level, moved), **dims
                ),
                getattr(platform.knobs, name)[level],
                np.asarray(getattr(by_platform.knobs, name))[level],
                seconds,
                name,
            )
    for level in range(len(LEVELS) - 1):
        check(
            lambda moved, level=level: pricer(
                dataclasses.replace(platform, level_bytes=put(platform.level_bytes, level, moved)),
                **dims,
            ),
            platform.level_bytes[level],
            np.asarray(by_platform.level_bytes)[level],
            seconds,
            LEVELS[level],
        )
    for name in ("memory_bytes_per_s", "peak_flops_scale"):
        check(
            lambda moved, name=name: pricer(dataclasses.replace(platform, **{name: moved}), **dims),
            getattr(platform, name),
            getattr(by_platform, name),
            seconds,
            name,
        )


def seconds_and_slopes(model: PerfModel, op: str) -> Callable[..., Any]:
    """Of (platform, dims); compiled once for each model and op, of whatever sizes."""
    _, both = COMPILED.get((id(model), op), (None, None))
    if both is None:
        # what a call compiles: a function compiled within another is traced a third longer
        seconds = pricer_of(model, op)._seconds
        both = jitted(jax.value_and_grad(seconds, (0, 1)))
        COMPILED[id(model), op] = model, both
    return both


# the model, too: of one that is gone, another has its id
COMPILED: dict[tuple[int, str], tuple[PerfModel, Callable[..., Any]]] = {}


def with_knob(platform: Platform, name: str, at: int, value: float) -> Platform:
    return dataclasses.replace(
        platform,
        knobs=dataclasses.replace(
            platform.knobs, **{name: put(getattr(platform.knobs, name), at, value)}
        ),
    )


def put(values: np.ndarray, at: int, value: float) -> np.ndarray:
    values = np.array(values)
    values[at] = value
    return values


def check(of: Callable[[float], Any], value: float, slope: Any, seconds: float, name: str) -> None:
    """A slope against a central difference; a number that is zero moves as far as shows, and caches
    that are absent stay so.
    """
    if value == 0 and name in LEVELS:
        assert slope == 0, name
        return
    step = STEP * value or (STEP * seconds / abs(float(slope)) if slope else 0) or 1e-18
    below = value - step if value > 0 else value  # no knob is negative
    difference = float(of(value + step) - of(below)) / (value + step - below)
    least = 1e-12 * seconds + 1e-30  # what takes no time has none to be compared
    assert float(slope) * step == pytest.approx(difference * step, rel=1e-4, abs=least), name


@pytest.mark.parametrize(
    ("op", "dims"),
    [
        ("gemm", {"transposed_a": 1.0}),
        ("conv", {"groups": 1.0}),
        ("gather", {"pooled": 1.0}),
        ("fused", {"strided_reads": 0.0}),
        ("fused_library_reduction", {"elements": 3e6}),
        ("context_attention", {"window": 0.0, "kv_len": 0.0, "kv_heads": 0.0, "causal": 0.0}),
        ("moe", {"moe_ep": 1.0, "moe_tp": 1.0, "gated": 0.0}),
    ],
)
def test_dimensions_choose_the_group(
    learned: PerfModel, shipped: PerfModel, op: str, dims: dict
) -> None:
    """Also with flags that are traced; slopes stay finite where something is absent."""
    for model, exact in ((learned, 3e-5), (shipped, 1e-6)):
        here = CASES[op] | dims
        seconds, (_, slopes) = seconds_and_slopes(model, op)(model.platform(), here)
        assert float(seconds) == pytest.approx(
            model.predict_ops(row(op, here))["predicted_s"][0], rel=exact
        )
        assert np.isfinite(jax.tree.leaves(slopes)).all(), slopes


def test_what_is_not_given_is_as_usual(learned: PerfModel, shipped: PerfModel) -> None:
    for model in (learned, shipped):
        for op in ("gemm", "context_attention"):
            pricer = pricer_of(model, op)
            dims = {name: CASES[op][name] for name in pricer.required}
            expected = model.predict_ops(row(op, dims))["predicted_s"][0]
            assert float(pricer(model.platform(), **dims)) == pytest.approx(expected, rel=3e-5)


def test_words_choose_the_implementation(shipped: PerfModel) -> None:
    dims = {"m": 300.3, "n": 1100.6, "k": 700.2}
    said = set()
    for text, labels in (
        ({}, {}),
        ({"quant": "fp8"}, {}),
        ({"quant": "fp8_block"}, {"framework": "sglang"}),
        ({}, {"framework": "vllm"}),
    ):
        pricer = OpPricer.of(shipped, "gemm", dtype="bf16", text=text, labels=labels)
        expected = shipped.predict_ops(row("gemm", dims).assign(**text, **labels))["predicted_s"][0]
        said.add(float(pricer(shipped.platform(), **dims)))
        assert float(pricer(shipped.platform(), **dims)) == pytest.approx(expected, rel=1e-6)
    assert len(said) == 4
    nongated = OpPricer.of(shipped, "moe", dtype="bf16", labels={"kernel": "a_nongated_kernel"})
    some = {name: CASES["moe"][name] for name in nongated.required}
    expected = shipped.predict_ops(
        row("moe", some).drop(columns="distribution").assign(kernel="a_nongated_kernel")
    )["predicted_s"][0]
    assert float(nongated(shipped.platform(), **some)) == pytest.approx(expected, rel=1e-6)


def test_in_single_precision(learned: PerfModel, shipped: PerfModel) -> None:
    with jax.enable_x64(False):
        for model, exact in ((learned, 1e-3), (shipped, 1e-4)):
            for op in ("gemm", "moe", "generation_attention", "softmax"):
                expected = model.predict_ops(row(op, CASES[op]))["predicted_s"][0]
                assert float(pricer_of(model, op)(model.platform(), **CASES[op])) == pytest.approx(
                    expected, rel=exact
                ), op


def test_one_compile_for_all_sizes_and_machines(
    learned: PerfModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = []
    seconds = OpPricer._seconds

    def counted(pricer: OpPricer, *args: Any) -> Any:
        traces.append(pricer.sample.name)
        return seconds(pricer, *args)

    monkeypatch.setattr(OpPricer, "_seconds", counted)
    pricers = {op: pricer_of(learned, op) for op in ("gemm", "softmax")}
    faster = dataclasses.replace(learned.platform(), memory_bytes_per_s=7e12)
    for op, pricer in pricers.items():
        for scale in (0.5, 1, np.float32(2.0), jnp.asarray(3.0)):
            for platform in (learned.platform(), faster):
                pricer(platform, **{name: scale * CASES[op][name] for name in pricer.required})
    assert traces == ["gemm", "softmax"]


def test_sizes_may_be_mapped(shipped: PerfModel) -> None:
    pricer, rows = pricer_of(shipped, "gemm"), np.array([10.3, 100.3, 3000.3])
    batch = jitted(jax.vmap(lambda m: pricer(shipped.platform(), m=m, n=1100.6, k=700.2)))(rows)
    expected = shipped.predict_ops(
        row("gemm", {"m": rows, "n": np.full(3, 1100.6), "k": np.full(3, 700.2)})
    )["predicted_s"]
    np.testing.assert_allclose(batch, expected, rtol=1e-6)


def test_what_cannot_be_priced(shipped: PerfModel) -> None:
    for arguments, says in (
        ({"op": "gemmm", "dtype": "bf16"}, "did you mean 'gemm'"),
        ({"op": "gemm", "dtype": "bf17"}, "bf17"),
        ({"op": "gemm", "dtype": "fp4"}, "no known fp4 peak"),
        ({"op": "gemm", "dtype": "bf16", "text": {"quantt": "fp8"}}, "did you mean 'quant'"),
        ({"op": "gemm", "dtype": "bf16", "text": {"quant": "fp9"}}, "fp9"),
        ({"op": "gemm", "dtype": "bf16", "labels": {"frame": "x"}}, "framework"),
    ):
        with pytest.raises(InputError, match=says) as error:
            OpPricer.of(shipped, **arguments)
        assert "\n" not in str(error.value)
    pricer = pricer_of(shipped, "gemm")
    for dims, says in (
        ({"m": 1.0, "n": 1.0}, "give a number for k"),
        ({"m": 1.0, "n": 1.0, "k": 1.0, "batch": 2.0}, "'batch'"),
    ):
        with pytest.raises(InputError, match=says):
            pricer(shipped.platform(), **dims)


def test_a_step_descends_on_two_ops_at_once(shipped: PerfModel) -> None:
    """What it is for: the width at which a product and what follows it take a given time, by
    Newton's method.
    """
    gemm, softmax = (
        pricer_of(shipped, "gemm"),
        pricer_of(PerfModel(H100, neutral_knobs()), "softmax"),
    )
    platform = shipped.platform()

    @jitted
    def step(n: Any) -> Any:
        return jax.value_and_grad(
            lambda n: jnp.log(
                (gemm(platform, m=4096.0, n=n, k=4096.0) + softmax(platform, rows=4096.0, cols=n))
                / 1e-3
            )
        )(n)

    n = 5000.3
    for _ in range(8):
        value, slope = step(n)
        n = float(n * jnp.exp(-value / (slope * n)))
    assert abs(step(n)[0]) < 0.05  # waves jump: no width may take just that


# --- ops and collectives in both precisions -------------------------------------------------------


@pytest.fixture(scope="module")
def fabric() -> CollectiveModel:
    return load_collectives("aic_h100_sxm")


def test_one_pricer_serves_both_precisions(shipped: PerfModel) -> None:
    """A search computes in float64, batches in float32, in one process."""
    pricer, fabric = (
        pricer_of(shipped, "gemm"),
        CollectivePricer.of(load_collectives("aic_h100_sxm"), "all_reduce", n_gpus=8),
    )
    links, said = load_collectives("aic_h100_sxm").links(), []
    for double in (False, True, False, True):
        with jax.enable_x64(double):
            said.append(
                (
                    float(pricer(shipped.platform(), **CASES["gemm"])),
                    float(fabric(links, 1e6)),
                )
            )
    np.testing.assert_allclose(said, [said[1]] * 4, rtol=1e-4)


def test_one_precision_after_the_other(fabric: CollectiveModel, shipped: PerfModel) -> None:
    """A search computes in x64 and its user in single precision, in one process: what JAX keeps of
    the one must fit the other.
    """
    gradients = []
    for precise in (True, False, True):
        with jax.enable_x64(precise):
            reduced = CollectivePricer.of(fabric, "all_reduce", n_gpus=8)
            found = [jitted(jax.grad(reduced, argnums=1))(fabric.links(), 64e6)]
            priced = functools.partial(pricer_of(shipped, "moe"), **CASES["moe"])
            by_machine = jitted(jax.grad(priced))(shipped.platform())
            found += [by_machine.memory_bytes_per_s, by_machine.peak_flops_scale]
        assert all(one.dtype == (np.float64 if precise else np.float32) for one in found[1:])
        gradients.append([float(one) for one in found])
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=1e-3)
    np.testing.assert_allclose(gradients[2], gradients[0], rtol=1e-12)
