"""What the closed form misses, learned: small networks, one ensemble per group of ops, bounded,
silent where nothing was measured.

    log correction(x) = exp(-(outside(x) / 2)^2)
                        * (share * mean over members of c tanh(f_e(x) / c) + process share * p(x))

p is a Gaussian process over the rows themselves (`gaussian_process.py`), held to the same bound: it
remembers single shapes, where the networks know the trend. x holds the logs of an op's work counts
and its `shape()`; both see it standardised and clipped to the box of the rows they learned from.
`outside(x)` is the distance from that box in octaves (factors of two); flags and sizes count, how
vectors are filled does not. A bounded correction that fades keeps the limits of the closed form;
the shares are how much of either word held-out rows advise to take, 0 for a group where the closed
form does better without.

Small data (8 to some hundred rows a group) decides the rest: two layers of 16, a group lasso on the
inputs so that useless ones go silent, noise on the inputs, pseudo-Huber loss. One compiled function
trains all groups, folds and members of about a size at once.

Axes: N rows, F = INPUTS inputs (unused ones are zero), E members, J training jobs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.io.arrays import flat, nested
from hybridperf.io.later import optax
from hybridperf.io.namespace import reals, root
from hybridperf.learning import gaussian_process
from hybridperf.learning.ensemble import outputs
from hybridperf.learning.gaussian_process import Examples, GaussianProcess, under
from hybridperf.ops import Op
from hybridperf.ops.inputs import log2_above_zero, shape_inputs
from hybridperf.ops.roofline import Work

if TYPE_CHECKING:
    from hybridperf.learning.network import BoundedNet

INPUTS = 32
BOUND = 2.0  # |log correction| of one member stays below: a factor of 7
FADE_OCTAVES = 2.0
RANGE_SLACK_OCTAVES = 0.585  # a factor of 1.5 beyond what was measured still counts as inside
LEAST_ROWS = 16  # fewer rows of a group teach nothing but themselves

_WIDTH = 16
_FIRST_SPREAD = (0.25, 0.5)
_STEPS = 250
_LEARNING_RATE = 2e-2
_LOSS_SCALE = 0.1
_INPUT_NOISE = 0.15  # standard deviations
_LASSO = 0.03
_CLIP = 3.0  # standard deviations
# rows of a training job are padded to one of these; of more rows each step draws so many
_BATCHES = (64, 256, 1024)
_JOBS_AT_ONCE = 16  # of one group with its folds: more wait their turn, fewer are padded
_SHAPES = {"first": (INPUTS, _WIDTH), "second": (_WIDTH, _WIDTH), "out": (_WIDTH, 1)}
_PROCESS = "process/"
_PROCESS_ROWS = 1000  # of a group: the process costs their cube
_HYPER_ROWS, _HYPER_STEPS = 300, 60
_WORTH_IT = 0.05

# no op that is measured has instructions apart
_WORK_INPUTS = tuple(
    field.name for field in dataclasses.fields(Work) if field.name != "instructions"
)
# how vectors are filled, and where data lies: inputs, but no size to go beyond
_NOT_A_DISTANCE = ("tail", "reuse_")


@functools.cache
def network(
    width: int = _WIDTH, bound: float = BOUND,
    first_spread: tuple[float, float] | None = _FIRST_SPREAD,
) -> BoundedNet:  # fmt: skip
    """The network of a correction."""
    # Flax takes a fifth of a second to import; closed forms alone do without
    from hybridperf.learning.network import BoundedNet

    return BoundedNet(width, bound, first_spread)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Raw inputs of some ops of one group: names [f], values [N, f], float64 or traced by JAX."""

    names: tuple[str, ...]
    values: Any

    def rows(self, keep: np.ndarray) -> Inputs:
        """Some of the ops: a mask or positions."""
        return Inputs(self.names, self.values[keep])

    def select(self, names: Sequence[str]) -> Any:
        """Values [N, len(names)] in another order; inputs these ops do not have are zero."""
        module, values = self.values.__array_namespace__(), self.values
        at = {name: i for i, name in enumerate(self.names)}
        nothing = len(self.names)
        places = np.array([at.get(name, nothing) for name in names], int)
        if (places == nothing).any():
            values = module.concatenate([values, np.zeros((len(values), 1))], 1)
        # all of them at once: JAX compiles one gather
        return module.take(values, places, axis=1, mode="clip")


