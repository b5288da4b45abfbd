"""Functions of knobs tell what the question itself tells, today and where knobs are moved."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridperf as hp
from hybridperf.collectives.model import CollectiveModel
from hybridperf.engine.knobs import flattened
from hybridperf.hardware import load_device, load_system
from hybridperf.io.namespace import QUICKLY_COMPILED
from hybridperf.model import PerfModel
from hybridperf.runs.run_function import run_elasticities
from hybridperf.serving.deployment_latency import Question
from hybridperf.serving.deployments import deployments
from hybridperf.serving.machines import known_names, machine_of
from hybridperf.workloads.serving import step_times

SETTINGS = {
    "sync": hp.RunSettings("sync", interval_s=3000.0, spares=2),
    "memory": hp.RunSettings("memory", mtbf_s={"gpu": 3e8}, stalls_per_day=0.3, stall_s=900.0),
    "a job's failures": hp.RunSettings(mtbf_s={"job": 36_000.0}, warmup_s=60.0, by_hand=True),
}


@functools.cache
def datasheet(device: str = "h100_sxm", system: str = "dgx_h100", slower: float = 1.0) -> PerfModel:
    spec = load_device(device)
    rate = {"memory_bytes_per_s": spec.memory_bytes_per_s / slower}
    fabric = CollectiveModel.datasheet(load_system(system))
    return PerfModel.datasheet(spec.model_copy(update=rate)).with_collectives(fabric)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_is_the_run_in_the_mean(name: str) -> None:
    settings = SETTINGS[name]
    step = hp.given_step(2.5, 4096, device="h100_sxm", state_bytes=1e12)
    with jax.enable_x64(True):
        run = hp.run_function(step, 1e5, settings)
        found = run(run.knobs)
        expected = hp.training_run(step, 1e5, settings)
        assert {*found} == {*expected.table["what"]}
        for what, value in found.items():
            assert float(value) == pytest.approx(expected.row(what)[0], rel=1e-8), what
        moved = {
            "step_s": 3.0, "interval_s": 4000.0, "spares": 3.0, "stalls_per_day": 1.0,
            "stall_s": 300.0, "beliefs": {"restart_s": 900.0, "repair_s": 9e4, "step_longer": 1.0},
        }  # fmt: skip
        there = dataclasses.replace(
            settings, interval_s=4000.0, spares=3, stalls_per_day=1.0, stall_s=300.0,
            given=moved["beliefs"],
        )  # fmt: skip
        each = run.knobs["mtbf_s"]
        name_of = "job" if "job" in each else "gpu"
        moved["mtbf_s"] = {name_of: float(each[name_of]) / 2}
        there = dataclasses.replace(there, mtbf_s=moved["mtbf_s"])
        if "checkpoints_per_write" in run.knobs:
            moved["checkpoints_per_write"] = 8.0  # of an interval that is given
        longer = hp.given_step(3.0, 4096, device="h100_sxm", state_bytes=1e12)
        expected = hp.training_run(longer, 1e5, there)
        for what, value in run(moved).items():
            assert float(value) == pytest.approx(expected.row(what)[0], rel=1e-8), what
    assert run.units["mtbf_s"][name_of] == run.units["beliefs"]["repair_s"] == "s"
    assert run.units["economy"]["usd_per_hour"] == "USD/h"
    assert "usd_per_hour" in [place[-1] for place, _ in flattened(run.knobs)]


def test_what_a_run_depends_on_is_listed() -> None:
    run = hp.run_function(hp.given_step(2.5, gpus=4096, device="h100_sxm"), steps=1e6)
    listed = hp.elasticities(run, "usd").set_index("knob")
    assert listed["elasticity"].abs().is_monotonic_decreasing
    assert listed.loc["economy__usd_per_hour", "elasticity"] == pytest.approx(1.0, rel=1e-5)
    assert "economy__pue" not in listed.index  # a rent includes electricity
    failing = run.knobs["mtbf_s"]["gpu"]
    more, less = (run({"mtbf_s": {"gpu": failing * times}})["usd"] for times in (1.05, 1 / 1.05))
    slope = np.log(float(more) / float(less)) / np.log(1.05**2)
    assert listed.loc["mtbf_s__gpu", "elasticity"] == pytest.approx(slope, rel=0.02)
    with pytest.raises(hp.InputError, match=r"unknown result 'dollars': known are .*usd"):
        hp.elasticities(run, "dollars")


def test_a_plan_is_its_best_layout_run() -> None:
    plan = hp.plan("llama2-7b", "dgx_h100", 8, batch=64, limit=16)
    run = hp.run_function(plan, 1e4)
    cost = hp.run_cost("llama2-7b", "dgx_h100", 8, 64 * 4096 * 1e4, batch=64)
    assert float(run({})["days"]) == pytest.approx(cost.row("days")[0], rel=1e-5)


def test_a_run_is_driven_by_its_machine_through_its_step() -> None:
    run = hp.run_cost("llama2-7b", "dgx_h100", 8, 64 * 4096 * 1e4, batch=64)
    found = run_elasticities(run, "days").set_index("knob")["elasticity"]
    plan = hp.plan("llama2-7b", "dgx_h100", 8, batch=64, limit=64)
    choice = plan.choice(0)
    prices = plan.cases[choice.case].setup.prices
    with jax.enable_x64(True):
        step = hp.step_function(prices.model, hp.transformer(plan.config(choice)))
        days = hp.run_function(run.step, run.steps)
        rate = float(step.knobs["memory_bytes_per_s"])
        both = [
            float(days({"step_s": run.step_s * step({"memory_bytes_per_s": rate * times})
                        / step({})})["days"])
            for times in (0.999, 1.001)
        ]  # fmt: skip
        slope = np.log(both[1] / both[0]) / np.log(1.001 / 0.999)
        assert found["memory_bytes_per_s"] == pytest.approx(slope, rel=2e-3)
        restart_s = float(days.knobs["beliefs"]["restart_s"])
        restarts = [
            float(days({"beliefs": {"restart_s": restart_s * times}})["days"])
            for times in (0.9, 1.1)
        ]
    slope = np.log(restarts[1] / restarts[0]) / np.log(1.1 / 0.9)
    assert found["beliefs__restart_s"] == pytest.approx(slope, rel=0.02)
    assert slope > 0 > found["memory_bytes_per_s"]


def test_workers_that_differ_are_those_of_their_machines() -> None:
    shape = dataclasses.replace(hp.load_shape("llama2-7b"), layers=2)
    config = hp.TransformerConfig.run_by("megatron_core", shape, hp.Layout(tp=2, dp=2))
    workload = hp.transformer(config)

    def workers(slower: float, model: PerfModel, old: PerfModel) -> list[hp.Worker]:
        return [
            hp.Worker(workload, model, slower=1.1 * slower, name="new"),
            hp.Worker(workload, old, name="old"),
        ]

    new, old = datasheet(), datasheet("a100_sxm4_80g", "dgx_a100")
    with jax.enable_x64(True):
        f = hp.unlike_function(workers(1.0, new, old))
        assert [*f.knobs["machines"]] == ["a100_sxm4_80g", "h100_sxm"]
        today_s = hp.unlike(workers(1.0, new, old)).time_s
        assert float(f(f.knobs)) == pytest.approx(today_s, rel=1e-9)
        expected = hp.unlike(workers(2.0, new, old)).time_s
        assert float(f({"slower": {"new": 2.0}})) == pytest.approx(expected, rel=1e-9)
        rate = float(f.knobs["machines"]["h100_sxm"]["memory_bytes_per_s"])
        knobs = {"machines": {"h100_sxm": {"memory_bytes_per_s": rate / 4}}}
        expected = hp.unlike(workers(1.0, datasheet(slower=4.0), old)).time_s
        assert float(f(knobs)) == pytest.approx(expected, rel=1e-9)
        assert expected > 1.2 * today_s
        # a message is as slow as the slowest of its links, whoever has it
        links = {"intra_bytes_per_s": 1e9, "node_bytes_per_s": 1e9, "rank_bytes_per_s": 1e9}
        of_each = [float(f({"machines": {name: {"links": links}}})) for name in f.knobs["machines"]]
        assert min(of_each) > 1.5 * today_s
    alike = hp.unlike_function(
        [hp.Worker(workload, new), hp.Worker(workload, datasheet(slower=2.0))]
    )
    assert [*alike.knobs["machines"]] == ["h100_sxm", "h100_sxm 2"]


def test_a_served_step_is_that_of_its_tables() -> None:
    deployment = hp.Deployment(hp.load_shape("llama3-8b"), framework="vllm")
    model = datasheet()
    (times,) = step_times(model, [deployment])
    with jax.enable_x64(True):
        f = hp.served_step_function(model, deployment, sequences=64, keys=1000)
        bare = dict.fromkeys(f.knobs["effects"], 0.0) | {"kernels": 1.0}
        for load in (
            {}, {"sequences": 100.0, "keys": 3000.0},
            {"sequences": 0.0, "chunk": 2000.0, "chunk_keys": 1000.0},
        ):  # fmt: skip
            sizes = {"sequences": 64.0, "keys": 1000.0, "chunk": 0.0, "chunk_keys": 0.0, **load}
            expected = float(times.seconds(*sizes.values()))
            found = float(f({"load": load, "effects": bare}))
            assert found == pytest.approx(expected, rel=1e-6)
            assert float(f({"load": load})) > found * 0.9
    with pytest.raises(hp.InputError, match="expected sequences or chunk above 0"):
        hp.served_step_function(model, deployment, sequences=0, keys=10)
    big = hp.Deployment(hp.load_shape("llama3-70b"))
    with pytest.raises(hp.InputError, match="does not fit into h100_sxm"):
        hp.serving_function(model, big, clients=1, prompt=100, output=100)
    with pytest.raises(hp.InputError, match=r"unknown framework 'vlm' \(did you mean 'vllm'\?\)"):
        hp.served_step_function(
            model, dataclasses.replace(deployment, framework="vlm"), sequences=1, keys=10
        )
    with pytest.raises(hp.InputError, match="an output of 2 tokens or more, got 1"):
        hp.serving_function(model, deployment, clients=1, prompt=100, output=1)


def test_a_served_step_sums_by_the_library_of_tables() -> None:
    model = PerfModel.datasheet(load_device("h100_sxm")).with_collectives(
        hp.load_collectives("aic_h100_sxm")
    )
    four = hp.Deployment(hp.load_shape("llama3-8b"), tp=4, framework="vllm")
    usual, named, other = (
        float(hp.served_step_function(model, four, sequences=4, keys=1000, **given)({}))
        for given in ({}, {"all_reduce": known_names()["reduce"]}, {"all_reduce": ""})
    )
    assert usual == named != other


@pytest.mark.filterwarnings("error")  # as where an imaginary part would be lost
def test_slopes_outside_of_jit_are_differences_and_nothing_is_compiled_for_them() -> None:
    """By knobs that are zero or infinite, too."""
    rng = np.random.default_rng(0)
    deployment = hp.Deployment(hp.load_shape("llama3-8b"), framework="vllm")
    with jax.enable_x64(True):
        for f in (
            hp.served_step_function(datasheet(), deployment, sequences=50, keys=700, chunk=300),
            hp.serving_function(datasheet(), deployment, clients=40, prompt=700, output=200),
        ):

            def told(knobs: dict, f: hp.KnobFunction = f) -> jax.Array:
                return sum(jnp.log(part) for part in jax.tree.leaves(f(knobs)))

            leaves, tree = jax.tree.flatten(f.knobs)
            at, slopes = jax.value_and_grad(told)(f.knobs)
            assert float(at) == pytest.approx(float(told(f.knobs)), rel=1e-12)
            today, slope = (
                np.array([*map(float, one)]) for one in (leaves, jax.tree.leaves(slopes))
            )
            ways = [*rng.uniform(-1e-5, 1e-5, (3, len(today))) * today]
            # of zero by what moves what is told a little
            ways += [*(np.diag(1e-6 / np.maximum(np.abs(slope), 1e3))[today == 0])]
            for way in ways:
                ends = [
                    float(told(jax.tree.unflatten(tree, list(np.maximum(today + end, 0.0)))))
                    for end in (way, -way)
                ]
                expected = (ends[0] - ends[1]) / (2 if today @ abs(way) else 1)
                assert slope @ way == pytest.approx(expected, rel=2e-3, abs=1e-11)
            for end in (0.0, np.inf):
                _, slopes = jax.value_and_grad(told)(f.knobs | {"memory_bytes_per_s": end})
                assert np.isfinite([*map(float, jax.tree.leaves(slopes))]).all()
    assert f(f.knobs)["ttft_s"].dtype == np.float32


def test_an_operating_point_is_what_a_deployment_reaches() -> None:
    asked = Question(hp.load_shape("llama3-8b"), datasheet(), 1, 1000, 200, "vllm")
    table = deployments(asked)
    row = table[table["mode"] == "aggregated"].iloc[0]
    with jax.enable_x64(True):
        f = hp.serving_function(
            datasheet(), hp.Deployment(asked.shape, framework="vllm"), clients=row["sequences"],
            prompt=1000, output=200, slots=row["sequences"], chunk=row["chunk"],
        )  # fmt: skip
        for name, value in f({}).items():
            expected = 200 * row["requests_per_s"] if name == "tokens_per_s" else row[name]
            assert float(value) == pytest.approx(expected, rel=1e-6), name


@pytest.mark.parametrize(
    ("framework", "cached_share", "admission", "load"),
    [
        ("sglang", 0.3, {"scheduler_recv_interval": 20}, (8, 2500, 40)),
        ("trtllm", 0.0, {"batch_wait_timeout_iters": 15, "batch_wait_max_tokens_ratio": 0.5},
         (400, 300, 700)),
    ],
)  # fmt: skip
def test_an_operating_point_is_that_of_a_row(
    framework: str, cached_share: float, admission: dict, load: tuple[int, int, int]
) -> None:
    """With the framework's way to take prompts, its reserve and its cache of prefixes."""
    clients, prompt, output = load
    said = {"model": "llama3-8b", "system": "h100_sxm", "precision": "bf16", "kv_dtype": "bf16"}
    sizes = {"concurrency": clients, "isl": prompt, "osl": output, "tp_size": 1}
    row = {**said, **sizes, "framework": framework, "cached_share": cached_share}
    found = hp.predict_serving([row | admission, row])
    with jax.enable_x64(True):
        f = hp.serving_function(
            machine_of("h100_sxm", "").load(),
            hp.Deployment(
                hp.load_shape("llama3-8b"), framework=framework, cached_share=cached_share
            ),
            clients=clients, prompt=prompt, output=output, admission=admission,
        )  # fmt: skip
        point = f({})
        for name in ("ttft_s", "tpot_s"):
            expected = found[f"predicted_{name}"].to_numpy()
            assert float(point[name]) == pytest.approx(expected[0], rel=1e-9), name
            assert expected[0] != pytest.approx(expected[1], rel=1e-3)
    with pytest.raises(hp.InputError, match="unknown setting of admission 'recv'"):
        hp.serving_function(
            datasheet(), hp.Deployment(hp.load_shape("llama3-8b")), clients=1, prompt=9, output=9,
            admission={"recv": 3},
        )  # fmt: skip


