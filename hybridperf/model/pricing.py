"""One op or one collective as a function of its sizes: what a table of them is priced by, pure JAX.

    t(platform, dims) = t0(platform, dims) exp(correction(dims))
    t(links, bytes)   = t0(links, bytes)   exp(correction(bytes))

t0 is the closed form of `ops.roofline` (of `collectives.form`); the correction is what was
learned, at the sizes asked for and on the calibrated machine, so that knobs keep the meaning that
the closed form gives them. An op that the device has no measurements of goes by the closed form:
what other devices say of it (`reference_device.py`) has no slope. Both may be compiled, mapped and
differentiated, in every dimension and in every number of the platform (of the links).

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
from jax.typing import ArrayLike

from hybridperf.collectives.curves import LOG2_BYTES
from hybridperf.collectives.model import CollectiveModel
from hybridperf.collectives.table import CollectiveTable, collective_seconds
from hybridperf.collectives.traffic import Links
from hybridperf.hardware import canonical_dtype
from hybridperf.io import InputError, unknown
from hybridperf.io.later import pd
from hybridperf.io.namespace import Array
from hybridperf.learning.residual import inputs_of, log_correction
from hybridperf.model import OpTable, PerfModel, Platform, durations
from hybridperf.model.families import family_of, family_rows, with_defaults
from hybridperf.model.prior_pricing import predicted
from hybridperf.ops import GROUPS, columns_of, op_by_name
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
            group=jnp.reshape(jnp.asarray(which, jnp.int32), (1,)), times=jnp.ones(1),
            floors=jnp.ones(1), correction=jnp.zeros(1),
        )  # fmt: skip
        traced = isinstance(which, jax.core.Tracer)
        groups = tuple(op.knob_groups()) if traced else (GROUPS[int(which)],)
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
            seen = family_rows(part, np.ones(1, bool), self.model.device)
            rows, _ = with_defaults(seen, adapted.prior.population.implementations)
            here = dataclasses.replace(table, group=jnp.full(1, group, jnp.int32))
            closed_s = durations(here, _floats(self.model.platform()))
            return predicted(adapted, rows).log_s - jnp.log(closed_s)
        report = self.model.groups.get(GROUPS[group])
        if report is None or report.residual is None:
            return jnp.zeros(1)
        return log_correction(report.residual, inputs_of(part.op, part.work, 1))


@dataclasses.dataclass(frozen=True)
class CollectivePricer:
    """Seconds of one collective on a fixed group of ranks, differentiable in bytes and link rates.

    Make one with `CollectivePricer.of`.
    """

    model: CollectiveModel
    per_byte: CollectiveTable  # one row, of one byte, without correction
    learned_per_byte: CollectiveTable  # the same at the rates that were learned at
    # log of seconds there at bytes of 2**LOG2_BYTES; None: nothing was learned
    curve: np.ndarray | None

    @staticmethod
    def of(
        model: CollectiveModel, collective: str, *, n_gpus: int, n_nodes: int = 1, lib: str = "",
        lib_version: str = "", variant: str = "", dtype: str = "", in_place: str = "",
    ) -> CollectivePricer:  # fmt: skip
        """A pricer for a collective by its name; words left empty are assumed as in tables.

        Args:
            model: the system and what was learned of its collectives.
            collective: name of the collective, as in tables ("all_reduce").
            n_gpus: ranks in all, 2 or more.
            n_nodes: nodes that they are spread over evenly.
            lib: communication library ("nccl").
            lib_version: its version.
            variant: algorithm or path of the library, as measured rows name it.
            dtype: number format of the elements.
            in_place: "1" where the result overwrites the input.

        Raises:
            InputError: when the collective is unknown, or ranks do not divide into nodes.
        """
        words = {
            "lib": lib, "lib_version": lib_version, "variant": variant, "dtype": dtype,
            "in_place": in_place,
        }  # fmt: skip
        given = {name: word for name, word in words.items() if word != ""}
        frame = pd.DataFrame({"bytes": 2.0**LOG2_BYTES}).assign(
            collective=collective, n_gpus=n_gpus, n_nodes=n_nodes, **given
        )
        learned = model.as_learned
        per_byte, learned_per_byte = (
            dataclasses.replace(one.table(frame.iloc[:1]), correction=np.zeros(1))
            for one in (model, learned)
        )
        curve = None
        if model.adapted is not None:
            curve = np.log(learned.predict(frame)["predicted_s"].to_numpy())
        return CollectivePricer(model, per_byte, learned_per_byte, curve)

    def __call__(self, links: Links, bytes: ArrayLike) -> Array:  # named as in tables
        """Seconds of the collective with a message of so many bytes per rank."""
        return _compiled(self)(_floats(links), _float(bytes))

    def table(self, bytes: Any) -> CollectiveTable:
        """The collective as one row for `collective_seconds`, whose knobs may be varied, too."""
        row, there = (
            dataclasses.replace(
                one, inside_bytes=one.inside_bytes * bytes, across_bytes=one.across_bytes * bytes
            )
            for one in (_floats(self.per_byte), _floats(self.learned_per_byte))
        )
        if self.curve is None:
            return row
        sizes = jnp.log2(bytes)
        # beyond the last size there is nothing but bandwidth
        beyond = np.log(2.0) * jnp.maximum(sizes - LOG2_BYTES[-1], 0.0)
        log_s = jnp.interp(sizes, _float(LOG2_BYTES), _float(self.curve)) + beyond
        closed_s = collective_seconds(there, _floats(self.model.as_learned.links()))
        return dataclasses.replace(row, correction=log_s - jnp.log(closed_s))

    def _seconds(self, links: Links, bytes_: Any) -> Any:
        return collective_seconds(self.table(bytes_), links)[0]

    @functools.cached_property
    def _by_precision(self) -> dict[Any, Callable[..., Any]]:
        return {}


def _compiled(pricer: OpPricer | CollectivePricer) -> Callable[..., Any]:
    """A pricer's function for JAX' present precision, over arrays of its own.

    JAX (0.9, 0.11) remembers how it took NumPy's arrays in another precision.
    """
    precision = jnp.result_type(float)
    if precision not in pricer._by_precision:
        pricer._by_precision[precision] = jax.jit(copy.deepcopy(pricer)._seconds)
    return pricer._by_precision[precision]


def _float(value: Any) -> Any:
    """A new array of JAX' default precision: an integer where a float was would compile again."""
    return jnp.array(value, jnp.result_type(float))


def _floats(tree: Any) -> Any:
    return jax.tree.map(_float, tree)