@dataclasses.dataclass(frozen=True)
class Box:
    """The inputs that a group's rows covered."""

    names: tuple[str, ...]
    low: np.ndarray  # [f]
    high: np.ndarray  # [f]

    @staticmethod
    def between(lowest: Mapping[str, float], highest: Mapping[str, float]) -> Box:
        """From the ends of each input by name."""
        low, high = list(lowest.values()), [highest[name] for name in lowest]
        return Box(tuple(lowest), np.array(low), np.array(high))

    @staticmethod
    def of(inputs: Inputs, names: Sequence[str] | None = None) -> Box:
        """The least box around some ops, of all their inputs or of some."""
        names = inputs.names if names is None else names
        values = inputs.select(names)
        return Box(tuple(names), values.min(0), values.max(0))

    def joined(self, other: Box) -> Box:
        """The least box around two of the same inputs."""
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return Box(self.names, low, high)

    def outside(self, inputs: Inputs) -> Any:
        """Distance [N] of ops from the box in octaves, beyond the slack."""
        counted = [i for i, name in enumerate(self.names) if not name.startswith(_NOT_A_DISTANCE)]
        x = inputs.select(self.names)[:, counted]
        maximum = x.__array_namespace__().maximum
        beyond = maximum(self.low[counted] - x, x - self.high[counted])
        return root((maximum(beyond - RANGE_SLACK_OCTAVES, 0.0) ** 2).sum(1))

    def fade(self, inputs: Inputs) -> Any:
        """How much of what was learned in the box counts for ops [N]."""
        return faded(self.outside(inputs))


@dataclasses.dataclass(frozen=True)
class Residual:
    """The learned correction of one group of ops."""

    box: Box  # of all inputs
    names: tuple[str, ...]  # inputs that varied: what the networks look at
    centre: np.ndarray  # [len(names)]
    scale: np.ndarray
    share: float
    params: Mapping[str, Any]  # of BoundedNet, each leaf [E, ...]
    process: GaussianProcess | None = None  # over the rows, of the same inputs
    process_share: float = 0.0

    @property
    def learned(self) -> float:
        """How much of what was learned is believed, 0 to 1."""
        return self.share + self.process_share

    def arrays(self) -> dict[str, np.ndarray]:
        """Weights, and the rows of the process, by name, for a file."""
        out = {name: np.asarray(leaf, np.float32) for name, leaf in flat(self.params).items()}
        if self.process is not None:
            out |= {f"{_PROCESS}{name}": leaf for name, leaf in self.process.arrays().items()}
        return out

    @staticmethod
    def read(
        box: Box, names: Sequence[str], centre: np.ndarray, scale: np.ndarray, share: float,
        arrays: Mapping[str, np.ndarray], process_share: float = 0.0,
    ) -> Residual:  # fmt: skip
        """From what a file holds; `ValueError` where it cannot be a correction."""
        seen = under(arrays, _PROCESS)
        process = GaussianProcess.read(seen, len(names)) if seen else None
        weights = {name: leaf for name, leaf in arrays.items() if not name.startswith(_PROCESS)}
        wanted = {
            f"{name}/{part}": shape[axis:]
            for name, shape in _SHAPES.items()
            for part, axis in (("kernel", 0), ("bias", 1))
        }
        stacked = {name: leaf for name, leaf in weights.items() if np.ndim(leaf)}
        shapes = {name: leaf.shape[1:] for name, leaf in stacked.items()}
        members = {len(leaf) for leaf in stacked.values()}
        if shapes != wanted or len(members) != 1:
            raise ValueError("the weights of a correction do not have the shape of its networks")
        if not (set(names) <= set(box.names) and len(names) == len(centre) == len(scale) <= INPUTS):
            raise ValueError("the inputs of a correction do not match its range")
        numbers = (centre, scale, box.low, box.high, *weights.values())
        finite = all(np.isfinite(values).all() for values in numbers) and (scale > 0).all()
        if not finite or min(share, process_share) < 0 or share + process_share > 1:
            wrong = "a number that is not finite, or a share outside 0 to 1"
            raise ValueError(f"a correction holds {wrong}")
        if process_share > 0 and process is None:
            raise ValueError("the rows of a correction's process are missing")
        params = nested(weights)
        return Residual(box, tuple(names), centre, scale, share, params, process, process_share)


def inputs_of(op: Op, work: Work, rows: int, keep: np.ndarray | slice = slice(None)) -> Inputs:
    """Inputs of `rows` ops given as one op with columns, and of their work; of those of a mask."""
    counts = {name: log2_above_zero(getattr(work, name)) for name in _WORK_INPUTS}
    named = {**counts, **shape_inputs(op)}
    module, *columns = reals(*named.values())
    columns = [module.broadcast_to(column, (rows,)) for column in columns]
    return Inputs(tuple(named), module.stack(columns, 1)[keep])


