"""One training step of a recommendation model whose tables lie on several processes, as each
process runs it.

    lookup              bags of my tables for the whole batch [B, my width], filled up to the widest
                        process' width W
    all_to_all          my share of the batch from everybody, [B, W] -> [n, B / n, W]
    mlp, backward       bottom MLP, interaction, top MLP and loss of B / n samples, and their
                        gradients (see `dlrm`)
    all_to_all_backward gradients of the bags back to the processes of their tables
    all_reduce          gradients of the MLPs, summed over the processes in one bucket: gloo needs
                        0.1 ms and more for each array of its own
    update              SGD: dense on the MLPs, sparse on my tables

B batch of all n processes. The step is one compiled program per process with the collectives
inside, and each process compiles its own, with its own tables in it: in a program that all share,
tables would be filled up to equal sizes on every process, and lookups with them, so that no
placement could be unfair. What must agree is the order of the collectives, and a number of the
second all-to-all goes into the all-reduce (times zero) so that no process runs that one first.
All-to-all has equal splits (gloo knows no others), so what a process with narrower bags sends is
filled up with zeros: bytes are those of the widest process on all of them.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from hybridperf_calibration.microbench.collectives import Team
from hybridperf_calibration.training_steps import TrainingStep, dlrm
from hybridperf_calibration.training_steps.sharded_tasks import ShardedTable, ShardedTask

LEARNING_RATE = 0.05
PHASES = ("lookup", "all_to_all", "mlp", "backward", "all_to_all_backward", "all_reduce", "update")
COLLECTIVES = ("all-to-all", "all-to-all", "all-reduce")  # of one step
# odd and prime: k times it, modulo a smaller number of rows, is a permutation that scatters
# neighbours
_SCATTERER = 2_654_435_761


def build(task: ShardedTask, team: Team, batches: int) -> TrainingStep:
    """This process' step, with its tables and its share of `batches` batches of data."""
    share = task.batch // team.n
    numbers = task.of(team.rank)
    dense = [team.place(value) for value in dense_parameters(task)]
    tables = [team.place(table_values(task, number)) for number in numbers]
    rows = [[team.place(drawn) for drawn in looked_up(task, number, batches)] for number in numbers]
    mine = slice(share * team.rank, share * (team.rank + 1))
    data = []
    for batch in range(batches):
        features, labels = dense_batch(task, batch)
        looked = [of_table[batch] for of_table in rows]
        data.append((looked, team.place(features[mine]), team.place(labels[mine])))
    args = (dense, tables, *data[0])
    return TrainingStep(task.key, on_all(task, team), args, (0, 1), tuple(data))


def on_all(task: ShardedTask, team: Team) -> Any:
    """The step as a function of arrays of which each process holds a part."""
    return team.mapped(lambda *parts: train_step(task, team.n, team.rank, *parts))


