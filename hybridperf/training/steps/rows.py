"""Rows of measured or planned training steps, understood: model, layout, machine, and what is
missing or contradicts itself.

Both schemas are read (`data/README.md`): that of published steps and vTrain's. A row's own words
come first, then its framework's habits (`transformer/frameworks.toml`), and each habit that was
used stands in the row's notes. What cannot be predicted is refused with one sentence that names the
row and the rule; what contradicts itself is predicted by its layout and flagged. N rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from hybridperf.hardware import load_device, load_system
from hybridperf.io import InputError
from hybridperf.training.steps import contradictions
from hybridperf.training.steps.columns import check_columns
from hybridperf.training.steps.names import (
    Machine,
    aliases,
    framework_of,
    habits_of,
    machine,
    plain,
    word,
)
from hybridperf.training.steps.record import Record, Refused
from hybridperf.training.steps.row_layout import checked, row_layout
from hybridperf.training.steps.row_shape import row_shape
from hybridperf.workloads.transformer import Layout, TransformerShape
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.framework import config_habits, framework_habits
from hybridperf.workloads.transformer.step import refuse_unmodelled

_FAR = 2.0  # how many times beyond what was measured is said
_WIDEST_FUSED_HEAD = 256  # of FlashAttention's kernels and cuDNN's
_CONTEXT = ("source", "section", "system_detail", "gpu")


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

    @property
    def notes(self) -> list[str]:
        """One line for each row."""
        return [row.note for row in self.rows]


def resolve(
    frame: pd.DataFrame, device: str | None = None, system: str | None = None,
    host: str | None = None,
) -> ResolvedRows:  # fmt: skip
    """Understand each row of a table of training steps; a row that is wrong is refused by itself.

    Args:
        frame: the rows.
        device: accelerator in place of the rows' own.
        system: in place of the rows' own.
        host: in place of the rows' own.

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
    framework = plain(row.text("framework")) or framework_of(source)
    found: Machine | None = None
    named = True
    try:
        why = _no_transformer(row)
        if why:
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
            habits = {**framework_habits()[framework], **habits_of(source)}
        shape = row_shape(row)
        context = " ".join(row.text(name) for name in _CONTEXT)
        found = machine(_gpu(row, device), context, device, system)
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
        for name, (low, high) in aliases()["measured"].items()
        if not low / _FAR <= values[name] <= high * _FAR
    ]


def _no_transformer(row: Record) -> str:
    return str(aliases()["refused"].get(plain(row.text("model")), ""))


def _gpu(row: Record, device: str | None) -> str:
    gpu = row.text("gpu")
    if not gpu and not device:
        raise Refused("expected an accelerator in gpu, got nothing; name it by --device")
    return gpu


def _habits(
    row: Record, habits: Mapping[str, Any], layout: Layout, found: Machine
) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """(dtype, the framework's own fields of a config)."""
    given = row.text("precision")
    if plain(given) in ("", "submission"):
        usual = habits.get("precision", "bf16")
        known = usual in found.spec.peak_flops_per_s
        given = row.assume("precision", usual if known else "bf16")
    dtype = word("precision", given)
    if dtype is None:
        raise Refused(f"expected a precision of {', '.join(aliases()['precision'])}, got {given!r}")
    names = {field.name for field in dataclasses.fields(TransformerConfig)}
    quant = word("quant", given) or ""
    settled = {**config_habits(habits, layout.tp), "quant": quant}
    return dtype, tuple((name, value) for name, value in settled.items() if name in names)


@functools.lru_cache(65536)
def _config(
    shape: TransformerShape, layout: Layout, dtype: str, fields: tuple[tuple[str, Any], ...],
    gpus_per_node: int,
) -> TransformerConfig:  # fmt: skip
    """One object for all rows of equal configs."""
    return TransformerConfig(
        shape=shape, layout=layout, dtype=dtype, gpus_per_node=gpus_per_node, **dict(fields)
    )
