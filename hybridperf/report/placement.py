"""Placements in words: which GPUs, what bandwidth they have, how much slower steps are there."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hybridperf.collectives.subset import share, share_model
from hybridperf.report.text import percent, quantity, seconds, short, table
from hybridperf.runs.placement import PlacedJob, PlacedStep, PlacedStream, Placer


def shortcomings(placer: Placer) -> list[str]:
    """Sentences to read before any number."""
    some = share(placer.topology, range(min(2, placer.topology.gpus)))
    return share_model(placer.topology, some).shortcomings()


def placements_report(found: pd.DataFrame, gpus: int, step: PlacedStep) -> str:
    """A line per policy."""
    what = "a step" if step.shape is not None or step.compute_s else "an all-reduce"
    headers = ["policy", "GPUs", "all-reduce bus", "90 %", what, "90 %", "slow-down", "90 %"]
    rows = []
    for row in found.itertuples():
        band = [quantity(value, "B/s") for value in (row.bandwidth_bytes_per_s,
                row.low_bytes_per_s, row.high_bytes_per_s)]  # fmt: skip
        rows.append([
            row.policy, short(row.gpus, 40), band[0], f"{band[1]} to {band[2]}",
            seconds(row.step_s), f"{seconds(row.low_s)} to {seconds(row.high_s)}",
            f"{row.slow_down:.3f}", f"{row.low_slow_down:.3f} to {row.high_slow_down:.3f}",
        ])  # fmt: skip
    size = f"all-reduce of {quantity(step.all_reduce_bytes, 'B')}"
    if step.shape is not None:
        size = f"steps of {step.shape.name}, {step.micro_batch} samples a GPU; bus of an {size}"
    legend = (
        f"{gpus} GPUs, {size}; slow-down: over the"
        " best GPUs of the empty topology, both with the same error of links; worst: of those free"
    )
    return table(headers, rows) + "\n" + legend


def broadcasts_report(ways: pd.DataFrame, bytes: float) -> str:
    """A line per way."""
    least = ways["time_s"].min()
    rows = [
        [row.way, seconds(row.time_s), f"{seconds(row.low_s)} to {seconds(row.high_s)}",
         f"{row.time_s / least:.1f}"]
        for row in ways.itertuples()
    ]  # fmt: skip
    headers = [f"{quantity(bytes, 'B')} from one to all", "time", "90 %", "over the quickest"]
    return table(headers, rows)


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
    frame = policies_frame(streams)
    rows = [
        [row.policy, seconds(row.mean_completion_s), seconds(row.mean_wait_s),
         f"{row.mean_slow_down:.3f}", f"{row.p75_slow_down:.3f}", f"{row.worst_slow_down:.3f}"]
        for row in frame.itertuples()
    ]  # fmt: skip
    headers = ["policy", "mean completion", "mean wait", "mean slow-down", "75 %", "worst"]
    gains = [
        f"{one.policy}: runs {percent(gain['mean'])} shorter in the mean than naive,"
        f" {percent(gain['p75'])} at the 75th percentile, {percent(gain['worst'])} at worst"
        for one in streams[1:]
        for gain in [gains_over(streams[0], one)]
    ]
    return "\n".join([table(headers, rows), "slow-down: of a job's steps over the best GPUs of the"
                      " empty topology", *gains])  # fmt: skip


def gains_over(before: PlacedStream, after: PlacedStream) -> dict[str, float]:
    """Shares by which slow-downs fall: mean, 75th percentile, worst."""

    def measures(stream: PlacedStream) -> dict[str, float]:
        x = stream.slow_down
        return {"mean": x.mean(), "p75": np.percentile(x, 75), "worst": x.max()}

    was, now = measures(before), measures(after)
    return {name: float(1 - now[name] / was[name]) for name in was}


def jobs_frame(jobs: Sequence[PlacedJob], streams: Sequence[PlacedStream]) -> pd.DataFrame:
    """A row per job and policy."""
    return pd.concat([
        pd.DataFrame({
            "policy": one.policy, "name": [job.name for job in jobs],
            "gpus": [" ".join(map(str, some)) for some in one.gpus],
            "arrival_s": one.result.arrival_s, "start_s": one.result.start_s,
            "end_s": one.result.end_s, "step_s": one.step_s, "slow_down": one.slow_down,
        })
        for one in streams
    ], ignore_index=True)  # fmt: skip