def train_step(
    task: ShardedTask, n: int, rank: int, dense: list[Any], tables: list[Any], rows: list[Any],
    features: Any, labels: Any,
) -> tuple[list[Any], list[Any], Any]:  # fmt: skip
    """New dense parameters, my new tables, my share of the loss [1] before the update."""
    widths = [task.width(other) for other in range(n)]
    mine = [task.tables[number].dim for number in task.of(rank)]
    with jax.named_scope("lookup"):
        bags = [table[at].sum(axis=1) for table, at in zip(tables, rows, strict=True)]
        fill = jnp.zeros((task.batch, max(widths) - sum(mine)), jnp.float32)
        sent = jnp.concatenate([*bags, fill], axis=1)
    all_to_all = functools.partial(jax.lax.all_to_all, split_axis=0, concat_axis=0, tiled=True)
    with jax.named_scope("all_to_all"):
        received = all_to_all(sent, "ranks")
    # Differentiated with respect to each bag, not to what was received: the gradient of a slice is
    # padded to the whole.
    gradient_of = jax.value_and_grad(_loss, argnums=(1, 2))
    bags = unpacked(task, received.reshape(n, task.batch // n, max(widths)))
    loss, (dense_gradient, bag_gradients) = gradient_of(task, dense, bags, features, labels)
    with jax.named_scope("all_to_all_backward"):
        returned = all_to_all(packed(task, bag_gradients, n), "ranks")
    with jax.named_scope("all_reduce"):
        bucket, unpack = ravel_pytree(dense_gradient)
        dense_gradient = unpack(jax.lax.psum(bucket.at[-1].add(0 * returned[0, 0]), "ranks"))
    with jax.named_scope("update"):
        pairs = zip(dense, dense_gradient, strict=True)
        dense = [value - LEARNING_RATE * gradient for value, gradient in pairs]
        starts = itertools.accumulate(mine, initial=0)
        tables = [
            table.at[at].add(
                -LEARNING_RATE
                * jnp.broadcast_to(returned[:, None, start : start + dim], (*at.shape, dim))
            )
            for table, at, start, dim in zip(tables, rows, starts, mine, strict=False)
        ]
    return dense, tables, loss[None]


def unpacked(task: ShardedTask, received: Any) -> list[Any]:
    """Bags [B / n, dim] of every table in order, from `received` [n, B / n, W]."""
    bags: dict[int, Any] = {}
    for rank, of_rank in enumerate(received):
        start = 0
        for number in task.of(rank):
            bags[number] = of_rank[:, start : start + task.tables[number].dim]
            start += task.tables[number].dim
    return [bags[number] for number in range(len(task.tables))]


def packed(task: ShardedTask, bags: list[Any], n: int) -> Any:
    """The reverse, processes below each other [B, W]."""
    widest = max(task.width(rank) for rank in range(n))
    fill = [jnp.zeros((len(bags[0]), widest - task.width(rank)), jnp.float32) for rank in range(n)]
    beside = [
        jnp.concatenate([*(bags[number] for number in task.of(rank)), fill[rank]], axis=1)
        for rank in range(n)
    ]
    return jnp.concatenate(beside)


def _loss(task: ShardedTask, dense: list[Any], bags: list[Any], features: Any, labels: Any) -> Any:
    """This share's part of the batch's mean binary cross-entropy."""
    with jax.named_scope("mlp"):
        split, layers = len(task.bottom_mlp), list(zip(dense[::2], dense[1::2], strict=True))
        x = dlrm.mlp(layers[:split], features, relu_at_end=True)
        logits = dlrm.mlp(layers[split:], interact(task, x, bags), relu_at_end=False)[:, 0]
        return (jnp.logaddexp(0.0, logits) - logits * labels).sum() / task.batch


def interact(task: ShardedTask, x: Any, bags: list[Any]) -> Any:
    """The top MLP's input: `x` next to the bags, or to dot products of all pairs of vectors."""
    return jnp.concatenate([x, *bags], 1) if task.interaction == "cat" else dlrm.interact(x, bags)


def dense_parameters(task: ShardedTask) -> list[np.ndarray]:
    """Weight [in, out] and bias [out] of each layer, bottom MLP first; on all processes."""
    rng = np.random.default_rng([task.seed, 0])
    bottom, top = (task.dense_features, *task.bottom_mlp), (task.interaction_width, *task.top_mlp)
    weights = [*dlrm.he_weights(rng, bottom), *dlrm.he_weights(rng, top)]
    return [part for one in weights for part in (one, np.zeros(one.shape[1], np.float32))]


def table_values(task: ShardedTask, number: int) -> np.ndarray:
    """A table as it starts, float32 [rows, dim]: bags of unit variance, whatever is looked up."""
    table = task.tables[number]
    rng = np.random.default_rng([task.seed, 1, number])
    return dlrm.uniform(rng, (table.rows, table.dim), math.sqrt(3 / (table.pooling * table.dim)))


def dense_batch(task: ShardedTask, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Features [B, dense] and labels [B] of a batch of data."""
    rng = np.random.default_rng([task.seed, 2, batch])
    features = rng.standard_normal((task.batch, task.dense_features), dtype=np.float32)
    return features, rng.integers(0, 2, task.batch).astype(np.float32)


def looked_up(task: ShardedTask, number: int, batches: int) -> list[np.ndarray]:
    """Rows of a table that each of `batches` batches of data looks up, int32 [B, pooling]."""
    return list(_drawn(task.tables[number], task.batch, task.seed, number, batches))


@functools.lru_cache(maxsize=64)  # placements of one model look up the same rows
def _drawn(table: ShardedTable, batch: int, seed: int, number: int, batches: int) -> np.ndarray:
    """[batches, B, pooling]."""
    rng = np.random.default_rng([seed, 3, number])
    shape = (batches, batch, table.pooling)
    if not table.skew:
        return rng.integers(0, table.rows, shape, dtype=np.int32)
    cumulative = np.cumsum((np.arange(1, table.rows + 1) + table.shift) ** -table.skew)
    order = np.searchsorted(cumulative, rng.random(shape) * cumulative[-1]).clip(0, table.rows - 1)
    return (order.astype(np.uint64) * _SCATTERER % table.rows).astype(np.int32)


def collectives_in(hlo: str) -> list[str]:
    """The collectives of a compiled program in the order they run in: all processes must agree."""
    names = "all-to-all|all-reduce|all-gather|reduce-scatter|collective-permute"
    return re.findall(rf" ({names})\(", hlo)


def phase_of(hlo: str) -> dict[str, str]:
    """The phase of each instruction of a compiled program, by its named scope; others left out."""
    found = {}
    instruction = r'^\s*(?:ROOT )?%?([\w.\-]+) = .*op_name="([^"]*)"'
    for name, scope in re.findall(instruction, hlo, re.MULTILINE):
        phases = (one for one in PHASES if f"/{one}/" in scope or f"({one})/" in scope)
        phase = "backward" if "transpose(jvp(mlp))" in scope else next(phases, None)
        if phase:
            found[name] = phase
    return found
