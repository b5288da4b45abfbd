"""Rows of measured or planned training steps, understood: model, layout, machine, and what is
missing or contradicts itself.

Both schemas are read (`data/README.md`): that of published steps and vTrain's. A row's own words
come first, then its framework's habits (`transformer/frameworks.toml`), and each habit that was
used stands in the row's notes. What cannot be predicted is refused with one sentence that names the
row and the rule; what contradicts itself is predicted by its layout and flagged. N rows.

A table may have any other columns. But a header in capitals, cells between semicolons or
"microbatch" would be passed over without a word and each row refused, or worse, predicted by
assumptions: `misspelt` finds columns that look like one that is read but for their spelling, or go
by another name. Those that are read: `read_columns.py`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from hybridperf.hardware import load_device, load_system
from hybridperf.io import InputError
from hybridperf.io.errors import plain as plain_word
from hybridperf.training.steps import contradictions, names
from hybridperf.training.steps.names import Machine, plain
from hybridperf.training.steps.read_columns import READ
from hybridperf.training.steps.row_layout import checked, row_layout
from hybridperf.training.steps.row_shape import Record, Refused, row_shape
from hybridperf.workloads.transformer import Layout, TransformerShape
from hybridperf.workloads.transformer.config import TransformerConfig, config_fields
from hybridperf.workloads.transformer.framework import config_habits, framework_habits
from hybridperf.workloads.transformer.step import refuse_unmodelled

_FAR = 2.0  # how many times beyond what was measured is said
_WIDEST_FUSED_HEAD = 256  # of FlashAttention's kernels and cuDNN's
_CONTEXT = ("source", "section", "system_detail", "gpu")
_SIZES = ("hidden", "heads", "layers", "seq", "vocab")
_ALIKE = 0.85  # of difflib's ratio: "microbatch" and "micro_batches", not "sequence"


@dataclasses.dataclass(frozen=True)
class ResolvedRow:
    """One row, understood. `refused` says why it cannot be predicted; then `config` is None."""

    config: TransformerConfig | None
    machine: Machine | None
    source: str
    framework: str
    host: str | None = None
    notes: tuple[str, ...] = ()  # what was assumed
    flags: tuple[str, ...] = ()  # what contradicts itself
    refused: str = ""
    name: str = ""  # how a message calls it
    named: bool = True  # its framework is given, or known of its source

    @property
    def note(self) -> str:
        """Why the row is refused, else its flags and notes, in one line."""
        return self.refused or "; ".join((*self.flags, *self.notes))


@dataclasses.dataclass(frozen=True)
class ResolvedRows:
    """The rows of a table, in its order."""

    rows: tuple[ResolvedRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ResolvedRow]:
        return iter(self.rows)

    @property
    def predictable(self) -> list[int]:
        """Places of the rows that have a config."""
        return [at for at, row in enumerate(self.rows) if row.config is not None]


def resolve(
    frame: pd.DataFrame, device: str | None = None, system: str | None = None,
    host: str | None = None,
) -> ResolvedRows:  # fmt: skip
    """Understand each row of a table of training steps; a row that is wrong is refused by itself.

    `device`, `system` and `host`: in place of the rows' own.

    Raises:
        InputError: for a device or system that nobody knows, and a table without a model.
    """
    check_columns(frame.columns)
    if device:
        load_device(device)
    if system:
        load_system(system)
    records = (Record(at, record) for at, record in enumerate(frame.to_dict("records")))
    return ResolvedRows(tuple(_resolve(record, device, system, host) for record in records))


def _resolve(row: Record, device: str | None, system: str | None, host: str | None) -> ResolvedRow:
    source = row.text("source")
    framework = plain(row.text("framework")) or str(names.of_source("source", source) or "")
    found: Machine | None = None
    named = True
    try:
        if why := names.aliases()["refused"].get(plain(row.text("model")), ""):
            raise Refused(f"expected a Transformer, got {row.text('model')}: {why}")
        if framework not in framework_habits():
            if framework:
                row.notes.append(
                    f"framework {framework} is not known, only {', '.join(framework_habits())}"
                )
            framework = row.assume("framework", "megatron_core")
            habits = {**framework_habits()[framework], "precision": "bf16"}
            row.notes[-1] += (
                f" (where the row does not say: {habits['implies']}); it is the quickest, others"
                " may take 10 to 30 % longer"
            )
            named = False
        else:
            habits = {**framework_habits()[framework], **(names.of_source("habits", source) or {})}
        shape = row_shape(row)
        context = " ".join(row.text(name) for name in _CONTEXT)
        gpu = row.text("gpu")
        if not gpu and not device:
            raise Refused("expected an accelerator in gpu, got nothing; name it by --device")
        found = names.machine(gpu, context, device, system)
        gpus_per_node, whole = _nodes(row, found)
        if row.yes("offload"):
            raise Refused(
                "expected offload false, got true: state that moves to host memory is not modelled"
            )
        layout = row_layout(row, habits, gpus_per_node, shape)
        strict = not habits.get("ragged_heads", False)
        gpus, global_batch = row.count("n_gpus"), row.count("global_batch")
        if row.count("gpus_per_node") is None and gpus and gpus > whole and gpus % whole:
            raise Refused(
                f"expected whole nodes of {whole} GPUs, a number that is assumed, got {gpus} GPUs;"
                " give gpus_per_node"
            )
        row.notes += checked(layout, shape, gpus, gpus_per_node, whole, strict)
        dtype, fields = _habits(row, habits, layout, found)
        if dict(fields).get("attention", "fused") == "fused" and shape.dim > _WIDEST_FUSED_HEAD:
            row.notes.append(
                f"fused attention assumed for heads of {shape.dim}, which kernels of up to"
                f" {_WIDEST_FUSED_HEAD} do not take"
            )
        flags = contradictions.of(
            row.record, shape, layout, found, dtype, dict(fields)["quant"], global_batch
        )
        config = _config(shape, layout, dtype, fields, min(gpus_per_node, layout.ranks))
        refuse_unmodelled(config)
        row.notes += _unseen(config)
    except (Refused, InputError) as error:
        why = f"{row.name}: {error}"
        return ResolvedRow(None, found, source, framework, host, refused=why, name=row.name)
    notes = (*found.notes, *row.notes)
    return ResolvedRow(
        config, found, source, framework, host, notes, flags, name=row.name, named=named
    )


def _nodes(row: Record, found: Machine) -> tuple[int, int]:
    """(GPUs that count as a node, GPUs of a node that runs take whole)."""
    given = row.count("gpus_per_node")
    if found.renoded:
        if given not in (None, found.whole):
            row.notes.append(
                f"gpus_per_node {found.whole} of the system that was given, in place of the row's"
                f" {given}"
            )
        return found.gpus_per_node, found.whole
    if found.switched:
        return found.gpus_per_node, given or found.whole
    given = given or row.assume("gpus_per_node", found.gpus_per_node)
    return given, given


@functools.lru_cache(65536)
def _unseen(config: TransformerConfig) -> list[str]:
    """Sizes far outside all measured steps."""
    layout, shape = config.layout, config.shape
    values = {"n_gpus": layout.ranks} | {name: getattr(shape, name) for name in ("seq", "hidden")}
    values |= {name: getattr(layout, name) for name in ("micro_batch", "tp", "pp")}
    return [
        f"{name} {values[name]} is far outside measured steps ({low} to {high}): extrapolated"
        for name, (low, high) in names.aliases()["measured"].items()
        if not low / _FAR <= values[name] <= high * _FAR
    ]


def _habits(
    row: Record, habits: Mapping[str, Any], layout: Layout, found: Machine
) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """(dtype, the framework's own fields of a config)."""
    given = row.text("precision")
    if plain(given) in ("", "submission"):
        usual = habits.get("precision", "bf16")
        known = usual in found.spec.peak_flops_per_s
        given = row.assume("precision", usual if known else "bf16")
    dtype = names.word("precision", given)
    if dtype is None:
        raise Refused(
            f"expected a precision of {', '.join(names.aliases()['precision'])}, got {given!r}"
        )
    settled = {**config_habits(habits, layout.tp), "quant": names.word("quant", given) or ""}
    return dtype, tuple(config_fields(settled).items())


@functools.lru_cache(65536)
def _config(
    shape: TransformerShape, layout: Layout, dtype: str, fields: tuple[tuple[str, Any], ...],
    gpus_per_node: int,
) -> TransformerConfig:  # fmt: skip
    """One object for all rows of equal configs."""
    return TransformerConfig(
        shape=shape, layout=layout, dtype=dtype, gpus_per_node=gpus_per_node, **dict(fields)
    )


def misspelt(columns: Iterable[str]) -> dict[str, str]:
    """Columns that are not read, with the column that each is taken for a misspelling of."""
    named = [str(name) for name in columns]
    absent = [name for name in READ if name not in named]
    found = {}
    for name in named:
        if name not in READ:
            called = str(names.aliases()["columns"].get(plain(name), ""))
            near = difflib.get_close_matches(plain_word(name), absent, 1, _ALIKE)
            if called in absent or near:
                found[name] = called if called in absent else near[0]
    return found


def check_columns(columns: Iterable[str]) -> None:
    """`InputError` for a table no row of which can name its model."""
    named = [str(name) for name in columns]
    derived = {"seq"} if {"image", "patch"} <= set(named) else set()
    if "model" in named or set(_SIZES) - derived <= set(named):
        return
    pairs = misspelt(named).items()
    near = [f"{wrong!r} for {right!r}" for wrong, right in pairs if right in ("model", *_SIZES)]
    mend = f"rename {', '.join(near)}" if near else "name columns so"
    for sign, what in ((";", "semicolons"), ("\t", "tabs")):
        if len(named) == 1 and sign in named[0]:
            mend = f"separate cells by commas, not {what}"
    have = ", ".join(map(repr, named[:8])) + (", ..." if len(named) > 8 else "")
    raise InputError(
        f"expected a column model, or {', '.join(_SIZES)}, in a table of training steps, got"
        f" {have}; {mend}"
    )
