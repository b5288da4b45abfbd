"""Whole runs: cost by hand, limits, what the command says and refuses; elastic workers."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.cli.app import main
from hybridperf.io import InputError
from hybridperf.runs.elastic import MOST_WORKERS, elastic_speed, rigid_speed
from hybridperf.runs.failures import components, job_rate
from hybridperf.runs.training_run import BELIEFS, RunSettings

DAY_S = 86400.0
NOTHING = {"planned_per_day": 0.0, "step_longer": 1.0}


def command(arguments: str, capsys: pytest.CaptureFixture) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["run", *arguments.split()])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out + said.err


def test_a_run_that_never_fails_is_its_steps() -> None:
    step = hp.given_step(2.0, 64, device="h100_sxm")
    settings = RunSettings(
        spares=0, interval_s=3600.0, mtbf_s={"job": 1e15}, given=NOTHING, warmup_s=400.0
    )
    found = hp.training_run(step, 43_000, settings)
    assert found.row("days")[0] == pytest.approx((86_000 + 400) / DAY_S)
    assert found.row("goodput")[0] == pytest.approx(1.0)
    hours = found.row("gpu_hours")[0]
    assert hours == pytest.approx(64 * 24.0)
    assert found.row("usd")[0] == pytest.approx(hours * step.economy.usd_per_hour)
    rates = step.economy
    draws_w = 64 * rates.pue * (rates.full_w + rates.host_w)
    assert found.row("energy_j")[0] == pytest.approx(draws_w * 86_400)


def test_runs_that_stall_are_a_branch_of_their_own() -> None:
    """One in eight takes ten times as long: the usual end of the interval lies below that branch,
    nine in ten reach into it. Fewer than one in twenty leave the interval as it is.
    """
    step = hp.given_step(2.0, 64, width=0.1)
    settings = RunSettings(spares=0, interval_s=3600.0, mtbf_s={"job": 1e15}, given=NOTHING)
    usual, low, high = hp.training_run(step, 43_000, settings).row("days")
    ends = {}
    for chance in (0.02, 0.125):
        stalls = dataclasses.replace(step, stall_chance=chance, stalled_s=20.0)
        found = hp.training_run(stalls, 43_000, settings)
        expected, *ends[chance] = found.row("days")
        assert expected == usual
        assert any("takes 10 times as long" in note for note in found.notes)
    assert ends[0.02] == pytest.approx([low, high], rel=0.02)
    assert ends[0.125][0] == pytest.approx(low, rel=0.02)
    assert 9 * usual < ends[0.125][1] < 11.5 * usual


def test_a_plan_of_pipelines_over_nodes_knows_how_often_they_stall() -> None:
    chances, highs = [], []
    for stages in (1, 2):
        only = {"pp": [stages], "tp": [1]}
        found = hp.run_cost(
            "llama3.2-1b", "dgx_h100", 16, "20B", batch=64, framework="nanotron", only=only
        )
        chances.append([note for note in found.notes if "stall" in note])
        highs.append(found.row("days")[2] / found.row("days")[0])
    assert not chances[0]
    assert "one in 8 like this" in chances[1][0]
    assert highs[1] > 1.5 * highs[0]


def test_published_counts_are_the_rates() -> None:
    """Llama 3: 419 failures in 54 days of 2,048 nodes; half of everything is half as often."""
    whole = job_rate(components(16384, 2048))
    assert float(whole.per_s) * 54 * DAY_S == pytest.approx(419)
    assert float(job_rate(components(8192, 1024)).per_s) == pytest.approx(whole.per_s / 2)
    job = job_rate(components(16384, 2048, {"job": 3600.0}))
    assert float(job.per_s) == pytest.approx(1 / 3600.0)
    assert float(job.broken) == pytest.approx(float(whole.broken))


def test_more_failures_and_slower_storage_are_never_faster() -> None:
    step = hp.given_step(5.0, 1024, state_bytes=1e12)

    def days(**more: float) -> float:
        mtbf = {"job": more.pop("job_s", 36e3)}
        settings = RunSettings("sync", spares=2, mtbf_s=mtbf, given=more)
        return hp.training_run(step, 1e5, settings).row("days")[0]

    usual = days()
    assert days(job_s=18e3) > usual
    assert days(storage_bytes_per_s_per_node=2e8) > usual
    assert days(restart_s=1200.0) > usual
    assert days(detection_s=30.0) < usual


def test_memory_beats_behind_beats_standing_still() -> None:
    """With storage that takes 20 minutes; each at its own best interval."""
    step = hp.given_step(5.0, 1024, state_bytes=1.5e12)
    given = {"storage_bytes_per_s_per_node": 1e7}
    found = {
        name: hp.training_run(step, 1e5, RunSettings(name, spares=4, given=given)).row("goodput")[0]
        for name in ("sync", "async", "memory")
    }
    assert found["memory"] > found["async"] > found["sync"]


def test_intervals_hold_the_expected_run_and_widen() -> None:
    step = hp.given_step(5.0, 2048, device="h100_sxm", state_bytes=1e12, width=0.1)
    found = hp.training_run(step, 2e5)
    for one in found.table.itertuples():
        assert one.low < one.expected < one.high, one
    known = hp.training_run(
        hp.given_step(5.0, 2048, state_bytes=1e12), 2e5,
        RunSettings(mtbf_s={"job": 24 * 3600.0},
                    given={name: 100.0 for name in BELIEFS if name not in NOTHING} | NOTHING
                    | {"storage_bytes_per_s_per_node": 1e9, "memory_bytes_per_s_per_gpu": 1e10}),
    )  # fmt: skip
    _, low, high = known.row("days")
    _, wide_low, wide_high = found.row("days")
    assert high / low < 1.05 < wide_high / wide_low


def test_a_shape_goes_through_the_plan() -> None:
    """Days of a run that never fails are the plan's."""
    only = {"tp": 1, "pp": 1, "cp": 1, "zero": 1}
    asked = {"batch": 128, "seq": 2048, "only": only}
    found = hp.run_cost(
        "llama-7b", "dgx_a100", 64, "1B", **asked,
        settings=RunSettings(spares=0, mtbf_s={"job": 1e15}, given=NOTHING),
    )  # fmt: skip
    plan = hp.plan("llama-7b", "dgx_a100", 64, tokens=1e9, **asked)
    assert found.row("days")[0] == pytest.approx(float(plan.top(1)["days"].iloc[0]), rel=1e-3)


