"""A step of workers that differ, as a pure function of the numbers of their machines, for JAX.

    f = hp.unlike_function(workers)
    f.knobs["machines"]["h100_sxm"]                      # as `hp.step_function` has them
    jax.grad(f)(f.knobs)["slower"]                       # seconds for a worker that takes longer

Each workload on each machine has its rows priced as `hp.step_function` prices them; a message takes
as long as on the slowest of the machines that send it, whichever that is at these numbers; the
joined graph (`unlike.py`) composes. The slope is that of the longest path.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.engine.contraction import contracted
from hybridperf.engine.evaluate import makespan
from hybridperf.engine.knobs import KnobFunction, Knobs
from hybridperf.engine.step_function import PreparedStep, StepRows, platform_at
from hybridperf.engine.unlike import UnlikeStep, Worker, unlike
from hybridperf.io.namespace import Array, fresh_views
from hybridperf.model import Platform


def unlike_function(workers: Sequence[Worker], *, hold_corrections: bool = False) -> KnobFunction:
    """Seconds of a synchronous step of workers that differ, as a pure JAX function.

    Args:
        workers: as `hp.unlike` takes them.
        hold_corrections: as `hp.step_function` takes it.

    Returns:
        A function of knobs, `f(knobs) -> seconds`. Its `knobs` are `machines`, by their names (a
        device's id; the second of several that have it is `ID 2`), each as `hp.step_function` has
        them, and `slower`, by worker: a factor on all that it computes and launches, 1 today.

    Raises:
        InputError: as `hp.unlike`.
    """
    step = unlike(workers)
    rows = _Rows.of(step, hold_corrections)
    program = jax.device_put(contracted(step.lowered.program))

    def seconds(arrays: Any, knobs: Knobs) -> Array:
        return makespan(program, rows.seconds(arrays, knobs)[:, None])[0]

    usual = {"machines": rows.machines(), "slower": dict.fromkeys(step.names, 1.0)}
    what = f"seconds of a step of {len(step.names)} workers"
    return KnobFunction(what, usual, seconds, rows.in_precision, rows.settled)


@dataclasses.dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of a joined graph by those of each workload on its machine.

    Axes: U rows; P rows of all workloads in turn; S rows that several members may decide, M members
    each.
    """

    steps: tuple[tuple[str, PreparedStep], ...]  # each with the name of its machine
    names: tuple[str, ...]  # of workers
    place: np.ndarray  # of a row's first member among the P rows; int [U]
    slower: np.ndarray  # its slow-down today [U]
    worker: np.ndarray  # whose slow-down it is, one past the last for none's; int [U]
    several: np.ndarray  # int [S]
    members: np.ndarray  # (place, worker) of each of theirs; int [S, M, 2]
    member_slower: np.ndarray  # [S, M]

    @staticmethod
    def of(step: UnlikeStep, hold_corrections: bool) -> _Rows:
        first, steps, names = dict[int, int](), list[tuple[str, PreparedStep]](), dict[Any, str]()
        count = 0
        for part in step.parts:
            for priced in part.of_rank:
                if id(priced) in first:
                    continue
                in_step = priced.workload.in_step
                key = id(priced.model), "" if in_step is None else in_step.framework
                if key not in names:
                    device = priced.model.device.id
                    alike = sum(name.partition(" ")[0] == device for name in names.values())
                    names[key] = f"{device} {alike + 1}" if alike else device
                first[id(priced)], count = count, count + len(priced.row_s)
                prepared = PreparedStep.of(priced.model, priced.workload, hold_corrections)
                steps.append((names[key], prepared))

        def found(member: tuple[int, int, int]) -> tuple[int, int, float]:
            part, rank, at = member
            place = first[id(step.parts[part].of_rank[rank])] + at
            message = step.parts[part].message[at]
            return (
                place,
                len(step.parts) if message else part,
                step.parts[part].factor(rank, at),
            )

        each = [[*dict.fromkeys(map(found, members))] for members in step.row_members]
        several = [row for row, members in enumerate(each) if len(members) > 1]
        most = max((len(each[row]) for row in several), default=1)
        filled = [each[row] + [each[row][0]] * (most - len(each[row])) for row in several]
        of_several = np.array(filled, float).reshape(-1, most, 3)
        ahead = np.array([members[0] for members in each])
        return _Rows(
            tuple(steps), step.names, ahead[:, 0].astype(int), ahead[:, 2],
            ahead[:, 1].astype(int), np.array(several, int), of_several[..., :2].astype(int),
            of_several[..., 2],
        )  # fmt: skip

    def machines(self) -> dict[str, Any]:
        """Today's knobs of each machine."""
        out: dict[str, Any] = {}
        for name, step in self.steps:
            own, whole = step.knobs, out.setdefault(name, {})
            for place, value in own.items():
                whole[place] = whole.get(place, {}) | value if isinstance(value, dict) else value
        return out

    def in_precision(self) -> list[tuple[StepRows, Platform]]:
        """Rows and platform of each step, in JAX' present precision."""
        return [step.in_precision() for _, step in self.steps]

    def settled(
        self, arrays: list[tuple[StepRows, Platform]], knobs: Knobs, with_slopes: bool
    ) -> list[tuple[StepRows, Platform]]:
        """`arrays` at knobs, as `PreparedStep.settled`."""
        return [
            (step.settled(rows, knobs["machines"][name], with_slopes), today)
            for (name, step), (rows, today) in zip(self.steps, arrays, strict=True)
        ]

    def seconds(self, arrays: list[tuple[StepRows, Platform]], knobs: Knobs) -> Array:
        """[U], by what `in_precision` gives."""
        alone_s = jnp.concatenate([
            rows.durations(platform_at(today, step.groups, knobs["machines"][name]))
            for (name, step), (rows, today) in zip(self.steps, arrays, strict=True)
        ])  # fmt: skip
        one = jnp.ones((), alone_s.dtype)
        longer = jnp.stack([*(knobs["slower"][name] for name in self.names), one])
        place, worker, slower = fresh_views((self.place, self.worker, self.slower))
        row_s = alone_s[place] * slower * longer[worker]
        if not len(self.several):
            return row_s
        place, worker = np.moveaxis(self.members, -1, 0)  # views
        several, slower = fresh_views((self.several, self.member_slower))
        return row_s.at[several].set((alone_s[place] * slower * longer[worker]).max(1))
