"""The recursion against the simulation on random engines and loads, its limits and slopes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridperf.engine.batches import with_knobs
from hybridperf.io.namespace import QUICKLY_COMPILED
from hybridperf.runs.admission import AT_ONCE, Admission
from hybridperf.runs.batching import Engine, serve
from hybridperf.runs.requests import Served, looping
from hybridperf.runs.serving_machines import machine_of
from hybridperf.runs.steady_state import Steady, steady_clients
from hybridperf.workloads.serving import Deployment, step_times, step_times_by
from hybridperf.workloads.serving.times import Sizes
from hybridperf.workloads.transformer.zoo import load_shape
from tests.runs.made_up import constant, engine, roofline


def random_engine(rng: np.random.Generator) -> tuple[Engine, int, int]:
    """An engine, tokens of a prompt and of an answer."""
    times = roofline(
        10 ** rng.uniform(11.5, 13), 10 ** rng.uniform(14, 15.3), rng.choice([0, 5e-4, 5e-3]),
        10 ** rng.uniform(9.5, 11), 10 ** rng.uniform(4.3, 5.5),
    )  # fmt: skip
    prompt, output = int(10 ** rng.uniform(2, 3.6)), int(10 ** rng.uniform(1.5, 2.5))
    slots, budget = int(2 ** rng.integers(4, 9)), int(rng.choice([2048, 8192]))
    return Engine(times, slots, budget), prompt, output


def answers(rng: np.random.Generator, mean: int, count: int) -> np.ndarray:
    return np.maximum(rng.integers(int(0.8 * mean), int(1.2 * mean) + 1, count), 2)


def agrees(served: Served, kept: slice, steady: Steady, within: float = 0.02) -> None:
    tpot_s = (served.last_token_s - served.first_token_s)[kept].sum() / (
        served.requests.output[kept] - 1
    ).sum()
    assert float(steady.tpot_s) == pytest.approx(tpot_s, rel=within)
    assert float(steady.ttft_s) == pytest.approx(served.ttft_s[kept].mean(), rel=within)


@pytest.mark.parametrize("seed", range(7))  # of 0 to 7, those that are promised
def test_clients_are_served_as_in_the_simulation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case, prompt, output = random_engine(rng)
    clients = int(2 ** rng.uniform(0, 6))
    count = max(30 * clients, 1000)
    steady = steady_clients(case, clients, prompt, output)
    assert bool(steady.certain)
    lengths = answers(rng, output, count)
    # clients begin anywhere in an answer
    lengths[:clients] = np.maximum(2, lengths[:clients] * rng.uniform(0, 1, clients))
    start_s = rng.uniform(0, 1, clients) * output * float(steady.tpot_s)
    served = serve(looping(clients, np.full(count, prompt), lengths, start_s), [case])
    kept = slice(4 * clients, count - 2 * clients)
    agrees(served, kept, steady)


HELD_BACK = [  # (seed, how, within): those that are promised, and gathering, which is not
    (1, Admission(every=30.0), 0.02), (3, Admission(every=10.0), 0.02),
    (4, Admission(every=30.0), 0.02), (3, Admission(gather=20.0, tokens=1e6), 0.04),
    (4, Admission(gather=40.0, tokens=1e6), 0.04),
]  # fmt: skip


@pytest.mark.parametrize(("seed", "how", "within"), HELD_BACK)
def test_prompts_that_are_held_back_wait_as_in_the_simulation(
    seed: int, how: Admission, within: float
) -> None:
    rng = np.random.default_rng(seed)
    case, prompt, output = random_engine(rng)
    case, output = dataclasses.replace(case, admission=how), 4 * output
    clients = int(2 ** rng.uniform(0, 6))
    steady = steady_clients(case, clients, prompt, output)
    assert bool(steady.certain) == (how.gather == 0)
    lengths = answers(rng, output, 2500)
    lengths[:clients] = np.maximum(2, lengths[:clients] * rng.uniform(0, 1, clients))
    start_s = rng.uniform(0, 1, clients) * output * float(steady.tpot_s)
    served = serve(looping(clients, np.full(2500, prompt), lengths, start_s), [case])
    agrees(served, slice(4 * clients, 2500 - 2 * clients), steady, within)
    at_once = steady_clients(dataclasses.replace(case, admission=AT_ONCE), clients, prompt, output)
    assert steady.ttft_s > 1.2 * at_once.ttft_s


def test_one_client_takes_the_steps_themselves() -> None:
    """20 tokens of steps of a second: one for the prompt, nineteen to decode."""
    steady = steady_clients(Engine(constant(1.0)), 1, 100, 20)
    assert steady.ttft_s == pytest.approx(1.0, rel=1e-4)
    assert steady.rate == pytest.approx(1 / 20, rel=1e-4)


def test_little_counts_clients_that_wait_for_a_slot() -> None:
    steady = steady_clients(engine(slots=16), np.array([16.0, 64.0]), 500, 200)
    np.testing.assert_allclose(steady.rate[1], steady.rate[0])
    present = steady.rate * (steady.ttft_s + 199 * steady.tpot_s)
    np.testing.assert_allclose(present, [16, 64])
    full = steady_clients(engine(kv_tokens=10_000.0), 64, 500, 200)
    assert float(full.tokens_per_s / full.tpot_s) > 0
    assert full.waiting_s > 0.5 * full.ttft_s
    assert not full.certain


def tokens_per_s(faster: float, module: object = jnp) -> float:
    """Of 40 clients, by a factor of the memory's bandwidth."""
    case = engine()
    times = case.times
    products_s = module.maximum(0.015 / faster, 7.5e-5 * times.tokens)  # type: ignore[attr-defined]
    times = dataclasses.replace(times, products_s=products_s, decode_s=times.decode_s / faster)
    return steady_clients(dataclasses.replace(case, times=times), 40.0, 700.0, 200.0).tokens_per_s


