"""Queues in closed form: Erlang's loss, of any number of places, and waits of sources that each
send one request in a period.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from hybridperf.io.namespace import Array, array_module, floats, repeated

_FAR, _TERMS = 8.0, 6  # standard deviations of a load above the places; terms that are enough there
# windows in which sources come at random, in their spread; how much of a wait is left where that is
# as long as a service, and its power: of closed queues of 2 to 100 sources, simulated at loads of
# 0.15 to 1.3 and spreads of 6 and 12 % of a period, service and wait are then within 5 %, four of
# five within 2 %
_WINDOW, _ORDERED, _POWER = 11.5, 0.19, 1.44
_STEPS, _FEW = 7, 1e-3  # to a root: within 1e-6 of it; in place of nothing
# of Gauss and Legendre: 1 / B - 1 is within 1e-5 of what gamma functions give, where sources are no
# more than the services that a period has room for
_NODES, _WEIGHTS = (0.5 * one for one in np.polynomial.legendre.leggauss(20))
_NODES = _NODES + 0.5
_FALLEN, _MOST_LOG = 36.0, 80.0  # logs; a wait that no engine has, in float32, too
_REACH, _POINTS = 4.5, 91  # of the trapezoidal rule
_BLOCK = 1024  # of NumPy's numbers, whose nodes stay in a core's cache
_SMALL = 1e-6  # below which (1 - exp(-x)) / x is taken as 1 - x / 2


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


def erlang_b_between(places: Array, load: Array) -> Array:
    """`erlang_b` of any number of places, whole or not, with slopes by both.

    A ratio of Poisson's law: B(k, a) = a^k e^-a / Gamma(k + 1, a). Where the load is far above the
    places both vanish; their ratio is Legendre's continued fraction of the incomplete gamma
    function (Abramowitz and Stegun, 6.5.31). In JAX, whose incomplete gamma function has no second
    slope, it is the integral (Jagerman, Bell System Technical Journal 1974)

        1 / B = integral over t from 0 of e^-t (1 + t / a)^k

    by the trapezoidal rule over log t, which converges exponentially.
    """
    module = array_module(places, load)
    if module is not np:
        return _erlang_b_traced(places, module.maximum(load, 1e-30))
    k, a = floats(places), np.maximum(floats(load), 1e-30)
    far = a > k + _FAR * (1.0 + np.sqrt(a))
    near_a = np.where(far, k + 1.0, a)
    log_b = k * np.log(near_a) - near_a - scipy.special.gammaln(k + 1.0)
    near = np.exp(log_b) / np.maximum(scipy.special.gammaincc(k + 1.0, near_a), 1e-300)
    above = np.where(far, a, k + _FAR) - k
    fraction = above + 2.0 * _TERMS
    for n in range(_TERMS, 0, -1):
        fraction = above + 2.0 * (n - 1) + n * (k + 1.0 - n) / fraction
    return np.where(far, fraction / a, near)


def _erlang_b_traced(k: Array, a: Array) -> Array:
    """Of one k and a, or arrays of them."""
    k, a = jnp.asarray(k)[..., None], jnp.asarray(a)[..., None]
    # where t e^-t (1 + t / a)^k is largest, and how wide it is there in log t
    short = k + 1.0 - a
    root = jnp.sqrt(short**2 + 4.0 * a)
    top = jnp.where(
        short > 0, (short + root) / 2.0, 2.0 * a / jnp.where(short > 0, 1.0, root - short)
    )
    wide = 1.0 / jnp.sqrt(top - k * a * top / (a + top) ** 2)
    middle, wide = jax.lax.stop_gradient((jnp.log(top), wide))
    z = np.linspace(-_REACH, _REACH, _POINTS)
    s = middle + wide * np.sinh(z)
    logs = s - jnp.exp(s) + k * jnp.log1p(jnp.exp(s) / a)
    weights = wide * np.cosh(z) * (z[1] - z[0])
    return jnp.exp(-jax.nn.logsumexp(logs, -1, b=weights))


def sources_wait(others: Array, period: Array, spread: Array) -> Array:
    """Services of one length that a source waits for others that each send one in a period.

    Sources that begin anywhere in it wait (1 / B(N, T) - 1) / 2, B Erlang's loss (Eckberg, IEEE
    Trans. Comm. 1979); who has waited comes behind the one before in the next period, too, but for
    its spread.

    Args:
        others: N, any shape, as all that follow.
        period: T, in services.
        spread: standard deviation of a source's period, in services.
    """
    module = array_module(others, period, spread)
    spread = module.maximum(spread, _FEW)
    share = 1.0 / (1.0 + period / (_WINDOW * spread))
    return _beyond_one(others * share, period * share) / 2.0 / (1.0 + _ORDERED * spread**-_POWER)


def _beyond_one(places: Array, load: Array) -> Array:
    """1 / B - 1 of Erlang's loss, any number k of places, load a: by its integral of Fortet

        1 / B = integral of exp(-t) (1 + t / a)^k over t from 0     (Jagerman, BSTJ 1974)

    to where a log-concave integrand has fallen by `_FALLEN` logs; t ~ x^3 levels what it does near
    zero where k and a are small. Elementary functions alone: their slopes are compiled at once,
    those of incomplete gamma functions are loops.
    """
    module = array_module(places, load)
    k, a = module.maximum(floats(places), 0.0), module.maximum(floats(load), 1e-12)
    if module is np and np.size(k + a) > _BLOCK:
        parts = np.broadcast_arrays(k, a)
        some = (np.split(one.ravel(), range(_BLOCK, one.size, _BLOCK)) for one in parts)
        return np.concatenate([_beyond_one(*both) for both in zip(*some, strict=True)]).reshape(
            parts[0].shape
        )
    # where the integral ends brings no slopes
    places, offered = (k, a) if module is np else jax.lax.stop_gradient((k, a))
    peak = module.maximum(places - offered, 0.0)
    most = places * module.log1p(peak / offered) - peak
    far = _FALLEN**2 + 2.0 * _FALLEN * module.maximum(places, offered)

    def nearer(end: Array) -> Array:
        """Newton's step, from above, as the fall is convex."""
        fallen = end - places * module.log1p(end / offered) + most - _FALLEN
        return end - fallen / (1.0 - places / (offered + end))

    end = repeated(nearer, peak + _FALLEN + module.sqrt(far), 3)
    k, a, end = (module.asarray(one)[..., None] for one in (k, a, end))
    nodes, weights = floats(_NODES), floats(_WEIGHTS)
    t = end * nodes**3
    grown = k * module.log1p(t / a)
    none = module.exp(-t)
    few = none * module.expm1(module.minimum(grown, 1.0))
    many = module.exp(module.minimum(grown - t, _MOST_LOG)) - none
    added = module.where(grown < 1.0, few, many)
    return (3.0 * end * weights * nodes**2 * added).sum(-1)


