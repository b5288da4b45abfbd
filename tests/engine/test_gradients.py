"""Functions of knobs for every kind of work: slopes and second slopes against differences, inside
another function's jit, under checkpoint and vmap; no NaN at zero and infinity.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridperf as hp
from hybridperf.collectives.model import CollectiveModel
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.knobs import flattened
from hybridperf.hardware import load_device, load_system
from hybridperf.io.namespace import QUICKLY_COMPILED
from hybridperf.model import PerfModel
from hybridperf.ops import Gemm, OpCall, RmsNorm
from hybridperf.ops.attention import PrefillAttention

TOLERANCE = 0.005
jitted = functools.partial(jax.jit, compiler_options=QUICKLY_COMPILED)


@functools.cache
def datasheet(device: str = "h100_sxm", system: str = "dgx_h100") -> PerfModel:
    model = PerfModel.datasheet(load_device(device))
    return model.with_collectives(CollectiveModel.datasheet(load_system(system)))


@functools.cache
def measured() -> PerfModel:
    return hp.load_model("h100_sxm").with_collectives(hp.load_collectives("dgx_h100"))


def transformer(tp: int = 2, **layout: int) -> hp.Workload:
    shape = dataclasses.replace(hp.load_shape("llama2-7b"), layers=2)
    return hp.transformer(
        hp.TransformerConfig.run_by("megatron_core", shape, hp.Layout(tp=tp, **layout))
    )


def dlrm() -> hp.Workload:
    tables = tuple(hp.Table(f"t{at}", 1e5, 64, 8) for at in range(4))
    return hp.dlrm(hp.DlrmConfig(4096, 128, (256, 64), (256, 1), tables, ranks=8))


def gnn() -> hp.Workload:
    return hp.gnn(hp.GnnConfig(hp.GraphShape(1e5, 1e7, 1.0), (128, 64, 32)))


def jax_program() -> hp.Workload:
    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(jax.nn.softmax(jax.nn.gelu(x @ weights)) ** 2)

    return hp.from_jax(jax.grad(loss), jnp.zeros((512, 512)), jnp.zeros((256, 512)),
                       device="h100_sxm")  # fmt: skip


def torch_program() -> hp.Workload:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU())
    return hp.from_torch(module, torch.zeros(64, 512))


def pipeline() -> hp.Workload:
    some = (hp.Stage("load", item_s=2e-7), hp.Stage("send", fixed_s=1e-5, item_s=1e-6))
    return hp.with_loader(transformer(tp=1, pp=2, accumulation=4), some, items=64.0)


def unlike() -> hp.KnobFunction:
    """Of a step that exchanges messages; what a machine's step effects do, transformers show."""
    workload = dlrm()
    return hp.unlike_function([
        hp.Worker(workload, datasheet(), slower=1.1, name="first"),
        hp.Worker(workload, datasheet("a100_sxm4_80g", "dgx_a100"), name="second"),
    ])  # fmt: skip


DEPLOYMENT = hp.Deployment(hp.load_shape("llama3-8b"), tp=2, framework="vllm")


def served_step(model: PerfModel) -> hp.KnobFunction:
    return hp.served_step_function(
        model, DEPLOYMENT, sequences=50.0, keys=700.0, chunk=300.0, all_reduce="nccl"
    )


def operating_point() -> hp.KnobFunction:
    return hp.serving_function(
        datasheet(), DEPLOYMENT, clients=40.0, prompt=700.0, output=200.0, cached=50.0
    )


def run() -> hp.KnobFunction:
    step = hp.given_step(2.5, 4096, device="h100_sxm", state_bytes=1e12)
    settings = hp.RunSettings("memory", stalls_per_day=0.5, stall_s=600.0, warmup_s=60.0)
    return hp.run_function(step, 1e6, settings)


def of(model: Callable[[], PerfModel], workload: Callable[[], hp.Workload]) -> Callable[[], Any]:
    return lambda: hp.step_function(model(), workload())


KINDS: dict[str, Callable[[], Any]] = {
    "training transformer": of(datasheet, transformer), "dlrm": of(datasheet, dlrm),
    "gnn": of(datasheet, gnn), "jax program": of(datasheet, jax_program),
    "torch program": of(datasheet, torch_program), "pipeline": of(datasheet, pipeline),
    "unlike workers": unlike, "served step": lambda: served_step(datasheet()),
    "operating point": operating_point, "run": run,
    "measured transformer": of(measured, transformer),
    "measured served step": lambda: served_step(measured()),
}  # fmt: skip


Told = Callable[[jax.Array, jax.Array], jax.Array]


