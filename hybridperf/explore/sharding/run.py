"""Sharding: check tables, split, price, try every candidate, improve the best, explain."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from hybridperf.collectives.fit import collectives_by_name
from hybridperf.engine.prediction import predict
from hybridperf.explore.sharding import methods
from hybridperf.explore.sharding.cost import KernelPricer, PlacementCost, SplitTables, cost_of
from hybridperf.explore.sharding.result import Candidate, ShardResult, SplitAdvice, shard_result
from hybridperf.explore.sharding.tables import KINDS, least_pieces, read_embedding_tables, split
from hybridperf.hardware import FLOAT_DTYPES, canonical_dtype
from hybridperf.io import InputError, unknown
from hybridperf.model import PerfModel, model_or_datasheet
from hybridperf.ops.embedding import STATE_BYTES, Table, check_names, table_bytes

CHUNKS, RELAXED, EXACT, SCALED = "chunks", "relaxed", "exact", "relaxed, scaled"
METHODS = ("best", *methods.RULES, CHUNKS, RELAXED, EXACT)
# of a device that tables may take by default: Lin's tasks leave a fifth for the rest
MEMORY_SHARE = 0.8
_STARTS = 8  # descents
_FINER = (2, 4)  # times as many pieces of a table as now
_WORTHWHILE = 0.98  # of the step as it is
_MOST_NUMBERS = 4e6  # of all descents' logits together
_GREEDY_PRICED = 2
_ALIKE = 0.01  # ranks whose kernels take so nearly the same share of the sums
_POLISHED = 4  # placements improved by moves
_MOST_SAMPLES = 1e15  # of a batch: float64 still counts their lookups exactly
_MOST_ADVISED = 1e5  # ranks
_KICKS_WORK, _MOST_KICKS = 3e5, 40  # of the best one: moves times swaps looked at


def shard(
    tables: Sequence[Table] | str | Path, ranks: int, *, model: PerfModel | str | Path,
    batch: float, memory_bytes: float | None = None, nodes: int | None = None,
    method: str = "best", seed: int = 0, system: str = "", optimizer: str = "sgd",
    splits: Mapping[str, str] | None = None, dtype: str | None = None,
) -> ShardResult:  # fmt: skip
    """Place embedding tables on ranks so that the predicted step is fastest and memory suffices.

    Args:
        tables: embedding tables, or a file of them.
        ranks: how many devices share the tables.
        model: a calibrated machine with collectives, or its folder or name.
        batch: samples of a step over all ranks.
        memory_bytes: bytes per rank that tables may take; None: four fifths of the device's memory.
        nodes: nodes that the ranks are spread over; None: as few as hold them.
        method: how placements are found; "best" tries all methods.
        seed: of random starts.
        system: name of the system whose links are assumed; "": the model's own.
        optimizer: of the tables: "sgd", "adagrad" or "rowwise_adagrad".
        splits: how single tables are split, by name: "row", "column", or "row:4" for 4 pieces.
        dtype: number format in which pooled rows travel; None: each table's own.

    Raises:
        InputError: when a table cannot be placed; the message names it.
    """
    _check_choices(method, optimizer, dtype, splits, model, system)
    _check_numbers(ranks, nodes, seed, batch, memory_bytes)
    given: Sequence[Table]
    if isinstance(tables, str | Path):
        given, unread = read_embedding_tables(tables)
    else:
        given, unread = tables, []
    check_names(given)
    priced = model if isinstance(model, PerfModel) else model_or_datasheet(model)
    if system:
        priced = dataclasses.replace(priced, collectives=collectives_by_name(str(system)))
    on_nodes, remarks = _nodes(priced, ranks, nodes)
    if unread:
        remarks.append(f"columns of {tables} that are not read: {', '.join(map(str, unread))}")
    default = MEMORY_SHARE * priced.device.memory_bytes
    limit = default if memory_bytes is None else float(memory_bytes)
    if not limit > 0:
        raise InputError(f"expected memory of more than zero bytes for each rank, got {limit:g}")

    def cut(splits: Mapping[str, str]) -> SplitTables:
        pieces, owners = split(given, splits, limit, optimizer)
        _check_room(given, pieces, owners, ranks, limit, optimizer)
        cost = cost_of(
            pieces, ranks, model=priced, batch=batch, memory_bytes=limit, nodes=on_nodes,
            optimizer=optimizer, dtype=dtype,
        )  # fmt: skip
        pricer = KernelPricer(cost, pieces, priced, batch, optimizer)
        return SplitTables(pieces, owners, cost, pricer)

    def split_helps(owner: str, step_s: float) -> SplitAdvice | None:
        return better_split(cut, splits or {}, owner, owners.count(owner), batch, step_s)

    made = cut(splits or {})
    pieces, owners, cost, fused = made
    found, proven = candidates(cost, pieces, batch, method, seed)
    few = final_few(cost, found)
    if not few:
        raise _fits_nowhere(pieces, ranks, limit, optimizer, method, proven)
    if method in ("best", RELAXED) and ranks > 1:
        scaled = _scaled(cost, fused, few[0], seed)
        found, few = [*found, *scaled], [*few, *scaled]
    best = min(few, key=lambda one: float(fused.parts(one.placement).step_s))
    step = predict(priced, fused.workload(best.placement))
    return shard_result(made, found, few, best, proven, split_helps, step, remarks)


def _check_choices(
    method: str, optimizer: str, dtype: str | None, splits: Mapping[str, str] | None,
    model: PerfModel | str | Path, system: str,
) -> None:  # fmt: skip
    if method not in METHODS:
        raise unknown("method", method, METHODS, f"known are {', '.join(METHODS)}")
    if optimizer not in tuple(STATE_BYTES):
        raise unknown("optimizer", optimizer, STATE_BYTES, f"known are {', '.join(STATE_BYTES)}")
    if not isinstance(model, str | Path | PerfModel):
        raise InputError(f"model must be a name or a folder, got {model!r}")
    if not isinstance(system or "", str | Path):
        raise InputError(f"system must be a name or a folder, got {system!r}")
    is_mapping = splits is None or isinstance(splits, Mapping)
    if not is_mapping or not all(isinstance(how, str) for how in (splits or {}).values()):
        raise InputError(f"splits must be like {{'name': 'row:4'}}, got {splits!r}")
    if dtype is not None and canonical_dtype(dtype) not in FLOAT_DTYPES:
        formats = ", ".join(FLOAT_DTYPES)
        raise InputError(f"dtype must be a floating-point format ({formats}), got {dtype!r}")


def _check_numbers(
    ranks: int, nodes: int | None, seed: int, batch: float, memory_bytes: float | None
) -> None:
    whole = (("ranks", ranks, 1), ("nodes", 1 if nodes is None else nodes, 1), ("seed", seed, 0))
    for name, number, least in whole:
        is_whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if not is_whole or (name == "seed" and not 0 <= number < 2**63):
            raise InputError(f"{name} must be a whole number of {least} or more, got {number!r}")
    for name, value in (("batch", batch), ("memory_bytes", memory_bytes)):
        if isinstance(value, bool) or not isinstance(value, int | float | np.number | None):
            raise InputError(f"{name} must be a number, got {value!r}")
    if batch is None or not 1 <= batch <= _MOST_SAMPLES:
        most = f"{_MOST_SAMPLES:g}"
        raise InputError(f"expected a batch of one sample or more, up to {most}, got {batch}")
    if ranks < 1 or (nodes is not None and (nodes < 1 or ranks % nodes)):
        expected = "expected ranks and nodes of 1 or more, and ranks that divide into nodes evenly"
        on = "" if nodes is None else f" on {nodes} nodes"
        raise InputError(f"{expected}, got {ranks} ranks{on}")
    if batch % ranks:
        expected = f"expected a batch of whole samples for each of {ranks} ranks"
        raise InputError(f"{expected}, got {batch:g}")


def final_few(cost: PlacementCost, found: Sequence[Candidate]) -> list[Candidate]:
    """Candidates to price kernel by kernel: the best that fit and the two best greedy ones."""
    fitting = [one for one in found if one.placement is not None and cost.fits(one.placement)]
    fitting.sort(key=lambda one: cost.step_s(one.placement))
    ruled = [one for one in fitting if one.method in methods.GREEDY]
    chosen = [*fitting[:1], *ruled[:_GREEDY_PRICED]]
    return list({tuple(one.placement): one for one in reversed(chosen)}.values())[::-1]


def _scaled(
    cost: PlacementCost, fused: KernelPricer, best: Candidate, seed: int
) -> list[Candidate]:
    """The best one improved with parts scaled to its ranks' fused kernels; none if no better."""
    by_sums = np.maximum(cost.lookup_seconds(cost.sums(best.placement)), 1e-30)
    ratio = fused.lookup_seconds(best.placement) / by_sums
    if np.ptp(ratio[ratio > 0]) < _ALIKE:
        return []
    tables = cost.tables.copy()
    tables[:, :3] *= ratio[0][best.placement][:, None]
    tables[:, 3:6] *= ratio[1][best.placement][:, None]
    scaled = dataclasses.replace(cost, tables=tables)
    found = methods.polish(scaled, best.placement, seed=seed)
    return [Candidate(SCALED, found.placement)] if cost.fits(found.placement) else []


