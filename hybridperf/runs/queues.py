"""Queues in closed form: k servers alike, arrivals that need no simulation.

M/M/k (Erlang, 1917): arrivals and services without memory. The chance that all servers are busy is

    C = B / (1 - u (1 - B))     u = rate x service / k     B: Erlang's loss, by its recursion in k

and the mean wait C x service / (k (1 - u)). G/G/k (Allen and Cunneen; Kingman's for k = 1): that
wait x (ca^2 + cs^2) / 2, exact for M/M/k and M/G/1 (Pollaczek and Khinchine), an approximation
elsewhere.
"""

from __future__ import annotations

import numpy as np

from hybridperf.io.namespace import Array, array_module, floats

_POISSON_CV2 = 1.0


def erlang_b(servers: int, busy: Array) -> Array:
    """Chance that an arrival finds all `servers` busy, where who cannot be served goes away.

    Args:
        servers: k, the same for all.
        busy: servers that would work in the mean if there were enough; any shape.
    """
    busy = floats(busy)
    lost: Array = array_module(busy).ones_like(busy)
    for count in range(1, servers + 1):
        lost = busy * lost / (count + busy * lost)
    return lost


def erlang_c(servers: int, busy: Array) -> Array:
    """Chance that an arrival waits, all `servers` being busy; 1 where they cannot keep up.

    Args:
        servers: k, the same for all.
        busy: servers that would work in the mean, rate x service; any shape.
    """
    busy = floats(busy)
    module = array_module(busy)
    stable = busy < servers
    load = module.where(stable, busy, 0.0)
    lost = erlang_b(servers, load)
    waits = lost / (1.0 - load / servers * (1.0 - lost))
    return module.where(stable, waits, 1.0)


def mean_wait_s(
    rate: Array, service_s: Array, servers: int = 1, arrivals_cv2: Array = _POISSON_CV2,
    service_cv2: Array = _POISSON_CV2,
) -> Array:  # fmt: skip
    """Mean seconds that requests wait for one of k servers; infinite where they cannot keep up.

    Args:
        rate: arrivals a second.
        service_s: seconds of service in the mean.
        servers: k.
        arrivals_cv2: variance of the gaps over their mean squared; 1: Poisson.
        service_cv2: the same of services; 1: exponential, 0: all alike.
    """
    rate, service_s = floats(rate), floats(service_s)
    busy = rate * service_s
    module = array_module(busy, arrivals_cv2, service_cv2)
    stable = busy < servers
    free = module.where(stable, servers - busy, 1.0)
    wait = erlang_c(servers, busy) * service_s / free * (arrivals_cv2 + service_cv2) / 2
    return module.where(stable, wait, np.inf)


def wait_percentile_s(rate: Array, service_s: Array, servers: int, share: float) -> Array:
    """Seconds within which a `share` of the requests of an M/M/k begin; exact."""
    rate, service_s = floats(rate), floats(service_s)
    busy = rate * service_s
    module = array_module(busy)
    stable = busy < servers
    free = module.where(stable, servers - busy, 1.0)
    late = erlang_c(servers, busy) / (1.0 - share)
    return module.where(stable, module.log(module.maximum(late, 1.0)) * service_s / free, np.inf)