def of_factors(f: Any) -> tuple[list[str], np.ndarray, Told]:
    """Names of knobs, today's values [n], and the log of all that is told as a function of numbers
    [n] in units [n].
    """
    tree, names = jax.tree.structure(f.knobs), [".".join(place) for place, _ in flattened(f.knobs)]
    today = np.array([float(value) for _, value in flattened(f.knobs)])
    places = [place for place, _ in flattened(f.knobs)]
    order = [places.index(tuple(key.key for key in path))
             for path, _ in jax.tree.leaves_with_path(f.knobs)]  # fmt: skip

    def told(x: jax.Array, unit: jax.Array) -> jax.Array:
        values = x * unit
        parts = jax.tree.leaves(f(jax.tree.unflatten(tree, [values[at] for at in order])))
        return sum(
            jnp.log(jnp.maximum(part, 1e-30)) * (1.0 + 0.37 * at) for at, part in enumerate(parts)
        )

    return names, today, told


SLOW = {"measured transformer", "measured served step", "operating point"}  # minutes to compile


@pytest.mark.parametrize(
    "kind", [pytest.param(one, marks=[pytest.mark.slow] * (one in SLOW)) for one in KINDS]
)
def test_slopes_are_differences_and_no_nan_at_the_ends(kind: str) -> None:
    """Second slopes are those along one direction: what `jax.hessian` maps over all."""
    step = 1e-4
    with jax.enable_x64(True):
        names, today, told = of_factors(KINDS[kind]())
        each, base = np.eye(len(today)), (today > 0).astype(float)
        lower = np.where(today > 0, -step, 0.0)  # nothing is below zero
        ends = [np.where(each > 0, end, base) for end in (0.0, np.inf)]
        way = np.random.default_rng(0).uniform(-1, 1, len(today)) * (today > 0)
        points = np.concatenate([
            [base, base + step * way, base - step * way], base + step * each,
            base + lower[:, None] * each, *ends,
        ])  # fmt: skip

        def everything(points: jax.Array, unit: jax.Array) -> Any:
            def both(x: jax.Array) -> Any:
                return jax.value_and_grad(jax.checkpoint(lambda x: told(x, unit)))(x)

            return jax.vmap(lambda x: jax.jvp(both, (x,), (way,)))(points)

        compiled = jitted(everything)
        (_, slope), _ = compiled(points[:1].repeat(len(points), 0), np.where(today > 0, today, 1.0))
        # what is zero counts in units that move what is told a little: limits of power are sharp
        unit = np.where(today > 0, today, 1e-4 / np.maximum(np.abs(slope[0]), 1e5))
        found = jax.tree.map(np.asarray, compiled(points, unit))
        (values, slopes), (_, second) = found
        if "served" in kind or "point" in kind:  # by NumPy outside of jit
            alone, slopes_alone = jax.value_and_grad(lambda x: told(x, unit))(base)
            assert float(alone) == pytest.approx(values[0], rel=1e-9)
            np.testing.assert_allclose(slopes_alone, slopes[0], rtol=TOLERANCE, atol=1e-8)
    of_point = ["", "way", "way", *names * 4]
    for each_found in (values, slopes.sum(1), second.sum(1)):
        nan = np.flatnonzero(np.isnan(each_found))
        assert not len(nan), [of_point[at] for at in nan]
    above, below = np.split(values[3 : 3 + 2 * len(today)], 2)
    for name, slope, expected in zip(
        names, slopes[0], (above - below) / (step - lower), strict=True
    ):
        assert slope == pytest.approx(expected, rel=TOLERANCE, abs=1e-8), name
    expected = (slopes[1] - slopes[2]) / (2 * step)
    np.testing.assert_allclose(second[0], expected, rtol=TOLERANCE, atol=2e-5)
    assert np.isfinite(values[0])
    assert (np.abs(slopes[0]) > 1e-3).sum() >= 2


@pytest.mark.parametrize("kind", ["dlrm", "run"])
def test_no_nan_at_the_ends_in_single_precision(kind: str) -> None:
    names, today, told = of_factors(KINDS[kind]())
    each = np.eye(len(today))
    points = np.concatenate([np.where(each > 0, end, today) for end in (0.0, np.inf)])
    both = jax.vmap(jax.value_and_grad(lambda x: told(x, jnp.ones_like(x))))
    values, slopes = map(np.asarray, jitted(both)(points.astype(np.float32)))
    nan = np.flatnonzero(np.isnan(values) | np.isnan(slopes).any(1))
    assert not len(nan), [(names * 2)[at] for at in nan]