def candidates(
    cost: PlacementCost, tables: Sequence[Table], batch: float, method: str = "best", seed: int = 0
) -> tuple[list[Candidate], bool]:
    """What each method comes to, and whether the last is proven to be the best there is."""
    placed = {rule: methods.by_rule(rule, cost, tables, batch, seed) for rule in methods.RULES}
    rules = [Candidate(rule, placement) for rule, placement in placed.items()]
    if method in methods.RULES:
        return [one for one in rules if one.method == method], False
    order = np.arange(len(tables))
    rules.append(Candidate(CHUNKS, methods.best_chunks(cost, order)))
    if method == CHUNKS:
        return rules[-1:], False
    starts = [one.placement for one in rules if one.placement is not None]
    best = relaxed_and_polished(cost, starts, seed)
    found = [*rules, Candidate(RELAXED, best.placement)]
    if method == RELAXED:
        return found[-1:], False
    known: np.ndarray | None = best.placement if best.over_bytes == 0 else None
    placement: np.ndarray | None
    if known is not None and best.step_s <= cost.bound_s() * (1 + 1e-9):
        placement, proven = known, True
    else:
        placement, proven = methods.prove(cost, known)
    if proven:
        found.append(Candidate(EXACT, placement))
    elif method == EXACT:
        too_many = f"{len(tables)} tables on {cost.ranks} ranks are too many to prove a placement"
        first = f"the first of them {tables[0].name}"
        raise InputError(f"{too_many} the best, {first}; ask for the method best")
    return (found[-1:] if method == EXACT else found), proven


