"""Formulas that serve both: columns of numbers by NumPy, and JAX's traced numbers, from which
gradients come.

A formula asks once which module its arguments are of and goes on with that one; what is an array
and no number says so itself (`__array_namespace__`). NumPy keeps float64 for columns; JAX keeps
what it traces. JAX's arrays that are not traced are numbers like others: nobody differentiates by
them.

JAX (0.9, 0.11) remembers a NumPy array that it met in a trace by its identity, in the precision it
had there, for as long as the array and what was compiled from it live. Met again in another
precision, the array is taken as it was then: the function does not compile, or counts with rounded
numbers. So arrays that outlive a trace (of a model, a table) enter it through `fresh_views`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Array: TypeAlias = Any
"""A NumPy or JAX array, traced or not, or a number; shapes are in comments, as in `[rows, 3]`."""

# jax 0.9 compiles each fused loop by a pipeline of MLIR: three times as long for loops that run no
# quicker. Later versions have nothing else, and do not know the option
_PLAIN_LOOPS = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 10) else {}

SOONER_COMPILED: dict[str, Any] = {"xla_cpu_parallel_codegen_split_count": 1} | _PLAIN_LOOPS
"""`compiler_options` of `jax.jit` for a price and its slopes, hundreds of small loops: compiled in
a third of the time, as quick to run. Only where nothing traces the function that has them: JAX
refuses them inside another `jax.jit`.
"""

QUICKLY_COMPILED = SOONER_COMPILED | {"xla_backend_optimization_level": 0}
"""The same for a function of few numbers that is called some hundred times: XLA takes longer to
optimise it than it will ever run.
"""


def array_module(*values: Any) -> Any:
    """jax.numpy as soon as JAX traces one of some values, else NumPy."""
    return jnp if any(isinstance(value, jax.core.Tracer) for value in values) else np


def is_traced(*trees: Any) -> bool:
    """Whether JAX traces any number of some trees, or whatever is computed just now."""
    leaves = jax.tree.leaves((trees, jnp.zeros(())))
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def floats(value: Any) -> Any:
    """A NumPy array of float64, or of complex numbers, not known to JAX; what JAX traces stays as
    it is.
    """
    if isinstance(value, jax.core.Tracer):
        return value
    return np.asarray(value, complex if np.iscomplexobj(value) else np.float64).view()


def floor(value: Array) -> Array:
    """The whole numbers below numbers; of complex ones those of their real parts."""
    return array_module(value).floor(value.real if np.iscomplexobj(value) else value)


def ceil(value: Array) -> Array:
    """As `floor`, above."""
    return -floor(-value)


def reals(*values: Any) -> tuple[Any, ...]:
    """Their `array_module`, then the `floats` of each."""
    return (array_module(*values), *map(floats, values))


def column(value: Any, rows: int) -> Array:
    """A number or an array as float64 (traced: as it is) of so many rows [rows]."""
    return array_module(value).broadcast_to(floats(value), (rows,))


def fresh_views(tree: Any) -> Any:
    """The tree with NumPy arrays that JAX has not met, over the same numbers."""
    return jax.tree.map(lambda leaf: leaf.view() if isinstance(leaf, np.ndarray) else leaf, tree)


def root(squared: Any, out: np.ndarray | None = None) -> Any:
    """Square root, its slope zero at zero and below (rounding). `out`: NumPy may write there."""
    if array_module(squared) is np:
        return np.sqrt(np.maximum(squared, 0.0, out=out), out=out)
    return jnp.where(squared > 0, jnp.sqrt(jnp.where(squared > 0, squared, 1.0)), 0.0)


def put(array: Any, at: Any, value: Any) -> Any:
    """The array with `value` at some places; NumPy writes into it."""
    if array_module(array, value) is not np:
        return jnp.asarray(array).at[at].set(value)
    array[at] = value
    return array


def repeated(step: Callable[[Any], Any], state: Any, times: int) -> Any:
    """What `step` makes of a state so many times over, a pytree whose shapes stay; JAX compiles one
    step.
    """
    if array_module(*jax.tree.leaves(state)) is not np:
        return jax.lax.fori_loop(0, times, lambda _, now: step(now), state)
    for _ in range(times):
        state = step(state)
    return state
