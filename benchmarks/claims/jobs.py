"""Schedulers of jobs beside what PAC-ML and ONES publish, and simulation beside closed form.

closed    blocking of jobs alike, simulated, beside Erlang's formula, at each degree
degrees   PAC-ML (arXiv 2301.13799): up to 56.2 % fewer jobs refused than under maximal
          parallelisation. Ours: jobs of one model at a time, the best degree against the largest,
          over loads; by Erlang's formula at the engine's times. What differs: GPUs and data
          parallelism in place of their optical cluster (RAMP) and their five graphs, jobs alike
elastic   ONES (SC 2021): mean completion 26.9 % (their DRL baseline), 45.6 % (Tiresias), 41.7 %
          (Optimus) shorter, recalled figures. Ours: elastic against Gittins' index (Tiresias')
          and against FIFO on 64 V100, over loads. What differs: our jobs and their law of sizes,
          their evolutionary search in place of a greedy one, their measured throughputs, and how
          much a larger batch is worth: nothing (fixed), or by a noise scale of 1,024 samples
          (grows)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.claims.harness import Found, ResultLine, claim
from hybridperf.engine.queues import erlang_b
from hybridperf.report.text import percent
from hybridperf.runs.job_policies import blocking_by_degree, cluster
from hybridperf.runs.job_times import JobTimes, TrainingJob, job_times

TASKS = ("closed", "degrees", "elastic")
PAC_ML = 0.562
ONES = {"tiresias": 0.456, "optimus": 0.417, "drl": 0.269}
SYSTEM, GPUS = "aws_p3dn_v100", 64
_MODELS = ("gpt2", "gpt2-medium", "bert-large", "bert-base", "gpt2-large")
_BATCH, _NOISE_SCALE, _RESTART_S = 256, 1024.0, 30.0
_ELASTIC_LOADS = (0.3, 0.7, 1.2, 2.5)
# GPU seconds that come, alone on one, over those there are
_LOADS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


def of_models(models: Sequence[str] = _MODELS) -> dict[str, JobTimes]:
    """What a job of each model reaches on 64 V100."""
    jobs = [TrainingJob(name, 0.0, name, _BATCH, 1000.0) for name in models]
    found = job_times(jobs, SYSTEM, GPUS, precision="fp16")
    return dict(zip(models, found, strict=True))


def fewer_refused(times: JobTimes, load: float) -> tuple[float, float, int]:
    """(share refused at the largest degree, at the best one, the best one).

    `load`: GPU seconds that come, at the time on the fewest GPUs, over those there are.
    """
    alone_s = times.fewest / times.rate(times.fewest)
    arrivals_per_s = load * GPUS / alone_s
    by_degree = blocking_by_degree(times, 1.0, GPUS, arrivals_per_s)
    best = min(by_degree, key=lambda n: (by_degree[n], -n))
    return by_degree[times.quickest], by_degree[best], best


def _degrees() -> Found:
    rows = []
    for name, times in of_models().items():
        for load in _LOADS:
            most, least, degree = fewer_refused(times, load)
            rows.append({"model": name, "load": load, "degree": degree, "most": times.quickest,
                         "refused_at_most": most, "refused": least,
                         "gain": 1 - least / most if most else 0.0})  # fmt: skip
    frame = pd.DataFrame(rows)
    by_load = frame.groupby("load")[["refused_at_most", "refused", "gain"]].mean()
    lines = [
        ResultLine(f"fewer refused than by maximal parallelisation, {end} over loads",
                   float(getattr(by_load["gain"], end)()), len(frame),
                   baselines={"PAC-ML": PAC_ML}, measure="share")
        for end in ("max", "min")
    ]  # fmt: skip
    return Found("", {"degrees": frame, "degrees_by_load": by_load.reset_index()}, lines)


def _closed(quick: bool) -> Found:
    times = of_models(("bert-large",))["bert-large"]
    count, rows = 2_000 if quick else 20_000, []
    for at, n in enumerate(times.gpus.tolist()):
        rng = np.random.default_rng(at)
        if times.steps_per_s[at] <= 0:
            continue
        busy = GPUS // n * rng.uniform(0.7, 1.5)
        gap_s = 1000.0 / times.steps_per_s[at] / busy
        arrival_s = np.cumsum(rng.exponential(gap_s, count))
        jobs = [TrainingJob(str(i), float(when), "bert-large", _BATCH, float(steps), n)
                for i, (when, steps) in enumerate(zip(
                    arrival_s, rng.exponential(1000.0, count), strict=True))]  # fmt: skip
        only = JobTimes(*(getattr(times, name)[at : at + 1] for name in (
            "gpus", "steps_per_s", "low_steps_per_s", "high_steps_per_s", "batch")))  # fmt: skip
        one = cluster(jobs, [only] * count, GPUS)
        found = one.lossy(lambda job, n=n: n).blocking  # type: ignore[misc]
        rows.append({"gpus": n, "simulated": found, "closed": float(erlang_b(GPUS // n, busy))})
    frame = pd.DataFrame(rows)
    off = float((frame["simulated"] - frame["closed"]).abs().max())
    line = ResultLine("refused, simulation against Erlang's formula", off, len(frame), 0.01,
                      measure="largest difference")  # fmt: skip
    return Found("", {"closed": frame}, [line])


def stream(seed: int, count: int, load: float, times: dict[str, JobTimes]) -> list[TrainingJob]:
    """Jobs of random models, log-normal numbers of steps, on 1 to 16 GPUs as asked.

    `load`: GPU seconds that are asked for over those there are.
    """
    rng = np.random.default_rng(seed)
    models, steps = rng.choice(list(times), count), rng.lognormal(8.0, 1.0, count)
    asked = [max(int(n), times[name].fewest) for n, name in
             zip(rng.choice([1, 2, 4, 8, 16], count), models, strict=True)]  # fmt: skip
    seconds = [steps[at] / times[models[at]].rate(asked[at]) * asked[at] for at in range(count)]
    arrival_s = np.cumsum(rng.exponential(float(np.mean(seconds)) / GPUS / load, count))
    return [
        TrainingJob(f"job {at}", float(arrival_s[at]), str(models[at]), _BATCH, float(steps[at]),
                    asked[at], 4 * _BATCH, _NOISE_SCALE)
        for at in range(count)
    ]  # fmt: skip


def elastic_gains(
    count: int, loads: Sequence[float], seeds: int = 2, models: Sequence[str] = _MODELS
) -> pd.DataFrame:
    """By how much elastic jobs complete sooner: `batch` (fixed, grows), `load, seed, gittins, fifo,
    srtf`.
    """
    plain, rows = of_models(models), []
    asked = [TrainingJob(name, 0.0, name, _BATCH, 1.0, None, 4 * _BATCH, _NOISE_SCALE)
             for name in plain]  # fmt: skip
    growing = dict(zip(plain, job_times(asked, SYSTEM, GPUS, precision="fp16"), strict=True))
    for load in loads:
        for seed in range(seeds):
            jobs = stream(seed, count, load, plain)
            rigid = cluster(jobs, [plain[job.model] for job in jobs], GPUS, _RESTART_S)
            others = {policy: rigid.run(policy).mean_completion_s()
                      for policy in ("gittins", "fifo", "srtf")}  # fmt: skip
            for batch, curves in (("fixed", plain), ("grows", growing)):
                free = cluster(jobs, [curves[job.model] for job in jobs], GPUS, _RESTART_S)
                ours = free.run("elastic").mean_completion_s()
                gains = {policy: 1 - ours / theirs for policy, theirs in others.items()}
                rows.append({"batch": batch, "load": load, "seed": seed, **gains})
    return pd.DataFrame(rows)


def _elastic(quick: bool) -> Found:
    frame = elastic_gains(60 if quick else 200, _ELASTIC_LOADS)
    mean = frame.drop(columns="seed").groupby(["batch", "load"]).mean()
    published = ", ".join(f"{percent(gain)} than {name}" for name, gain in ONES.items())
    lines = [
        ResultLine(f"elastic sooner than {policy}, {end} over loads and batches",
                   float(getattr(mean[policy], end)()), len(frame),
                   baselines={"ONES over Tiresias": ONES["tiresias"]}, measure="share")
        for policy in ("gittins", "fifo") for end in ("min", "max")
    ]  # fmt: skip
    tables = {"elastic": frame, "elastic_mean": mean.add_suffix("_gain").reset_index()}
    return Found(f"elastic jobs complete sooner; ONES: {published}", tables, lines)


@claim("jobs", TASKS)
def run(data: Path | None, tasks: Sequence[str], quick: bool) -> Iterable[Found]:
    """Schedulers beside what papers publish; needs no data."""
    del data
    for task in tasks:
        if task == "degrees":
            yield _degrees()
        else:
            yield {"closed": _closed, "elastic": _elastic}[task](quick)
