"""Steps of a server of a language model: its deployment, their calls, their seconds by size."""

from hybridperf.workloads.serving.deployment import Deployment
from hybridperf.workloads.serving.times import (
    prompt_launches,
    step_times,
    step_times_by,
    steps_as_rows,
)

__all__ = ["Deployment", "prompt_launches", "step_times", "step_times_by", "steps_as_rows"]
