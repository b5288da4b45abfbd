"""The law against the simulation on random deployments, its limits by hand and its slopes."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridperf.engine.step_times import StepTimes
from hybridperf.hardware import load_device
from hybridperf.io.namespace import QUICKLY_COMPILED
from hybridperf.model.serving_effects import BELIEFS, KNOWN, NAMES, ServingEffects, believed
from hybridperf.ops.frameworks import serving_framework
from hybridperf.serving.admission import AT_ONCE, Admission
from hybridperf.serving.batching import Link, serve
from hybridperf.serving.engine import Engine
from hybridperf.serving.engine_load import Apart, FirstTokens, Load, _Case, under_load
from hybridperf.serving.machines import machine_of
from hybridperf.serving.requests import Served, looping
from hybridperf.workloads.serving import Deployment, step_times, step_times_by
from hybridperf.workloads.serving.deployment import serving_memory
from hybridperf.workloads.serving.times import Sizes
from hybridperf.workloads.transformer.zoo import load_shape
from tests.runs.made_up import constant, engine, roofline

NOTHING = ServingEffects(1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
MODELS = (("llama3-8b", 1), ("llama3-70b", 4), ("gpt-oss-120b", 2), ("mixtral-8x7b", 4))


class Case(NamedTuple):
    """A random deployment and who asks it."""

    engine: Engine
    clients: int
    prompt: int
    output: int

    @property
    def mean_output(self) -> float:
        """Of `answers`."""
        return (max(int(0.8 * self.output), 2) + int(1.2 * self.output)) / 2

    def load(self, added: FirstTokens | None = None) -> Load:
        return under_load(self.engine, self.clients, self.prompt, self.mean_output, added=added)

    def answers(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.integers(max(int(0.8 * self.output), 2), int(1.2 * self.output) + 1, count)

    @property
    def fills_steps(self) -> bool:
        """Whether prompts that fill steps come nearly as quickly as these are taken, and queue."""
        there = min(self.clients, float(self.engine.slots))
        return self.prompt > 0.4 * (self.engine.budget - there) and self.load().prompts > 0.25


@functools.cache
def priced() -> tuple[tuple[StepTimes, float], ...]:
    """Steps of real models on an H200, and tokens of their caches."""
    machine = machine_of("h200_sxm")
    model = machine.load()
    some = [Deployment(load_shape(name), tp=tp, framework="vllm") for name, tp in MODELS]
    assert model.device.memory_bytes is not None
    tokens = [serving_memory(one).cached_tokens(model.device.memory_bytes) for one in some]
    return tuple(zip(step_times(model, some, machine.all_reduce), tokens, strict=True))


@functools.cache
def deployments(count: int) -> tuple[Case, ...]:
    """Of models, limits, lengths, clients from one to twice the slots."""
    rng, out = np.random.default_rng(0), []
    while len(out) < count:
        times, tokens = priced()[rng.integers(len(MODELS))]
        prompt, output = int(10 ** rng.uniform(1.5, 4.0)), int(10 ** rng.uniform(1.0, 3.0))
        slots, budget = int(2 ** rng.uniform(2, 8)), int(rng.choice([512, 2048, 8192, 16384]))
        clients = round(2 ** rng.uniform(0, np.log2(2.0 * slots)))
        held = tokens if rng.random() < 0.3 else np.inf
        times = dataclasses.replace(times, host_s=rng.choice([2e-4, 1e-3, 3e-3]))
        if slots < 0.7 * budget and prompt + 1.2 * output < held / 4:
            out.append(Case(Engine(times, slots, budget, held), clients, prompt, output))
    return tuple(out)


def means(served: Served, kept: slice = slice(None)) -> tuple[float, float, float]:
    """(TTFT, TPOT, standard error of the first as a share) of some requests."""
    answered_s = (served.last_token_s - served.first_token_s)[kept].sum()
    tpot_s = answered_s / (served.requests.output[kept] - 1).sum()
    parts = np.array(
        [
            part.mean()
            for part in np.array_split(served.ttft_s[kept], min(20, len(served.ttft_s[kept])))
        ]
    )
    mean = served.ttft_s[kept].mean()
    return float(mean), float(tpot_s), float(parts.std() / len(parts) ** 0.5 / mean)


def simulated(case: Case, seed: int, requests: int) -> tuple[float, float, float]:
    """Clients that begin anywhere in an answer, once they have mixed."""
    rng, clients = np.random.default_rng(seed), case.clients
    count = max(30 * clients, min(requests, 400 if clients == 1 else requests))
    lengths = case.answers(rng, count)
    lengths[:clients] = np.maximum(2, lengths[:clients] * rng.uniform(0, 1, clients))
    answer_s = case.output * float(case.load().tpot_s)
    start_s = rng.uniform(0, 1, clients) * answer_s
    requests_of = looping(clients, np.full(count, case.prompt), lengths, start_s)
    kept = slice(max(8 * clients, 20), count - 2 * clients)
    return means(serve(requests_of, [case.engine]), kept)


def held_to(count: int, requests: int) -> None:
    """All within 2 % (and two standard errors of the simulation) but where prompts queue for steps
    that they fill: the order that clients fall into is known to 10 % there.
    """
    beyond: dict[bool, list[float]] = {False: [], True: []}
    for seed, case in enumerate(deployments(count)):
        ttft_s, tpot_s, error = simulated(case, seed, requests)
        law = case.load()
        assert float(law.tpot_s) == pytest.approx(tpot_s, rel=0.02), (seed, case)
        off = abs(float(law.ttft_s) / ttft_s - 1.0) - 2.0 * error
        beyond[case.fills_steps].append(off)
    assert max(beyond[False]) < 0.02
    assert max(beyond[True], default=0.0) < 0.10
    assert np.mean(np.array(beyond[False] + beyond[True]) < 0.02) >= 0.94


def test_random_deployments_are_those_of_the_simulation() -> None:
    held_to(24, 1500)


@pytest.mark.slow
def test_a_hundred_random_deployments_are_those_of_the_simulation() -> None:
    held_to(100, 6000)


def test_runs_that_begin_with_a_burst_are_those_of_the_simulation() -> None:
    """Ten requests of each client, all of which begin at once: TPOT of all and TTFT of nine in ten
    within 2 %.
    """
    off = []
    for seed, case in enumerate(deployments(24)):
        rng, count = np.random.default_rng(seed), 10 * case.clients
        runs = [looping(case.clients, np.full(count, case.prompt), case.answers(rng, count))
                for _ in range(3)]  # fmt: skip
        ttft_s, tpot_s, _ = np.mean([means(serve(run, [case.engine])) for run in runs], axis=0)
        law = case.load(FirstTokens(burst=0.1))
        assert float(law.tpot_s) == pytest.approx(tpot_s, rel=0.02), (seed, case)
        off.append(abs(float(law.ttft_s) / ttft_s - 1.0))
    assert np.mean(np.array(off) < 0.02) >= 0.9
    assert max(off) < 0.06


def test_clients_that_began_together_come_together_again() -> None:
    """Answers of 8 to 12 tokens, one in a step: of two clients as many end in the same step as draw
    the same number, one in five, in a period of ten steps; later ones are further apart.
    """
    case = _Case(Engine(constant(1.0), 64, 1e6), 1.0, 10.0, 0.0)
    queue = case.queue(np.float64(8.0), np.float64(8.0), np.float64(1.0))
    period = float(case.steps + queue.lasts)
    assert period == pytest.approx(10.0, rel=0.01)

    def met(burst: float) -> float:
        return float(case.crowded(np.float64(8.0), queue, np.float64(burst))) / period

    assert met(0.5) == pytest.approx(1 / 5, rel=0.01)  # of one request that follows
    # sums of two draws, nearly normal, are alike in 85 of 625 cases: the mean of both
    assert met(1 / 3) == pytest.approx((1 / 5 + 85 / 625) / 2, rel=0.02)
    assert met(1e-5) == pytest.approx(1 / period, rel=0.01)
    assert met(0.0) * period == 1.0


@pytest.mark.parametrize(("clients", "prompt"), [(2, 340), (3, 700), (6, 350), (7, 100), (9, 205)])
def test_first_tokens_of_few_that_begin_at_once_are_those_of_the_simulation(
    clients: int, prompt: int
) -> None:
    """Each is there at the end of the step that its prompt ends in. The law lets half of them
    decode meanwhile; in truth nobody does before the first is there.
    """
    case = Case(Engine(priced()[0][0], 16, 512), clients, prompt, 400)
    answers = np.full(clients, case.output)
    served = serve(looping(clients, np.full(clients, prompt), answers), [case.engine])
    law = case.load(FirstTokens(burst=1.0))
    assert float(law.ttft_s) == pytest.approx(served.ttft_s.mean(), rel=0.055)


HELD_BACK = [
    (Admission(every=10.0), 0.02), (Admission(every=30.0), 0.02),
    (Admission(gather=20.0, tokens=1e6), 0.06), (Admission(gather=40.0, tokens=1e6), 0.06),
]  # fmt: skip


@pytest.mark.parametrize(("how", "within"), HELD_BACK)
def test_prompts_that_are_held_back_wait_as_in_the_simulation(
    how: Admission, within: float
) -> None:
    """Prompts that are gathered stay together for a while, which the law does not know."""
    case = Case(Engine(roofline(), 64, 2048, admission=how), 24, 300, 600)
    ttft_s, tpot_s, error = simulated(case, 0, 3000)
    law = case.load()
    assert float(law.tpot_s) == pytest.approx(tpot_s, rel=0.02)
    assert float(law.ttft_s) == pytest.approx(ttft_s, rel=within + 2.0 * error)
    at_once = case._replace(engine=dataclasses.replace(case.engine, admission=AT_ONCE))
    assert law.ttft_s > 1.2 * at_once.load().ttft_s


@pytest.mark.parametrize(("clients", "prefill"), [(8, 1), (48, 1), (48, 2), (160, 1)])
def test_engines_apart_are_those_of_the_simulation(clients: int, prefill: int) -> None:
    """Of few clients, and of so many that the engines of prompts are busy throughout."""
    times = priced()[0][0]
    first, decode = Engine(times, 1024, 8192), Engine(times, 256, 8192)
    case, count = Case(decode, clients, 4000, 150), 40 * clients
    rng = np.random.default_rng(2)
    lengths = case.answers(rng, count)
    lengths[:clients] = np.maximum(2, lengths[:clients] * rng.uniform(0, 1, clients))
    start_s = rng.uniform(0, 1, clients) * 150 * float(case.load().tpot_s)
    requests = looping(clients, np.full(count, case.prompt), lengths, start_s)
    served = serve(requests, [decode], [first] * prefill, Link(1.0, 1e18))
    ttft_s, tpot_s, error = means(served, slice(8 * clients, count - 2 * clients))
    apart = Apart(first, float(prefill), 1.0)
    law = under_load(decode, clients, case.prompt, case.mean_output, apart=apart)
    assert float(law.tpot_s) == pytest.approx(tpot_s, rel=0.03)
    # prompts that wait are computed in batches, and queues are unlike: 10 % at most
    assert float(law.ttft_s) == pytest.approx(ttft_s, rel=0.10 + 2.0 * error)


def test_one_client_takes_the_steps_themselves() -> None:
    """20 tokens of steps of a second: one for the prompt, nineteen to decode."""
    steady = under_load(Engine(constant(1.0)), 1, 100, 20)
    assert steady.ttft_s == pytest.approx(1.0, rel=1e-4)
    assert steady.rate == pytest.approx(1 / 20, rel=1e-4)


def test_little_counts_clients_that_wait_for_a_slot() -> None:
    steady = under_load(engine(slots=16), np.array([16.0, 64.0]), 500, 200)
    np.testing.assert_allclose(steady.rate[1], steady.rate[0], rtol=1e-9)
    present = steady.rate * (steady.ttft_s + 199 * steady.tpot_s)
    np.testing.assert_allclose(present, [16, 64])
    full = under_load(engine(kv_tokens=10_000.0), 64, 500, 200)
    assert full.waiting_s > 0.5 * full.ttft_s


def tokens_per_s(faster: float, module: object = jnp) -> float:
    """Of 40 clients, by a factor of the memory's bandwidth."""
    case = engine()
    times = case.times
    products_s = module.maximum(0.015 / faster, 7.5e-5 * times.tokens)  # type: ignore[attr-defined]
    times = dataclasses.replace(times, products_s=products_s, decode_s=times.decode_s / faster)
    return under_load(dataclasses.replace(case, times=times), 40.0, 700.0, 200.0).rate


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
        memory = faster * model.device.memory_bytes_per_s
        platform = dataclasses.replace(model.platform(), memory_bytes_per_s=memory)
        return under_load(Engine(times_by(platform)), 40.0, 700.0, 200.0).rate

    both = jax.jit(jax.value_and_grad(rate), compiler_options=QUICKLY_COMPILED)
    value, slope = both(1.0)
    (own,) = step_times(model, [deployment], machine.all_reduce, sizes)
    plain = under_load(Engine(own), 40.0, 700.0, 200.0).rate
    assert float(value) == pytest.approx(float(plain), rel=1e-4)
    step = 0.02
    found = (float(both(1 + step)[0]) - float(both(1 - step)[0])) / (2 * step)
    assert float(slope) == pytest.approx(found, rel=0.01)
    assert 0.2 < float(slope) / float(value) < 1.0  # decoding reads: half and more hangs on it