def relaxed_and_polished(
    cost: PlacementCost, starts: Sequence[np.ndarray], seed: int = 0
) -> methods.LocalOptimum:
    """Gradient descent on relaxed placements, rounded, polished by moves and swaps.

    Never worse than any of `starts`, placements [T]; half the descents begin near the best of them,
    which is polished too.
    """

    def rank(one: np.ndarray) -> tuple[bool, float]:
        return not cost.fits(one), cost.step_s(one)

    near = min(starts, key=rank, default=None)
    size = len(cost.tables) * cost.ranks
    count = int(np.clip(_MOST_NUMBERS // size, 2, _STARTS))
    ended = [*methods.descend(cost, count, near, seed), *([] if near is None else [near])]
    distinct = [np.asarray(one) for one in dict.fromkeys(map(tuple, ended))]
    few = enumerate(sorted(distinct, key=rank)[:_POLISHED])
    polished = [methods.polish(cost, one, seed=seed + at) for at, one in few]
    best = min(polished, key=lambda one: (one.over_bytes, one.step_s))
    if best.step_s <= cost.bound_s() * (1 + 1e-9) and best.over_bytes == 0:
        return best
    work = len(cost.tables) * (len(cost.tables) + cost.ranks)
    kicks = int(np.clip(_KICKS_WORK / work, 2, _MOST_KICKS))
    return methods.polish(cost, best.placement, kicks=kicks, seed=seed)


def better_split(
    cut: Callable[[Mapping[str, str]], SplitTables], splits: Mapping[str, str], owner: str,
    pieces: int, batch: float, step_s: float,
) -> SplitAdvice | None:  # fmt: skip
    """The best finer split of a table now in `pieces`; None where none helps noticeably."""
    found = []
    for kind in KINDS:
        for finer in _FINER:
            how = f"{kind}:{finer * pieces}"
            try:
                step = _step_s(cut({**splits, owner: how}), batch)
            except InputError:  # more pieces than it has rows or columns
                continue
            if step is not None and step < _WORTHWHILE * step_s:
                found.append(SplitAdvice(f"{owner}={how}", step))
    return min(found, key=lambda one: one.step_s, default=None)


def _step_s(made: SplitTables, batch: float) -> float | None:
    """Seconds of the best greedy placement, polished; None where none has room."""
    ruled = (methods.by_rule(rule, made.cost, made.pieces, batch) for rule in methods.GREEDY)
    starts = [one for one in ruled if one is not None]
    if not starts:
        return None
    best = methods.polish(made.cost, min(starts, key=made.cost.step_s))
    return None if best.over_bytes else float(made.fused.parts(best.placement).step_s)


def _nodes(model: PerfModel, ranks: int, nodes: int | None) -> tuple[int, list[str]]:
    """(nodes under the ranks, a note). Ranks on a CPU are processes, any number to a machine."""
    if nodes is not None or ranks == 1 or model.collectives is None or model.device.kind == "cpu":
        return nodes or 1, []  # more ranks on a node than it has `predict` remarks on
    system, each = model.collectives.system.id, model.collectives.system.accelerators_per_node
    least = -(-ranks // each)
    if ranks % least:
        expected = f"expected ranks that divide evenly into nodes of up to {each}"
        mend = f"take {ranks // each * each} or {least * each}, or name --nodes"
        raise InputError(f"{expected}, which {system} has, got {ranks}; {mend}")
    note = f"{ranks} ranks are assumed on {least} nodes of {system}, {ranks // least} on each"
    return least, [note] if least > 1 else []


def _check_room(
    given: Sequence[Table], tables: Sequence[Table], owners: Sequence[str], ranks: int,
    limit: float, optimizer: str
) -> None:  # fmt: skip
    needs = np.array([table_bytes(table, optimizer) for table in tables])
    largest, most = tables[int(needs.argmax())], _gb(needs.max())
    ways = []
    if needs.max() > limit:
        whole = next(table for table in given if table.name == owners[int(needs.argmax())])
        count = least_pieces(whole, limit, optimizer)
        kinds = {"row": whole.rows, "column": whole.dim}
        ways = [f"{whole.name}={kind}:{count}" for kind, parts in kinds.items() if count <= parts]
    split_it = f"(--split {' or '.join(ways)})"
    if needs.sum() > ranks * limit:
        count = math.ceil(needs.sum() / limit)
        mend = f"use at least {count} ranks" + (f" and split it {split_it}" if ways else "")
        if count > _MOST_ADVISED:
            mend = f"check the rows and columns of {largest.name}"
        need = f"{len(tables)} tables need {_gb(needs.sum())} together"
        hold = f"{ranks} ranks of {_gb(limit)} hold {_gb(ranks * limit)}"
        raise InputError(f"{need}, {hold} (the largest is {largest.name} with {most}); {mend}")
    if needs.max() > limit:
        mend = f"split it by rows or by columns {split_it}" if ways else "give more memory"
        more = f"more than the {_gb(limit)} of any rank"
        raise InputError(f"table {largest.name} needs {most}, {more}; {mend}")
    if ranks > len(tables):
        count, few = ranks - len(tables) + 1, len(tables)
        s = "" if few == 1 else "s"
        kinds = {"column": largest.dim, "row": largest.rows}
        ways = [f"{largest.name}={kind}:{count}" for kind, parts in kinds.items() if count <= parts]
        mend = f"split the largest (--split {ways[0]}) or " if ways else ""
        more = f"{ranks} ranks are more than the {few} table{s}"
        raise InputError(f"{more}, so {ranks - few} would hold none; {mend}use {few} rank{s}")


def _fits_nowhere(
    tables: Sequence[Table], ranks: int, limit: float, optimizer: str, method: str, proven: bool
) -> InputError:
    needs = [table_bytes(table, optimizer) for table in tables]
    largest = int(np.argmax(needs))
    found = "there is, as branch and bound proves," if proven else f"{method} found"
    none = f"no placement of {len(tables)} tables on {ranks} ranks within {_gb(limit)} each"
    most = f"the largest being {tables[largest].name} with {_gb(needs[largest])}"
    other = "" if proven or method == "best" else "ask for the method best, "
    mend = f"{other}split that one, or give more ranks or memory"
    return InputError(f"{found} {none}, {most}; {mend}")


def _gb(bytes_: float) -> str:
    return f"{bytes_ / 1e9:.4g} GB"
