"""A training step as a row that says everything: each column of `steps` with the value that counts,
whether it was given or assumed.

What a row leaves open is assumed (`rows.py`); `assumed` says what, in columns: a table that is
filled with them is predicted alike. A layout of a plan and a launch file become rows here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from hybridperf.fields.columns import read_columns
from hybridperf.hardware import canonical_dtype
from hybridperf.hardware.machines import aliases
from hybridperf.ops.attention_kernels import SHARES
from hybridperf.training.steps.record import FIELDS, SIZES
from hybridperf.training.steps.row_layout import layout_columns, yes_or_no
from hybridperf.training.steps.rows import Question, resolve
from hybridperf.workloads.transformer import TransformerShape
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.zoo import published_as

# follow from others in a model without a name; those of one that is published are not assumed
_FOLLOWING = ("family", "ffn", "kv_heads", "head_dim")


def precision_word(dtype: str, quant: str) -> str:
    """A precision as rows of steps call it."""
    words = {one["quant"]: word for word, one in aliases()["precision"].items() if "quant" in one}
    return words.get(quant, canonical_dtype(dtype))


def habit_columns(config: TransformerConfig) -> dict[str, Any]:
    """How a framework runs a step, in columns of `steps`, all of them."""
    kernel = config.attention_kernel if config.attention_kernel in SHARES else ""
    fused = config.attention == "fused"
    habits = {name: getattr(config, name) for name in FIELDS.of("config")}
    return {
        "precision": precision_word(config.dtype, config.quant), "framework": config.framework,
        **{name: yes_or_no(one) if isinstance(one, bool) else one for name, one in habits.items()},
        "attention": (fused and kernel) or config.attention,
        "gradient_bytes": int(config.gradient_bytes),
    }  # fmt: skip


def size_columns(shape: TransformerShape) -> dict[str, Any]:
    """Sizes of a model in columns of `steps`, None where it has none."""
    found = {name: getattr(shape, name) or None for name in (*SIZES, *_FOLLOWING) if name != "seq"}
    return found | {"kv_heads": shape.key_heads, "head_dim": shape.dim}


def model_columns(shape: TransformerShape) -> dict[str, Any]:
    """A model in columns of `steps`: the name of a published one, else its sizes."""
    name = published_as(shape)
    return {"model": name} if name else size_columns(shape)


def full_row(
    config: TransformerConfig, system: str, gpus_per_node: int, release: str = ""
) -> dict[str, Any]:
    """A step in columns of `steps`, all but the model and its accelerator.

    Args:
        config: the step.
        system: name of the nodes and links.
        gpus_per_node: of a node that runs take whole.
        release: of the framework; "": none is told apart.
    """
    dated = {"release": release} if release else {}
    return {
        "seq": config.shape.seq, "system": system, "gpus_per_node": gpus_per_node,
        **layout_columns(config.layout), **habit_columns(config), **dated,
    }  # fmt: skip


def assumed(
    frame: pd.DataFrame, device: str | None = None, system: str | None = None
) -> pd.DataFrame:
    """What is assumed of R training steps where they say nothing, as `hp.assumed` has it.

    Args:
        frame: the rows.
        device: accelerator in place of the rows' own.
        system: in place of the rows' own.
    """
    said = read_columns(frame, "steps").frame
    found = [
        {} if row.config is None else left_open(given, row.question)
        for given, row in zip(said.to_dict("records"), resolve(frame, device, system), strict=True)
    ]
    return pd.DataFrame(found, index=frame.index, dtype=object)


def left_open(given: Mapping[Any, Any], question: Question) -> dict[str, Any]:
    """Columns that a row leaves open, and what counts there."""

    def says(name: str) -> bool:
        value = given.get(name)
        empty = value is None or value is pd.NA or value != value  # NaN differs from itself
        return not empty and FIELDS[name].meant(str(value)) != ""

    assert question.config is not None
    assert question.machine is not None
    system = question.machine.system.id
    every = full_row(question.config, system, question.whole_node, question.release)
    if not says("model"):
        sizes = size_columns(question.config.shape)
        every |= {name: sizes[name] for name in _FOLLOWING}
    if question.foreign:  # the row names one that is not known
        del every["framework"]
    return {name: value for name, value in every.items() if not says(name)}
