"""Edge against cloud: many small queues near the users, or one that they share, farther away.

k sites with an instance each, or k instances behind one queue (Ali-Eldin et al., The Hidden Cost of
the Edge, SC 2021). Below some rate the edge is quicker; above it the queues of its sites, which
cannot help each other, are longer than the way to the cloud:

    wait(1 instance, rate) - wait(k instances, k rate) = way to the cloud - way to the edge

`inversion` solves that for the mean (G/G/k) or for a percentile of latencies (M/M/k, exact).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from hybridperf.engine.queues import latency_percentile_s, mean_wait_s
from hybridperf.io import InputError

_LEAST_RATE = 1e-12


def latency_s(
    rate: float, sites: int, service_s: float, way_s: float = 0.0, share: float = 0.0,
    **variances: float,
) -> float:  # fmt: skip
    """Seconds of a request at an instance for each of the `sites`; 1: at the edge.

    Args:
        rate: requests a second that come from each site.
        sites: that share a queue, an instance for each.
        service_s: of a request.
        way_s: there and back.
        share: of the requests that end within the seconds; 0: the mean.
        variances: `arrivals_cv2` and `service_cv2` of `queues.mean_wait_s`, of a mean.
    """
    if share:
        if variances and set(variances.values()) != {1.0}:
            raise InputError(
                "expected the mean where services or arrivals are not exponential, got a"
                " percentile, which has no closed form; leave out the share or the variances"
            )
        return way_s + latency_percentile_s(sites * rate, service_s, sites, share)
    return way_s + service_s + float(mean_wait_s(sites * rate, service_s, sites, **variances))


def inversion(
    sites: int, service_s: float, farther_s: float, cloud_service_s: float | None = None,
    share: float = 0.0, **variances: float,
) -> float:  # fmt: skip
    """Requests a second of each site from which on the cloud is quicker than the edge.

    Args:
        sites: with an instance each; the cloud has as many.
        service_s: of a request at the edge.
        farther_s: there and back to the cloud, beyond the way to the edge.
        cloud_service_s: of a request in the cloud; as at the edge if not given.
        share: of the requests that end within the seconds compared; 0: the mean.
        variances: `arrivals_cv2` and `service_cv2` of `queues.mean_wait_s`, of a mean.

    Returns:
        0 where the cloud is always quicker, infinite where the edge is.
    """
    cloud_service_s = service_s if cloud_service_s is None else cloud_service_s

    def gap(rate: float) -> float:
        there = latency_s(rate, sites, cloud_service_s, farther_s, share, **variances)
        return latency_s(rate, 1, service_s, share=share, **variances) - there

    most = (1 - 1e-9) / max(service_s, cloud_service_s)
    if gap(_LEAST_RATE) >= 0:
        return 0.0
    return float(brentq(gap, _LEAST_RATE, most)) if gap(most) > 0 else float("inf")


def by_rate(
    sites: int, service_s: float, farther_s: float, cloud_service_s: float | None = None,
    share: float = 0.0, points: int = 19, **variances: float,
) -> pd.DataFrame:  # fmt: skip
    """Both latencies at evenly spaced rates below what an instance can serve, a row each.

    The arguments are those of `inversion`; the columns rate_per_s (of a site), utilisation (of the
    edge), edge_s, cloud_s, quicker.
    """
    cloud_service_s = service_s if cloud_service_s is None else cloud_service_s
    rates = np.arange(1, points + 1) / (points + 1) / max(service_s, cloud_service_s)
    rows = []
    for rate in rates.tolist():
        near_s = latency_s(rate, 1, service_s, share=share, **variances)
        far_s = latency_s(rate, sites, cloud_service_s, farther_s, share, **variances)
        quicker = "edge" if near_s < far_s else "cloud"
        rows.append((rate, rate * service_s, near_s, far_s, quicker))
    columns = ["rate_per_s", "utilisation", "edge_s", "cloud_s", "quicker"]
    return pd.DataFrame(rows, columns=columns)
