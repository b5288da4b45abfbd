"""The ops of a written step, read from `[[target.ops]]`: each knows its formulas, whom it waits for
and what it costs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from hybridperf.collectives.model import CollectiveModel
from hybridperf.engine.graph import Graph, GraphBuilder
from hybridperf.explore.sweeps.expression import Expression, parse
from hybridperf.io import InputError, closest, unknown
from hybridperf.model import PerfModel
from hybridperf.model.pricing import CollectivePricer, OpPricer
from hybridperf.ops import op_by_name
from hybridperf.ops.table import LABELS

_PLACE = ("name", "stream", "after", "times")  # where an entry stands in the step, whatever it is
_GROUP = ("n_gpus", "n_nodes")  # structure of a collective: concrete
_COLLECTIVE_WORDS = ("lib", "lib_version", "variant", "dtype", "in_place")


@dataclasses.dataclass(frozen=True)
class StepOp:
    """One entry."""

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
        """Parameters in its formulas."""
        return set().union(*(formula.names for formula in (self.times, *self.sizes.values())))

    def check(self, given: set[str]) -> None:
        """`InputError` for a name in a formula that nobody gives."""
        for name in sorted(self.names() - given):
            raise unknown(
                f"name in the formulas of {self.name!r}:",
                name,
                given,
                f"there are {', '.join(sorted(given))}",
            )

    def sizes_at(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Its sizes from numbers that may be traced."""
        return {
            name: jnp.asarray(formula.traced(values, jnp), float)
            for name, formula in self.sizes.items()
        }


def read_ops(
    given: Sequence[Any], model: PerfModel, system: CollectiveModel | None
) -> tuple[StepOp, ...]:
    """The entries of `[[target.ops]]` in order; `InputError` says which is wrong and why."""
    if not given:
        raise InputError("a step needs at least one [[target.ops]]")
    ops: list[StepOp] = []
    for number, entry in enumerate(given, 1):
        if not isinstance(entry, Mapping):
            raise InputError(
                f"[[target.ops]] number {number} must be a section of keys and values, got"
                f" {entry!r}"
            )
        name = entry.get("name", f"op{number}")
        where = f"[[target.ops]] {name!r}"
        if ("op" in entry) == ("collective" in entry):
            raise InputError(
                f"{where} needs either op or collective, got"
                f" {'both' if 'op' in entry else 'neither'}"
            )
        _check_place(entry, where, [op.name for op in ops])
        read = _op if "op" in entry else _collective
        ops.append(read(str(name), where, entry, model, system))
    return tuple(ops)


def graph_of(ops: Sequence[StepOp]) -> Graph:
    """One node each, in order; node i takes row i + 1 of the durations."""
    builder, nodes = GraphBuilder(), dict[str, int]()
    for row, op in enumerate(ops, 1):
        nodes[op.name] = builder.op(
            row, label=op.name, stream=op.stream, after=[nodes[other] for other in op.after]
        )
    return builder.build()


