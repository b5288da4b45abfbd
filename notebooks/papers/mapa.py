"""MAPA's effective bandwidth of a set of GPUs (Ranganath et al., SC 2021), as published: a
regression of 14 terms on how many double NVLinks x1, single NVLinks x2 and ways through the host x3
its ring has (socal-ucr/MAPA scripts/get_predBW.py @15e58ab, BSD-3-Clause).

    BW = a1 x1 + a2 x2 + a3 x3 + a4 / (x1 + 1) + ... + a14 / (x1 x2 x3 + 1)     GB/s

Its own measurements are not published. Outside them it is wild: 4 double links, 2 single ones and 2
ways through the host give -43 GB/s. `hybridperf place` chooses by the collective model instead.
"""

import numpy as np

# of x1, x2, x3; 1 / (x + 1) of each; then of the products of two, and of all three
_LINEAR = np.array([16.39670455, 4.536821878, 1.55623404])
_INVERSE = np.array([-20.69484581, -9.467461958, 7.615106783])
_PAIRS = np.array([-7.973335727, 12.73323772, -4.195655221])  # x1 x2, x2 x3, x1 x3
_INVERSE_PAIRS = np.array([-8.413419363, 62.85125807, 27.41832588])
_ALL, _INVERSE_ALL = -5.114108079, -46.97390071
_GB = 1e9
# double, single NVLinks, ways through the host, GB/s: what the published program gives
VECTORS = (
    (1, 0, 0, 39.08), (0, 1, 0, 21.61), (0, 0, 1, 10.08), (2, 1, 0, 57.86), (1, 1, 1, 24.11),
    (3, 0, 0, 77.05), (0, 2, 1, 9.03), (2, 2, 1, 20.91),
)  # fmt: skip


def effective_bytes_per_s(double: int, single: int, through_host: int) -> float:
    """Bytes/s of a set of GPUs by the links of its ring, as MAPA's regression has it.

    Args:
        double: pairs of neighbours joined by two NVLinks.
        single: by one.
        through_host: by none.
    """
    x = np.array([double, single, through_host], float)
    pairs, product = np.array([x[0] * x[1], x[1] * x[2], x[0] * x[2]]), float(x.prod())
    found = (
        _LINEAR @ x + _INVERSE @ (1 / (x + 1)) + _PAIRS @ pairs + _INVERSE_PAIRS @ (1 / (pairs + 1))
        + _ALL * product + _INVERSE_ALL / (product + 1)
    )  # fmt: skip
    return float(found) * _GB
