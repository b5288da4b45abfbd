"""Schedulers of a stream of jobs in words."""

from hybridperf.report.text import percent, seconds, table
from hybridperf.runs.job_study import JobStudy


def jobs_report(found: JobStudy, gpus: int) -> str:
    """A line per scheduler, then one per degree of the loss system."""
    rows = [
        [row.policy, seconds(row.mean_completion_s),
         f"{seconds(row.low_s)} to {seconds(row.high_s)}", seconds(row.p95_completion_s),
         seconds(row.mean_wait_s), str(row.moves)]
        for row in found.policies.itertuples()
    ]  # fmt: skip
    headers = ["scheduler", "mean completion", "90 %", "95th percentile", "mean wait", "moves"]
    lines = [f"{(found.rows['note'] == '').sum()} jobs on {gpus} GPUs", table(headers, rows), ""]
    cells = [
        [row.gpus, percent(row.blocking), f"{percent(row.low_blocking)} to"
         f" {percent(row.high_blocking)}", percent(row.closed_form)]
        for row in found.degrees.itertuples()
    ]  # fmt: skip
    headers = ["GPUs of each, refused if not free at once", "refused", "90 %", "Erlang"]
    least = found.degrees[found.degrees["blocking"] == found.degrees["blocking"].min()]
    best = least["gpus"].iloc[-1]
    return "\n".join([*lines, table(headers, cells), f"fewest are refused with {best} GPUs each"])