def test_tokens_by_bandwidth_have_the_slope_of_finite_differences() -> None:
    step = 1e-4
    found = (tokens_per_s(1 + step, np) - tokens_per_s(1 - step, np)) / (2 * step)
    slope = jax.jit(jax.grad(tokens_per_s), compiler_options=QUICKLY_COMPILED)(1.0)
    assert float(slope) == pytest.approx(float(found), rel=1e-3)


def test_tokens_by_a_gpu_s_bandwidth_have_the_slope_of_finite_differences() -> None:
    """Through the prices of all calls: an H100's memory, Llama 3 8B on two of them, 40 clients."""
    machine = machine_of("h100_sxm")
    model, deployment = machine.load(), Deployment(load_shape("llama3-8b"), tp=2)
    sizes = Sizes((1.0, 64.0, 8192.0), (1.0, 64.0), (512.0, 4096.0), (256.0, 8192.0), (128.0,))
    times_by = step_times_by(model, deployment, machine.all_reduce, sizes)

    def rate(faster: float) -> float:
        platform = with_knobs(
            model.platform(), {"memory_bytes_per_s": faster * model.device.memory_bytes_per_s}
        )
        return steady_clients(Engine(times_by(platform)), 40.0, 700.0, 200.0).tokens_per_s

    both = jax.jit(jax.value_and_grad(rate), compiler_options=QUICKLY_COMPILED)
    value, slope = both(1.0)
    (own,) = step_times(model, [deployment], machine.all_reduce, sizes)
    plain = steady_clients(Engine(own), 40.0, 700.0, 200.0).tokens_per_s
    assert float(value) == pytest.approx(float(plain), rel=1e-4)
    step = 0.02
    found = (float(both(1 + step)[0]) - float(both(1 - step)[0])) / (2 * step)
    assert float(slope) == pytest.approx(found, rel=0.01)
    assert 0.2 < float(slope) / float(value) < 1.0  # decoding reads: half and more hangs on it


def test_numbers_of_jax_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    clients, prompt = rng.uniform(1, 64, 50), rng.uniform(50, 3000, 50)
    compiled = jax.jit(
        lambda case, *sizes: steady_clients(case, *sizes), compiler_options=QUICKLY_COMPILED
    )
    ours, theirs = (f(engine(), clients, prompt, 100.0) for f in (steady_clients, compiled))
    np.testing.assert_allclose(ours.ttft_s, theirs.ttft_s, rtol=1e-3)
    np.testing.assert_allclose(ours.rate, theirs.rate, rtol=1e-3)
