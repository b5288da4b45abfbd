"""The ops of a written step, read from `[[target.ops]]`: formulas, waits and price of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import jax.numpy as jnp
import pydantic

from hybridperf.collectives.model import CollectiveModel
from hybridperf.collectives.traced import CollectivePricer
from hybridperf.engine.graph import Graph, GraphBuilder
from hybridperf.explore.sweeps.document import check_keys
from hybridperf.explore.sweeps.written import Faults, Part
from hybridperf.fields import fields_of
from hybridperf.io import InputError, closest, unknown
from hybridperf.io.documents import is_finite
from hybridperf.io.expression import Expression, parse
from hybridperf.io.namespace import Array
from hybridperf.model import PerfModel
from hybridperf.model.pricing import OpPricer
from hybridperf.ops import columns_of, op_by_name
from hybridperf.ops.table import LABELS

_PLACE = ("name", "stream", "after", "times")  # where an entry stands in the step, whatever it is
_GROUP = ("n_gpus", "n_nodes")  # structure of a collective: concrete
Size = Annotated[
    Any,  # a number or a formula of the parameters; of some ops a word, a list or a flag
    pydantic.WithJsonSchema({}),
]
_COLLECTIVE_WORDS = fields_of("collectives").of("implementation")


@dataclasses.dataclass(frozen=True)
class StepOp:
    """One entry of a step written by hand: an op, its sizes, how often it runs."""

    name: str
    stream: str
    after: tuple[str, ...]
    times: Expression
    sizes: Mapping[str, Expression]  # dimensions of an op; `bytes` of a collective
    is_collective: bool
    kind: tuple[Any, ...]  # ops of one kind have one price function
    words: Mapping[str, Any]  # the columns that a table has of it besides sizes
    price: Callable[..., Any]  # of the platform or of links, and the sizes by name

    def names(self) -> set[str]:
        return set().union(*(formula.names for formula in (self.times, *self.sizes.values())))

    def sizes_at(self, values: Mapping[str, Any]) -> dict[str, Array]:
        """Its sizes from numbers that may be traced."""
        traced = {name: formula.traced(values, jnp) for name, formula in self.sizes.items()}
        return {name: jnp.asarray(value, float) for name, value in traced.items()}


class StepEntry(Part):
    """One of `[[target.ops]]`: an op with its dtype and dimensions, or a collective."""

    model_config = pydantic.ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Size]
    name: str | None = pydantic.Field(None, description="op1, op2, ... in order if not given")
    stream: str | None = pydantic.Field(None, description="compute, of collectives comm")
    after: list[str] = pydantic.Field([], description="names of ops before it")
    times: Size = 1
    op: str | None = None
    collective: str | None = None


def read_ops(
    given: Sequence[StepEntry], model: PerfModel, system: CollectiveModel | None
) -> tuple[StepOp, ...]:
    """The entries of `[[target.ops]]` in order; one `InputError` names all that are wrong."""
    ops, faults, names = list[StepOp](), Faults(), list[str]()
    for number, written in enumerate(given, 1):
        name = written.name or f"op{number}"
        where = f"[[target.ops]] {name!r}"
        entry = written.model_dump(exclude_unset=True)
        with faults.kept():
            if ("op" in entry) == ("collective" in entry):
                got = "both" if "op" in entry else "neither"
                raise InputError(f"{where} needs either op or collective, got {got}")
            _check_place(written, where, names)
            common: dict[str, Any] = {"name": name, "after": tuple(written.after)}
            common["times"] = _formula(written.times, f"times of {where}")
            if "op" in entry:
                ops.append(_op(where, entry, common, model))
            else:
                ops.append(_collective(where, entry, common, system))
        names.append(name)
    faults.end()
    return tuple(ops)


def graph_of(ops: Sequence[StepOp]) -> Graph:
    """One node each, in order; node i takes row i + 1 of the durations."""
    builder, nodes = GraphBuilder(), dict[str, int]()
    for row, op in enumerate(ops, 1):
        after = [nodes[other] for other in op.after]
        nodes[op.name] = builder.op(row, label=op.name, stream=op.stream, after=after)
    return builder.build()


def alike_ops(ops: Sequence[StepOp]) -> list[list[int]]:
    """Ops by number, those of one kind together."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for at, op in enumerate(ops):
        found.setdefault((op.is_collective, *op.kind), []).append(at)
    return list(found.values())