def test_numbers_of_jax_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    clients, prompt = rng.uniform(1, 64, 50), rng.uniform(50, 3000, 50)
    compiled = jax.jit(
        lambda case, *sizes: under_load(case, *sizes), compiler_options=QUICKLY_COMPILED
    )
    ours, theirs = (f(engine(), clients, prompt, 100.0) for f in (under_load, compiled))
    np.testing.assert_allclose(ours.ttft_s, theirs.ttft_s, rtol=1e-3)
    np.testing.assert_allclose(ours.rate, theirs.rate, rtol=1e-3)


# --- effects of a framework

SIZES = np.array([1.0, 64.0, 4096.0])


def made_up(step_s: float = 0.01, token_s: float = 1e-5) -> StepTimes:
    """An engine whose steps take `step_s`, and each token of a prompt `token_s` besides."""
    flat = np.full((3, 2), 1e-12)
    axis = np.array([1.0, 8192.0])
    prefill = token_s * np.array([[1.0, 1.0], [8192.0, 8192.0]])
    return StepTimes(SIZES, np.full(3, step_s), SIZES, axis, flat, axis, axis, prefill)


def test_a_framework_s_way_delays_first_tokens_alone() -> None:
    times, added = made_up(), FirstTokens(2.0, 3.0, 0.05)
    bare, found = (
        under_load(Engine(times), 1.0, 1024.0, 100.0, added=one) for one in (FirstTokens(), added)
    )
    assert found.tpot_s == pytest.approx(float(bare.tpot_s))
    assert found.ttft_s == pytest.approx(2.0 * float(bare.ttft_s) + 3.0 * 0.01 + 0.05, rel=1e-6)


