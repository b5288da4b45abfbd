"""The host's overheads: known ones are found again, whatever the profiler, the device and outliers
add; they travel with a model.
"""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from support.made_traces import made_trace

from hybridperf.hardware import HOST_SCHEMA_VERSION, Host, Overhead, Spread, load_device, load_host
from hybridperf.io import InputError
from hybridperf.io.documents import with_checksum
from hybridperf.model import PerfModel, adapted_steps, load_model
from hybridperf.traces.overheads import fit_host, op_kind, outermost_op
from hybridperf.traces.readers.kineto import read_traces
from hybridperf.traces.steps import steps

MM = {"before": 20.0, "call": 5.0, "between": 7.0, "after": 9.0}
GAP, VIEW = 11.0, 3.0


def host_events(ops, profiler=0.0, thread=0, gap=GAP, start=0.0):
    """Host events of a thread that spends exactly these microseconds, and `profiler` more for each
    record but that of an outermost op.

    `ops`: ("aten::mm", launches) or ("aten::view", 0).
    """
    events, now = [], start
    for name, launches in ops:
        begin = now
        if launches == 0:
            now += VIEW
        else:
            now += MM["before"]
            # a record within the op
            events.append(("op", "aten::empty", begin + 1, begin + 1 + profiler, thread))
            now += profiler
            for nth in range(launches):
                now += MM["between"] if nth else 0.0
                events.append(
                    ("call", "cudaLaunchKernel", now, now + MM["call"] + profiler, thread)
                )
                now += MM["call"] + profiler
            now += MM["after"]
        events.append(("op", name, begin, now, thread))
        now += gap
    return events


def fitted(events, device=None, **options):
    n = sum(event[:2] == ("call", "cudaLaunchKernel") for event in events)
    device = (
        [("k", 7, 1e6 + 2 * at, 1e6 + 2 * at + 1, "cudaLaunchKernel") for at in range(n)]
        if device is None
        else device
    )
    trace = made_trace(events, device)
    return fit_host([trace], [steps(trace)], **options)


@pytest.mark.parametrize("profiler", [0.0, 2.0])
def test_known_overheads_are_found(profiler):
    events = host_events(
        [("aten::mm", 1), ("aten::view", 0), ("aten::mm", 3), ("aten::mm", 2)], profiler
    )
    host = fitted(events, profiler_s=profiler * 1e-6)
    assert host.between_ops_s.mean_s == pytest.approx(GAP * 1e-6)
    assert host.between_ops_s.count == 3
    assert host.before_launch_s.of("aten::mm").mean_s == pytest.approx(MM["before"] * 1e-6)
    assert host.launch_call_s.of("cudaLaunchKernel").mean_s == pytest.approx(MM["call"] * 1e-6)
    assert host.launch_call_s.shared.count == 6
    assert host.between_launches_s.by_kind["aten::mm"].mean_s == pytest.approx(MM["between"] * 1e-6)
    assert host.between_launches_s.shared.count == 3
    assert host.after_launch_s.of("aten::mm").mean_s == pytest.approx(MM["after"] * 1e-6)
    assert host.without_launch_s.by_kind["aten::view"].mean_s == pytest.approx(VIEW * 1e-6)
    assert "aten::empty" not in host.without_launch_s.by_kind  # within another op
    for overhead in (
        host.before_launch_s,
        host.after_launch_s,
        host.launch_call_s,
        host.between_launches_s,
    ):
        assert overhead.shared.std_s == pytest.approx(0, abs=1e-12)


def test_too_much_taken_off_leaves_zero():
    host = fitted(host_events([("aten::mm", 1)] * 3), profiler_s=1e-3)
    assert host.before_launch_s.shared.mean_s == host.launch_call_s.shared.mean_s == 0


