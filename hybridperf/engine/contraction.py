"""Runs of steps as one step each: what has one way in and one way out needs no maxima in between.

Steps that wait for nothing but the step before them, on whose end nothing else waits, are a *run*
(the kernels of a layer between two collectives). Three numbers say all about a run:

    launch  seconds of all its launches
    row     seconds of all its ops
    lead    how long before the end of its last launch its ops may begin at the earliest, such that
            none overtakes its own launch

so that with C the host's clock and S the ends that its first step waits for

    C   <- C + launch
    end  = max(C - lead, S) + row

Of one step lead is 0, and of a run of two parts, exactly,

    launch = launch_1 + launch_2
    row    = row_1 + row_2
    lead   = min(lead_1 + launch_2, lead_2 + row_1)

Runs that repeat are composed once for each table of durations, from pairs of parts that repeat
within them (byte-pair encoding), and stand as rows in front of the table. So a graph is as costly
as its different parts. Steps that do not repeat stay as they are.
"""

from typing import NamedTuple

import numpy as np

from hybridperf.engine.lower import (
    LESSER,
    NO_HOST,
    NO_STEP,
    SUM,
    ZERO_ROW,
    StepProgram,
    power_bucket,
    program_of,
)

FEWEST_USES = 3  # of a pair that becomes a run: composing it costs as much as a step or two
MOST_RUNS = 255  # a table that leaves the cache makes every step dear
NO_RUN = -1
WORTH = 0.8  # of the steps, what is made counted as steps; else one more function to compile


def contracted(program: StepProgram) -> StepProgram:
    """The program with its repeated runs as single steps, the same makespan and gradient.

    As it is where few steps would go.
    """
    first = int(program.first)
    row, launch_row, host = (
        column[first:].astype(np.int64)
        for column in (program.row, program.launch_row, program.host)
    )
    pred_step, host_step = (
        np.where(step == NO_STEP, NO_STEP, step - first)[first:]
        for step in (program.pred_step, program.host_step)
    )
    into = _followed(pred_step, host_step, host)
    found = _pairs(_in_runs(into), np.stack([np.full_like(row, ZERO_ROW), launch_row, row], axis=1))
    if found.is_first.sum() + found.made.any(axis=1).sum() > WORTH * len(row):
        return program

    # as a step a part stands where its host launches its last op: no other launch comes between
    number = np.arange(len(row))
    launches = np.where(host == NO_HOST, NO_STEP, number)
    starts = np.flatnonzero(found.is_first)
    members = np.append(starts[1:], len(found.order)) - 1
    begin, end = found.order[starts], found.order[members]
    last_launch = np.maximum.reduceat(launches[found.order], starts)
    place = np.where(last_launch == NO_STEP, end, last_launch)
    by_place = np.argsort(place)
    new_step = np.full(len(row) + 1, NO_STEP)  # the entry at NO_STEP = -1 maps it to itself
    new_step[end[by_place]] = np.arange(len(by_place))
    return program_of(
        row=found.rows[by_place, 2],
        launch_row=found.rows[by_place, 1],
        lead_row=found.rows[by_place, 0],
        pred_step=new_step[pred_step[begin[by_place]]],
        host=np.where(last_launch == NO_STEP, NO_HOST, host[last_launch])[by_place],
        made=found.made,
    )


def _followed(pred_step: np.ndarray, host_step: np.ndarray, host: np.ndarray) -> np.ndarray:
    """The step that each follows in a run [S], NO_STEP where it begins one.

    A host launches a run without a launch of another between. The last step of all, whose end is
    the makespan, is on its own.
    """
    steps = len(host)
    readers = np.bincount(pred_step[pred_step != NO_STEP], minlength=steps + 1)
    only = np.where((pred_step != NO_STEP).sum(axis=1) == 1, pred_step.max(axis=1), NO_STEP)
    only[(readers[only] != 1) | (np.arange(steps) == steps - 1)] = NO_STEP
    followed = only.tolist()
    # of the run so far: its host, and its latest launch
    hosts, latest = host.tolist(), np.where(host == NO_HOST, NO_STEP, np.arange(steps)).tolist()
    for step, before in enumerate(followed):
        if before == NO_STEP:
            continue
        if hosts[step] == NO_HOST:
            hosts[step], latest[step] = hosts[before], latest[before]
        elif hosts[before] != hosts[step] or latest[before] != host_step[step]:
            followed[step] = NO_STEP
    return np.array(followed)


