"""The claim of accuracy on this machine: real steps beside their predictions, judged by hand where
it can be.
"""

import dataclasses
import itertools
import json
import math
import re
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from benchmarks.claims import scores
from hybridperf.cli import app as cli
from hybridperf.engine.prediction import predict
from hybridperf.hardware import this_cpu
from hybridperf.io import InputError
from hybridperf.io.progress import Progress
from hybridperf.model import GroupReport, PerfModel
from hybridperf.model.fit.programs import usable_core
from hybridperf.ops import GROUPS
from hybridperf.ops.roofline import Work
from hybridperf.validate import demo, here, measured_steps, step_baselines, step_ops
from hybridperf.validate.measured_steps import MeasuredStep, StepComparison
from hybridperf_calibration.training_steps import dlrm, gpt, op_times
from hybridperf_calibration.training_steps import run as workload_run
from hybridperf_calibration.training_steps.compiled import CompiledStep

TINY = (
    {
        "workload": "dlrm",
        "config": {
            "batch": 300,
            "tables": 3,
            "rows_per_table": 900,
            "embedding_dim": 24,
            "pooling": 3,
            "bottom_mlp": [200, 24],
            "top_mlp": [160, 1],
        },
    },
    {
        "workload": "gpt",
        "config": {"batch": 3, "seq": 36, "width": 96, "layers": 2, "heads": 3, "vocab": 350},
    },
)


def datasheet_with_intervals(half_width: float) -> PerfModel:
    """The roofline of one core here, said to be within `half_width` for every group of ops."""
    model = PerfModel.datasheet(this_cpu(1))
    names = [field.name for field in dataclasses.fields(Work)]
    ends = {"lowest": dict.fromkeys(names, 0.0), "highest": dict.fromkeys(names, 1e18)}
    errors = (-math.log1p(half_width), math.log1p(half_width))
    groups = {
        group: GroupReport(rows=10, half_width=half_width, **ends, errors=errors)
        for group in GROUPS
    }
    return dataclasses.replace(model, groups=groups)


@dataclasses.dataclass
class Run:
    out: object
    summary: dict
    said: str


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Run:
    """Two tiny steps, really measured, profiled and predicted."""
    out, said = tmp_path_factory.mktemp("validate"), []
    here.run(
        datasheet_with_intervals(1e6),
        out,
        cores=usable_core(),
        steps=TINY,
        ops=True,
        say=said.append,
    )
    return Run(out, json.loads((out / "summary.json").read_text()), "\n".join(said))


@pytest.fixture(scope="module")
def measured(tiny) -> list[MeasuredStep]:
    """The same steps as the library gives them, read from the files of that run."""
    from hybridperf.workloads.programs.jax.program import load_program

    steps = json.loads((tiny.out / "steps" / "steps.json").read_text())["steps"]
    names = [field.name for field in dataclasses.fields(MeasuredStep) if field.name != "workload"]
    programs = [load_program(tiny.out / "steps" / "programs" / step["program"]) for step in steps]
    return [
        MeasuredStep(workload=w, **{name: step[name] for name in names})
        for step, w in zip(steps, programs, strict=True)
    ]


def test_summary_is_what_its_steps_say(tiny) -> None:
    summary, steps = tiny.summary, tiny.summary["steps"]
    assert (summary["schema"], summary["schema_version"]) == ("hybridperf/validate-here", 2)
    assert [step["name"].split()[0] for step in steps] == ["dlrm", "gpt"]
    for step in steps:
        assert step["error"] == pytest.approx(step["predicted_s"] / step["measured_s"] - 1)
        assert step["noise"] >= 0
    errors = [abs(step["error"]) for step in steps]
    assert summary["mean_error"] == pytest.approx(statistics.mean(errors))
    assert abs(summary["worst_error"]) == max(errors)
    assert summary["worst_step"] == steps[int(np.argmax(errors))]["name"]
    roofline, *of_others = summary["baselines"]
    assert roofline == "datasheet roofline"
    assert len(of_others) == 3
    for name, error in summary["baselines"].items():
        assert error == pytest.approx(
            statistics.mean(abs(s["baselines_s"][name] / s["measured_s"] - 1) for s in steps)
        )
        assert name.removesuffix(" of the others") in tiny.said
    assert all(step["baselines_s"][roofline] == step["roofline_s"] for step in steps)
    assert summary["verdict"] in tiny.said
    # a sum of many ops that are unsure by a factor of a million is seldom less than predicted, but
    # a core whose boost clock nobody states can be quicker than its datasheet
    inside = sum(step["low_s"] <= step["measured_s"] <= step["high_s"] for step in steps)
    assert (summary["inside"], summary["with_interval"]) == (inside, 2)
    assert all(step["measured_s"] <= step["high_s"] for step in steps)
    assert summary["cores"] == usable_core()
    assert (tiny.out / "steps.png").read_bytes()[:4] == b"\x89PNG"
    assert f"{tiny.summary['inside']} of 2 inside the 90 % interval" in tiny.said


