"""Continuous batching: hand cases, what must be conserved, measured runs request by request."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridperf.engine.step_times import StepTimes
from hybridperf.io import InputError
from hybridperf.serving.batching import Link, serve
from hybridperf.serving.engine import Engine
from hybridperf.serving.requests import Requests, arriving, looping
from tests.runs.made_up import constant, engine


def test_three_requests_by_hand() -> None:
    """Steps of a second, two slots: the third waits until the first has ended."""
    requests = arriving(np.array([0.0, 0.5, 0.6]), np.array([3, 3, 3]), np.array([2, 4, 1]))
    served = serve(requests, [Engine(constant(1.0), slots=2)])
    np.testing.assert_allclose(served.scheduled_s, [0, 1, 2], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(served.first_token_s, [1, 2, 3], rtol=1e-5)
    np.testing.assert_allclose(served.last_token_s, [2, 5, 3], rtol=1e-5)
    length, lasted = served.queue()
    assert length @ lasted == pytest.approx(0 + 0.5 + 1.4, rel=1e-4)
    assert served.steps == 5


def test_a_prompt_is_cut_to_the_budget_and_decoding_goes_first() -> None:
    requests = arriving(np.array([0.0, 1.5]), np.array([1, 30]), np.array([9, 2]))
    served = serve(requests, [Engine(constant(1.0), budget=11)])
    assert served.last_token_s[0] == pytest.approx(9, rel=1e-4)  # undisturbed
    assert served.first_token_s[1] == pytest.approx(5, rel=1e-4)  # 10 + 10 + 10 beside a token


def test_prompts_that_are_no_batch_take_their_seconds_one_after_the_other() -> None:
    requests = arriving(np.zeros(3), np.array([4, 4, 4]), np.array([1, 1, 1]))
    none, each = np.full(2, 1e-9), np.ones((2, 2))  # a second for a prompt of any length
    sizes = np.array([1.0, 64.0])
    times = StepTimes(sizes, none, sizes, sizes, each, sizes, sizes, each, 0.5)
    batch, apart = (serve(requests, [Engine(times, one_by_one=one)]) for one in (False, True))
    np.testing.assert_allclose(batch.first_token_s, 1.5, rtol=1e-6)
    np.testing.assert_allclose(apart.first_token_s, 3.5, rtol=1e-6)


def test_the_youngest_is_preempted_and_computed_again() -> None:
    requests = arriving(np.zeros(2), np.array([7, 7]), np.array([6, 6]))
    tight = Engine(constant(1.0), kv_tokens=20, block=1)
    served = serve(requests, [tight])
    assert served.preemptions == 1
    # 10 tokens each after the fourth step; the second goes on when the first has ended
    np.testing.assert_allclose(served.last_token_s, [6, 8], rtol=1e-4)
    with pytest.raises(InputError, match="expected requests that fit in the cache of 12 tokens"):
        serve(requests, [Engine(constant(1.0), kv_tokens=12, block=1)])


def test_cached_prefixes_and_drafts_save_steps() -> None:
    requests = arriving(np.zeros(1), 100, 9, prefix_share=0.9)
    assert serve(requests, [Engine(constant(1.0), budget=10)]).first_token_s[0] == pytest.approx(1)
    drafting = Engine(constant(1.0), drafted=1, acceptance=1.0)
    assert serve(requests, [drafting]).last_token_s[0] == pytest.approx(5)
    assert Engine(constant(1.0), drafted=2, acceptance=0.5).tokens_a_step == 1.75


def test_keys_of_a_prompt_go_over_a_link_one_after_the_other() -> None:
    requests = arriving(np.zeros(2), 10, 3)
    link = Link(bytes_per_token=1.0, bytes_per_s=5.0, latency_s=0.25)
    served = serve(requests, [Engine(constant(1.0))], [Engine(constant(1.0))], link)
    # computed after 1 s, there after 3.25 and 5.25 s, from where they are answered; two tokens more
    np.testing.assert_allclose(served.first_token_s, [3.25, 5.25], rtol=1e-4)
    np.testing.assert_allclose(served.last_token_s, [5.25, 7.25], rtol=1e-4)


def poisson(rate: float, prompt: np.ndarray, output: np.ndarray, seed: int = 0) -> Requests:
    """Requests that come independently of each other, `rate` a second."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, len(prompt))
    return arriving(np.cumsum(gaps), prompt, output)


@pytest.mark.parametrize("routing", ["least_loaded", "round_robin"])
def test_replicas_share_requests(routing: str) -> None:
    rng = np.random.default_rng(0)
    requests = poisson(20.0, rng.integers(100, 900, 300), rng.integers(20, 200, 300))
    one, three = (serve(requests, [engine()] * count, routing=routing) for count in (1, 3))
    assert np.median(three.ttft_s) < np.median(one.ttft_s)
    assert np.nanmedian(three.tpot_s) < np.nanmedian(one.tpot_s)


def test_clients_wait_for_their_answers() -> None:
    lengths = np.random.default_rng(1).integers(20, 60, 40)
    requests = looping(4, lengths, lengths, think_s=0.5)
    served = serve(requests, [engine(), engine()])
    np.testing.assert_allclose(served.arrival_s[4:], served.last_token_s[:-4] + 0.5)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 7, 64]), st.sampled_from([900.0, np.inf]),
       st.sampled_from([64, 2048]), st.booleans())  # fmt: skip
def test_nothing_is_lost(seed: int, slots: int, kv: float, budget: int, closed: bool) -> None:
    """Every request is answered in order of time; jumps change nothing."""
    rng = np.random.default_rng(seed)
    prompt, output = rng.integers(1, 400, 30), rng.integers(1, 90, 30)
    requests: Requests = (
        looping(9, prompt, output) if closed else poisson(10.0, prompt, output, seed)
    )
    served = serve(requests, [engine(slots=slots, kv_tokens=kv, budget=budget)])
    assert (served.scheduled_s >= served.arrival_s).all()
    assert (served.first_token_s > served.scheduled_s).all()
    assert ((served.last_token_s > served.first_token_s) == (output > 1)).all()
    assert served.percentiles().notna().all(axis=None)
    length, lasted = served.queue()
    assert length.min() >= 0
    assert lasted.min() >= 0
    single = serve(
        followed_by_a_late_one(requests), [engine(slots=slots, kv_tokens=kv, budget=budget)]
    )
    np.testing.assert_allclose(single.last_token_s[:30], served.last_token_s, rtol=1e-9)


def followed_by_a_late_one(requests: Requests) -> Requests:
    """The same requests, and one that comes a year later: another horizon for the jumps."""
    more = {"arrival_s": 3e7, "prompt": 1, "output": 1, "after": -1, "cached": 0}
    return Requests(**{name: np.append(getattr(requests, name), more[name]) for name in more})


def test_bad_requests_are_told() -> None:
    with pytest.raises(InputError, match="expected prompts and outputs of 1 token or more"):
        arriving(np.zeros(1), 0, 1)
    with pytest.raises(InputError, match="prefix_share"):
        arriving(np.zeros(1), 1, 1, prefix_share=1.0)
    with pytest.raises(InputError, match="clients"):
        looping(3, np.ones(2), np.ones(2))
    with pytest.raises(InputError, match="routing"):
        serve(arriving(np.zeros(1), 1, 1), [engine()], routing="random")
    assert isinstance(serve(arriving(np.zeros(1), 1, 1), [engine()]).percentiles(), pd.DataFrame)