def _check_place(entry: StepEntry, where: str, earlier: Sequence[str]) -> None:
    if entry.name in earlier:
        raise InputError(f"{where} stands twice; give each op its own name")
    for other in entry.after:
        if other not in earlier:
            near = closest(other, earlier)
            raise InputError(f"{where} waits for {other!r}{near}, which is no op before it")


def _op(
    where: str, entry: Mapping[str, Any], common: Mapping[str, Any], model: PerfModel
) -> StepOp:
    op = str(entry["op"])
    kinds = columns_of(op_by_name(op)[0]).text
    words = {key: str(entry[key]) for key in entry if key in (*kinds, *LABELS)}
    text, labels = ({key: words[key] for key in words if key in of} for of in (kinds, LABELS))
    if "dtype" not in entry:
        raise InputError(f'{where} needs a dtype, such as dtype = "bf16"')
    dtype = str(entry["dtype"])
    pricer = OpPricer.of(model, op, dtype=dtype, text=text, labels=labels)
    no_sizes = (*_PLACE, *words, "op", "dtype")
    sizes = {key: value for key, value in entry.items() if key not in no_sizes}
    takes = f"{op} takes {', '.join(pricer.dimensions)}"
    if strange := [key for key in sizes if key not in pricer.dimensions]:
        raise unknown(f"key of {where}", strange[0], [*pricer.dimensions, *_PLACE], takes)
    for key in pricer.required:
        if key not in sizes:
            raise InputError(f"{where} needs a dimension {key!r}{closest(key, sizes)}")
    return StepOp(
        **common,
        stream=entry.get("stream") or "compute",
        sizes={key: _formula(value, f"{key} of {where}") for key, value in sizes.items()},
        is_collective=False,
        kind=(op, dtype, *sorted(words.items()), *sorted(sizes)),
        words={"op": op, "dtype": dtype, **words},
        price=pricer,
    )


def _collective(
    where: str, entry: Mapping[str, Any], common: Mapping[str, Any], system: CollectiveModel | None
) -> StepOp:
    if system is None:
        needs = 'for which [target] needs a system, such as system = "dgx_h100"'
        raise InputError(f"{where} is a collective, {needs}")
    known = ("collective", "bytes", *_GROUP, *_COLLECTIVE_WORDS, *_PLACE)
    check_keys(entry, known, f"key of {where}", f"a collective takes {', '.join(known)}")
    if "bytes" not in entry or "n_gpus" not in entry:
        raise InputError(f"{where} needs bytes and n_gpus, got {', '.join(entry)}")
    for key in _GROUP:
        value = entry.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            what = "is the group's structure, a whole number above zero"
            raise InputError(f"{where}: {key} {what}, got {value!r}")
    collective = str(entry["collective"])
    words = {key: str(entry[key]) for key in _COLLECTIVE_WORDS if key in entry}
    group = {key: entry[key] for key in _GROUP if key in entry}
    ranks, nodes = entry["n_gpus"], entry.get("n_nodes", 1)
    pricer = CollectivePricer.of(system, collective, n_gpus=ranks, n_nodes=nodes, **words)
    return StepOp(
        **common,
        stream=entry.get("stream") or "comm",
        sizes={"bytes": _formula(entry["bytes"], f"bytes of {where}")},
        is_collective=True,
        kind=(collective, *sorted(group.items()), *sorted(words.items())),
        words={"collective": collective, "n_nodes": 1, **group, **words},
        price=pricer,
    )


def _formula(written: Any, where: str) -> Expression:
    """A number or a formula; `InputError` for anything else, and for a number that is no size."""
    if isinstance(written, int | float) and not isinstance(written, bool):
        if not is_finite(written) or written < 0:
            raise InputError(f"{where} must be a number of at least zero, got {written}")
        return parse(repr(written), where)
    formula = parse(written, where)
    if formula.is_condition:
        raise InputError(f"{where} must be a number, got the condition {formula.text!r}")
    return formula