def test_an_all_reduce_of_no_library_is_refused() -> None:
    deployment = hp.Deployment(hp.load_shape("llama3-8b"), tp=2)
    measured = hp.load_model("h100_sxm").with_collectives(hp.load_collectives("dgx_h100"))
    for model, known in ((datasheet(), "nccl, trtllm"), (measured, "vllm_custom_graph")):
        with pytest.raises(hp.InputError, match=f"library of all_reduce 'zzz'.*{known}"):
            hp.served_step_function(model, deployment, sequences=8, keys=64, all_reduce="zzz")


def test_first_slopes_are_those_inside_a_compiled_function() -> None:
    """And many points' at once, and second slopes."""
    with jax.enable_x64(True):
        f = hp.run_function(hp.given_step(2.5, 4096, device="h100_sxm"), 1e6)

        def days(step_s: jax.Array) -> jax.Array:
            return f({"step_s": step_s})["days"]

        value, slope = jax.value_and_grad(days)(2.5)
        expected = jax.jit(jax.value_and_grad(days), compiler_options=QUICKLY_COMPILED)(2.5)
        assert (float(value), float(slope)) == pytest.approx(tuple(map(float, expected)), rel=1e-12)
        many = jax.vmap(jax.grad(days))(jnp.array([2.5, 5.0]))
        assert float(many[0]) == pytest.approx(float(slope), rel=1e-12)
        assert float(many[1]) == pytest.approx(float(jax.grad(days)(5.0)), rel=1e-12)
        (_, moved) = jax.jvp(days, (2.5,), (1.0,))
        assert float(moved) == pytest.approx(float(slope), rel=1e-12)
        assert np.isfinite(float(jax.hessian(days)(2.5)))
