"""A closed loop of clients: limits by hand, gradients, effects of a framework."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridperf.engine.step_times import StepTimes
from hybridperf.model.serving_effects import BELIEFS, KNOWN, NAMES, ServingEffects, believed
from hybridperf.runs.closed_loop import Latency, prompt_seconds, settled
from hybridperf.runs.deployment_latency import with_effects

NOTHING = ServingEffects(1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
SIZES = np.array([1.0, 64.0, 4096.0])


def engine(step_s: float = 0.01, token_s: float = 1e-5) -> StepTimes:
    """An engine whose steps take `step_s`, and each token of a prompt `token_s` besides."""
    flat = np.full((3, 2), 1e-12)
    axis = np.array([1.0, 8192.0])
    prefill = token_s * np.array([[1.0, 1.0], [8192.0, 8192.0]])
    return StepTimes(
        SIZES, np.full(3, step_s), SIZES, axis, flat, axis, axis, prefill, np.float64(0.0)
    )


def closed_loop(
    times, clients, prompt, output, slots=np.inf, effects=NOTHING, ranks=1.0
) -> Latency:
    loop = settled(times, clients, prompt, output, slots, effects, ranks=ranks)
    return loop.latency(effects, times.host_s)


def test_one_client_waits_for_its_prompt_and_its_steps() -> None:
    found = closed_loop(engine(), 1.0, 1024.0, 100.0, effects=NOTHING)
    assert found.ttft_s == pytest.approx(0.01 + 1024e-5, rel=1e-3)
    assert found.tpot_s == pytest.approx(0.01, rel=1e-3)
    assert found.decoding == pytest.approx(1.0)


def test_littles_law_holds() -> None:
    clients = np.array([1.0, 8.0, 64.0, 512.0])
    found = closed_loop(engine(), clients, 1024.0, 100.0, effects=believed("vllm"))
    cycle_s = found.ttft_s + 100.0 * found.tpot_s
    assert found.decoding[1:] == pytest.approx(
        (clients * 100.0 * found.tpot_s / cycle_s)[1:], rel=1e-3
    )
    assert (np.diff(found.ttft_s) > 0).all()
    assert (np.diff(found.tpot_s) > 0).all()


def test_more_clients_than_slots_wait() -> None:
    found = closed_loop(engine(), 40.0, 1024.0, 100.0, slots=10.0, effects=NOTHING)
    assert found.waiting_s == pytest.approx(3.0 * 100.0 * found.tpot_s)
    assert found.decoding <= 10.0
    free = closed_loop(engine(), 40.0, 1024.0, 100.0, effects=NOTHING)
    assert free.waiting_s == 0.0
    assert free.ttft_s < found.ttft_s


def test_prompts_wait_for_engines_apart_that_are_busy_throughout() -> None:
    """Of 300 clients 299 wait or decode while a prompt takes 0.02 s: 300 of them a round."""
    first = engine(step_s=0.01, token_s=1e-5)
    p_s = float(prompt_seconds(first, 1024.0))
    loop = settled(engine(), 300.0, 1024.0, 100.0, np.inf, NOTHING, prefill=(first, 1.0))
    found = loop.latency(NOTHING)
    assert found.ttft_s == pytest.approx(300.0 * p_s - 100.0 * found.tpot_s, rel=1e-6)
    assert found.decoding == pytest.approx(100.0 * found.tpot_s / p_s, rel=1e-3)
    idle = settled(engine(), 300.0, 1024.0, 100.0, np.inf, NOTHING, prefill=(first, 100.0))
    assert idle.latency(NOTHING).ttft_s < 0.1


def test_cached_tokens_are_looked_at_but_not_computed() -> None:
    times = dataclasses.replace(engine(), decode_s=np.array([[1e-6, 8192e-6]] * 3))
    computed, found = (
        settled(times, 1.0, 1024.0, 100.0, np.inf, NOTHING, cached=cached).latency(NOTHING)
        for cached in (0.0, 1000.0)
    )
    assert computed.tpot_s == pytest.approx(0.01 + 1074e-6, rel=1e-3)
    assert found.tpot_s == pytest.approx(float(computed.tpot_s))
    assert computed.ttft_s - found.ttft_s == pytest.approx(1000e-5, rel=0.01)


def test_steps_without_graphs_last_as_long_as_their_launches() -> None:
    """0.01 s of decoding and as much of a prompt hide behind 3,000 launches of 10 us."""
    effects = dataclasses.replace(NOTHING, launch_s=1e-5)
    graph, eager = (
        settled(engine(), 8.0, 1024.0, 100.0, np.inf, effects, launches=3e3, eager=how).latency(
            effects
        )
        for how in (0.0, 1.0)
    )
    assert eager.tpot_s == pytest.approx(0.03, rel=1e-3)
    assert 0.01 < graph.tpot_s < 0.012


def test_attention_ranks_share_clients() -> None:
    whole = closed_loop(engine(), 16.0, 1024.0, 100.0, effects=NOTHING)
    shared = closed_loop(engine(), 64.0, 1024.0, 100.0, effects=NOTHING, ranks=4.0)
    assert shared.tpot_s == pytest.approx(whole.tpot_s)


def test_prompts_longer_than_a_chunk_take_their_own_chunks() -> None:
    times = engine()
    assert prompt_seconds(times, 16384.0) == pytest.approx(2 * prompt_seconds(times, 8192.0))
    assert prompt_seconds(times, 1024.0) == pytest.approx(prompt_seconds(times, 8192.0) / 8)


def test_gradient_agrees_with_finite_differences() -> None:
    times = engine()

    def tokens_per_s(scale: jax.Array) -> jax.Array:
        faster = dataclasses.replace(times, products_s=jnp.asarray(times.products_s) * scale)
        return closed_loop(faster, 32.0, 1024.0, 100.0, effects=NOTHING).tokens_per_s

    with jax.enable_x64(True):
        slope = jax.grad(lambda scale: tokens_per_s(scale).sum())(jnp.float64(1.0))
        step = 1e-4
        apart = (tokens_per_s(1.0 + step) - tokens_per_s(1.0 - step)) / (2 * step)
    assert float(slope) == pytest.approx(float(apart), rel=1e-3)


def test_beliefs_have_a_source_and_a_width() -> None:
    assert all(one.source and one.width > 0 and one.median > 0 for one in BELIEFS.values())
    for known in KNOWN:
        assert known["effect"] in NAMES
        assert known["source"]
        assert getattr(believed(known["framework"]), known["effect"]) == known["median"]


def test_tokens_that_drafts_add_cost_the_host_as_much_as_others() -> None:
    """In the closed loop and in steps of deployments alike: both answer for one engine."""
    effects = dataclasses.replace(NOTHING, gap_s=1e-6, sequence_s=1e-4)
    times = dataclasses.replace(engine(), kernels=500.0)
    loop = settled(times, 8.0, 1024.0, 100.0, np.inf, effects, made=2.5)
    step_s = with_effects(times, effects, 2.5).seconds(loop.decoding, 1024.0)
    tpot_s = loop._replace(interferes=0.0).latency(effects).tpot_s
    assert step_s == pytest.approx(tpot_s)
    assert step_s == pytest.approx(0.01 + 500e-6 + 2.5e-4 * loop.decoding)