def alike_ops(ops: Sequence[StepOp]) -> list[list[int]]:
    """Ops by number, those of one kind together."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for at, op in enumerate(ops):
        found.setdefault((op.is_collective, *op.kind), []).append(at)
    return list(found.values())


def _check_place(entry: Mapping[str, Any], where: str, earlier: Sequence[str]) -> None:
    for key in ("name", "stream"):
        if not isinstance(entry.get(key, ""), str):
            raise InputError(f"{where}: {key} must be a word, got {entry[key]!r}")
    if entry.get("name") in earlier:
        raise InputError(f"{where} stands twice; give each op its own name")
    after = entry.get("after", [])
    if not isinstance(after, list):
        raise InputError(f"{where}: after must be a list of names, got {after!r}")
    for other in after:
        if other not in earlier:
            raise InputError(
                f"{where} waits for {other!r}{closest(str(other), earlier)}, which is no op"
                " before it"
            )


def _op(
    name: str,
    where: str,
    entry: Mapping[str, Any],
    model: PerfModel,
    system: CollectiveModel | None,
) -> StepOp:
    del system
    cls, _ = op_by_name(str(entry["op"]))
    text, labels = (
        {key: str(entry[key]) for key in entry if key in known} for known in (cls.text, LABELS)
    )
    if "dtype" not in entry:
        raise InputError(f'{where} needs a dtype, such as dtype = "bf16"')
    pricer = OpPricer.of(
        model, str(entry["op"]), dtype=str(entry["dtype"]), text=text, labels=labels
    )
    given = {
        key: entry[key] for key in entry if key not in (*_PLACE, *text, *labels, "op", "dtype")
    }
    for key in given:
        if key not in pricer.dimensions:
            raise unknown(
                f"key of {where}",
                key,
                [*pricer.dimensions, *_PLACE],
                f"{entry['op']} takes {', '.join(pricer.dimensions)}",
            )
    for key in pricer.required:
        if key not in given:
            raise InputError(f"{where} needs a dimension {key!r}{closest(key, given)}")
    kind = (
        str(entry["op"]),
        str(entry["dtype"]),
        *sorted({**text, **labels}.items()),
        *sorted(given),
    )
    words = {"op": str(entry["op"]), "dtype": str(entry["dtype"]), **text, **labels}
    return _entry(name, where, entry, given, "compute", pricer, kind, words, is_collective=False)


def _collective(
    name: str,
    where: str,
    entry: Mapping[str, Any],
    model: PerfModel,
    system: CollectiveModel | None,
) -> StepOp:
    del model
    if system is None:
        raise InputError(
            f"{where} is a collective, for which [target] needs a system, such as system ="
            ' "dgx_h100"'
        )
    known = ("collective", "bytes", *_GROUP, *_COLLECTIVE_WORDS, *_PLACE)
    for key in entry:
        if key not in known:
            raise unknown(f"key of {where}", key, known, f"a collective takes {', '.join(known)}")
    if "bytes" not in entry or "n_gpus" not in entry:
        raise InputError(f"{where} needs bytes and n_gpus, got {', '.join(entry)}")
    for key in _GROUP:
        if (
            not isinstance(entry.get(key, 1), int)
            or isinstance(entry.get(key), bool)
            or entry.get(key, 1) < 1
        ):
            raise InputError(
                f"{where}: {key} is the group's structure, a whole number above zero, got"
                f" {entry[key]!r}"
            )
    words = {key: str(entry[key]) for key in _COLLECTIVE_WORDS if key in entry}
    group = {key: entry[key] for key in _GROUP if key in entry}
    pricer = CollectivePricer.of(
        system,
        str(entry["collective"]),
        n_gpus=entry["n_gpus"],
        n_nodes=entry.get("n_nodes", 1),
        **words,
    )
    kind = (str(entry["collective"]), *sorted(group.items()), *sorted(words.items()))
    columns = {"collective": str(entry["collective"]), "n_nodes": 1, **group, **words}
    return _entry(
        name,
        where,
        entry,
        {"bytes": entry["bytes"]},
        "comm",
        pricer,
        kind,
        columns,
        is_collective=True,
    )


def _entry(
    name: str,
    where: str,
    entry: Mapping[str, Any],
    sizes: Mapping[str, Any],
    stream: str,
    price: Callable[..., Any],
    kind: tuple[Any, ...],
    words: Mapping[str, Any],
    *,
    is_collective: bool,
) -> StepOp:
    return StepOp(
        name=name,
        stream=entry.get("stream", stream),
        after=tuple(entry.get("after", [])),
        times=_formula(entry.get("times", 1), f"times of {where}"),
        sizes={key: _formula(value, f"{key} of {where}") for key, value in sizes.items()},
        is_collective=is_collective,
        kind=kind,
        words=words,
        price=price,
    )


def _formula(said: Any, where: str) -> Expression:
    """A number or a formula; `InputError` for anything else, and for a number that is no size."""
    if isinstance(said, int | float) and not isinstance(said, bool):
        if not np.isfinite(said) or said < 0:
            raise InputError(f"{where} must be a number of at least zero, got {said}")
        return parse(repr(said), where)
    formula = parse(said, where)
    if formula.is_condition:
        raise InputError(f"{where} must be a number, got the condition {formula.text!r}")
    return formula
