"""Prompts that are held back: means by hand, and the simulation step by step."""

import numpy as np
import pytest

from hybridperf.serving.admission import AT_ONCE, Admission
from hybridperf.serving.batching import serve
from hybridperf.serving.engine import Engine
from hybridperf.serving.requests import Requests
from tests.runs.made_up import constant


def answered(how: Admission, arrival_s: list[float], output: list[int]) -> np.ndarray:
    """Seconds of first tokens, steps of a second each."""
    count = len(output)
    nothing = np.zeros(count, int)
    requests = Requests(
        np.array(arrival_s), np.full(count, 10), np.array(output), nothing - 1, nothing
    )
    return serve(requests, [Engine(constant(1.0), admission=how)]).first_token_s


def test_an_engine_that_looks_now_and_then_finds_those_that_came_meanwhile() -> None:
    """The first prompt takes second 0; looks at 1, 11, after prompts at 12 and 13, and at 23."""
    first_s = answered(Admission(every=10.0), [0.0, 2.5, 9.0, 11.5, 13.5], [100, 5, 5, 5, 5])
    np.testing.assert_allclose(first_s, [1, 12, 12, 13, 24], rtol=1e-5)


def test_the_first_prompt_waits_for_others_until_they_are_enough() -> None:
    """Ten steps from the end of the one it came in; 21 tokens wait no longer."""
    alone = answered(Admission(gather=10.0), [0.0, 2.5, 6.0], [100, 5, 5])
    np.testing.assert_allclose(alone, [1, 14, 14], rtol=1e-5)
    enough = answered(Admission(gather=10.0, tokens=21.0), [0.0, 2.5, 6.5], [100, 5, 5])
    np.testing.assert_allclose(enough, [1, 8, 8], rtol=1e-5)


def test_nobody_waits_for_an_engine_that_has_nothing_to_do() -> None:
    first_s = answered(Admission(every=30.0, gather=20.0), [0.0, 50.5], [5, 5])
    np.testing.assert_allclose(first_s, [1, 51.5], rtol=1e-5)


def test_means_by_hand() -> None:
    assert AT_ONCE.wait(0.1, 100.0, 8.0) == 0
    assert AT_ONCE.period(0.1, 100.0, 8.0) == 1
    # few arrivals: a look every 11 steps finds nobody, the mean of 0, 1, ... 10
    assert Admission(every=11.0).wait(1e-9, 100.0, 8.0) == pytest.approx(5.0)
    # one of ten comes each step: the first waits 20 steps, two others ten each in the mean
    gathering = Admission(gather=20.0)
    assert gathering.wait(0.1, 100.0, 8.0) == pytest.approx(20.0 * 2.0 / 3.0)
    assert gathering.period(0.1, 100.0, 8.0) == pytest.approx(30.0)
    # 208 tokens are the eight that decode and two prompts: the second comes after ten steps
    assert Admission(gather=20.0, tokens=208.0).wait(0.1, 100.0, 8.0) == pytest.approx(7.5)