def test_threads_have_gaps_of_their_own():
    one, two = (
        host_events([("aten::mm", 1)] * 4, gap=30.0),
        host_events([("aten::mm", 1)] * 4, thread=1, gap=30.0, start=17.0),
    )
    assert fitted([*one, *two], profiler_s=0.0).between_ops_s.mean_s == pytest.approx(30e-6)


def test_gaps_of_the_users_own_code_and_of_the_clock_do_not_count():
    events = [
        ("op", "aten::mm", *span)
        for span in ((0, 10), (11, 20), (25, 30), (1000, 1010), (1016, 1020))
    ]
    events.append(("call", "cudaLaunchKernel", 3, 5))
    host = fitted(events)
    assert (host.between_ops_s.count, host.between_ops_s.mean_s) == (
        2,
        pytest.approx(5.5e-6),
    )  # 5 and 6; not 1, not 970


def test_waiting_for_the_device_is_not_the_hosts():
    events = [
        ("op", "aten::item", 0, 100), ("call", "cudaMemcpyAsync", 20, 60),
        ("call", "cudaStreamSynchronize", 62, 90), ("op", "aten::mm", 110, 140),
        ("call", "cudaLaunchKernel", 120, 124),
    ]  # fmt: skip
    device = [
        ("Memcpy DtoH", 7, 30, 50, "cudaMemcpyAsync", 1),
        ("k", 7, 150, 160, "cudaLaunchKernel"),
    ]
    host = fitted(events, device, profiler_s=0.0)
    assert host.after_launch_s.by_kind["aten::item"].mean_s == pytest.approx(
        12e-6
    )  # 60 to 100, less 28
    assert set(host.launch_call_s.by_kind) == {
        "cudaLaunchKernel"
    }  # the copy held the host until it was done


