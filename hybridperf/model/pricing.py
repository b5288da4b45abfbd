"""One op or one collective as a function of its sizes: what a table of them is priced by, pure JAX.

    t(platform, dims) = t0(platform, dims) exp(correction(dims))
    t(links, bytes)   = t0(links, bytes)   exp(correction(bytes))

t0 is the closed form of `roofline.py` (of `collectives/form.py`); the correction is what was
learned, at the sizes asked for and on the calibrated machine, so that knobs keep the meaning that
the closed form gives them. Both may be compiled, mapped and differentiated, in every dimension and
in every number of the platform (of the links).

Gradients are those between jumps. Sizes are rounded up to tiles, vectors and waves: between two
such sizes what is computed in vain shrinks as an op grows, and at them time jumps. A curve of a
collective is straight in log seconds over log bytes from one quarter of an octave to the next and
level where the library falls into another algorithm; at its corners a gradient is that of one side.
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
import numpy as np
import pandas as pd

from hybridperf.collectives.curves import LOG2_BYTES
from hybridperf.collectives.links import Links
from hybridperf.collectives.model import CollectiveModel, CollectiveTable, collective_seconds
from hybridperf.hardware import canonical_dtype
from hybridperf.io import InputError, unknown
from hybridperf.learning.residual import inputs_of, log_correction
from hybridperf.model import OpTable, PerfModel, Platform, durations
from hybridperf.model.families import family_of, family_rows, with_defaults
from hybridperf.ops import GROUPS, op_by_name
from hybridperf.ops.table import LABELS, OpRows, parse_ops

_NOTHING: Mapping[str, str] = MappingProxyType({})
_WORDS = (
    "lib",
    "lib_version",
    "variant",
    "dtype",
    "in_place",
)  # columns of a table of collectives that name an implementation


@dataclasses.dataclass(frozen=True)
class OpPricer:
    """Seconds of one kind of op on one model's device. Compiled once for each set of dimensions
    that it is given.
    """

    model: PerfModel
    # one row of it: words that the dimensions do not change, and what dimensions are where they are
    # not given
    sample: OpRows
    dimensions: tuple[str, ...]
    required: tuple[str, ...]  # those without a default

    @staticmethod
    def of(
        model: PerfModel,
        op: str,
        *,
        dtype: str,
        text: Mapping[str, str] = _NOTHING,
        labels: Mapping[str, str] = _NOTHING,
    ) -> OpPricer:
        """By the op's name in tables. `text`: words that change its work (`quant`, `kv_dtype`,
        ...), `labels`: words that say which implementation ran (`framework`, ...), both as columns
        of a table have them. `InputError` for what is not known.
        """
        cls, fixed = op_by_name(op)
        for word in text:
            if word not in cls.text or word in fixed:
                raise unknown(
                    f"word of {op}", word, cls.text, f"known are {', '.join(cls.text) or 'none'}"
                )
        for word in labels:
            if word not in LABELS:
                raise unknown("label", word, LABELS, f"known are {', '.join(LABELS)}")
        # before the table is read, which would name a row that nobody wrote
        dtype = canonical_dtype(dtype)
        read = {
            name: cls.read_text(name, word or cls.text[name], dtype) for name, word in text.items()
        }
        model.device.peak(cls.arithmetic_dtype(dtype, {**cls.text, **fixed, **read}), cls.unit)
        dimensions = tuple(name for name in cls.dimensions() if name not in fixed)
        required = tuple(name for name in dimensions if name not in cls.optional)
        row = {"op": op, "dtype": dtype, **text, **labels, **dict.fromkeys(required, 1.0)}
        parsed = parse_ops(pd.DataFrame([row]), model.device)
        return OpPricer(model, parsed.parts[0], dimensions, required)

    def __call__(self, platform: Platform, **dims: Any) -> Any:
        """Seconds of the op alone. `dims`: a number for each of `required`, and for others that are
        not as usual.
        """
        for name in dims:
            if name not in self.dimensions:
                raise unknown(
                    "dimension",
                    name,
                    self.dimensions,
                    f"{self.sample.name} has {', '.join(self.dimensions)}",
                )
        if missing := [name for name in self.required if name not in dims]:
            raise InputError(
                f"{self.sample.name} needs {', '.join(self.required)}; give a number for"
                f" {', '.join(missing)}"
            )
        return _compiled(self)(_floats(platform), _floats(dims))

    @functools.cached_property
    def _by_precision(self) -> dict[Any, Callable[..., Any]]:
        return {}

    def _seconds(self, platform: Platform, dims: dict[str, Any]) -> Any:
        usual: dict[str, Any] = {
            name: float(getattr(self.sample.op, name)[0])
            for name in self.dimensions
            if name not in dims
        }
        op = dataclasses.replace(self.sample.op, **(usual | dims))
        part = dataclasses.replace(self.sample, op=op, work=op.work(), group=np.zeros(1, np.int32))
        which = op.group_index()
        table = OpTable(
            work=jax.tree.map(lambda count: jnp.reshape(_float(count), (1,)), part.work),
            peak_flops_per_s=jnp.full(1, part.peak_flops_per_s),
            group=jnp.reshape(jnp.asarray(which, jnp.int32), (1,)),
            times=jnp.ones(1),
            floors=jnp.ones(1),
            correction=jnp.zeros(1),
        )
        groups = (
            op.possible_groups() if isinstance(which, jax.core.Tracer) else (GROUPS[int(which)],)
        )
        learned = [self._correction(GROUPS.index(group), part, table) for group in groups]
        correction = learned[0]
        for group, other in zip(groups[1:], learned[1:], strict=True):
            correction = jnp.where(which == GROUPS.index(group), other, correction)
        return durations(dataclasses.replace(table, correction=correction), platform)[0]

    def _correction(self, group: int, part: OpRows, table: OpTable) -> Any:
        """What was learned of an op as one of a group [1]."""
        family = family_of(GROUPS[group], part.op.dtype)
        if family is not None and family in self.model.families:
            adapted = self.model.families[family]
            rows, _ = with_defaults(
                family_rows(part, np.ones(1, bool), self.model.device),
                adapted.prior.population.implementations,
            )
            here = dataclasses.replace(table, group=jnp.full(1, group, jnp.int32))
            return adapted.predict(rows).log_s - jnp.log(
                durations(here, _floats(self.model.platform()))
            )
        report = self.model.groups.get(GROUPS[group])
        if report is None or report.residual is None:
            return jnp.zeros(1)
        return log_correction(report.residual, inputs_of(part.op, part.work, 1))


@dataclasses.dataclass(frozen=True)
class CollectivePricer:
    """Seconds of one kind of collective over so many ranks on one system, as a function of its
    bytes.
    """

    model: CollectiveModel
    per_byte: CollectiveTable  # one row, of one byte, without correction
    curve: np.ndarray | None  # log of seconds at bytes of 2**LOG2_BYTES; None: nothing was learned

    @staticmethod
    def of(
        model: CollectiveModel, collective: str, *, n_gpus: int, n_nodes: int = 1, **words: str
    ) -> CollectivePricer:
        """By the collective's name. `words`: `lib`, `lib_version`, `variant`, `dtype`, `in_place`
        as columns of a table have them.

        `InputError` for what is not known or cannot be.
        """
        for word in words:
            if word not in _WORDS:
                raise unknown(
                    "word of a collective", word, _WORDS, f"known are {', '.join(_WORDS)}"
                )
        given = {name: word for name, word in words.items() if word != ""}
        frame = pd.DataFrame({"bytes": 2.0**LOG2_BYTES}).assign(
            collective=collective, n_gpus=n_gpus, n_nodes=n_nodes, **given
        )
        per_byte = dataclasses.replace(model.table(frame.iloc[:1]), correction=np.zeros(1))
        curve = (
            None
            if model.adapted is None
            else np.log(model.predict(frame)["predicted_s"].to_numpy())
        )
        return CollectivePricer(model, per_byte, curve)

    def __call__(self, links: Links, bytes: Any) -> Any:  # as in tables
        """Seconds of a collective of so many bytes."""
        return _compiled(self)(_floats(links), _float(bytes))

    def table(self, bytes: Any) -> CollectiveTable:
        """The collective of so many bytes as one row for `collective_seconds`, of which knobs may
        be varied, too.
        """
        row = _floats(self.per_byte)
        row = dataclasses.replace(
            row, inside_bytes=row.inside_bytes * bytes, across_bytes=row.across_bytes * bytes
        )
        if self.curve is None:
            return row
        sizes = jnp.log2(bytes)
        # beyond the last size there is nothing but bandwidth
        log_s = jnp.interp(sizes, _float(LOG2_BYTES), _float(self.curve)) + np.log(
            2.0
        ) * jnp.maximum(sizes - LOG2_BYTES[-1], 0.0)
        return dataclasses.replace(
            row, correction=log_s - jnp.log(collective_seconds(row, _floats(self.model.links())))
        )

    def _seconds(self, links: Links, bytes_: Any) -> Any:
        return collective_seconds(self.table(bytes_), links)[0]

    @functools.cached_property
    def _by_precision(self) -> dict[Any, Callable[..., Any]]:
        return {}


def _compiled(pricer: OpPricer | CollectivePricer) -> Callable[..., Any]:
    """A pricer's function for JAX' present precision, over arrays of its own: JAX remembers how it
    took NumPy's in another (0.9, 0.11).
    """
    precision = jnp.result_type(float)
    if precision not in pricer._by_precision:
        pricer._by_precision[precision] = jax.jit(copy.deepcopy(pricer)._seconds)
    return pricer._by_precision[precision]


def _float(value: Any) -> Any:
    """In JAX' default precision, made anew: a whole number where a fraction was would compile
    again.
    """
    return jnp.array(value, jnp.result_type(float))


def _floats(tree: Any) -> Any:
    return jax.tree.map(_float, tree)
