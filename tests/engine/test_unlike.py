"""Steps whose ranks differ: like ranks are the plain step, unlike ones what a hand would say."""

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.unlike import Worker, unlike
from hybridperf.engine.workload import Workload
from hybridperf.io import InputError
from hybridperf.model.calls import CollectiveCall, GivenSeconds, InStep, StepPlace

SHAPE = hp.load_shape("llama3.2-1b")


@pytest.fixture(scope="module")
def a100():
    return hp.load_model("a100_sxm4_80g").with_collectives(hp.load_collectives("dgx_a100"))


@pytest.fixture(scope="module")
def h100():
    return hp.load_model("h100_sxm").with_collectives(hp.load_collectives("dgx_h100"))


def step(accumulation: int = 1, **layout) -> Workload:
    layout = {"dp": 4, "micro_batch": 1, "accumulation": accumulation} | layout
    return hp.transformer(hp.TransformerConfig(SHAPE, hp.Layout(**layout), gpus_per_node=8))


def given(seconds: float, reduce_bytes: float = 0.0) -> Workload:
    """A step of given seconds, then an all-reduce of four ranks."""
    builder = GraphBuilder()
    last = builder.op(1)
    calls, places = [GivenSeconds(seconds)], [StepPlace()]
    if reduce_bytes:
        builder.op(2, stream="comm", after=[last])
        calls.append(CollectiveCall("all_reduce", reduce_bytes, 4))
        places.append(StepPlace("reduction"))
    in_step = InStep(tuple(places), "", (10.0, 0.0, 10.0, 10.0))
    return Workload("given", builder.build(), tuple(calls), in_step=in_step)


@pytest.mark.parametrize("layout", [{"zero": 3}, {"tp": 2, "dp": 2}, {"pp": 2, "dp": 2}])
def test_like_workers_are_the_plain_step(a100, layout) -> None:
    workload = step(2, **layout)
    plain = hp.predict(a100, workload)
    both = unlike([Worker(workload, a100)] * 2)
    assert both.time_s == pytest.approx(plain.time_s, rel=1e-9)
    assert both.worker_waits_s.tolist() == [0, 0]  # launches and messages are their own
    low_s, high_s = both.interval_s
    assert low_s < plain.time_s < high_s


def test_closed_form_of_a_synchronous_step_on_random_cases(a100) -> None:
    """The slowest worker, then the all-reduce: 200 cases."""
    rng, workload = np.random.default_rng(0), given(1.0, 1e8)
    message = hp.predict(a100, given(0.0, 1e8)).time_s
    for _ in range(200):
        slower = rng.lognormal(-3, 1, rng.integers(1, 6))
        found = unlike([Worker(workload, a100, factor) for factor in slower])
        assert found.time_s == pytest.approx(slower.max() + message, rel=1e-6)
        late_s = slower.max() - slower  # the message holds all up, and nobody for another's sake
        assert found.worker_waits_s == pytest.approx(late_s, abs=1e-6 * found.time_s)


def test_one_slow_worker_holds_all_up_and_its_share_mends_it(a100) -> None:
    even = unlike([Worker(step(4), a100)] * 2)
    slow = unlike([Worker(step(4), a100), Worker(step(4), a100, slower=1.5)])
    assert slow.time_s == pytest.approx(1.5 * even.time_s, rel=0.05)
    assert slow.worker_waits_s[0] > 10 * max(slow.worker_waits_s[1], 1e-9)
    # 5 and 3 micro-batches in place of 4 and 4
    mended = unlike([Worker(step(5), a100), Worker(step(3), a100, slower=1.5)])
    assert even.time_s < mended.time_s < 0.9 * slow.time_s


def test_two_kinds_of_device_wait_for_the_slower(a100, h100) -> None:
    alone = [hp.predict(model, step(2)).time_s for model in (a100, h100)]
    both = unlike([Worker(step(2), a100), Worker(step(2), h100)])
    assert alone[1] < alone[0] <= both.time_s < 1.02 * alone[0]