def test_a_ramp_is_its_phases() -> None:
    """A quarter of the tokens with small steps, the rest with large ones: each at its own plan."""
    asked = {"seq": 2048, "only": {"tp": 1, "pp": 1, "cp": 1, "zero": 1}}
    never = RunSettings(spares=0, mtbf_s={"job": 1e15}, given=NOTHING)
    whole = {
        samples: hp.run_cost(
            "llama-7b", "dgx_a100", 64, "1B", batch=samples, settings=never, **asked
        )
        for samples in (64, 512)
    }
    ramped = hp.run_cost(
        "llama-7b", "dgx_a100", 64, "1B", batch=512, ramp=[("250M", 64)], settings=never, **asked
    )
    for what in ("days", "usd", "energy_j"):
        small, large = (whole[samples].row(what)[0] for samples in (64, 512))
        assert ramped.row(what)[0] == pytest.approx(small / 4 + 3 * large / 4, rel=1e-6)
        assert small > large  # the exchange of gradients comes eight times as often
    assert ramped.words.startswith("1,907 steps: llama-7b")
    assert "\n715 steps" in ramped.words


def test_checkpoints_are_at_the_ends_of_steps_and_free_ones_are_said() -> None:
    """Checkpoints of no bytes would best be taken all the time."""
    step = hp.given_step(60.0, 64)
    found = hp.training_run(step, 1e4, RunSettings(mtbf_s={"job": 3600.0}, given=NOTHING))
    assert found.cycle.interval_s == pytest.approx(60.0)
    assert "state_bytes 0 (not given" in found.notes[0]
    known = hp.training_run(hp.given_step(60.0, 64, state_bytes=1e12), 1e4)
    assert not any("state_bytes" in note for note in known.notes)


