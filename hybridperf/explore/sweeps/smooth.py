"""Maxima without corners, for searches that ask for them: a softmax whose temperature is in the log
of what is compared.

    max_T(a, b) = (a^(1/T) + b^(1/T))^T     2^T times too large where a = b, exact as T -> 0

With T = 0.1 two streams that end together count as 7 % later than either. A search anneals T and
ends on the exact maximum.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax.scipy.special import logsumexp

from hybridperf.engine.graph import Graph

_LEAST = 1e-300  # logs of nothing


def soft_maximum(a: Any, b: Any, temperature: Any) -> Any:
    """The softened greater of two positive numbers; of others the exact one."""
    positive = (jnp.asarray(a) > 0) & (jnp.asarray(b) > 0)
    logs = [jnp.log(jnp.where(positive, value, 1.0)) for value in (a, b)]
    soft = jnp.exp(temperature * jnp.logaddexp(logs[0] / temperature, logs[1] / temperature))
    return jnp.where(positive, soft, jnp.maximum(a, b))


def soft_minimum(a: Any, b: Any, temperature: Any) -> Any:
    """The softened lesser of two positive numbers; of others the exact one."""
    positive = (jnp.asarray(a) > 0) & (jnp.asarray(b) > 0)
    one, other = (1 / jnp.where(positive, value, 1.0) for value in (a, b))
    return jnp.where(positive, 1 / soft_maximum(one, other, temperature), jnp.minimum(a, b))


@dataclasses.dataclass(frozen=True)
class SoftModule:
    """What `Expression.traced` takes for `jax.numpy` to soften `min` and `max` of a formula too."""

    temperature: Any

    def maximum(self, a: Any, b: Any) -> Any:
        return soft_maximum(a, b, self.temperature)

    def minimum(self, a: Any, b: Any) -> Any:
        return soft_minimum(a, b, self.temperature)

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)


def soft_end(graph: Graph, durations: Any, temperature: Any) -> Any:
    """Softened seconds until the last node of a one-rank graph ends; no launches, `durations` [U].

    Unrolled, unlike `evaluate.makespan`: for steps that people write down.
    """
    last_of_stream: dict[int, Any] = {}
    ends: list[Any] = []
    for node in range(len(graph)):
        stream = int(graph.stream[node])
        waits = [ends[int(other)] for other in graph.waits_for(node)]
        waits += [last_of_stream[stream]] if stream in last_of_stream else []
        start = _soft_last(waits, temperature) if waits else 0.0
        end = durations[int(graph.row[node]) - 1] + start
        ends.append(end)
        last_of_stream[stream] = end
    return _soft_last(list(last_of_stream.values()), temperature)


def _soft_last(ends: list[Any], temperature: Any) -> Any:
    """All at once: pairwise the order would matter, and three equal ends count as 3^T."""
    if len(ends) == 1:
        return ends[0]
    logs = jnp.log(jnp.maximum(jnp.stack(ends), _LEAST))
    return jnp.exp(temperature * logsumexp(logs / temperature))