def test_outliers_are_dropped_and_spread_is_kept():
    rng = np.random.default_rng(0)
    gaps = rng.normal(10, 1, 400)
    ops = host_events([("aten::mm", 1)] * 401, gap=0.0)
    # ten long ones
    late = np.concatenate([[0.0], np.cumsum(np.where(np.arange(400) % 40, gaps, 150.0))])
    events = [
        (kind, name, a + late[i // 3], b + late[i // 3], at)
        for i, (kind, name, a, b, at) in enumerate(ops)
    ]
    said = fitted(events, profiler_s=0.0).between_ops_s
    assert 380 <= said.count <= 390
    assert said.mean_s == pytest.approx(10e-6, rel=0.02)
    assert said.median_s == pytest.approx(10e-6, rel=0.02)
    assert said.std_s == pytest.approx(1e-6, rel=0.1)


def test_steps_of_the_backward_pass_go_by_what_they_compute():
    assert op_kind("autograd::engine::evaluate_function: AddmmBackward0") == "AddmmBackward0"
    assert op_kind("aten::mm") == "aten::mm"


def test_marks_are_no_ops():
    trace = made_trace(
        [
            ("mark", "ProfilerStep#1", 0, 90),
            ("op", "a", 1, 50),
            ("op", "b", 2, 40),
            ("call", "c", 3, 4),
            ("call", "d", 60, 61),
        ],
        [],
    )
    assert [trace.host_name(at) if at >= 0 else None for at in outermost_op(trace)] == [
        None,
        "a",
        "a",
        "a",
        None,
    ]


def test_rare_ops_share_what_all_showed():
    common, rare = (
        Spread(mean_s=mean, std_s=0.0, median_s=mean, count=count)
        for mean, count in ((1e-5, 50), (9e-5, 2))
    )
    overhead = Overhead(shared=common, by_kind={"aten::mm": common, "aten::rare": rare})
    assert overhead.of("aten::rare") == overhead.of("aten::never") == common
    assert Overhead(shared=None, by_kind={"aten::rare": rare}).of("aten::rare") == rare
    with pytest.raises(InputError, match="fit more traces"):
        Overhead(shared=None, by_kind={}).of("aten::mm")


def test_a_host_that_launches_nothing_is_refused():
    with pytest.raises(InputError, match="CUDA activity"):
        fitted([("op", "aten::mm", 0, 10), ("op", "aten::mm", 15, 20)])


# --- in a model ---


@pytest.fixture
def host() -> Host:
    return fitted(host_events([("aten::mm", 2), ("aten::view", 0)] * 5))


def test_a_model_keeps_its_host(tmp_path, host):
    bare = PerfModel.datasheet(load_device("v100_sxm2"))
    model = dataclasses.replace(bare, host=host)
    model.save(tmp_path)
    assert load_model(tmp_path).host == host
    assert load_model(tmp_path).fingerprint() == model.fingerprint() != bare.fingerprint()
    elsewhere = dataclasses.replace(
        bare, host=host.model_copy(update={"source": "another name of the same files"})
    )
    assert elsewhere.fingerprint() == model.fingerprint()
    slower = dataclasses.replace(bare, host=host.model_copy(update={"between_ops_s": None}))
    assert slower.fingerprint() != model.fingerprint()


def test_a_model_without_a_host_has_none(tmp_path):
    PerfModel.datasheet(load_device("v100_sxm2")).save(tmp_path)
    assert load_model(tmp_path).host is None
    with pytest.raises(InputError, match=r"host\.json, found none"):
        load_host(tmp_path)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda d: d.update(schema_version=HOST_SCHEMA_VERSION + 1), "upgrade"),
        (lambda d: d.update(schema="hybridperf/model"), "expected a hybridperf/host file"),
        (lambda d: d.pop("launch_call_s"), "launch_call_s"),
        (lambda d: d["between_ops_s"].update(mean_s=-1.0), "between_ops_s.mean_s"),
        (lambda d: d["between_ops_s"].update(mean_s="much"), "between_ops_s.mean_s"),
        (lambda d: d.update(t9=1.0), "t9"),
    ],
)
def test_a_damaged_host_is_one_sentence(tmp_path, host, damage, said):
    dataclasses.replace(PerfModel.datasheet(load_device("v100_sxm2")), host=host).save(tmp_path)
    document = json.loads((tmp_path / "host.json").read_text())
    damage(document)
    (tmp_path / "host.json").write_text(json.dumps(with_checksum(document)))
    with pytest.raises(InputError, match=said) as refused:
        load_model(tmp_path)
    assert "\n" not in str(refused.value)


# --- real traces ---


def test_hosts_of_real_traces_are_plausible(data_dir):
    """Published overheads of other hosts lie in the same decade: gaps between ops 4 to 21 us,
    launches 3 to 11 us.
    """
    for file in (
        "param_dlrm_8xV100_kineto.tar.gz",
        "hta_trace_diff_control_A100_rank3of8.json.gz",
        "hta_df_index_resolver_V100_rank1of2.json.gz",
    ):
        traces = read_traces([data_dir / "traces" / file])
        host = fit_host(traces, [steps(trace) for trace in traces])
        assert 2e-6 < host.between_ops_s.mean_s < 30e-6
        assert 1e-6 < host.launch_call_s.of("cudaLaunchKernel").median_s < 15e-6
        for overhead in (
            host.before_launch_s,
            host.after_launch_s,
            host.launch_call_s,
            host.between_launches_s,
            host.without_launch_s,
        ):
            assert overhead.shared is not None
            assert all(
                0 <= spread.mean_s < 1e-2 and spread.count > 0
                for spread in overhead.by_kind.values()
            )


