"""Pipeline schedules: who does what in which order, as a graph, and in closed form where stages are
alike.
"""

from hybridperf.workloads.schedules.closed import (
    bubble_over_ideal,
    bubble_over_total,
    closed_form_s,
    in_flight,
)
from hybridperf.workloads.schedules.graph import (
    StageRows,
    add_schedule,
    graph_seconds,
    schedule_graph,
    stage_seconds,
)
from hybridperf.workloads.schedules.names import NAMES, check_sizes, schedule
from hybridperf.workloads.schedules.order import BACKWARD, FORWARD, WEIGHT, Schedule, Task

__all__ = [
    "BACKWARD", "FORWARD", "NAMES", "WEIGHT", "Schedule", "StageRows", "Task", "add_schedule",
    "bubble_over_ideal", "bubble_over_total", "check_sizes", "closed_form_s", "graph_seconds",
    "in_flight", "schedule", "schedule_graph", "stage_seconds",
]  # fmt: skip
