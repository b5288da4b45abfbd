"""One op as a function of its sizes and of a machine's numbers, pure JAX: the stages of the price
(`stages/`), compiled.

Gradients are those between jumps. Sizes are rounded up to tiles, vectors and waves: between two
such sizes what is computed in vain shrinks as an op grows, and at them time jumps.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hybridperf.hardware import canonical_dtype
from hybridperf.io import InputError, unknown
from hybridperf.io.later import pd
from hybridperf.io.namespace import SOONER_COMPILED, Array, is_traced
from hybridperf.model.batch import traced
from hybridperf.model.perf_model import PerfModel
from hybridperf.model.platform import Platform
from hybridperf.model.stages import Machine, as_measured, price_batch
from hybridperf.ops import columns_of, op_by_name
from hybridperf.ops.table import LABELS, OpRows, parse_ops

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class OpPricer:
    """Seconds of one kind of op on a device, differentiable in the op's sizes and all knobs.

    Compiled once for each set of dimensions that is given. Make one with `OpPricer.of`.
    """

    model: PerfModel
    # one row of the op: its words, and the value of each dimension that a call leaves out
    sample: OpRows
    dimensions: tuple[str, ...]  # names that a call may give
    required: tuple[str, ...]  # names that it must give: those without a default

    @staticmethod
    def of(
        model: PerfModel, op: str, *, dtype: str, text: Mapping[str, str] = _NOTHING,
        labels: Mapping[str, str] = _NOTHING,
    ) -> OpPricer:  # fmt: skip
        """A pricer for an op by its name.

        Args:
            model: the device and what was learned of it.
            op: name of the op, as in tables of ops ("gemm").
            dtype: number format.
            text: words that change the op's work, by column of a table (`quant`, `kv_dtype`, ...).
            labels: words that name the implementation, by column (`framework`, ...).

        Raises:
            InputError: when the op, a word, a label or the dtype is unknown.
        """
        cls, fixed = op_by_name(op)
        columns = columns_of(cls)
        for word in text:
            if word not in columns.text or word in fixed:
                known = f"known are {', '.join(columns.text) or 'none'}"
                raise unknown(f"word of {op}", word, columns.text, known)
        for word in labels:
            if word not in LABELS:
                raise unknown("label", word, LABELS, f"known are {', '.join(LABELS)}")
        # before the table is read, which would name a row that nobody wrote
        dtype = canonical_dtype(dtype)
        read = {
            name: columns.read_text(name, word or columns.text[name], dtype)
            for name, word in text.items()
        }
        sizes = dict.fromkeys(cls.dimensions(), 1.0)
        model.device.peak(cls(dtype, **(sizes | fixed | read)).peak_dtype, cls.unit)
        dimensions = tuple(name for name in cls.dimensions() if name not in fixed)
        required = tuple(name for name in dimensions if name not in columns.optional)
        row = {"op": op, "dtype": dtype, **text, **labels, **dict.fromkeys(required, 1.0)}
        parsed = parse_ops(pd.DataFrame([row]), model.device)
        return OpPricer(model, parsed.parts[0], dimensions, required)

    def __call__(self, platform: Platform, **dims: ArrayLike) -> Array:
        """Seconds of the op by itself.

        Args:
            platform: numbers of the machine, `model.platform()` or a variation of it.
            dims: sizes of the op by name: all of `required`, any of `dimensions`.

        Raises:
            InputError: when a required size is missing or a name is unknown.
        """
        for name in dims:
            if name not in self.dimensions:
                has = f"{self.sample.name} has {', '.join(self.dimensions)}"
                raise unknown("dimension", name, self.dimensions, has)
        if missing := [name for name in self.required if name not in dims]:
            raise InputError(
                f"{self.sample.name} needs {', '.join(self.required)}; give a number for"
                f" {', '.join(missing)}"
            )
        precision = jnp.result_type(float)
        # new arrays: an integer where a float was would compile again
        given = jax.tree.map(lambda leaf: jnp.array(leaf, precision), (platform, dims))
        way = precision, is_traced(given)
        if way not in self._compiled:
            # a copy: JAX (0.9, 0.11) remembers how it took NumPy's arrays in another precision
            seconds = copy.deepcopy(self)._seconds
            options = None if is_traced(given) else SOONER_COMPILED
            self._compiled[way] = jax.jit(seconds, compiler_options=options)
        return self._compiled[way](*given)

    @functools.cached_property
    def _compiled(self) -> dict[Any, Callable[..., Any]]:
        """By precision, and whether it is part of a larger function."""
        return {}

    def _seconds(self, platform: Platform, dims: dict[str, Any]) -> Array:
        """Seconds of the op by the stages of the price [], its sizes and the machine traced."""
        usual: dict[str, Any] = {
            name: float(getattr(self.sample.op, name)[0])
            for name in self.dimensions
            if name not in dims
        }
        op = dataclasses.replace(self.sample.op, **usual, **dims)
        machine = Machine(self.model, platform)
        found: Any = None
        for batch in traced(self.sample, op):
            known = as_measured(self.model, batch)
            seconds = price_batch(known, machine, jnp).seconds(jnp)[0]
            mine = op.group_index() == batch.part.group[0]
            found = seconds if found is None else jnp.where(mine, seconds, found)
        return found