def test_noise_goes_through_the_step(a100) -> None:
    found = unlike([Worker(given(1.0, 1e8), a100), Worker(given(2.0, 1e8), a100)])
    message = found.time_s - 2.0
    factors = np.array([[1.0, 3.0, 1.0], [1.0, 1.0, 0.25]])
    assert found.times(factors) == pytest.approx(np.array([2, 3, 1]) + message, rel=1e-5)


def test_stages_of_a_pipeline_on_unlike_devices(a100) -> None:
    """Each rank of the graph its own slow-down: the slow stage works all the time but for filling,
    in which the others do an eighth of theirs, with 8 micro-batches.
    """
    workload = step(8, pp=4, dp=1, schedule="gpipe")
    even = unlike([Worker(workload, a100)])
    busy = even.time_s - even.waits_s
    found = unlike([Worker(workload, a100, [1.0, 1.0, 8.0, 1.0])])
    others = np.delete(busy, 2).sum()
    assert 8 * busy[2] < found.time_s < 8 * busy[2] + others / 4
    assert found.waits_s.argmin() == 2
    slower = unlike([Worker(workload, a100, 2.0)])
    assert slower.time_s == pytest.approx(2 * even.time_s, rel=0.05)  # but for messages


@pytest.mark.parametrize("slow", [0, 1, 2, 3])
def test_what_a_slow_stage_waits_for_is_what_lies_before_it(a100, slow) -> None:
    """1F1B, one stage eight times slower: it works all the time but while the first micro-batch
    comes through the stages before it and the last goes back. Those behind it hide under forward
    passes that it has ahead; counted as well, they would make it up to 5.5 % longer than it is. The
    last stage, and any of GPipe, has none ahead.
    """
    batches, factors = 8, np.where(np.arange(4) == slow, 8.0, 1.0)
    of: dict[str, tuple[float, float, float]] = {}
    for schedule in ("1f1b", "gpipe"):
        workload = step(batches, pp=4, dp=1, schedule=schedule)
        even = unlike([Worker(workload, a100)])
        once = (even.time_s - even.waits_s) / batches
        works = batches * 8 * once[slow]
        found = unlike([Worker(workload, a100, factors)])
        before = works + once[:slow].sum()
        of[schedule] = found.time_s, before, before + once[slow + 1 :].sum()
    time_s, before_s, all_s = of["1f1b"]
    assert time_s == pytest.approx(before_s, rel=0.015)
    assert time_s / all_s < (0.965 if slow < 3 else 1.003)
    assert of["gpipe"][0] == pytest.approx(of["gpipe"][2], rel=0.015)


def test_ranks_of_a_dlrm_on_unlike_devices(a100) -> None:
    tables = tuple(hp.Table(str(at), 100_000, 64, 8) for at in range(4))
    config = hp.DlrmConfig(
        batch=8192, dense_features=13, bottom_mlp=(512, 64), top_mlp=(512, 1), tables=tables,
        ranks=4,
    )  # fmt: skip
    workload = hp.dlrm(config)
    plain = hp.predict(a100, workload).time_s
    assert unlike([Worker(workload, a100)]).time_s == pytest.approx(plain, rel=1e-9)
    slow = unlike([Worker(workload, [a100] * 4, [1, 1, 1, 2])])
    assert plain < slow.time_s < 2 * plain
    assert int(np.argmin(slow.waits_s)) == 3


def test_what_does_not_fit_is_a_sentence(a100) -> None:
    with pytest.raises(InputError, match="one worker or more"):
        unlike([])
    with pytest.raises(InputError, match="equally often"):
        unlike([Worker(given(1.0, 1e8), a100), Worker(given(1.0), a100)])
    with pytest.raises(InputError, match="one for each of the 1 ranks"):
        unlike([Worker(given(1.0), [a100] * 2)])
    with pytest.raises(InputError, match="above zero"):
        unlike([Worker(given(1.0), a100, slower=-1)])
    with pytest.raises(InputError, match="2 workers"):
        unlike([Worker(given(1.0), a100)] * 2).times(np.ones((3, 4)))
