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
from typing import Any, ClassVar, Literal

import jax
import numpy as np
from scipy import special

from hybridperf.io.errors import InputError
from hybridperf.io.namespace import array_module, floats
from hybridperf.ops.base import (
    GROUPS,
    Gpu,
    Op,
    OpCall,
    log2_ratio,
    log_sizes,
    log_sizes_base2,
    register,
    tails,
)
from hybridperf.ops.embedding import Stream, Table, check_names, distances, lookups_within
from hybridperf.ops.movement import INDEX_BYTES, scattered_lines
from hybridperf.ops.roofline import Work

OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad")
DUPLICATES = ("merged", "each")
HOT_LOOKUPS = 16.0  # a row that is looked up more often in a batch is hot
_STATE_BYTES = 4.0  # optimizers keep single precision
_SECTOR_BYTES = 32.0  # least that memory moves for one number
# of one index and its place, by radix: four passes over eight bits that each read and write eight
# bytes
_SORT_BYTES = 64.0
# per number: w - r g; s + g g, w - r g / sqrt(s); its mean by row
_UPDATE_FLOPS = {"sgd": 2.0, "adagrad": 5.0, "rowwise_adagrad": 4.0}

Direction = Literal["forward", "backward"]


@dataclasses.dataclass(frozen=True)
class _Bags(Op):
    """What both directions have in common."""

    optional: ClassVar = {
        "tables": 1.0,
        "width": 0.0,
        "unique": 0.0,
        "distance": 0.0,
        "spread": 0.0,
        "once": 0.0,
        "hot": 0.0,
    }
    zero_allowed: ClassVar = frozenset({"width", "unique", "distance", "spread", "once", "hot"})

    batch: Any  # samples
    pooling: Any  # lookups of a sample
    rows: Any  # of all tables
    dim: Any  # numbers of a row; of tables that differ, the mean over the rows that are moved
    tables: Any = 1.0
    width: Any = 0.0  # numbers of a sample's result; 0: tables * dim
    unique: Any = 0.0  # module docstring, as the four below; 0: uniform access
    distance: Any = 0.0
    spread: Any = 0.0
    once: Any = 0.0
    hot: Any = 0.0

    def lookups(self) -> Any:
        """Rows looked up."""
        return self.batch * self.pooling

    def said(self) -> Mapping[str, Any]:
        """`unique, distance, spread, once, hot`: as given, or of uniform access."""
        values = [
            floats(getattr(self, name)) for name in ("unique", "distance", "spread", "once", "hot")
        ]
        batch, pooling, rows, tables = (
            floats(x) for x in (self.batch, self.pooling, self.rows, self.tables)
        )
        module = array_module(*values, batch, pooling, rows, tables)
        each = module.maximum(rows / tables, 1.0 + 1e-9)
        mean = batch * pooling / tables / each  # lookups of a row
        seen = -module.expm1(mean * each * module.log1p(-1.0 / each))
        # of a Poisson number of others
        hot = (special if module is np else jax.scipy.special).gammainc(HOT_LOOKUPS, mean)
        uniform = {
            "unique": rows * seen,
            "distance": module.maximum(
                rows / np.e, 1.0
            ),  # distances are uniform between nothing and all rows: mean log -1, spread 1
            "spread": module.ones_like(mean),
            "once": mean * module.exp(-mean) / seen,
            "hot": hot,
        }
        given = values[0] > 0
        return {
            name: module.where(given, value, uniform[name])
            for name, value in zip(uniform, values, strict=True)
        }

    def result(self) -> Any:
        """Numbers of the pooled result."""
        width = floats(self.width)
        return self.batch * array_module(width, self.tables, self.dim).where(
            width > 0, width, self.tables * floats(self.dim)
        )

    def shape(self) -> dict[str, Any]:
        said = self.said()
        module = array_module(*said.values(), self.batch, self.pooling)
        return {
            **log_sizes(
                batch=self.batch,
                pooling=self.pooling,
                rows=self.rows,
                dim=self.dim,
                unique=said["unique"],
                tables=self.tables,
            ),
            **tails(16, dim=self.dim),
            "reuse": module.log2(self.lookups() / module.maximum(said["unique"], 1e-9)),
            "once": said["once"],
            "hot": said["hot"],
        }

    def gpu_inputs(self, gpu: Gpu) -> dict[str, Any]:
        said, work = self.said(), self.work()
        row_bytes = self.dim * self.element_bytes
        return {
            **log_sizes_base2(
                batch=self.batch,
                pooling=self.pooling,
                rows=self.rows,
                dim=self.dim,
                tables=self.tables,
            ),
            **log_sizes_base2(
                unique=said["unique"], distance=said["distance"], bytes=work.bytes, flops=work.flops
            ),
            "log2_bytes_per_l2": log2_ratio(work.bytes, gpu.l2_bytes),
            "log2_distance_per_l2": log2_ratio(said["distance"] * row_bytes, gpu.l2_bytes),
            "log2_unique_per_l2": log2_ratio(said["unique"] * row_bytes, gpu.l2_bytes),
            **tails(32, dim=self.dim),
            "reuse": log2_ratio(self.lookups(), said["unique"]),
            "spread": said["spread"],
            "once": said["once"],
            "hot": said["hot"],
        }