def concatenate(parts: Iterable[Inputs]) -> Inputs:
    """Ops of several kinds below each other; what a kind has no such input of is zero."""
    parts = list(parts)
    names = tuple(dict.fromkeys(name for part in parts for name in part.names))
    return Inputs(names, np.concatenate([part.select(names) for part in parts]))


def log_correction(residual: Residual, inputs: Inputs) -> Any:
    """What to add to the log of the closed form's seconds [N]; differentiable in the inputs."""
    out = np.zeros(len(inputs.values))
    if residual.share > 0.0:
        out = out + residual.share * network_correction(residual, inputs)
    if residual.process_share > 0.0:
        out = out + residual.process_share * process_correction(residual, inputs)
    return out


def network_correction(residual: Residual, inputs: Inputs) -> Any:
    """The networks' full correction [N], fading outside the range."""
    x = _standardised(residual, inputs)
    if isinstance(x, np.ndarray):
        said = outputs(residual.params, x, BOUND).mean(0)
    else:  # in the precision of what differentiates it
        said = _ensemble(residual.params, jnp.pad(x, ((0, 0), (0, INPUTS - x.shape[1]))))
    return residual.box.fade(inputs) * said


def process_correction(residual: Residual, inputs: Inputs) -> Any:
    """The full correction of the process [N], bounded and faded as the networks'."""
    if residual.process is None:
        return np.zeros(len(inputs.values))
    x = _standardised(residual, inputs)
    added, _ = residual.process.predict(x, np.zeros(len(x)))
    return residual.box.fade(inputs) * added.clip(-BOUND, BOUND)


def faded(outside: Any, over: float = FADE_OCTAVES) -> Any:
    """How much of what was learned counts so many octaves `outside` of what was measured."""
    return outside.__array_namespace__().exp(-((outside / over) ** 2))


def _output(params: Any, x: jax.Array) -> jax.Array:
    return jnp.asarray(network().apply({"params": params}, x))


@jax.jit
def _ensemble(params: Any, x: jax.Array) -> jax.Array:
    return jnp.mean(jax.vmap(lambda p: _output(p, x))(params), axis=0)


def _standardised(residual: Residual, inputs: Inputs) -> Any:
    seen = [residual.box.names.index(name) for name in residual.names]
    inside = inputs.select(residual.names).clip(residual.box.low[seen], residual.box.high[seen])
    return ((inside - residual.centre) / residual.scale).clip(-_CLIP, _CLIP)


# --- training -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TrainingJob:
    """Rows of one group to learn from: their inputs, and log(measured / closed form) [N]."""

    inputs: Inputs
    target: np.ndarray
    members: int = 4


def train(jobs: Sequence[TrainingJob], seed: int = 0) -> list[Residual]:
    """One ensemble per job; the result does not depend on the other jobs."""
    blank: list[Residual] = [_untrained(job.inputs) for job in jobs]
    members = [(at, member) for at, job in enumerate(jobs) for member in range(job.members)]
    rows = [len(job.target) for job in jobs]
    found: dict[tuple[int, int], Any] = {}
    # the largest batch twice: of more rows than it holds each step draws some, and jobs that do not
    # draw must not be trained with those
    for least, size in zip((0, *_BATCHES), (*_BATCHES, _BATCHES[-1]), strict=True):
        most = size if least < size else np.inf
        of_size = [one for one in members if least < rows[one[0]] <= most]
        for start in range(0, len(of_size), _JOBS_AT_ONCE):
            chunk = of_size[start : start + _JOBS_AT_ONCE]
            trained = _train_chunk(jobs, blank, chunk, size, seed)
            found |= dict(zip(chunk, trained, strict=True))
    out = []
    for at, job in enumerate(jobs):
        each = [found[at, member] for member in range(job.members)]
        params = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
        out.append(dataclasses.replace(blank[at], params=params))
    return out


def _untrained(inputs: Inputs) -> Residual:
    """Box and scales of a group; inputs that never vary are left out of the networks' sight."""
    varies = inputs.values.std(0) > 1e-6
    if varies.sum() > INPUTS:
        raise ValueError(f"an op kind has {int(varies.sum())} varying inputs, more than {INPUTS}")
    names = tuple(name for name, keep in zip(inputs.names, varies, strict=True) if keep)
    values = inputs.values[:, varies]
    return Residual(Box.of(inputs), names, values.mean(0), values.std(0), 1.0, {})