def wait_left(beyond: Array, wait: Array) -> Array:
    """Share of a wait at the edge of what an engine can take that is left where `beyond` services
    always wait: the mean of what is above it of a maximum of a Brownian bridge.
    """
    module = array_module(beyond, wait)
    ratio = 0.5 * np.pi**0.5 * beyond / module.maximum(wait, _FEW)
    erfc = scipy.special.erfc if module is np else jax.scipy.special.erfc
    return erfc(module.minimum(ratio, 6.0))


def falling_root(gap: Callable[[Array], Array], like: Array) -> Array:
    """Where a gap that falls by one at least, and ever less steeply, is zero, at 0 or above.

    Newton's steps from below, the last of which brings slopes.

    Args:
        gap: of values, of any shape that those of `like` are the last axes of.
        like: zero in the shape of what is found.
    """
    first = gap(like)
    like = like + 0.0 * first
    module, known = array_module(like), gap
    if module is not np:  # what is searched brings no slopes: the last step does
        like = jax.lax.stop_gradient(like)
        converted, held = jax.closure_convert(gap, module.stack([like, like]))
        held = jax.lax.stop_gradient(held)
        known = lambda both: converted(both, *held)  # noqa: E731

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        """Where the last step went, where that leads, and the slope there."""
        at = state[1]
        near = 1e-4 * (1.0 + at)
        here, there = known(module.stack([at, at + near]))
        slope = module.minimum((there - here) / near, -1.0)
        return at, module.maximum(at - here / slope, 0.0), slope

    at, found, slope = repeated(step, (like, like, like), _STEPS)
    return found if module is np else module.maximum(at - gap(at) / slope, 0.0)