@register("embedding_bag")
@dataclasses.dataclass(frozen=True)
class EmbeddingBag(_Bags):
    """Rows looked up in `tables` tables and summed into bags; a step is one lookup."""

    group: ClassVar[str] = "embedding_bag"

    def work(self) -> Work:
        said, lookups = self.said(), self.lookups()
        row_bytes = self.dim * self.element_bytes
        streamed = self.result() * self.element_bytes + INDEX_BYTES * (
            lookups + self.batch * self.tables
        )  # bags, indices and offsets
        return Work(
            flops=lookups * self.dim,
            bytes=lookups * row_bytes + streamed,
            reuse_bytes=said["distance"] * row_bytes,
            reuse_spread=said["spread"],
            scattered_reads=lookups * scattered_lines(row_bytes),
            steps=lookups,
        )


@register("embedding_bag_backward")
@dataclasses.dataclass(frozen=True)
class EmbeddingBagBackward(_Bags):
    """The looked-up rows updated by the gradients of their bags; a step is one lookup."""

    group: ClassVar[str] = "embedding_bag_backward"
    text: ClassVar = {"optimizer": "sgd", "duplicates": "merged"}

    optimizer: str = "sgd"
    duplicates: str = "merged"

    @classmethod
    def read_text(cls, name: str, value: str, dtype: str) -> str:
        """A known optimizer or way with duplicates."""
        del dtype
        known = OPTIMIZERS if name == "optimizer" else DUPLICATES
        if value not in known:
            raise InputError(
                f"unknown {name} {value!r} of embedding tables: known are {', '.join(known)}"
            )
        return value

    def group_index(self) -> int:
        """Adding as gradients come and sorting them first are two kernels: other knobs."""
        return GROUPS.index(self.possible_groups()[0])

    def possible_groups(self) -> tuple[str, ...]:
        return ("embedding_bag_scatter" if self.duplicates == "each" else "embedding_bag_backward",)

    def work(self) -> Work:
        said, lookups = self.said(), self.lookups()
        row_bytes = self.dim * self.element_bytes
        streamed = self.result() * self.element_bytes + INDEX_BYTES * (
            lookups + self.batch * self.tables
        )
        merged = self.duplicates == "merged"
        updated = said["unique"] if merged else lookups
        state_bytes = {
            "sgd": 0.0,
            "adagrad": self.dim * _STATE_BYTES,
            "rowwise_adagrad": _SECTOR_BYTES,
        }[self.optimizer]
        roots = {"sgd": 0.0, "adagrad": updated * self.dim, "rowwise_adagrad": updated}[
            self.optimizer
        ]
        distance = said["distance"]
        if merged:  # a row comes once in a batch: at least all others lie between
            distance = array_module(distance, said["unique"]).maximum(distance, said["unique"])
        return Work(
            flops=lookups * self.dim + _UPDATE_FLOPS[self.optimizer] * updated * self.dim,
            transcendentals=roots,
            bytes=streamed
            + 2.0 * updated * (row_bytes + state_bytes)
            + _SORT_BYTES * merged * lookups,
            reuse_bytes=distance * row_bytes,
            reuse_spread=0.0 if merged else said["spread"],
            scattered_reads=updated * scattered_lines(row_bytes),
            steps=lookups,
        )