def test_no_spare_is_said(capsys: pytest.CaptureFixture) -> None:
    code, said = command("--gpus 64 --step-time 5s --steps 1e6 --spares 0 --mtbf gpu=900h", capsys)
    assert code == 0
    assert "no spare node, so that the job waits" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "--gpus 8 --shape llama-7b --system dgx_a100 --tokens 1B --ramp 2M",
            "--ramp TOKENS=SAMPL",
        ),
        ("--gpus 8 --shape llama-7b --system dgx_a100 --tokens 1B --ramp 2B=8", "mend their order"),
        ("--gpus 8 --step-time 5s --steps 9 --ramp 2B=8", "none of --tokens"),
        ("--gpus -4 --step-time 5s --steps 3", "expected --gpus of 1 or more, got -4"),
        ("--gpus 8 --step-time 5s --steps 1e12", "less than a century"),
        ("--gpus 8 --step-time 5s --steps 9 --mtbf job=-3h", "above 0 of job, got -10800"),
        ("--gpus 8 --step-time 5s --steps 9 --mtbf job=3h --mtbf gpu=3h", "got job and gpu"),
        ("--gpus 8 --step-time 5s --steps 9 --mtbf fan=3h", "fan"),
        ("--gpus 8 --step-time 5s --steps 9 --set restart_s=-2", "restart_s of 0 or more, got -2"),
        ("--gpus 8 --step-time 5s --steps 9 --set restart=2", "restart_s"),
        ("--gpus 8 --step-time 5s --steps 9 --set checkpoint_s=60", "no checkpoint_s in --set"),
        ("--gpus 8 --step-time 5s --steps 9 --mtbf job=300s", "gpu=50000h, 90m or 2d"),
        ("--gpus 8 --step-time 5s --steps 1e5 --mtbf job=0.01h", "a run that gets on"),
        ("--gpus 8 --step-time 5s --steps 9 --interval 1s", "an interval of a step or longer"),
        ("--gpus 8 --step-time 5s --steps 9 --spares 3", "at most as many spares"),
        ("--gpus 8 --step-time 5s --steps 9 --checkpoint never", "never"),
        ("--gpus 8 --step-time 5s --steps 9 --set stall_s=9", "both stalls_per_day and stall_s"),
        ("--gpus 8 --step-time 5s --steps 9 --tokens 3T", "none of --tokens"),
        ("--gpus 8 --step-time 5s --shape llama-7b", "either --shape or --step-time, got both"),
        ("--gpus 99999999999999999999 --step-time 5s --steps 9", "--gpus of at most 10,000,000"),
        ("--gpus 8 --step-time 5s --steps 9 --set gpus_per_node=inf", "whole gpus_per_node"),
        ("--gpus 8 --step-time 5s --steps 9 --set gpus_per_node=2.5", "gpus_per_node of 1 or more"),
        ("--gpus 8 --step-time 5s --steps 9 --set state_bytes=inf", "0 bytes or more, got inf"),
        ("--gpus 8 --step-time 5s --steps 9 --out days.xls", "name ending in .csv"),
        ("--gpus 8 --elastic", "lifetime_s"),
        ("--gpus 8 --elastic --set lifetime_s=9 --step-time 5s", "with --elastic, got --step-time"),
        ("--gpus 8 --elastic --set lifetime_s=-3", "lifetime_s above 0, got -3"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    arguments: str, sentence: str, capsys: pytest.CaptureFixture
) -> None:
    status, said = command(arguments, capsys)
    assert status == 2
    assert sentence in said
    assert len(said.strip().splitlines()) == 1


def test_the_command_tells_json_what_it_tells_people(capsys: pytest.CaptureFixture) -> None:
    status, said = command(
        "--gpus 64 --step-time 2s --steps 1e5 --device h100_sxm --spares 1 --json", capsys
    )
    assert status == 0
    found = json.loads(said)
    assert [one["what"] for one in found["run"]] == [
        "days", "goodput", "uptime", "failures", "gpu_hours", "usd", "energy_j",
    ]  # fmt: skip
    assert sum(found["lost"].values()) == pytest.approx(1.0)


def test_the_fastest_number_of_workers_is_the_best_of_all() -> None:
    """A job that stops for each worker: more are faster until interruptions eat it."""
    like = hp.Workers(30_000.0, scaling=0.95)
    found = hp.elastic(like, [8, 64])
    each = [float(rigid_speed(float(n), like)) for n in range(1, 400)]
    assert found.fastest_rigid == 1 + int(np.argmax(each))
    assert (found.table["elastic"] > found.table["rigid"]).all()
    assert float(elastic_speed(64.0, like)) < 64.0
    # speed grows to a limit, flat long before it is reached: more are faster all the same
    for limited in (hp.Workers(10.0, change_s=1000.0), hp.Workers(3e4)):
        assert hp.elastic(limited, [8]).fastest == MOST_WORKERS


def test_no_lifetime_no_elastic() -> None:
    with pytest.raises(InputError, match="scaling of at most 1"):
        hp.elastic(hp.Workers(3e4, scaling=1.5), [8])


def test_elastic_workers_are_written(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "workers.csv"
    status, said = command(f"--gpus 8 --elastic --set lifetime_s=30000 --out {out}", capsys)
    assert status == 0, said
    assert len(out.read_text().splitlines()) == 5  # 1, 2, 4, 8 workers


def test_intervals_hold_the_mean_of_what_hardly_any_run_meets() -> None:
    """A run of minutes on 8 GPUs: nearly all of its draws meet no failure."""
    table = hp.training_run(hp.given_step(5.0, 8), 100, RunSettings()).table
    assert (table.low <= table.expected).all()
    assert (table.expected <= table.high).all()
