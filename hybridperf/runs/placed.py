"""What each policy gives one job, beside the best and the worst it could get; broadcasts there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hybridperf.collectives.subset import share, share_model
from hybridperf.engine.prediction import predict
from hybridperf.io import InputError
from hybridperf.runs.broadcast import WAYS, broadcast
from hybridperf.runs.placement import POLICIES, PlacedStep, Placer, candidates

WORST = "worst"


def placements(
    placer: Placer, gpus: int, step: PlacedStep, busy: Sequence[int] = ()
) -> pd.DataFrame:
    """The GPUs that each policy gives a job of so many, and the slowest set among the candidates.

    Args:
        placer: of the topology.
        gpus: how many.
        step: what the job repeats.
        busy: GPUs that others have.

    Returns:
        A row per policy: `policy, gpus, bandwidth_bytes_per_s, low_bytes_per_s, high_bytes_per_s,
        step_s, low_s, high_s, slow_down, low_slow_down, high_slow_down`; slow-downs are over the
        best GPUs of the empty topology, with the same error of what both have in common.
    """
    topology = placer.topology
    free = [gpu for gpu in range(topology.gpus) if gpu not in set(busy)]
    best = placer.choose(list(range(topology.gpus)), gpus, "aware", step)
    if best is None:
        raise InputError(f"expected at most {topology.gpus} GPUs, got {gpus}; ask for fewer")
    chosen = {policy: placer.choose(free, gpus, policy, step) for policy in POLICIES}
    if gpus > 1:
        sets = [*candidates(topology, free, gpus), tuple(free[:gpus])]
        slowest = min(sets, key=lambda one: placer.bandwidth(one, step.all_reduce_bytes))
        chosen[WORST] = slowest
    elif step.shape is None and not step.compute_s:
        raise InputError(
            "expected a shape or seconds of computation for one GPU, which reduces nothing, got"
            " neither; give one of them"
        )
    least = placer.step(step, share(topology, best))
    rows = []
    for policy, some in chosen.items():
        assert some is not None
        links = share(topology, some)
        seconds, bandwidth = placer.all_reduce(links, step.all_reduce_bytes)
        own = placer.step(step, links)
        low_s, high_s = own.low_s or np.nan, own.high_s or np.nan
        ends = [seconds.time_s / (end or np.nan) for end in (seconds.high_s, seconds.low_s)]
        # one error of the links for both: the low ends belong together, and the high ends
        apart = [low_s / (least.low_s or np.nan), high_s / (least.high_s or np.nan)]
        middle = own.time_s / least.time_s
        rows.append({
            "policy": policy, "gpus": " ".join(map(str, some)),
            "bandwidth_bytes_per_s": bandwidth, "low_bytes_per_s": bandwidth * ends[0],
            "high_bytes_per_s": bandwidth * ends[1], "step_s": own.time_s, "low_s": low_s,
            "high_s": high_s, "slow_down": middle, "low_slow_down": min(middle, *apart),
            "high_slow_down": max(middle, *apart),
        })  # fmt: skip
    return pd.DataFrame(rows)


def broadcasts(placer: Placer, found: pd.DataFrame, bytes: float) -> pd.DataFrame:
    """Seconds of each way to send weights from one to all GPUs of the `aware` row: `way, time_s,
    low_s, high_s`.
    """
    some = [int(one) for one in found.set_index("policy").loc["aware", "gpus"].split()]
    links = share(placer.topology, some)
    model = placer.device.with_collectives(share_model(placer.topology, links))
    rows = []
    for way in WAYS:
        one = predict(model, broadcast(bytes, links.ranks, links.nodes, way))
        rows.append({"way": way, "time_s": one.time_s, "low_s": one.low_s, "high_s": one.high_s})
    return pd.DataFrame(rows)
