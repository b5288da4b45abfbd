"""What measured rows add to the closed form: an exact Gaussian process on the log of measured
over closed form.

    r(x) ~ GP( b f(x), k ), k(x, x') = s0 + s1 Matern32(|x - x'|_l) + s2 exp(-|x - x'|_m) + s3 <x/l,
    x'/l> / d + s4 f(x) f(x') + noise

x are standardised inputs and f the output of a network (zero where there is none); l and m hold one
length per input. s4 lets the rows decide how far to believe the network. Leaving one row out needs
no refit: with a = K^-1 (r - b f), its error is a_i / (K^-1)_ii and its standard deviation
(K^-1)_ii^-1/2 (Rasmussen and Williams, Gaussian Processes for Machine Learning, section 5.4.2).

Hyper-parameters are the maximum of likelihood times a pull towards a start, over the rows of one or
several devices at once. All in NumPy with the derivative by hand: a fit takes a second and has
nothing to compile. Only `GaussianProcess.predict` may be traced by JAX.

Axes: N rows asked for, n rows learned from, d inputs. Float64, or what is traced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy
from threadpoolctl import threadpool_limits

from hybridperf.io.namespace import array_module, floats, put, root

VARIANCES = ("constant", "smooth", "rough", "linear", "trunk", "noise")
_START_VARIANCE = (0.01, 0.02, 0.005, 0.003, 0.05, 0.001)
_START_BELIEF = 0.7
_SPREAD_ROWS = 256  # rows that say how sure a prediction is; all of them would cost their square
_CHUNK = 512  # rows predicted at once
MATERN = 3.0**0.5  # what `matern32` multiplies distances by


@dataclasses.dataclass(frozen=True)
class HyperParameters:
    log_variance: np.ndarray  # [6] in the order of VARIANCES
    log_length: np.ndarray  # [d]
    log_rough_length: np.ndarray  # [d]
    belief: np.ndarray  # [] b

    def flat(self) -> np.ndarray:
        lengths = (self.log_length, self.log_rough_length)
        return np.concatenate([self.log_variance, *lengths, np.reshape(self.belief, 1)])

    @staticmethod
    def of(flat: np.ndarray) -> HyperParameters:
        first, inputs = len(VARIANCES), (len(flat) - len(VARIANCES) - 1) // 2
        variance, smooth, rough = np.split(flat[:-1], [first, first + inputs])
        return HyperParameters(variance, smooth, rough, flat[-1])


def start_hyper(inputs: int) -> HyperParameters:
    """Where the search for hyper-parameters begins: all inputs alike."""
    whole = np.full(inputs, 0.5 * np.log(inputs))
    variance, belief = np.log(_START_VARIANCE), np.array(_START_BELIEF)
    return HyperParameters(variance, whole, whole + np.log(0.5), belief)


@dataclasses.dataclass(frozen=True)
class Examples:
    """Rows to learn from: x [n, d], f [n], r [n]."""

    x: np.ndarray
    f: np.ndarray
    r: np.ndarray

    def __len__(self) -> int:
        return len(self.r)

    def rows(self, keep: np.ndarray) -> Examples:
        return Examples(self.x[keep], self.f[keep], self.r[keep])


@dataclasses.dataclass(frozen=True)
class _Scaled:
    """Inputs over their lengths."""

    smooth: Any  # [n, d]
    rough: Any  # [n, d]
    f: Any  # [n]

    @staticmethod
    def of(hyper: HyperParameters, x: Any, f: Any, dtype: Any = np.float64) -> _Scaled:
        return _Scaled(
            (x * np.exp(-hyper.log_length)).astype(dtype),
            (x * np.exp(-hyper.log_rough_length)).astype(dtype),
            f.astype(dtype),
        )

    def rows(self, keep: slice) -> _Scaled:
        return _Scaled(self.smooth[keep], self.rough[keep], self.f[keep])


def _parts(a: _Scaled, b: _Scaled) -> tuple[Any, ...]:
    """(sqrt 3 times the smooth distance, the rough distance, inner product): [N, n] each."""
    inner = a.smooth @ b.smooth.T
    rough = _distance(a.rough, b.rough, a.rough @ b.rough.T)
    return MATERN * _distance(a.smooth, b.smooth, inner), rough, inner


def _distance(a: Any, b: Any, inner: Any) -> Any:
    own = array_module(a).einsum("ij,ij->i", a, a)[:, None]
    squared = own + np.einsum("ij,ij->i", b, b) - 2 * inner
    return root(squared, out=squared)


def matern32(away: Any, scale: Any = 1.0) -> Any:
    """`scale` times Matern 3/2 of sqrt(3) times the distance over the length."""
    return scale * (1 + away) * array_module(away).exp(-away)


def _kernel(hyper: HyperParameters, a: _Scaled, b: _Scaled) -> Any:
    """k without noise [N, n]; `a` may be traced."""
    module = array_module(a.smooth)
    constant, smooth, rough, linear, trunk, _ = (
        a.f.dtype.type(s) for s in np.exp(hyper.log_variance)
    )
    away, rough_away, inner = _parts(a, b)
    inner *= linear / a.smooth.shape[1]
    inner += constant + module.outer(trunk * a.f, b.f)
    inner += matern32(away, smooth)
    inner += rough * module.exp(-rough_away)
    return inner


def variance(hyper: HyperParameters, x: Any, f: Any) -> Any:
    """k(x, x) with noise [N]: how wrong b f(x) may be where no row is near."""
    constant, smooth, rough, linear, trunk, noise = np.exp(hyper.log_variance)
    inner = (x * x) @ np.exp(-2 * hyper.log_length).astype(x.dtype)
    return floats(constant + smooth + rough + linear / x.shape[1] * inner + trunk * f**2 + noise)


@dataclasses.dataclass(frozen=True)
class GaussianProcess:
    """A process that has seen its rows."""

    hyper: HyperParameters
    x: np.ndarray  # [n, d]
    f: np.ndarray  # [n]
    weights: np.ndarray  # [n] K^-1 (r - b f)
    sure: np.ndarray  # int [m] the rows that say how sure a prediction is
    factor: np.ndarray  # [m, m] inverse of the Cholesky factor of their K

    def unsure(self) -> GaussianProcess:
        """The same, small: it no longer tells how sure it is near its rows."""
        return dataclasses.replace(self, sure=np.zeros(0, int), factor=np.zeros((0, 0)))

    def tree(self) -> dict[str, Any]:
        """Everything by name, for a file."""
        return {**vars(self), "hyper": vars(self.hyper)}

    @staticmethod
    def read(tree: Mapping[str, Any], inputs: int) -> GaussianProcess:
        """From what `tree` gave; `ValueError` where it cannot be a process."""
        found = GaussianProcess(**{**tree, "hyper": HyperParameters(**tree["hyper"])})
        rows, leaves = len(found.x), (found.x, found.f, found.weights, found.sure, found.factor)
        if found.x.shape != (rows, inputs) or not found.f.shape == found.weights.shape == (rows,):
            raise ValueError("the rows of a process do not have the shape of its inputs")
        if not all(np.isfinite(leaf).all() for leaf in (*leaves, *tree["hyper"].values())):
            raise ValueError("a process holds a number that is not finite")
        return found

    def predict(self, x: Any, f: Any) -> tuple[Any, Any]:
        """(what to add to b f(x), standard deviation of a measurement): [N] each."""
        module = array_module(x, f)
        dtype = x.dtype
        seen = _Scaled.of(self.hyper, self.x, self.f, dtype)
        asked = _Scaled.of(self.hyper, x, f, dtype)
        weights, factor = self.weights.astype(dtype), self.factor.T.astype(dtype)
        added, explained = module.zeros(len(x)), module.zeros(len(x))
        for start in range(0, len(x), _CHUNK):
            here = slice(start, start + _CHUNK)
            alike = _kernel(self.hyper, asked.rows(here), seen)
            added = put(added, here, alike @ weights)
            explained = put(explained, here, ((alike[:, self.sure] @ factor) ** 2).sum(1))
        unexplained = variance(self.hyper, x, f) - explained
        return added, module.sqrt(module.maximum(unexplained, np.exp(self.hyper.log_variance[-1])))


def learn(hyper: HyperParameters, rows: Examples) -> tuple[GaussianProcess, np.ndarray, np.ndarray]:
    """(the process after `rows`, predicted minus r of each [n] when the others are all it has, the
    standard deviation of that [n]).
    """
    one, noise = np.eye(len(rows)), np.exp(hyper.log_variance[-1])
    scaled, again = (_Scaled.of(hyper, rows.x, rows.f) for _ in range(2))
    covariance = _kernel(hyper, scaled, again) + noise * one
    factor = scipy.linalg.cho_factor(covariance, lower=True, check_finite=False)
    inverse = scipy.linalg.cho_solve(factor, one, check_finite=False)
    weights = inverse @ (rows.r - hyper.belief * rows.f)
    sure = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _SPREAD_ROWS)).astype(int))
    among = covariance[np.ix_(sure, sure)]
    inverted = scipy.linalg.solve_triangular(
        np.linalg.cholesky(among), np.eye(len(sure)), lower=True
    )
    process = GaussianProcess(hyper, rows.x, rows.f, weights, sure, inverted)
    deviation = process.predict(rows.x, rows.f)[1]
    deviation[sure] = np.diag(np.linalg.inv(among)) ** -0.5  # these rows saw themselves
    return process, -weights / np.diag(inverse), deviation


# --- hyper-parameters -----------------------------------------------------------------------------


def fit_hyper(start: HyperParameters, devices: Sequence[Examples], steps: int) -> HyperParameters:
    """The likeliest hyper-parameters for all devices alike, pulled towards `start`."""
    origin = start.flat()
    # a normal prior of deviation 1 (a factor of e) around the start, next to n likelihoods
    pull = 0.5 / sum(len(rows) for rows in devices)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        moved = flat - origin
        value, gradient = pull * (moved**2).sum(), 2 * pull * moved
        for rows in devices:
            of_rows, slope = unlikeliness(HyperParameters.of(flat), rows)
            value, gradient = value + of_rows / len(devices), gradient + slope.flat() / len(devices)
        return value, gradient

    # a length of exp(4) times the start is as good as none
    near = [(at - 4.0, at + 4.0) for at in origin]
    # several threads wait for each other on a busy machine: 200 rows took 101 s of processor time
    # with them, 8 without
    with threadpool_limits(1, user_api="blas"):
        found = scipy.optimize.minimize(
            objective, origin, jac=True, method="L-BFGS-B", bounds=near, options={"maxiter": steps}
        )
    return HyperParameters.of(found.x)


def unlikeliness(hyper: HyperParameters, rows: Examples) -> tuple[float, HyperParameters]:
    """(-log likelihood per row but a constant, its derivative over each hyper-parameter).

    With G = (K^-1 - a a^T) / 2 the derivative over any parameter t of k is sum(G dK/dt); for
    lengths the squared differences of inputs are multiplied out, sum_ij W_ij (u_i - u_j)^2 = 2
    (sum_i u_i^2 sum_j W_ij - u W u), so that no [n, n, d] array is made.
    """
    constant, smooth, rough, linear, trunk, noise = np.exp(hyper.log_variance)
    n = len(rows)
    scaled = _Scaled.of(hyper, rows.x, rows.f)
    away, rough_away, inner = _parts(scaled, scaled)
    decay, rough_decay = np.exp(-away), np.exp(-rough_away)
    matern = (1 + away) * decay
    per_input = linear / rows.x.shape[1]
    covariance = constant + smooth * matern + rough * rough_decay + per_input * inner
    covariance += trunk * np.outer(rows.f, rows.f)
    covariance += noise * np.eye(n)
    factor = scipy.linalg.cho_factor(covariance, lower=True, check_finite=False)
    inverse = scipy.linalg.cho_solve(factor, np.eye(n), check_finite=False)
    error = rows.r - hyper.belief * rows.f
    weights = inverse @ error
    g = 0.5 * (inverse - np.outer(weights, weights))
    value = 0.5 * error @ weights + np.log(np.diag(factor[0])).sum()

    def spread(w: np.ndarray, u: np.ndarray) -> np.ndarray:
        """sum_ij w_ij (u_i - u_j)^2 per input [d]."""
        return 2 * (w.sum(1) @ u**2 - ((w @ u) * u).sum(0))

    by_variance = np.array([
        constant * g.sum(), smooth * (g * matern).sum(), rough * (g * rough_decay).sum(),
        per_input * (g * inner).sum(), trunk * rows.f @ g @ rows.f, noise * np.trace(g),
    ])  # fmt: skip
    by_linear = 2 * per_input * ((g @ scaled.smooth) * scaled.smooth).sum(0)
    by_length = 3 * smooth * spread(g * decay, scaled.smooth) - by_linear
    by_rough_length = rough * spread(g * rough_decay / np.maximum(rough_away, 1e-9), scaled.rough)
    slope = HyperParameters(
        by_variance / n, by_length / n, by_rough_length / n, np.array(-(rows.f @ weights) / n)
    )
    return value / n, slope