def test_a_step_by_its_sizes_is_the_step_built_and_between_them_near_it() -> None:
    """And its slope is that of differences, as of all sizes that it was built at."""

    def build(seq: int, tokens: int) -> hp.Workload:
        calls = (
            OpCall(Gemm("bf16", float(tokens), 4096.0, 4096.0)),
            OpCall(PrefillAttention("bf16", tokens / seq, float(seq), 32.0, 8.0, 128.0)),
            OpCall(RmsNorm("bf16", float(tokens), 4096.0)),
        )  # fmt: skip
        builder = GraphBuilder()
        for row in (3, 1, 2, 1):
            builder.op(row)
        return hp.Workload("a layer", builder.build(), calls)

    model = hp.load_model("h100_sxm")
    f = hp.sized_step_function(model, build, {"seq": (512, 4096), "tokens": (4096, 16384)})
    assert f.units["sizes"] == {"seq": "1", "tokens": "1"}
    with jax.enable_x64(True):
        usual = f.knobs
        assert {name: float(value) for name, value in usual["sizes"].items()} == {
            "seq": 2048, "tokens": 8192,
        }  # fmt: skip
        both = jitted(jax.value_and_grad(f))
        for sizes in ({"seq": 1024, "tokens": 16384}, {"seq": 4096, "tokens": 4096}):
            there = hp.predict(model, build(**sizes)).time_s
            assert float(f({"sizes": sizes})) == pytest.approx(there, rel=1e-9)
        sizes = {"seq": 1536.0, "tokens": 12288.0}
        value, slopes = both(usual | {"sizes": sizes})
        assert float(value) == pytest.approx(hp.predict(model, build(1536, 12288)).time_s, rel=0.03)
        for name, size in sizes.items():
            ends = [float(both(usual | {"sizes": sizes | {name: size * (1 + way * 1e-5)}})[0])
                    for way in (1, -1)]  # fmt: skip
            expected = (ends[0] - ends[1]) / (2e-5 * size)
            assert float(slopes["sizes"][name]) == pytest.approx(expected, rel=TOLERANCE)
        assert float(slopes["sizes"]["tokens"]) * 12288.0 / float(value) > 0.8
    with pytest.raises(hp.InputError, match="expected two whole numbers of seq"):
        hp.sized_step_function(model, build, {"seq": (4096, 512)})


def test_sizes_that_make_another_graph_are_refused() -> None:
    def build(layers: int) -> hp.Workload:
        builder = GraphBuilder()
        for _ in range(layers):
            builder.op(1)
        return hp.Workload("layers", builder.build(), (OpCall(Gemm("bf16", 8.0, 8.0, 8.0)),))

    with pytest.raises(hp.InputError, match="got another at layers 2 than at layers 1"):
        hp.sized_step_function(datasheet(), build, {"layers": (1, 4)})


def test_a_hessian_is_that_of_differences_of_slopes() -> None:
    with jax.enable_x64(True):
        f = hp.step_function(datasheet(), jax_program())
        usual = f.knobs

        def at(factors: jax.Array) -> jax.Array:
            names = ("memory_bytes_per_s", "peak_flops_scale")
            return jnp.log(f({name: usual[name] * factors[n] for n, name in enumerate(names)}))

        hessian, slopes = jitted(jax.hessian(at)), jitted(jax.grad(at))
        base, step = np.ones(2), 1e-5
        expected = [(slopes(base + step * one) - slopes(base - step * one)) / (2 * step)
                    for one in np.eye(2)]  # fmt: skip
        np.testing.assert_allclose(hessian(base), expected, rtol=TOLERANCE, atol=1e-6)


def test_an_operating_point_has_the_slopes_of_differences() -> None:
    """What `test_slopes_are_differences_and_no_nan_at_the_ends` finds of all knobs, of a few."""
    with jax.enable_x64(True):
        f = operating_point()
        load = {name: f.knobs["load"][name] for name in ("clients", "prompt", "output")}
        some = {"memory_bytes_per_s": f.knobs["memory_bytes_per_s"], "load": load}
        values, tree = jax.tree.flatten(some)

        def told(factors: jax.Array) -> jax.Array:
            parts = [value * factors[at] for at, value in enumerate(values)]
            found = f(jax.tree.unflatten(tree, parts))
            return jnp.stack(
                [jnp.log(found[name]) for name in ("ttft_s", "tpot_s", "tokens_per_s")]
            )

        both = jitted(lambda x: (told(x), jax.jacfwd(told)(x)))
        base, step = np.ones(len(values)), 1e-5
        ends = [(both(base + step * one)[0] - both(base - step * one)[0]) / (2 * step)
                for one in np.eye(len(values))]  # fmt: skip
        np.testing.assert_allclose(both(base)[1], np.stack(ends, 1), rtol=TOLERANCE, atol=1e-6)


def test_batches_refuse_what_jax_traces() -> None:
    model, workload = datasheet(), gnn()
    seconds = hp.BatchPredictor(model, workload)
    for transform in (jax.grad, jax.jit, jax.vmap):
        at = transform(lambda rate: seconds(memory_bytes_per_s=rate)[0])
        with pytest.raises(hp.InputError, match=r"call hp\.step_function\(model, workload\)"):
            at(np.float32(3e12) if transform is not jax.vmap else np.full(3, 3e12, np.float32))


def test_elasticities_go_into_batches_and_back() -> None:
    """Each knob that is named, at the value that is told, gives the step's own seconds."""
    model, workload = measured(), transformer()
    prediction = hp.predict(model, workload)
    table = hp.elasticities(prediction)
    assert len(table) > 10
    assert (table["elasticity"] != 0).all()
    every = dict(zip(table["knob"], table["value"], strict=True))
    found = hp.predict_batch(model, workload, hold_corrections=True, **every)
    assert found == pytest.approx([prediction.time_s], rel=1e-5)
