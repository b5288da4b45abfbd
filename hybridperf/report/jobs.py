"""Schedulers of a stream of jobs in words."""

from hybridperf.report.text import frame_table
from hybridperf.runs.job_policies import JobStudy


def jobs_report(found: JobStudy, gpus: int) -> str:
    """A line per scheduler, then one per degree of the loss system."""
    least = found.degrees[found.degrees["blocking"] == found.degrees["blocking"].min()]
    best = least["gpus"].iloc[-1]
    return "\n".join([
        f"{(found.rows['note'] == '').sum()} jobs on {gpus} GPUs", frame_table(found.policies), "",
        "where a job is refused if its GPUs are not free at once (closed form: Erlang's)",
        frame_table(found.degrees), f"fewest are refused with {best} GPUs each",
    ])  # fmt: skip
