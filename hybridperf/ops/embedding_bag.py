"""Embedding bags: every sample looks rows up in tables and sums them; backward, their gradients
update the rows that were looked up.

One op is one kernel over `tables` tables: `pooling` counts a sample's lookups in all of them
together, `rows` and `unique` all their rows, and the result has `width` numbers a sample. Besides
sizes it says how the lookups fall:

    unique     different rows that the batch looks up
    distance   rows touched between two lookups of the same row, geometric mean; `spread` the
               standard deviation of its natural log
    once       share of the different rows that are looked up once
    hot        share of the lookups that go to rows looked up more than 16 times

A row of a table that says nothing of them (`unique` 0) means uniform access, for which all have
closed forms. `lookup_calls` fills them in from the tables' access distributions.

Bytes. Forward, every lookup reads a row, from the memory level that its distance leaves it in, and
a bag is written once. Backward, gradients of bags are read, and

    merged     indices are sorted, gradients of a row met twice are summed, and each different row
               is updated once (fused GPU kernels)
    each       every lookup's gradient is added to its row where it falls (XLA's scatter); plain SGD
               only

An optimizer's state is as large as the row (`adagrad`) or one number a row (`rowwise_adagrad`: a
memory sector of 32 bytes).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
import scipy

from hybridperf.fields import fields_of
from hybridperf.io.errors import InputError
from hybridperf.io.namespace import Array, array_module, reals
from hybridperf.ops.base import Columns, Op, OpCall, columns_of, register
from hybridperf.ops.embedding import LookupStream, Table, check_names, distances, lookups_within
from hybridperf.ops.inputs import Gpu, gpu_inputs, log2_of, log2_ratio, log_of, shape_inputs, tails
from hybridperf.ops.movement import INDEX_BYTES, scattered_lines
from hybridperf.ops.roofline import Work

OPTIMIZERS = tuple(fields_of("ops")["optimizer"].words)
HOT_LOOKUPS = 16.0  # a row that is looked up more often in a batch is hot
_STATE_BYTES = 4.0  # optimizers keep single precision
_SECTOR_BYTES = 32.0  # least that memory moves for one number
# of one index and its place, by radix: four passes over eight bits that each read and write eight
# bytes
_SORT_BYTES = 64.0

Direction = Literal["forward", "backward"]
_ACCESS = ("unique", "distance", "spread", "once", "hot")


@dataclasses.dataclass(frozen=True)
class _Bags(Op):
    """What both directions have in common."""

    batch: Array  # samples
    pooling: Array  # lookups of a sample
    rows: Array  # of all tables
    dim: Array  # numbers of a row; of tables that differ, the mean over the rows that are moved
    tables: Array = 1.0
    width: Array = 0.0  # numbers of a sample's result; 0: tables * dim
    unique: Array = 0.0  # module docstring, as the four below; 0: uniform access
    distance: Array = 0.0
    spread: Array = 0.0
    once: Array = 0.0
    hot: Array = 0.0

    def lookups(self) -> Array:
        """Rows that the batch looks up in all."""
        return self.batch * self.pooling

    def row_bytes(self) -> Array:
        """Bytes of a row of the table."""
        return self.dim * self.element_bytes

    def access(self) -> Mapping[str, Array]:
        """`unique, distance, spread, once, hot`: as given, or of uniform access."""
        module, batch, pooling, rows, tables, *values = reals(
            self.batch, self.pooling, self.rows, self.tables,
            *(getattr(self, name) for name in _ACCESS),
        )  # fmt: skip
        each = module.maximum(rows / tables, 1.0 + 1e-9)
        mean = batch * pooling / tables / each  # lookups of a row
        seen = -module.expm1(mean * each * module.log1p(-1.0 / each))
        gammainc = (scipy.special if module is np else jax.scipy.special).gammainc
        uniform = (
            rows * seen,
            # distances are uniform between nothing and all rows: mean log -1, spread 1
            module.maximum(rows / np.e, 1.0),
            module.ones_like(mean),
            mean * module.exp(-mean) / seen,
            gammainc(HOT_LOOKUPS, mean),  # of a Poisson number of others
        )
        known = values[0] > 0
        chosen = (module.where(known, *pair) for pair in zip(values, uniform, strict=True))
        return dict(zip(_ACCESS, chosen, strict=True))

    def streamed_bytes(self) -> Array:
        """Bytes of bags, indices and offsets."""
        module, width, dim, tables = reals(self.width, self.dim, self.tables)
        result = self.batch * module.where(width > 0, width, tables * dim)
        indices = self.lookups() + self.batch * self.tables
        return result * self.element_bytes + INDEX_BYTES * indices


@shape_inputs.register(_Bags)
def _(op: _Bags) -> dict[str, Array]:
    access = op.access()
    unique = access["unique"]
    module = array_module(unique, op.batch, op.pooling)
    return {
        **log_of(op, "batch", "pooling", "rows", "dim", "tables", unique=unique),
        **tails(16, dim=op.dim),
        "reuse": module.log2(op.lookups() / module.maximum(unique, 1e-9)),
        "once": access["once"],
        "hot": access["hot"],
    }


@gpu_inputs.register(_Bags)
def _(op: _Bags, gpu: Gpu) -> dict[str, Array]:
    access, work, row_bytes = op.access(), op.work(), op.row_bytes()
    unique, distance = access["unique"], access["distance"]
    return {
        **log2_of(op, "batch", "pooling", "rows", "dim", "tables"),
        **log2_of(unique=unique, distance=distance, bytes=work.bytes, flops=work.flops),
        **gpu.per_l2(bytes=work.bytes, distance=distance * row_bytes, unique=unique * row_bytes),
        **tails(32, dim=op.dim),
        "reuse": log2_ratio(op.lookups(), unique),
        **{name: access[name] for name in ("spread", "once", "hot")},
    }


def _contradictions(op: _Bags) -> Sequence[tuple[Array, str]]:
    different = op.unique * (1 - 1e-9)  # means of tables that were made one are rounded
    return (
        (different > op.rows, "unique must be at most rows"),
        (different > op.lookups(), "unique must be at most batch x pooling"),
    )


_COLUMNS = Columns(contradictions=_contradictions)


@register("embedding_bag", columns=_COLUMNS)
class EmbeddingBag(_Bags):
    """Rows looked up in `tables` tables and summed into bags; a step is one lookup."""

    def work(self) -> Work:
        access, lookups, row_bytes = self.access(), self.lookups(), self.row_bytes()
        return Work(
            flops=lookups * self.dim,
            bytes=lookups * row_bytes + self.streamed_bytes(),
            reuse_bytes=access["distance"] * row_bytes,
            reuse_spread=access["spread"],
            scattered_reads=lookups * scattered_lines(row_bytes),
            steps=lookups,
        )


@register("embedding_bag_backward", columns=_COLUMNS)
@dataclasses.dataclass(frozen=True)
class EmbeddingBagBackward(_Bags):
    """The looked-up rows updated by the gradients of their bags; a step is one lookup."""

    optimizer: str = "sgd"
    duplicates: str = "merged"

    def knob_groups(self) -> Mapping[str, Any]:
        """Adding as gradients come and sorting them first are two kernels."""
        return {"embedding_bag_scatter": self.duplicates == "each", self.group: True}

    def work(self) -> Work:
        access, lookups, row_bytes = self.access(), self.lookups(), self.row_bytes()
        merged = self.duplicates == "merged"
        updated = access["unique"] if merged else lookups
        state_bytes, roots, flops = {  # of a row, of all, of a number: w - r g;
            "sgd": (0.0, 0.0, 2.0),
            # s + g g, w - r g / sqrt(s)
            "adagrad": (self.dim * _STATE_BYTES, updated * self.dim, 5.0),
            "rowwise_adagrad": (_SECTOR_BYTES, updated, 4.0),  # its mean by row
        }[self.optimizer]
        distance = access["distance"]
        if merged:  # a row comes once in a batch: at least all others lie between
            distance = array_module(distance, updated).maximum(distance, updated)
        rows_bytes = 2.0 * updated * (row_bytes + state_bytes)
        return Work(
            flops=lookups * self.dim + flops * updated * self.dim,
            transcendentals=roots,
            bytes=self.streamed_bytes() + rows_bytes + _SORT_BYTES * merged * lookups,
            reuse_bytes=distance * row_bytes,
            reuse_spread=0.0 if merged else access["spread"],
            scattered_reads=updated * scattered_lines(row_bytes),
            steps=lookups,
        )


def lookup_calls(
    tables: Sequence[Table], batch: Array, direction: Direction = "forward", *,
    optimizer: str = "sgd", duplicates: str = "merged", beside: Sequence[Table] = (),
    in_step: bool = False, alike: float = 1.0,
) -> OpCall:  # fmt: skip
    """A batch's lookups in several tables as one fused op, differentiable in sizes and access.

    Args:
        tables: embedding tables of one number format.
        batch: samples.
        direction: "forward" (look up and pool) or "backward" (update the rows).
        optimizer: of the backward pass: "sgd", "adagrad" or "rowwise_adagrad".
        duplicates: of the backward pass: "merged": gradients of a row are summed first; "each":
            every one is added by itself (sgd only).
        beside: tables that other ops of the same step look up, and which share the caches.
        in_step: True: the backward op finds rows in cache that the step's forward op has just
            read; False: it runs repeatedly by itself, as when it is measured.
        alike: equal tables that each of `tables` stands for; below one: parts of each.

    Raises:
        InputError: when a table or an option is not valid; the message names the table.
    """
    if direction not in ("forward", "backward"):
        raise InputError(f"expected a direction of forward or backward, got {direction!r}")
    check_names([*tables, *beside])
    name, dtype = tables[0].name, tables[0].dtype
    if not isinstance(batch, jax.core.Tracer) and (
        isinstance(batch, str | bool) or np.ndim(batch) or not 0 < float(batch) < np.inf
    ):
        expected = f"expected a batch of more than zero samples to look up in {name}"
        raise InputError(f"{expected}, got {batch!r}")
    for table in tables:
        if table.dtype != dtype:
            expected = f"table {table.name}: expected {dtype} as in {name}, got {table.dtype}"
            raise InputError(f"{expected}; a kernel is of one format")
    options = {"optimizer": optimizer, "duplicates": duplicates}
    if direction == "backward":
        for option, word in options.items():
            columns_of(EmbeddingBagBackward).read_text(option, word, dtype)
        if duplicates == "each" and optimizer != "sgd":
            why = "its state needs a row's whole gradient"
            raise InputError(f"expected merged duplicates with {optimizer}: {why}")
    lookups = [table.lookups(batch) for table in tables]
    unique = [table.unique_rows(batch) for table in tables]
    shares = [table.histogram(batch) for table in tables]
    moved = lookups if direction == "forward" else unique
    streams = [
        LookupStream(*t.classes(batch), t.lookups(batch), t.row_bytes, t.unique_rows(batch), many)
        for of, many in ((tables, alike), (beside, 1.0))
        for t in of
    ]
    again = in_step and direction == "backward"
    distance_bytes, spread = distances(streams, len(tables), again)
    row_bytes = sum(n * table.row_bytes for n, table in zip(lookups, tables, strict=True))
    cold = [u * lookups_within(s, HOT_LOOKUPS) for u, s in zip(unique, shares, strict=True)]
    hot = 1.0 - sum(cold) / sum(lookups)
    sizes: dict[str, Any] = {
        "pooling": alike * sum(table.pooling for table in tables),
        "rows": alike * sum(table.rows for table in tables),
        "dim": sum(m * table.dim for m, table in zip(moved, tables, strict=True)) / sum(moved),
        "tables": alike * len(tables),
        "width": alike * sum(table.dim for table in tables),
        "unique": alike * sum(unique),
        "distance": distance_bytes * sum(lookups) / row_bytes,
        "spread": spread,
        "once": sum(u * s[0] for u, s in zip(unique, shares, strict=True)) / sum(unique),
        "hot": array_module(hot).clip(hot, 0.0, 1.0),
    }
    if direction == "forward":
        return OpCall(EmbeddingBag(dtype, batch, **sizes))
    return OpCall(EmbeddingBagBackward(dtype, batch, **sizes, **options))
