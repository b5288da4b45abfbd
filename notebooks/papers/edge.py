"""Edge against cloud (Ali-Eldin et al., The Hidden Cost of the Edge, SC 2021): k sites near the users
with an instance each, or k instances behind one queue, farther away. Below some rate the edge is
quicker; above it the queues of its sites, which cannot help each other, are longer than the way:

    wait(1 instance, rate) - wait(k instances, k rate) = way to the cloud - way to the edge

Waits of M/M/k (Erlang, 1917): all servers are busy with the chance C = B / (1 - u (1 - B)), B being
Erlang's loss and u the utilisation; the mean wait is C service / (k (1 - u)), of general arrivals and
services times (ca^2 + cs^2) / 2 (Allen and Cunneen). With m = 1 / service, d = k m - rate

    P(latency > t) = exp(-m t) (1 + C m (1 - exp(-(d - m) t)) / (d - m))
"""

import math

import pandas as pd
from scipy.optimize import brentq

_LEAST_RATE = 1e-12


def busy_chance(rate: float, service_s: float, servers: int) -> float:
    """C: that a request finds all servers busy; 1 where they cannot keep up."""
    busy, lost = rate * service_s, 1.0
    for count in range(1, servers + 1):
        lost = busy * lost / (count + busy * lost)
    return lost / (1 - busy / servers * (1 - lost)) if busy < servers else 1.0


def latency_s(
    rate: float, servers: int, service_s: float, way_s: float = 0.0, share: float = 0.0,
    arrivals_cv2: float = 1.0, service_cv2: float = 1.0,
) -> float:  # fmt: skip
    """Seconds of a request: wait, service and way there and back.

    Args:
        rate: requests a second.
        servers: that share a queue.
        service_s: of a request.
        way_s: there and back.
        share: of the requests that end within the seconds (exponential services and arrivals); 0:
            the mean.
        arrivals_cv2, service_cv2: variance over mean squared, of the mean's wait.
    """
    free = servers / service_s - rate
    if free <= 0:
        return math.inf
    chance = busy_chance(rate, service_s, servers)
    if not share:
        return way_s + service_s + chance / free * (arrivals_cv2 + service_cv2) / 2
    m, d = 1 / service_s, free

    def later(t: float) -> float:  # share of the requests that take longer than t
        gone, apart = math.exp(-m * t), d - m
        both = t * gone if abs(apart) < 1e-9 * m else (gone - math.exp(-d * t)) / apart
        return gone + chance * m * both - (1 - share)

    most_s = 1 / min(m, d)
    while later(most_s) > 0:
        most_s *= 2
    return way_s + float(brentq(later, 0.0, most_s))


def inversion(
    sites: int, service_s: float, farther_s: float, cloud_service_s: float | None = None,
    **asked: float,
) -> float:  # fmt: skip
    """Requests a second of each site from which on the cloud is quicker than the edge: 0 where it
    always is, infinite where the edge is. `asked`: share or variances, as of `latency_s`.
    """
    cloud_service_s = service_s if cloud_service_s is None else cloud_service_s

    def gap(rate: float) -> float:
        there_s = latency_s(sites * rate, sites, cloud_service_s, farther_s, **asked)
        return latency_s(rate, 1, service_s, **asked) - there_s

    most = (1 - 1e-9) / max(service_s, cloud_service_s)
    if gap(_LEAST_RATE) >= 0:
        return 0.0
    return float(brentq(gap, _LEAST_RATE, most)) if gap(most) > 0 else math.inf


def by_rate(sites: int, service_s: float, farther_s: float, points: int = 19) -> pd.DataFrame:
    """Both mean latencies at evenly spaced rates below what an instance can serve."""
    rates = [at / (points + 1) / service_s for at in range(1, points + 1)]
    return pd.DataFrame({
        "utilisation": rate * service_s,
        "edge_s": latency_s(rate, 1, service_s),
        "cloud_s": latency_s(sites * rate, sites, service_s, farther_s),
    } for rate in rates)  # fmt: skip