def test_steps_without_graphs_last_as_long_as_their_launches() -> None:
    """0.01 s of decoding and as much of a prompt hide behind 3,000 launches of 10 us."""
    effects = dataclasses.replace(NOTHING, launch_s=1e-5)
    graph, eager = (
        under_load(Engine(made_up().as_run(effects, 3e3, how)), 8.0, 1024.0, 100.0)
        for how in (0.0, 1.0)
    )
    assert eager.tpot_s == pytest.approx(0.03, rel=1e-3)
    assert 0.01 < graph.tpot_s < 0.012
    assert graph.ttft_s > 0.03


def test_prompts_that_join_others_find_their_kernels_launched_ahead() -> None:
    """A first token waits for 45 us a kernel, those who decode for 12; the simulation too."""
    effects = dataclasses.replace(NOTHING, launch_s=45e-6)
    times = made_up().as_run(effects, 2e3)
    alone, beside = (float(times.seconds(n, 1024.0, 1024.0, 512.0)) for n in (0.0, 8.0))
    assert alone == pytest.approx(0.09)
    assert beside == pytest.approx(0.024, rel=0.01)
    assert times.seconds(8.0, 1024.0, 1024.0, 512.0, True) == pytest.approx(0.09)
    law = under_load(Engine(times), 8.0, 1024.0, 100.0)
    outputs = np.random.default_rng(0).integers(80, 121, 400)
    requests = looping(8, np.full(400, 1024), outputs, start_s=np.arange(8) * 0.13)
    found = serve(requests, [Engine(times)])
    assert law.tpot_s == pytest.approx(float(found.tpot_s.mean()), rel=0.03)
    # late tokens end, and the next requests come, inside steps: half of one more
    assert law.ttft_s == pytest.approx(float(found.ttft_s.mean()) - 0.5 * law.tpot_s, rel=0.02)