def test_steps_of_a_users_own_kinds_are_run(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(here, "_ROUNDS", 2)
    gnn = next(spec for spec in here.KINDS if spec["config"]["function"].endswith(":gnn"))
    said: list[str] = []
    summary = here.run(
        datasheet_with_intervals(1e6), tmp_path, kinds=[gnn], tasks=["kinds"], say=said.append
    )
    (step,) = json.loads((tmp_path / "kinds" / "summary.json").read_text())["steps"]
    assert step["name"] == gnn["config"]["function"]
    assert step["measured_s"] > 1e-3
    assert list(summary["baselines"]) == ["datasheet roofline"]  # there is no other step
    assert "one step alone" in "".join(said)
    (line,) = json.loads((tmp_path / "results.json").read_text())["lines"]
    assert line["ours"] == pytest.approx(abs(step["error"]))
    assert line["baselines"] == summary["baselines"]


def test_with_one_other_step_a_constant_is_what_that_one_had(tiny) -> None:
    a, b = tiny.summary["steps"]
    for one, other in ((a, b), (b, a)):
        said = one["baselines_s"]
        assert said["usual seconds of the others"] == pytest.approx(other["measured_s"])
        assert said["roofline x best constant of the others"] == pytest.approx(
            one["roofline_s"] * other["measured_s"] / other["roofline_s"]
        )
        assert said["best constant MFU or bandwidth of the others"] == pytest.approx(
            one["flops"] * other["measured_s"] / other["flops"]
        )


def test_what_a_step_moves_is_what_its_ops_do(measured) -> None:
    for step in measured:
        found = predict(PerfModel.datasheet(this_cpu(1)), step.workload)
        by_hand = 0.0
        for row in step.workload.graph.row:
            op = getattr(step.workload.calls[row - 1], "op", None)
            if row and op is not None:
                by_hand += float(op.work().bytes) * step.workload.calls[row - 1].times
        assert step_baselines.moved_bytes(found) == pytest.approx(by_hand)


def test_of_two_sizes_the_one_counts_that_fits_the_others() -> None:
    """Seconds go with the bytes but for the last step, which is left out of its own choice."""
    flops, moved = np.array([5.0, 1.0, 40.0, 2.0]), np.array([1.0, 2.0, 3.0, 4.0])
    seconds = scores.by_the_others([flops, moved], [0.1, 0.2, 0.3, 0.8])
    assert seconds[3] == pytest.approx(0.4)
    only = scores.by_the_others([moved], [0.1, 0.2, 0.3, 0.8])
    np.testing.assert_allclose(only, [0.1, 0.2, 0.3, 0.4])


def test_the_constant_on_the_roofline_is_the_best_one_for_the_other_steps() -> None:
    rng = np.random.default_rng(0)
    roofline, true = rng.lognormal(size=9), rng.lognormal(size=9)
    factors = scores.by_the_others([roofline], true) / roofline
    tried = np.geomspace(0.01, 100, 20_001)
    for left_out, factor in enumerate(factors):
        ratio = np.delete(roofline / true, left_out)
        errors = np.abs(tried[:, None] * ratio - 1).mean(axis=1)
        assert np.abs(factor * ratio - 1).mean() <= errors.min() + 1e-12
    np.testing.assert_allclose(scores.by_the_others([true / 3], true), true)
    assert scores.by_the_others([[1.0]], [2.0]) is None


@pytest.mark.parametrize(
    ("low", "high", "inside"),
    [(0.5, 2.0, True), (1.0, 1.0, True), (1.1, 2.0, False), (0.2, 0.9, False), (None, None, None)],
)
def test_inside_means_between_the_ends(measured, low, high, inside) -> None:
    step = measured[0]
    ends = {"low_s": low and low * step.time_s, "high_s": high and high * step.time_s}
    compared = StepComparison(
        step, dataclasses.replace(predict(PerfModel.datasheet(this_cpu(1)), step.workload), **ends)
    )
    assert compared.inside is inside
    assert compared.record()["inside"] is inside
    assert measured_steps.summarise([compared])["inside"] == int(inside is True)
    line = measured_steps.table([compared]).splitlines()[-1]
    assert f" {'-' if inside is None else 'yes' if inside else 'no'} " in line


@pytest.mark.parametrize(
    ("times_off", "changed", "beats", "words"),
    [
        (1.02, {}, True, "better than without a calibration: 2.0 % off"),
        (3.0, {}, False, "worse than without .* Likely reason: dlrm.* in .*calibrate` without"),
        (3.0, {"cpu_share": 0.5}, None, "cannot be judged: .* had 50.0 % of its core"),
        (3.0, {"noise": 4.0}, None, "cannot be judged: .* noise floor of 400.0 %"),
    ],
)
def test_a_verdict_says_why_where_it_is_bad_or_none(
    measured, times_off, changed, beats, words
) -> None:
    """Two steps of three rooflines, nearly: the constant of the other fits each within a tenth."""
    bare = predict(PerfModel.datasheet(this_cpu(1)), measured[0].workload)
    compared = []
    for times in (3.0, 3.3):
        time_s = times * bare.roofline_s
        step = dataclasses.replace(
            measured[0], time_s=time_s, noise=0.01, cpu_share=1.0, name="dlrm"
        )
        step = dataclasses.replace(step, **changed)
        compared.append(StepComparison(step, dataclasses.replace(bare, time_s=times_off * time_s)))
    found = measured_steps.verdict(compared, measured_steps.summarise(compared))
    assert found.beats is beats
    assert re.search(words, found.words)
    best, error = min(measured_steps.summarise(compared)["baselines"].items(), key=lambda b: b[1])
    assert f"off, {best} {100 * error:.1f} %" in found.words  # the strongest of them
    alone = compared[:1]
    assert measured_steps.verdict(alone, measured_steps.summarise(alone)).beats is None


def test_noise_is_how_far_the_rounds_lie_above_the_quietest(tiny) -> None:
    for step in json.loads((tiny.out / "steps" / "steps.json").read_text())["steps"]:
        assert len(step["round_s"]) == here._ROUNDS
        assert min(step["round_s"]) == step["time_s"]
        assert step["noise"] == pytest.approx(
            statistics.median(step["round_s"]) / step["time_s"] - 1
        )
        assert step["cpu_share"] > 0


def test_the_cpu_share_is_processor_seconds_per_second(monkeypatch) -> None:
    """By clocks that are made up: others have the core for a quarter of every second, and the
    clocks that are read in between agree.
    """
    wall_s = itertools.count(0.0, 1.0)
    step = dlrm.build(dlrm.DlrmConfig(batch=8, tables=2, rows_per_table=30))
    running = workload_run.RunningStep(step)
    monkeypatch.setattr(workload_run.time, "perf_counter", lambda: next(wall_s))
    monkeypatch.setattr(workload_run.time, "process_time", itertools.count(0.0, 30.0).__next__)
    running.measure(repeats=8, min_seconds=0.0)
    expected_wall_s = next(wall_s) - 1.0
    assert running.result().cpu_share == pytest.approx(30.0 / expected_wall_s)


def test_rounds_report_their_own_median_and_profiling_comes_last(monkeypatch) -> None:
    """Three rounds of four calls whose times are made up, each after one that is not timed: medians
    2.5, 6.5 and 3 ms, of which 2.5 is the step's and 3 a usual round's.
    """
    made_up_ms = itertools.chain(
        [9, 9], [9, 4, 1, 2, 3], [9, 5, 6, 7, 8], [9, 3, 3, 3, 4], itertools.repeat(0.01)
    )
    really_call = CompiledStep.call_s

    def call(step):
        really_call(step)
        return next(made_up_ms) / 1e3

    monkeypatch.setattr(CompiledStep, "call_s", call)
    shown: list[Progress] = []
    step = dlrm.build(dlrm.DlrmConfig(batch=8, tables=2, rows_per_table=30))
    (result,) = workload_run.measure_steps(
        [step], rounds=3, repeats=4, min_seconds=0.0, profile=True, show=shown.append
    )
    assert [(now.done, now.total) for now in shown] == [(done, 5) for done in range(1, 6)]
    assert result.round_s == pytest.approx((0.0025, 0.0065, 0.003))
    assert (result.time_s, result.least_s) == (0.0025, 0.001)
    assert result.noise == pytest.approx(0.2)
    assert result.repeats == 12  # the calls of the profile are not timed
    assert len(result.op_s) > 20


def test_one_round_cannot_tell_its_noise() -> None:
    step = dlrm.build(dlrm.DlrmConfig(batch=8, tables=2, rows_per_table=30))
    once = workload_run.measure_steps([step], rounds=1, repeats=3, min_seconds=0.0)[0]
    assert once.noise is None
    assert once.op_s is None


def test_time_within_an_event_is_not_its_own() -> None:
    """A loop of 100 ns with two runs of its body, 30 and 20, and an instruction after it."""
    events = [
        (0.0, 100.0, "while", "1"),
        (60.0, 80.0, "body", "1"),
        (10.0, 40.0, "body", "1"),
        (100.0, 107.0, "after", "1"),
    ]
    own: dict[str, float] = {}
    for _, name, nanoseconds in op_times.own_times(events):
        own[name] = own.get(name, 0.0) + nanoseconds
    assert own == {"while": 50.0, "body": 50.0, "after": 7.0}


def test_instructions_add_up_to_the_calls_they_are_of() -> None:
    """A loop in a loop, of products long enough that others on this machine interrupt them and not
    what is between; of the very calls that are profiled.
    """

    def layer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.tanh(x @ x) / 512, None

    def layers(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jax.lax.scan(layer, x, length=4)[0], None

    step = jax.jit(lambda x: jax.lax.scan(layers, x, length=3)[0])
    x = jax.block_until_ready(step(jnp.ones((512, 512))))
    calls_s: list[float] = []

    def call() -> None:
        start_s = time.perf_counter()
        jax.block_until_ready(step(x))
        calls_s.append(time.perf_counter() - start_s)

    assert 0.8 < sum(op_times.profile(call, 8).values()) / statistics.mean(calls_s) < 1.01


def test_every_op_of_a_step_has_its_event(tiny, measured) -> None:
    for number, step in enumerate(measured):
        ops = step_ops.compare_ops(step, predict(PerfModel.datasheet(this_cpu(1)), step.workload))
        assert ops.events_s == pytest.approx(sum(step.op_s.values()))
        products = ops.ops[ops.ops["group"].str.contains("gemm")]
        assert len(products) >= 10
        assert products["measured_s"].notna().all()
        assert set(ops.without_event) <= {"call", "fresh memory"}
        assert ops.ops["label"].is_unique
        written = pd.read_csv(tiny.out / "ops" / f"step{number}.csv")
        assert list(written.columns[:4]) == ["label", "group", "predicted_s", "measured_s"]
        assert len(written) == len(ops.ops)


def test_groups_close_the_sum(tiny, measured) -> None:
    for step, record in zip(measured, tiny.summary["steps"], strict=True):
        prediction = predict(PerfModel.datasheet(this_cpu(1)), step.workload)
        groups = step_ops.by_group(step_ops.compare_ops(step, prediction))
        assert groups["measured_s"].sum() == pytest.approx(step.time_s)
        assert groups["predicted_s"].sum() == pytest.approx(prediction.ops()["seconds"].sum())
        assert groups["error"].sum() == pytest.approx(
            record["error"], abs=1e-4
        )  # one stream: the step is the sum of its ops
        assert [group["group"] for group in record["groups"]] == groups["group"].tolist()


def test_labels_and_events_without_a_counterpart_are_said(measured) -> None:
    step = measured[1]
    renamed = {
        ("unheard.1" if name == max(step.op_s, key=step.op_s.get) else name): s
        for name, s in step.op_s.items()
    }
    prediction = predict(PerfModel.datasheet(this_cpu(1)), step.workload)
    ops = step_ops.compare_ops(dataclasses.replace(step, op_s=renamed), prediction)
    assert list(ops.not_matched_s) == ["unheard.1"]
    assert len(ops.without_event) == 2
    said = step_ops.step_text(ops)
    assert "events that match no label (1, " in said
    assert "without an event (2): " in said
    with pytest.raises(InputError, match="measured without its ops"):
        step_ops.compare_ops(dataclasses.replace(step, op_s=None), prediction)


def test_worst_op_comes_first(measured) -> None:
    step = measured[0]
    slow = max((name for name in step.op_s if name.startswith("dot")), key=step.op_s.get)
    ops = step_ops.compare_ops(
        dataclasses.replace(step, op_s={**step.op_s, slow: 1.0}),
        predict(PerfModel.datasheet(this_cpu(1)), step.workload),
    )
    assert ops.ops["label"][0] == slow
    assert step_ops.by_group(ops)["group"][0] == ops.ops["group"][0]
    assert "worst error" in step_ops.all_steps_text([ops])


def sizes(workload: str) -> dict[str, list[int]]:
    """Each size of the six steps of one kind, by name; depth and width counted alike for both."""
    configs = [step["config"] for step in here.STEPS if step["workload"] == workload]
    found = {
        name: [c[name] for c in configs]
        for name, value in configs[0].items()
        if not isinstance(value, list)
    }
    if workload == "dlrm":
        layers = [[*c["bottom_mlp"], *c["top_mlp"]] for c in configs]
        found |= {
            "width": [max(widths) for widths in layers],
            "layers": [len(widths) for widths in layers],
        }
    return found


def test_twelve_steps_six_of_each_kind() -> None:
    assert [step["workload"] for step in here.STEPS] == ["dlrm", "gpt"] * 6
    for step in here.STEPS:  # sizes that make a model
        (dlrm.DlrmConfig if step["workload"] == "dlrm" else gpt.GptConfig)(
            **{
                name: tuple(value) if isinstance(value, list) else value
                for name, value in step["config"].items()
            }
        )


@pytest.mark.parametrize(
    ("workload", "names"),
    [
        ("dlrm", ["batch", "width", "layers", "rows_per_table", "pooling", "embedding_dim"]),
        ("gpt", ["batch", "width", "layers", "vocab"]),
    ],
)
def test_sizes_spread_over_a_factor_of_eight(workload, names) -> None:
    spread = {name: max(values) / min(values) for name, values in sizes(workload).items()}
    assert {name: spread[name] for name in names if spread[name] < 8} == {}
    # the others vary, too
    assert all(len(set(values)) >= 5 for values in sizes(workload).values())


def test_no_size_is_the_demos() -> None:
    for workload in ("dlrm", "gpt"):
        demo_configs = [step["config"] for step in demo._STEPS if step["workload"] == workload]
        for name, values in sizes(workload).items():
            ours = {
                value for value in values if value > 26
            }  # few layers, heads and tables are common to all models
            assert not ours & {config.get(name) for config in demo_configs}, name
    assert not [step for step in here.STEPS if step in demo._STEPS]


def test_tables_and_parameters_fit_in_three_gigabytes() -> None:
    """All twelve are in memory at once: tables, and parameters three times (Adam), with gradients
    and activations as large again.
    """
    tables = sum(
        4 * math.prod(s)
        for s in zip(
            *(sizes("dlrm")[n] for n in ("tables", "rows_per_table", "embedding_dim")), strict=True
        )
    )
    parameters = sum(
        v * w + 12 * n * w**2
        for v, w, n in zip(*(sizes("gpt")[n] for n in ("vocab", "width", "layers")), strict=True)
    )
    assert tables + 2 * 3 * 4 * parameters < 2e9


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ops", "--model", "here"], "expected here, got 'ops'; claims on published"),
        (["here"], "expected --model FOLDER, got none"),
        (["here", "--model", "no-such-folder"], "no-such-folder"),
        (["here", "--model", "v100"], "a gpu, and JAX runs on a cpu here"),
        (
            ["here", "--model", "here", "--steps", "13"],
            "expected --steps from 1 to 12 or all, got '13'",
        ),
        (["here", "--model", "here", "--steps", "-1"], "expected --steps from 1 to 12"),
    ],
)
def test_wrong_words_are_one_sentence(arguments, says, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["validate", *arguments])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert error.count("\n") == 1
    assert says in error
    assert not list(tmp_path.iterdir())  # refused before anything is measured or written


def test_a_model_is_run_on_the_cores_it_was_calibrated_on(tmp_path, monkeypatch) -> None:
    asked = []

    def stop(folder, spec, *, cores, profile, rounds):
        asked.append((cores, len(spec), profile))
        raise InputError("enough")

    monkeypatch.setattr(here, "measure_steps", stop)
    monkeypatch.setattr(here, "default_backend", lambda: "cpu")  # a process each
    model = dataclasses.replace(PerfModel.datasheet(this_cpu(1)), provenance={"cores": "3-5"})
    for cores in (None, "7"):
        with pytest.raises(InputError, match="enough"):
            here.run(model, tmp_path, cores=cores, say=lambda line: None)
    with pytest.raises(InputError, match="enough"):
        here.run(
            dataclasses.replace(model, provenance={}),
            tmp_path,
            steps=TINY,
            ops=True,
            say=lambda line: None,
        )
    assert asked == [("3-5", 12, False), ("7", 12, False), (usable_core(), 2, True)]
