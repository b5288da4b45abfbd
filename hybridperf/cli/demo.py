"""`hybridperf demo`: the main job, end to end."""

from __future__ import annotations

from pathlib import Path

from hybridperf.cli.common import Cores, Out


def demo(out: Out = Path("demo-out"), cores: Cores = None) -> None:
    """Measure this machine, predict six real training steps, run them, show both numbers. At most
    five minutes.
    """
    from hybridperf.validate import demo as main_job

    main_job.run(out, cores)