def _train_chunk(
    jobs: Sequence[TrainingJob], blank: Sequence[Residual], chunk: Sequence[tuple[int, int]],
    size: int, seed: int,
) -> list[Any]:  # fmt: skip
    """Parameters of each (job, member), padded so that all chunks share one compiled function."""
    most = max(len(jobs[at].target) for at, _ in chunk)
    stored = size if most <= size else 1 << (most - 1).bit_length()
    x = np.zeros((_JOBS_AT_ONCE, stored, INPUTS), np.float32)
    target = np.zeros((_JOBS_AT_ONCE, stored), np.float32)
    rows = np.ones(_JOBS_AT_ONCE, np.int32)
    keys = np.zeros((_JOBS_AT_ONCE, 2), np.uint32)
    for i, (at, member) in enumerate(chunk):
        known = _standardised(blank[at], jobs[at].inputs)
        x[i, : len(known), : known.shape[1]] = known
        target[i, : len(known)] = np.clip(jobs[at].target, -BOUND, BOUND)
        rows[i] = len(known)
        keys[i] = seed, member
    params = _train_many(x, target, rows, keys, size)
    return [jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), params) for i in range(len(chunk))]


@functools.partial(jax.jit, static_argnums=4)
def _train_many(
    x: jax.Array, target: jax.Array, rows: jax.Array, keys: jax.Array, batch: int
) -> Any:
    optimizer = optax.adam(optax.cosine_decay_schedule(_LEARNING_RATE, _STEPS))

    def one(x: jax.Array, target: jax.Array, rows: jax.Array, key: jax.Array) -> Any:
        first, steps_key = jax.random.split(jax.random.wrap_key_data(key))
        noise = _INPUT_NOISE * jnp.any(x != 0, axis=0)  # unused inputs stay silent
        params = network().init(first, x[:1])["params"]

        def loss(params: Any, x: jax.Array, target: jax.Array, weight: jax.Array) -> jax.Array:
            error = (_output(params, x) - target) / _LOSS_SCALE
            fit = jnp.sum(weight * (jnp.sqrt(1 + error**2) - 1)) / jnp.sum(weight)
            each_input = jnp.sqrt(jnp.sum(params["first"]["kernel"] ** 2, axis=1) + 1e-6)
            return fit + _LASSO * jnp.sum(each_input)

        def step(state: Any, key: jax.Array) -> tuple[Any, None]:
            params, memory = state
            noise_key, draw_key = jax.random.split(key)
            if x.shape[0] > batch:
                drawn = jax.random.randint(draw_key, (batch,), 0, rows)
                seen, wanted, weight = x[drawn], target[drawn], jnp.ones(batch)
            else:
                seen, wanted, weight = x, target, (jnp.arange(x.shape[0]) < rows).astype(x.dtype)
            seen = seen + noise * jax.random.normal(noise_key, seen.shape)
            gradient = jax.grad(loss)(params, seen, wanted, weight)
            updates, memory = optimizer.update(gradient, memory, params)
            return (optax.apply_updates(params, updates), memory), None

        start, keys = (params, optimizer.init(params)), jax.random.split(steps_key, _STEPS)
        (params, _), _ = jax.lax.scan(step, start, keys)
        return params

    return jax.vmap(one)(x, target, rows, keys)


def with_process(residual: Residual, inputs: Inputs, target: np.ndarray) -> Residual:
    """The correction with a process over rows: inputs and log(measured / closed form) [N]."""
    keep = np.unique(np.linspace(0, len(target) - 1, min(len(target), _PROCESS_ROWS)).astype(int))
    x = _standardised(residual, inputs.rows(keep))
    rows = Examples(x, np.zeros(len(x)), np.clip(target[keep], -BOUND, BOUND))
    some = np.random.default_rng(0).permutation(len(rows))[:_HYPER_ROWS]
    start = gaussian_process.start_hyper(x.shape[1])
    hyper = gaussian_process.fit_hyper(start, [rows.rows(some)], _HYPER_STEPS)
    return dataclasses.replace(residual, process=gaussian_process.learn(hyper, rows)[0])


def best_shares(
    target: np.ndarray, networks: np.ndarray, process: np.ndarray
) -> tuple[float, float]:
    """How much of either correction to take: the shares, together at most one, that leave held-out
    `target` [N] the smallest mean absolute error.

    The process takes part only where that helps by more than `_WORTH_IT`: the networks are smoother
    between the rows and beyond them.
    """
    quarters = np.linspace(0.0, 1.0, 5)
    pairs = [(one, other) for one in quarters for other in quarters if one + other <= 1]

    def error(pair: tuple[float, float]) -> float:
        return float(np.abs(target - pair[0] * networks - pair[1] * process).mean())

    alone = min((pair for pair in pairs if pair[1] == 0), key=error)
    both = min(pairs, key=error)
    one, other = both if error(both) < (1 - _WORTH_IT) * error(alone) else alone
    return float(one), float(other)
