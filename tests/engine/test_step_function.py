"""A step as a pure function of the machine: equal to the plain price, and differentiable by all of
it.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hybridperf as hp
from hybridperf.collectives.model import CollectiveModel
from hybridperf.engine import step_function as module
from hybridperf.engine.batches import BatchPredictor, predict_batch
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.step_function import StepFunction, flat, step_function
from hybridperf.engine.workload import Workload
from hybridperf.hardware import load_device, load_system
from hybridperf.io import InputError
from hybridperf.io.namespace import QUICKLY_COMPILED
from hybridperf.model import PerfModel, load_model
from hybridperf.model.alive import AliveCorrections
from hybridperf.ops import Elementwise, Gemm, OpCall, RmsNorm
from hybridperf.workloads.serving.deployment import Deployment
from hybridperf.workloads.serving.layers import ServedCalls

SEEDS, QUICK_SEEDS = 50, 5
jitted = functools.partial(jax.jit, compiler_options=QUICKLY_COMPILED)
TOLERANCE = 0.005


@functools.cache
def machine(name: str) -> PerfModel:
    """A machine by name, in a system."""
    if name == "datasheet":
        return PerfModel.datasheet(load_device("a100_sxm4_80g")).with_collectives(
            CollectiveModel.datasheet(load_system("dgx_a100"))
        )
    device, system = {"h100": ("h100_sxm", "dgx_h100"), "a100": ("a100_sxm4_80g", "dgx_a100")}[name]
    return load_model(device).with_collectives(hp.load_collectives(system))


def by_names(usual: dict, values: dict) -> dict:
    """Knobs with some values by the names of `flat`."""
    return {
        name: by_names(
            own,
            {
                knob.removeprefix(f"{name}__"): value
                for knob, value in values.items()
                if knob.startswith(f"{name}__") or name in ("links", "effects", "levels", "groups")
            },
        )
        if isinstance(own, dict)
        else values.get(name, own)
        for name, own in usual.items()
    }


def transformer(random: np.random.Generator) -> Workload:
    shape = dataclasses.replace(hp.load_shape("llama2-7b"), layers=int(random.choice([2, 4])))
    degrees = {"tp": 2, "pp": int(random.choice([1, 2])), "dp": int(random.choice([1, 2]))}
    layout = hp.Layout(**degrees, zero=int(random.choice([0, 1])), accumulation=2)
    framework = str(random.choice(["megatron_core", "torchtitan"]))
    return hp.transformer(hp.TransformerConfig.run_by(framework, shape, layout))


def dlrm(random: np.random.Generator) -> Workload:
    rows, dim = float(random.choice([1e5, 1e6])), int(random.choice([64, 128]))
    tables = tuple(hp.Table(f"t{at}", rows, dim, int(random.integers(1, 40))) for at in range(8))
    batch, ranks = int(random.choice([512, 4096])), int(random.choice([1, 8]))
    return hp.dlrm(hp.DlrmConfig(batch, 128, (256, dim), (256, 1), tables, ranks=ranks))


def program(random: np.random.Generator) -> Workload:
    width, rows = (int(one) for one in random.choice([256, 512, 1024, 2048], 2))

    def loss(weights: dict, x: jax.Array) -> jax.Array:
        hidden = jax.nn.gelu(x @ weights["in"])
        return jnp.mean(jax.nn.softmax(hidden @ weights["out"]) ** 2)

    weights = {"in": jnp.zeros((width, 4 * width)), "out": jnp.zeros((4 * width, width))}
    return hp.from_jax(jax.grad(loss), weights, jnp.zeros((rows, width)), device="h100_sxm")


def served(random: np.random.Generator) -> Workload:
    quant = str(random.choice(["bfloat16", "fp8"]))
    deployment = Deployment(hp.load_shape("llama3-8b"), tp=2, quant=quant, framework="vllm")
    asked, builder = ServedCalls(deployment, 8), GraphBuilder()
    kernels = [*asked.products(64.0), *asked.decode(64.0, float(random.integers(512, 4096)))]
    for row, (_, times) in enumerate(kernels, 1):
        for _ in range(min(int(times), 3)):
            builder.op(row)
    return Workload("a decoding step", builder.build(), tuple(call for call, _ in kernels))


def gnn(random: np.random.Generator) -> Workload:
    graph = hp.GraphShape(float(random.choice([1e5, 1e6])), 1e7, 1.0)
    return hp.gnn(hp.GnnConfig(graph, (128, 64, 32)))


KINDS: list[tuple[Callable[[np.random.Generator], Workload], tuple[str, ...]]] = [
    (transformer, ("h100", "datasheet", "a100")), (dlrm, ("datasheet", "a100", "h100")),
    (program, ("h100", "a100")), (served, ("h100",)), (gnn, ("datasheet", "h100")),
]  # fmt: skip


def case(seed: int) -> tuple[PerfModel, Workload]:
    build, machines = KINDS[seed % len(KINDS)]
    name = machines[seed // len(KINDS) % len(machines)]
    return machine(name), build(np.random.default_rng(seed))


@pytest.mark.parametrize(
    "seed",
    [pytest.param(at, marks=[] if at < QUICK_SEEDS else [pytest.mark.slow]) for at in range(SEEDS)],
)
def test_the_gradient_by_every_knob_is_that_of_differences(seed: int) -> None:
    model, workload = case(seed)
    with jax.enable_x64(True):
        f = step_function(model, workload)
        usual, step_s = f.knobs, hp.predict(model, workload).time_s
        both = jitted(jax.value_and_grad(f))
        time_s, slopes = both(usual)
        assert float(time_s) == pytest.approx(step_s, rel=1e-9), "today it is the plain price"
        slopes, sooner = flat(slopes), flat(f.slopes())
        assert slopes.keys() == sooner.keys() == flat(usual).keys()
        for name, value in flat(usual).items():
            slope = float(slopes[name])
            # what is zero is moved by what moves the step a little
            h = 1e-4 * float(value) or 1e-5 * step_s / (abs(slope) or 1e9 * step_s)
            ends = [float(both(by_names(usual, {name: value + way * h}))[0]) for way in (1, -1)]
            difference = (ends[0] - ends[1]) / (2 * h)
            nothing = 1e-7 * step_s / max(abs(float(value)), 1e-6)
            assert slope == pytest.approx(difference, rel=TOLERANCE, abs=nothing), name
            assert float(sooner[name]) == pytest.approx(slope, rel=1e-6, abs=1e-3 * nothing), name


@pytest.fixture(scope="module")
def products() -> Workload:
    """Products and loops that an H100 prices by its families, launched one by one."""
    calls = (
        OpCall(Gemm("bf16", 8192.0, 4096.0, 4096.0)), OpCall(Gemm("bf16", 64.0, 4096.0, 4096.0)),
        OpCall(Elementwise("bf16", rows=8192.0, cols=4096.0)),
        OpCall(RmsNorm("bf16", 8192.0, 4096.0), issued_apart=True),
    )  # fmt: skip
    builder = GraphBuilder()
    for row in (1, 2, 3, 4, 1):
        builder.op(row)
    return Workload("products", builder.build(), calls)


@pytest.fixture(scope="module")
def measured(products: Workload) -> StepFunction:
    return step_function(load_model("h100_sxm"), products)


@pytest.fixture(scope="module")
def held(products: Workload) -> StepFunction:
    return step_function(load_model("h100_sxm"), products, hold_corrections=True)


def other(model: PerfModel, name: str, times: float) -> PerfModel:
    """The model of a device one number of whose datasheet is so many times its own."""
    device = model.device
    changes = {
        "memory_bytes_per_s": {"memory_bytes_per_s": device.memory_bytes_per_s * times},
        "peak_flops_scale": {
            "peak_flops_per_s": {key: of * times for key, of in device.peak_flops_per_s.items()}
        },
        "l2__level_bytes": {"l2_bytes": (device.l2_bytes or 0) * times},
    }
    return dataclasses.replace(model, device=device.model_copy(update=changes[name]))


@pytest.mark.parametrize("name", ["memory_bytes_per_s", "peak_flops_scale", "l2__level_bytes"])
def test_a_varied_datasheet_is_priced_as_a_device_that_has_it(
    products: Workload, measured: StepFunction, held: StepFunction, name: str
) -> None:
    """What was learned is read at the varied numbers; held, it stays where it is."""
    model, scales = load_model("h100_sxm"), np.array([0.5, 0.8, 1.25, 2.0])
    base = float(flat(measured.knobs)[name])
    there = [hp.predict(other(model, name, times), products).time_s for times in scales]
    with jax.enable_x64(True):
        each = [by_names(measured.knobs, {name: base * times}) for times in scales]
        # networks of the plain price are in single precision
        assert [float(measured(knobs)) for knobs in each] == pytest.approx(there, rel=1e-6)
        apart = [abs(float(held(knobs)) / one - 1) for knobs, one in zip(each, there, strict=True)]
        batch = predict_batch(model, products, **{name: base * scales})
    assert batch == pytest.approx(there, rel=1e-6)
    assert max(apart) > 1e-3


def test_knobs_of_groups_multiply_what_prices_an_op(
    measured: StepFunction, held: StepFunction
) -> None:
    for name in ("gemm__compute_efficiency", "elementwise__memory_efficiency", "norm__floor_s"):
        knobs = by_names(measured.knobs, {name: flat(measured.knobs)[name] * 1.5})
        assert float(measured(knobs)) == pytest.approx(float(held(knobs)), rel=1e-5)


def test_many_at_once_are_one_after_the_other(measured: StepFunction) -> None:
    """Of batches `test_a_varied_datasheet_is_priced_as_a_device_that_has_it` says so."""
    f, rates = measured, measured.knobs["memory_bytes_per_s"] * jnp.linspace(0.5, 2.0, 5)
    point = lambda a, b: f({"memory_bytes_per_s": a, "peak_flops_scale": b})  # noqa: E731
    each = jax.value_and_grad(point)
    one_by_one = [each(rate, 1.0) for rate in rates]
    grid = jax.vmap(jax.vmap(each, (0, None)), (None, 0))
    found, slopes = jitted(grid)(rates, jnp.array([1.0, 0.5]))
    assert found.shape == (2, 5)
    np.testing.assert_allclose(found[0], [value for value, _ in one_by_one], rtol=1e-6)
    np.testing.assert_allclose(slopes[0], [slope for _, slope in one_by_one], rtol=1e-4)


@pytest.fixture(scope="module")
def traced(measured: StepFunction) -> Callable:
    """Value and slopes as JAX traces them inside another function."""
    return jitted(jax.value_and_grad(lambda knobs: measured(knobs)))


@pytest.mark.parametrize("times", [(1.3, 0.8, 0.6), (1.0, 1e12, 1.0), (0.0, 1.0, np.inf)])
def test_a_machine_that_is_known_is_priced_by_numpy(
    measured: StepFunction, traced: Callable, times: tuple[float, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its value and slopes outside `jit` are those of the price that JAX traces inside."""
    f, at = measured, measured.knobs
    l2 = at["levels"]["l2"]
    l2["level_bytes"] = l2["level_bytes"] * times[2]
    at["peak_flops_scale"] = at["peak_flops_scale"] * times[0]
    at["memory_bytes_per_s"] = at["memory_bytes_per_s"] * times[1]
    inside = traced(at)

    def refused(*_: object) -> None:
        raise AssertionError("a price was traced")

    monkeypatch.setattr(AliveCorrections, "log_shift", refused)
    outside = float(f(at)), jax.grad(f)(at)
    assert outside[0] == pytest.approx(float(inside[0]), rel=2e-5)
    for one, other in zip(*map(jax.tree.leaves, (outside[1], inside[1])), strict=True):
        assert float(one) == pytest.approx(float(other), rel=2e-3, abs=1e-30)
    links = jax.make_jaxpr(lambda value: f({"peak_flops_scale": 2.0, **value}))
    links({"groups": {"gemm": {"floor_s": 1e-6}}})  # the machine is known, though not all is


