"""Placements in words: which GPUs, what bandwidth they have, how much slower steps are there;
and schedulers of a stream of jobs.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hybridperf.collectives.subset import share, share_model
from hybridperf.report.text import frame_table, percent, quantity
from hybridperf.runs.job_policies import JobStudy
from hybridperf.runs.placement import PlacedJob, PlacedStep, PlacedStream, Placer


def shortcomings(placer: Placer) -> list[str]:
    """Sentences to read before any number."""
    some = share(placer.topology, range(min(2, placer.topology.gpus)))
    return share_model(placer.topology, some).shortcomings()


def placements_report(found: pd.DataFrame, gpus: int, step: PlacedStep) -> str:
    """Placements as text, a line for each policy."""
    size = f"all-reduce of {quantity(step.all_reduce_bytes, 'B')}"
    if step.shape is not None:
        size = f"steps of {step.shape.name}, {step.micro_batch} samples a GPU; bus of an {size}"
    elif not step.compute_s:
        size = f"steps of one {size}"
    legend = (
        f"{gpus} GPUs, {size}; slow-down: over the"
        " best GPUs of the empty topology, both with the same error of links; worst: of those free"
    )
    return frame_table(found) + "\n" + legend


def broadcasts_report(ways: pd.DataFrame, bytes: float) -> str:
    """Ways to broadcast as text, a line each, over the quickest."""
    over = ways["time_s"] / ways["time_s"].min()
    sent = f"{quantity(bytes, 'B')} from one to all"
    return f"{sent}\n{frame_table(ways.assign(over_the_quickest=over))}"


def policies_frame(streams: Sequence[PlacedStream]) -> pd.DataFrame:
    """A row per policy: `policy, mean_completion_s, p75_step_slow_down, ...`."""
    return pd.DataFrame([
        {
            "policy": one.policy, "mean_completion_s": one.result.mean_completion_s(),
            "mean_wait_s": float(np.mean(one.result.start_s - one.result.arrival_s)),
            "mean_slow_down": float(one.slow_down.mean()),
            "p75_slow_down": float(np.percentile(one.slow_down, 75)),
            "worst_slow_down": float(one.slow_down.max()),
        }
        for one in streams
    ])  # fmt: skip


def policies_report(streams: Sequence[PlacedStream]) -> str:
    """A line per policy, and what the others gain over the naive one."""
    gains = [
        f"{one.policy}: runs {percent(gain['mean'])} shorter in the mean than naive,"
        f" {percent(gain['p75'])} at the 75th percentile, {percent(gain['worst'])} at worst"
        for one in streams[1:]
        for gain in [gains_over(streams[0], one)]
    ]
    legend = "slow down: of a job's steps over the best GPUs of the empty topology"
    return "\n".join([frame_table(policies_frame(streams)), legend, *gains])


def gains_over(before: PlacedStream, after: PlacedStream) -> dict[str, float]:
    """Shares by which slow-downs fall: mean, 75th percentile, worst."""

    def measures(stream: PlacedStream) -> dict[str, float]:
        x = stream.slow_down
        return {"mean": x.mean(), "p75": np.percentile(x, 75), "worst": x.max()}

    was, now = measures(before), measures(after)
    return {name: float(1 - now[name] / was[name]) for name in was}


def jobs_frame(jobs: Sequence[PlacedJob], streams: Sequence[PlacedStream]) -> pd.DataFrame:
    """Jobs and their placement as a frame, a row per job and policy."""
    return pd.concat([
        pd.DataFrame({
            "policy": one.policy, "name": [job.name for job in jobs],
            "gpus": [" ".join(map(str, some)) for some in one.gpus],
            "arrival_s": one.result.arrival_s, "start_s": one.result.start_s,
            "end_s": one.result.end_s, "step_s": one.step_s, "slow_down": one.slow_down,
        })
        for one in streams
    ], ignore_index=True)  # fmt: skip


def jobs_report(found: JobStudy, gpus: int) -> str:
    """A line per scheduler, then one per degree of the loss system."""
    least = found.degrees[found.degrees["blocking"] == found.degrees["blocking"].min()]
    best = least["gpus"].iloc[-1]
    return "\n".join([
        f"{(found.rows['note'] == '').sum()} jobs on {gpus} GPUs", frame_table(found.policies), "",
        "where a job is refused if its GPUs are not free at once (closed form: Erlang's)",
        frame_table(found.degrees), f"fewest are refused with {best} GPUs each",
    ])  # fmt: skip
