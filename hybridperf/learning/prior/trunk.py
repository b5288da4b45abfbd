"""What the closed form misses on every device of a family: small networks over dimensionless
inputs, one ensemble per family.

    f(x) = c tanh( net(x) / c ),    learned from log(measured / t0) of all prior devices, each
                                    counting the same

x is the op's place on its device's fitted roofline (how far compute, memory, waves and the floor
lie apart) and what the op tells of itself (sizes, how they fill tiles and waves, flags),
standardised and clipped. Nothing in x names a device, so a new one has all of it.

Axes: N rows, d inputs, E members.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.io.arrays import flat
from hybridperf.io.later import optax
from hybridperf.io.namespace import array_module
from hybridperf.learning.ensemble import outputs
from hybridperf.learning.prior.form import ClosedFormValues
from hybridperf.learning.prior.rows import PriorRows
from hybridperf.learning.residual import network

BOUND = 2.5  # |f| stays below: a factor of 12
CLIP = 4.0  # standard deviations
MEMBERS = 4
LOSS_SCALE = 0.1  # log errors beyond 10 % count linearly
_WIDTH = 64
_BATCH = 1024
_DECAY = 1e-4


def _output(params: Any, x: jax.Array) -> jax.Array:
    net = network(params["first"]["bias"].shape[-1], BOUND, None)
    return jnp.asarray(net.apply({"params": params}, x))


@dataclasses.dataclass(frozen=True)
class Standardiser:
    """Which inputs networks look at, and in what units."""

    names: tuple[str, ...]  # of the row's own inputs; its place on the form stands before them
    centre: np.ndarray  # [d]
    scale: np.ndarray  # [d]

    def inputs(self, rows: PriorRows, on: ClosedFormValues) -> Any:
        """x [N, d] in the precision of the rows."""
        own = rows.inputs
        at = {name: i for i, name in enumerate(own.names)}
        known = [at[name] for name in self.names if name in at]
        seen = own.values[:, known] if len(known) == len(self.names) else own.select(self.names)
        module = array_module(on.position, seen)
        raw = module.concatenate([on.position, seen], 1, dtype=on.position.dtype)
        raw -= self.centre
        raw /= self.scale
        return np.clip(raw, -CLIP, CLIP, out=raw) if module is np else module.clip(raw, -CLIP, CLIP)


def standard(devices: Sequence[tuple[PriorRows, ClosedFormValues]]) -> Standardiser:
    """From prior devices, each counting the same; inputs that never vary are left out."""
    names = tuple(dict.fromkeys(name for rows, _ in devices for name in rows.inputs.names))
    places = devices[0][1].position.shape[1]
    each = [np.concatenate([on.position, rows.inputs.select(names)], 1) for rows, on in devices]
    centre = np.mean([x.mean(0) for x in each], 0)
    scale = np.sqrt(np.mean([((x - centre) ** 2).mean(0) for x in each], 0))
    kept = np.flatnonzero(scale[places:] > 1e-6) + places
    seen, varying = np.concatenate([np.arange(places), kept]), (names[i - places] for i in kept)
    return Standardiser(tuple(varying), centre[seen], np.maximum(scale[seen], 1e-6))


def named_arrays(params: Any) -> dict[str, np.ndarray]:
    """Weights by name, for a file."""
    return {f"trunk/{name}": np.asarray(leaf) for name, leaf in flat(params).items()}


def evaluate(params: Any, x: Any) -> tuple[Any, Any]:
    """(mean, standard deviation) over members at inputs x [N, d]: [N] each."""
    if isinstance(x, np.ndarray):
        each = outputs(params, x, BOUND)
        return each.mean(0), each.std(0)
    mean, apart = _ensemble(params, x)
    return mean, apart


@jax.jit
def _ensemble(params: Any, x: jax.Array) -> jax.Array:
    each = jax.vmap(lambda p: _output(p, x))(params)
    # without a slope: where members agree it has none, and no search follows it
    apart = jnp.std(jax.lax.stop_gradient(each), 0)
    return jnp.stack([jnp.mean(each, 0), apart])


# --- training -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TrainingRecipe:
    """How an ensemble is trained; what the compiled function depends on."""

    steps: int = 3000
    learning_rate: float = 3e-3
    batch: int = _BATCH
    anchor: float = 0.0  # pull of weights towards where they started
    width: int = _WIDTH


def train(
    devices: Sequence[tuple[np.ndarray, np.ndarray]],
    member_devices: np.ndarray,
    recipe: TrainingRecipe,
    seed: int,
    start: Any = None,
) -> Any:
    """Weights of E networks: (x [N, d], target [N]) of each device; `member_devices` bool [E,
    devices] marks what each one sees.

    A step draws rows of all those devices alike, however many each has. `start`: weights to go on
    from.
    """
    counts = np.array([len(target) for _, target in devices])
    first = np.cumsum(counts) - counts
    # a power of two: families of about a size share a compiled function
    stored = 1 << (int(counts.sum()) - 1).bit_length()
    x = np.zeros((stored, devices[0][0].shape[1]), np.float32)
    target = np.zeros(stored, np.float32)
    for at, (inputs, wanted) in zip(first, devices, strict=True):
        x[at : at + len(inputs)] = inputs
        target[at : at + len(inputs)] = np.clip(wanted, -BOUND, BOUND)
    random = np.random.default_rng(seed)
    # drawn here: in the compiled step it costs 5 s to compile
    drawn = np.empty((len(member_devices), recipe.steps, recipe.batch), np.int32)
    for rows, sees in zip(drawn, member_devices, strict=True):
        device = random.choice(np.flatnonzero(sees), rows.shape)
        rows[:] = first[device] + random.integers(0, counts[device])
    if start is None:
        start = untrained(x.shape[1], len(member_devices), seed, recipe.width)
    if not recipe.steps:
        return start
    return jax.tree.map(np.asarray, _train(start, x, target, drawn, recipe))


def untrained(inputs: int, members: int, seed: int = 0, width: int = _WIDTH) -> Any:
    """Weights of networks that say nothing yet."""
    keys, net = jax.random.split(jax.random.key(seed), members), network(width, BOUND, None)
    params = jax.vmap(lambda key: net.init(key, jnp.zeros((1, inputs)))["params"])(keys)
    return jax.tree.map(np.asarray, params)


@functools.partial(jax.jit, static_argnames="recipe")
def _train(
    start: Any, x: jax.Array, target: jax.Array, drawn: jax.Array, recipe: TrainingRecipe
) -> Any:
    schedule = optax.cosine_decay_schedule(recipe.learning_rate, recipe.steps)
    adamw = optax.adamw(schedule, weight_decay=0.0 if recipe.anchor else _DECAY)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), adamw)

    def one(start: Any, drawn: jax.Array) -> Any:
        def loss(params: Any, x: jax.Array, target: jax.Array) -> jax.Array:
            error = (_output(params, x) - target) / LOSS_SCALE
            pairs = zip(jax.tree.leaves(params), jax.tree.leaves(start), strict=True)
            moved = sum(jnp.sum((a - b) ** 2) for a, b in pairs)
            return jnp.mean(jnp.sqrt(1 + error**2) - 1) + recipe.anchor * moved

        def step(state: Any, row: jax.Array) -> tuple[Any, None]:
            params, memory = state
            gradient = jax.grad(loss)(params, x[row], target[row])
            updates, memory = optimizer.update(gradient, memory, params)
            return (optax.apply_updates(params, updates), memory), None

        (params, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), drawn)
        return params

    return jax.vmap(one)(start, drawn)