def test_one_trace_however_often_it_is_called(
    products: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces, once = [], module.seconds_at

    def counted(*given: object) -> jax.Array:
        traces.append(1)
        return once(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "seconds_at", counted)
    module._seconds.cache_clear()  # what was compiled before
    model = machine("datasheet")
    f = step_function(model, products)
    f(f.knobs)
    f({"memory_bytes_per_s": 1e12, "groups": {"gemm": {"floor_s": 1}}})
    f({"peak_flops_scale": np.float64(2.0)})
    wider = tuple(
        dataclasses.replace(call, op=dataclasses.replace(call.op, dtype="fp16"))
        for call in products.calls
    )
    same = step_function(model, dataclasses.replace(products, calls=wider))
    same({})
    assert len(traces) == 1
    for one in (f, same, f):
        jax.grad(one)(one.knobs)
    assert len(traces) == 2


def test_second_slopes_and_forward_mode(products: Workload) -> None:
    f = step_function(machine("datasheet"), products, hold_corrections=True)
    base = f.knobs["memory_bytes_per_s"]
    of = lambda log: f({"memory_bytes_per_s": base * jnp.exp(log)})  # noqa: E731
    with jax.enable_x64(True):
        second, first = jitted(jax.hessian(of)), jitted(jax.grad(of))
        around = [float(first(jnp.array(at))) for at in (1e-4, -1e-4)]
        difference = (around[0] - around[1]) / 2e-4
        assert float(second(jnp.array(0.0))) == pytest.approx(difference, rel=0.005)
        value, slope = jax.jvp(of, (0.0,), (1.0,))
        assert float(slope) == pytest.approx(float(first(jnp.array(0.0))), rel=1e-6)
        assert float(value) == pytest.approx(float(of(0.0)))


def test_an_optimiser_finds_the_cheapest_machine(products: Workload) -> None:
    """A step's time, times what bandwidth and arithmetic are believed to cost."""
    f = step_function(machine("datasheet"), products)
    usual = f.knobs
    start_s = f(usual)

    def cost(logs: dict[str, jax.Array]) -> jax.Array:
        times = jax.tree.map(jnp.exp, logs)
        knobs = {name: usual[name] * value for name, value in times.items()}
        price = 1.0 + 0.1 * times["memory_bytes_per_s"] + 0.3 * times["peak_flops_scale"]
        return jnp.log(f(knobs) / start_s) + jnp.log(price)

    logs = {"memory_bytes_per_s": jnp.array(0.0), "peak_flops_scale": jnp.array(0.0)}
    optimizer = optax.adam(0.05)
    state, step = optimizer.init(logs), jitted(jax.value_and_grad(cost))
    costs = []
    for _ in range(60):
        value, slopes = step(logs)
        costs.append(float(value))
        moves, state = optimizer.update(slopes, state)
        logs = optax.apply_updates(logs, moves)
    assert np.isfinite(costs).all()
    assert costs[-1] < costs[0] - 0.05


def test_knobs_have_names_and_units(products: Workload) -> None:
    f = step_function(machine("h100"), transformer(np.random.default_rng(1)))
    assert f.units.keys() == f.knobs.keys() >= {"links", "effects", "groups", "levels"}
    units = flat(f.units)
    assert units["memory_bytes_per_s"] == units["node_bytes_per_s"] == "bytes/s"
    assert units["gemm__floor_s"] == units["link_latency_s"] == units["launch_s"] == "s"
    assert units["l2__level_bytes"] == "bytes"
    assert units["gemm__compute_efficiency"] == units["peak_flops_scale"] == "1"
    assert set(units.values()) == {"bytes/s", "s", "bytes", "flop", "1"}
    assert {*units} <= {*hp.engine.batches.knob_names()}
    alone = step_function(machine("h100"), products)
    assert not {"links", "effects"} & alone.knobs.keys()
    assert "memory_bytes_per_s" in repr(alone)


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"memory_bytes_per_ss": 1.0}, "did you mean 'memory_bytes_per_s'"),
        ({"groups": {"gem": {}}}, "did you mean 'gemm'"),
        ({"groups": 1.0}, "expected a dict of knobs of groups"),
        ({"memory_bytes_per_s": np.ones(3)}, "use jax.vmap"),
    ],
)
def test_what_is_no_knob_is_refused(products: Workload, knobs: dict, says: str) -> None:
    f = step_function(machine("datasheet"), products)
    with pytest.raises(InputError, match=says):
        f(knobs)