def test_tokens_that_drafts_add_cost_the_host_as_much_as_others() -> None:
    effects = dataclasses.replace(NOTHING, gap_s=1e-6, sequence_s=1e-4)
    times = dataclasses.replace(made_up(), kernels=500.0).as_run(effects, made=2.5)
    assert times.seconds(8.0, 1024.0) == pytest.approx(0.01 + 500e-6 + 2.5e-4 * 8.0)


def test_eager_kernels_are_launched_by_the_belief_of_the_host() -> None:
    """No torch.compile joins them: the launch of its own ops, or the usual one."""
    assert believed("vllm").launch_s < believed("vllm", eager=True).launch_s
    assert believed("vllm", eager=True).launch_s == serving_framework("vllm").eager_launch_s
    assert believed("trtllm", eager=True).launch_s == ServingEffects().launch_s


def test_beliefs_have_a_source_and_a_width() -> None:
    assert all(one.source and one.width > 0 and one.median > 0 for one in BELIEFS.values())
    for known in KNOWN:
        assert known["effect"] in NAMES
        assert known["source"]
        device = {"": None, "hbm": load_device("h100_sxm"), "gddr": load_device("rtx_4090")}
        found = believed(known["framework"], device=device[known["memory"]])
        assert getattr(found, known["effect"]) == known["median"]
