"""Pipeline schedules: the order of each worker's tasks, and the seconds of a step in closed form
where all stages are alike.
"""

from hybridperf.workloads.schedules.names import NAMES, closed_form_s, in_flight, schedule
from hybridperf.workloads.schedules.order import BACKWARD, FORWARD, WEIGHT, Schedule, Task

__all__ = [
    "BACKWARD", "FORWARD", "NAMES", "WEIGHT", "Schedule", "Task", "closed_form_s", "in_flight",
    "schedule",
]  # fmt: skip
