"""Pipeline schedules: each worker's tasks in order, and the closed form of uniform stages."""

from hybridperf.workloads.schedules.names import NAMES, closed_form_s, schedule
from hybridperf.workloads.schedules.order import BACKWARD, FORWARD, WEIGHT, Schedule, Task

__all__ = [
    "BACKWARD", "FORWARD", "NAMES", "WEIGHT", "Schedule", "Task", "closed_form_s", "schedule",
]  # fmt: skip
