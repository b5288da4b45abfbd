"""A recommendation model (DLRM, Naumov et al. 2019): its sizes, its batch and where it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from hybridperf.hardware import FLOAT_DTYPES, canonical_dtype
from hybridperf.ops.embedding import Table, check_names
from hybridperf.workloads.placement import Placement, require
from hybridperf.workloads.programs.eager import Eager
from hybridperf.workloads.transformer.fields import (
    check_each,
    check_word,
    is_count,
    is_number,
    is_positive,
)

_WORDS = {
    "interaction": ("dot", "cat"),
    "loss": ("bce", "mse"),
    "optimizer": ("sgd", "adagrad", "rowwise_adagrad"),
}


@dataclasses.dataclass(frozen=True)
class DlrmConfig:
    """A deep learning recommendation model (Naumov et al., arXiv:1906.00091) and where it runs.

    Args:
        batch: samples of all ranks together.
        dense_features: dense input numbers of a sample.
        bottom_mlp: widths after the dense features; dot products need the tables' `dim` last.
        top_mlp: widths after the interaction; the last is 1.
        tables: `Table`s, whose `access` tells how lookups are distributed: `Uniform()`,
            `Zipf(...)`, `Histogram(...)`, `Indices(...)`.
        interaction: "dot": dot products of all pairs among the pooled rows and the bottom MLP's
            output, concatenated with that output; "cat": all of them concatenated.
        loss: "bce" or "mse".
        optimizer: of the tables: "sgd", "adagrad" or "rowwise_adagrad"; MLPs and copied tables take
            SGD or Adagrad.
        duplicates: how the tables' update treats a row that was looked up twice: "merged": its
            gradients are summed first; "each": every one is added by itself (SGD only).
        dtype: number format of MLPs, interaction and pooled rows between ranks; None: fp32, pooled
            rows as their table's.
        ranks: devices in all.
        nodes: nodes in all; each has the same number of ranks, in order.
        placement: a `Placement` of each table; empty: whole tables, one rank after the other.
        bucket_bytes: bytes of gradients that are all-reduced together.
        load_s: seconds until a rank's host has its batch: one number, or one for each rank.
        host_bytes_per_s: rate at which a batch is copied to its device, bytes/s; None: it is
            already there.
        index_bytes: bytes of one index: 8 for int64.
        blocking_copies: whether the host waits for each copy.
        lookup_first: whether tables are looked up before the bottom MLP, which then hides the
            all-to-all.
        exchange_indices: whether each rank reads its own samples' indices and sends them to the
            ranks with the tables.
        reads_loss: whether the host waits for the loss before it goes on.
        eager: how the framework cuts layers into kernels; None: as current PyTorch.

    Example:
        clicks = Table("clicks", rows=1e7, dim=64, pooling=20, access=Zipf(0.9, 5.0))
        users = Table("users", rows=1e6, dim=64, pooling=1, access=Indices(recorded))
        config = DlrmConfig(
            batch=8192, dense_features=13, bottom_mlp=(512, 64), top_mlp=(512, 1),
            tables=(clicks, users), ranks=8, placement=(Placement("row"), Placement("table", (3,))),
            load_s=1e-3, host_bytes_per_s=20e9,
        )
        predict(model, dlrm(config, host=model.host))  # host: what launching costs
    """

    batch: int
    dense_features: int
    bottom_mlp: tuple[int, ...]
    top_mlp: tuple[int, ...]
    tables: tuple[Table, ...]
    interaction: Literal["dot", "cat"] = "dot"
    loss: Literal["bce", "mse"] = "bce"
    optimizer: Literal["sgd", "adagrad", "rowwise_adagrad"] = "sgd"
    duplicates: Literal["merged", "each"] = "merged"
    dtype: str | None = None
    ranks: int = 1
    nodes: int = 1
    placement: tuple[Placement, ...] = ()
    bucket_bytes: float = 25e6
    load_s: float | tuple[float, ...] = 0.0
    host_bytes_per_s: float | None = None
    index_bytes: float = 8.0
    blocking_copies: bool = True
    lookup_first: bool = True
    exchange_indices: bool = False
    reads_loss: bool = False
    eager: Eager | None = None

    @property
    def dense_dtype(self) -> str:
        """Number format of the MLPs and the interaction."""
        return "fp32" if self.dtype is None else self.dtype

    @property
    def interaction_width(self) -> int:
        """Width of the top MLP's input."""
        if self.interaction == "cat":
            return self.bottom_mlp[-1] + sum(table.dim for table in self.tables)
        return self.bottom_mlp[-1] + (len(self.tables) + 1) * len(self.tables) // 2

    def check(self) -> None:
        """`InputError` for sizes that make no model."""
        counts = ("batch", "dense_features", "ranks", "nodes")
        check_each(self, counts, is_count, "must be a whole number of 1 or more")
        for name, kind in (("tables", Table), ("placement", Placement)):
            value = getattr(self, name)
            listed = isinstance(value, Sequence) and all(isinstance(one, kind) for one in value)
            require(listed, f"{name} must be a tuple of {kind.__name__}(...), got {value!r}")
        for name, allowed in _WORDS.items():
            check_word(name, getattr(self, name), allowed)
        self._check_mlps()
        require(
            self.tables, "expected at least one table, got none; a model without tables is an MLP"
        )
        check_names(self.tables)
        require(
            not (self.batch % self.ranks or self.ranks % self.nodes),
            "expected a batch of whole samples per rank and whole ranks per node, got"
            f" {self.batch} on {self.ranks} ranks of {self.nodes} nodes",
        )
        for table in self.tables if self.interaction == "dot" else ():
            require(
                table.dim == self.bottom_mlp[-1],
                f"table {table.name} has {table.dim} columns and the bottom MLP ends in"
                f' {self.bottom_mlp[-1]}; dot products need as many, interaction="cat" does not',
            )
        self._check_load()
        check_each(self, ("bucket_bytes",), is_positive, "must be above zero")
        finite = ("index_bytes",)
        check_each(self, finite, lambda x: is_positive(x) and x != np.inf, "must be above zero")
        rate = ("host_bytes_per_s",)
        wanted = "must be above zero or None"
        check_each(self, rate, lambda x: x is None or is_positive(x), wanted)
        flags = ("blocking_copies", "lookup_first", "exchange_indices", "reads_loss")
        check_each(self, flags, lambda x: isinstance(x, bool | np.bool_), "must be True or False")
        known = self.eager is None or isinstance(self.eager, Eager)
        require(known, f"eager must be an Eager(...) or None, got {self.eager!r}")

    def _check_mlps(self) -> None:
        for name, widths in (("bottom_mlp", self.bottom_mlp), ("top_mlp", self.top_mlp)):
            listed = isinstance(widths, Sequence) and widths and all(map(is_count, widths))
            needed = f"{name} needs at least one width, each a whole number of 1 or more"
            require(listed, f"{needed}, got {widths!r}")
        last = f"top_mlp must end in 1, the logit of a sample, got {self.top_mlp!r}"
        require(self.top_mlp[-1] == 1, last)
        formats = f"dtype must be a floating-point format ({', '.join(FLOAT_DTYPES)})"
        known = canonical_dtype(self.dense_dtype) in FLOAT_DTYPES
        require(known, f"{formats}, got {self.dtype!r}")

    def _check_load(self) -> None:
        of_ranks = isinstance(self.load_s, Sequence) or np.ndim(self.load_s) > 0
        each = of_ranks and not isinstance(self.load_s, str)
        load_s: Any = self.load_s if each else (self.load_s,)
        for one in load_s:
            wanted = "load_s must be seconds of 0 or more, of all ranks or of each"
            require(is_number(one) and 0 <= one < np.inf, f"{wanted}, got {one!s:.40}")
        wanted = f"expected load_s of one number or of each of {self.ranks} ranks"
        require(not each or len(load_s) == self.ranks, f"{wanted}, got {len(load_s)}")