def lookup_calls(
    tables: Sequence[Table], batch: Any, direction: Direction = "forward", *,
    optimizer: str = "sgd", duplicates: str = "merged", beside: Sequence[Table] = (),
    in_step: bool = False,
) -> OpCall:  # fmt: skip
    """The lookups of a batch in all tables as one fused op, forward or backward. Tables of one
    number format; `InputError` names the table.

    `beside`: tables that other ops of the step look up, whose rows come between. `in_step`: a
    backward op finds the rows that the step's own forward op has just touched; else it is taken for
    one that runs again and again by itself, as when it is measured.

    Differentiable in the batch, the tables' sizes and their distributions' parameters (tracers pass
    through).
    """
    if direction not in ("forward", "backward"):
        raise InputError(f"expected a direction of forward or backward, got {direction!r}")
    check_names([*tables, *beside])
    if not isinstance(batch, jax.core.Tracer) and (
        isinstance(batch, str | bool) or np.ndim(batch) or not 0 < float(batch) < np.inf
    ):
        raise InputError(
            f"expected a batch of more than zero samples to look up in {tables[0].name}, got"
            f" {batch!r}"
        )
    for table in tables:
        if table.dtype != tables[0].dtype:
            raise InputError(
                f"table {table.name}: expected {tables[0].dtype} as in {tables[0].name}, got"
                f" {table.dtype}; a kernel is of one format"
            )
    if direction == "backward":
        for name, word in (("optimizer", optimizer), ("duplicates", duplicates)):
            EmbeddingBagBackward.read_text(name, word, tables[0].dtype)
        if duplicates == "each" and optimizer != "sgd":
            raise InputError(
                f"expected merged duplicates with {optimizer}: its state needs a row's whole"
                " gradient"
            )
    sums = _summed(tables, beside, batch, direction, again=in_step and direction == "backward")
    if direction == "forward":
        return OpCall(EmbeddingBag(tables[0].dtype, batch, **sums))
    return OpCall(
        EmbeddingBagBackward(
            tables[0].dtype, batch, **sums, optimizer=optimizer, duplicates=duplicates
        )
    )


def _summed(
    tables: Sequence[Table], beside: Sequence[Table], batch: Any, direction: Direction, again: bool
) -> dict[str, Any]:
    """Dimensions of the fused op."""
    lookups = [table.lookups(batch) for table in tables]
    unique = [table.unique_rows(batch) for table in tables]
    shares = [table.histogram(batch) for table in tables]
    moved = lookups if direction == "forward" else unique
    dim = sum(m * table.dim for m, table in zip(moved, tables, strict=True)) / sum(moved)
    streams = [
        Stream(*t.classes(batch), t.lookups(batch), t.row_bytes, t.unique_rows(batch))
        for t in (*tables, *beside)
    ]
    distance_bytes, spread = distances(streams, len(tables), again)
    cold = [u * lookups_within(s, HOT_LOOKUPS) for u, s in zip(unique, shares, strict=True)]
    hot = 1.0 - sum(cold) / sum(lookups)
    return {
        "pooling": sum(table.pooling for table in tables),
        "rows": sum(table.rows for table in tables),
        "dim": dim,
        "tables": float(len(tables)),
        "width": sum(table.dim for table in tables),
        "unique": sum(unique),
        "distance": (
            distance_bytes
            * sum(lookups)
            / sum(n * table.row_bytes for n, table in zip(lookups, tables, strict=True))
        ),
        "spread": spread,
        "once": sum(u * s[0] for u, s in zip(unique, shares, strict=True)) / sum(unique),
        "hot": array_module(hot).clip(hot, 0.0, 1.0),
    }