def _in_runs(followed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Steps with those of a run one after the other; whether each follows the one before."""
    begin = np.arange(len(followed))
    for step, before in enumerate(followed.tolist()):
        if before != NO_STEP:
            begin[step] = begin[before]
    order = np.argsort(begin, kind="stable")
    return order, followed[order] != NO_STEP


class _Pairs(NamedTuple):
    """Runs and what they are made of. Axes: S steps, P parts that stay steps, M made rows."""

    order: np.ndarray  # steps, those of a part together; [S]
    is_first: np.ndarray  # whether each is the first of its part; bool [S]
    rows: np.ndarray  # lead, launch and row of each part; [P, 3]
    made: np.ndarray  # rows in front of the table, as `StepProgram` has them; [M, 3]


def _pairs(in_runs: tuple[np.ndarray, np.ndarray], rows: np.ndarray) -> _Pairs:
    """Again and again the most frequent pair of neighbours as one; `rows` of steps [S, 3]."""
    order, follows = in_runs
    singles, kind = np.unique(rows[order], axis=0, return_inverse=True)
    kind, kinds = kind.ravel(), [tuple(single) for single in singles.tolist()]
    begins = np.arange(len(order))  # where in `order` each part begins
    made = _MadeRows(1 + int(rows.max()))
    while len(kinds) < len(singles) + MOST_RUNS:
        key = np.where(follows[1:], kind[:-1] * len(kinds) + kind[1:], NO_RUN)
        values, counts = np.unique(key[key != NO_RUN], return_counts=True)
        if not len(values) or counts.max() < FEWEST_USES:
            break
        pair = int(values[np.argmax(counts)])
        at = _apart(np.flatnonzero(key == pair))
        kind[at] = len(kinds)
        one, two = divmod(pair, len(kinds))
        kinds.append(made.of_run(kinds[one], kinds[two]))
        kept = np.ones(len(kind), bool)
        kept[at + 1] = False
        kind, follows, begins = kind[kept], follows[kept], begins[kept]
    is_first = np.zeros(len(order), bool)
    is_first[begins] = True
    return _Pairs(order, is_first, made.moved(np.array(kinds)[kind]), made.padded())


class _MadeRows:
    """Rows made of others, each once, numbered behind the table's until they are `moved`."""

    def __init__(self, rows: int):
        self._rows = rows
        self._number: dict[tuple[int, int, int], int] = {}

    def of_run(self, one: tuple[int, ...], two: tuple[int, ...]) -> tuple[int, ...]:
        """Lead, launch and row of two parts, from theirs."""
        lead = ZERO_ROW
        if (one[0], two[1]) != (ZERO_ROW, ZERO_ROW):
            lead = self._of(self._sum(one[0], two[1]), self._sum(two[0], one[2]), LESSER)
        return lead, self._sum(one[1], two[1]), self._sum(one[2], two[2])

    def _sum(self, one: int, other: int) -> int:
        return one + other if ZERO_ROW in (one, other) else self._of(one, other, SUM)

    def _of(self, one: int, other: int, how: int) -> int:
        return self._number.setdefault((one, other, how), self._rows + len(self._number))

    def _size(self) -> int:
        return power_bucket(len(self._number) + 1) if self._number else 0

    def moved(self, rows: np.ndarray) -> np.ndarray:
        """Where rows stand with the made ones in front."""
        made = self._size() - len(self._number) - self._rows
        return rows + np.where(rows < self._rows, self._size(), made)

    def padded(self) -> np.ndarray:
        made = np.array([*self._number], np.int64).reshape(-1, 3)
        made[:, :2] = self.moved(made[:, :2])
        return np.pad(made, ((self._size() - len(made), 0), (0, 0)))


def _apart(at: np.ndarray) -> np.ndarray:
    """Every other one of places in a row: x x x is one pair of x, and one that stays."""
    breaks = np.flatnonzero(np.diff(at, prepend=-2) != 1)
    since = np.arange(len(at)) - np.repeat(breaks, np.diff(np.append(breaks, len(at))))
    return at[since % 2 == 0]