def test_links_as_of_another_system() -> None:
    """Another latency or rate is `CollectiveModel.on` a system that has it."""
    model, workload = machine("h100"), transformer(np.random.default_rng(4))
    fabric = model.collectives
    assert fabric is not None
    with jax.enable_x64(True):
        f = step_function(model, workload)
        for name, times in (("latency_s", 3.0), ("intra_bytes_per_s", 0.5)):
            changed = fabric.system.model_copy(update={name: getattr(fabric.system, name) * times})
            there = model.with_collectives(fabric.on(changed))
            links = vars(there.platform().links)
            expected = hp.predict(there, workload).time_s
            assert float(f({"links": links})) == pytest.approx(expected, rel=1e-9)
            assert expected > hp.predict(model, workload).time_s


def test_a_batch_has_the_interval_of_a_prediction() -> None:
    model, workload = machine("h100"), transformer(np.random.default_rng(4))
    found = hp.predict(model, workload)
    rate = model.device.memory_bytes_per_s
    batch = BatchPredictor(model, workload, interval=True)
    out = batch(memory_bytes_per_s=rate * np.array([1.0, 0.5, 0.25]))
    assert out["low_s"][0] == pytest.approx(found.low_s, rel=1e-5)
    assert out["high_s"][0] == pytest.approx(found.high_s, rel=1e-5)
    assert (out["low_s"] < out["time_s"]).all()
    assert (out["time_s"] < out["high_s"]).all()
    builder = GraphBuilder()
    builder.op(1)
    single = Workload("products", builder.build(), (OpCall(Gemm("fp32", 8.0, 8.0, 8.0)),))
    with pytest.raises(InputError, match="no interval of products"):
        BatchPredictor(PerfModel.datasheet(load_device("v100")), single, interval=True)