def test_published_overheads_know_the_same_ops(data_dir):
    """Printed side by side (`pytest -s`), not compared: other hosts, other versions of the
    framework, other profilers.
    """
    published = pd.read_csv(data_dir / "lin" / "overheads_t1_t5_v100_2021.csv")
    traces = read_traces([data_dir / "traces" / "param_dlrm_8xV100_kineto.tar.gz"])
    host = fit_host(traces, [steps(trace) for trace in traces])
    ours = {
        "t2": host.before_launch_s,
        "t3": host.after_launch_s,
        "t4": host.launch_call_s,
        "t5": host.between_launches_s,
    }
    both = 0
    for (symbol, op), theirs_us in (
        published.groupby(["type", "op_or_runtime_call"])["mean_us"].mean().items()
    ):
        for name in {op, f"{op}0"} & set(
            ours[symbol].by_kind
        ):  # later versions number the steps of the backward pass
            both += 1
            print(
                f"{symbol} {name:40} published {theirs_us:6.1f} us, here"
                f" {1e6 * ours[symbol].by_kind[name].mean_s:6.1f} us"
            )
    assert both > 20


@pytest.mark.parametrize("origin", [0.0, 0.1, 1e5 + 0.3, 12345.678])
def test_a_gap_of_just_two_microseconds_counts_wherever_it_lies(origin):
    """Its length as a difference of seconds is a little more or less than
    2e-6, as rounding has it.
    """
    host = [
        ("mark", "ProfilerStep#1", origin, origin + 4000),
        ("call", "launch", origin + 32, origin + 36),
    ]
    for nth in range(40):  # 40 gaps of 2 us and 40 of 1.999 us
        at = origin + 50 * nth
        host += [
            ("op", "aten::a", at, at + 4),
            ("op", "aten::b", at + 6, at + 20),
            ("op", "aten::c", at + 21.999, at + 30),
        ]
        host += [("op", "aten::far", at + 30.5, at + 49.5)]
    trace = made_trace(host, [("k", 7, origin + 40, origin + 60, "launch")])
    assert fit_host([trace], [steps(trace)]).between_ops_s.count == 40


@pytest.mark.parametrize("origin", [0.0, 0.1, 1e5 + 0.3, 12345.678])
def test_a_gap_at_the_edge_of_what_is_no_outlier_counts_wherever_it_lies(origin):
    """Gaps of 2 and 4 us, the quartiles; 7 us is one and a half times their distance above, 8 us is
    beyond.
    """
    at, host = origin, [("mark", "ProfilerStep#1", origin, origin + 4000)]
    for nth, gap in enumerate([2] * 20 + [4] * 20 + [7] * 3 + [8] * 2 + [2]):
        host.append(("op", f"aten::{nth}", at, at + 10))
        at += 10 + gap
    host += [("op", "aten::last", at, at + 20), ("call", "launch", at + 5, at + 9)]
    trace = made_trace(host, [("k", 7, at + 12, at + 30, "launch")])
    assert fit_host([trace], [steps(trace)]).between_ops_s.count == 44


@pytest.mark.parametrize(
    "missing", ["before_launch_s", "launch_call_s", "after_launch_s", "between_launches_s"]
)
def test_an_overhead_that_was_never_seen_is_not_taken_for_none(host, missing):
    """But for what lies between two launches: there is nothing on a host none of whose ops launched
    twice.
    """
    from hybridperf.workloads.transformer import Layout, load_shape
    from hybridperf.workloads.transformer.config import TransformerConfig
    from hybridperf.workloads.transformer.parts import layer_passes
    from hybridperf.workloads.transformer.rank_stream import launch_s

    step = layer_passes(TransformerConfig(load_shape("gpt3-125m"), Layout())).forward[0]
    unseen = host.model_copy(update={missing: Overhead(shared=None, by_kind={})})
    assert launch_s(host, step, backward=False) > 0
    if missing == "between_launches_s":
        assert unseen.seconds(missing, ("aten::mm",)) == 0
        assert launch_s(unseen, step, backward=False) > 0
        return
    with pytest.raises(
        InputError, match=f"^{missing} of host .*: expected a host that has shown this overhead"
    ):
        launch_s(unseen, step, backward=False)
    if missing == "launch_call_s":
        with pytest.raises(InputError, match="seen to launch kernels"):
            adapted_steps.beliefs(unseen)
