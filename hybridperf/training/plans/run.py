"""How should this model be trained on these devices: every legal layout, memory as a constraint,
ranked.

    import hybridperf as hp

    found = hp.plan("gpt3-175b", "aic_a100_sxm", 512, batch=1536, tokens=300e9)
    print(hp.plan_report(found))                   # best layouts, why, how sure, what would change
                                                   it
    found.best                                     # the winner, an hp.Layout
    found.top(10)                                  # a table: time_s, tokens_per_s, days,
                                                   memory_bytes, usd, ...
    found.write("plan.parquet")                    # all legal layouts

Several numbers of devices or batches make several spaces, ranked together. Objectives: `time`
(seconds of a step), `tokens_per_s`, `cost` (money per token), `energy` (joules per token); for one
number of devices and one batch the first three agree.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridperf.io import InputError, unknown
from hybridperf.training.plans.arguments import narrowed, number_of_tokens, whole_numbers
from hybridperf.training.plans.costs import Priced, memory_of, priced
from hybridperf.training.plans.economy import Economy, economy
from hybridperf.training.plans.infeasible import nothing_fits, nothing_legal
from hybridperf.training.plans.layout_text import counted, layout_words
from hybridperf.training.plans.progress import Progress
from hybridperf.training.plans.setting import Setting, setting
from hybridperf.training.plans.space import space
from hybridperf.training.steps.adapt import Adapted
from hybridperf.training.steps.adaptation import Adaptation
from hybridperf.training.steps.batch import Bank
from hybridperf.training.steps.features import doubts_of, experts_said
from hybridperf.workloads.transformer import TransformerShape, load_shape
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.layout import Layout

if TYPE_CHECKING:
    import pandas as pd

OBJECTIVES = ("time", "tokens_per_s", "cost", "energy")
DAY_S = 86400.0
_DISTINCT = (
    "tp",
    "cp",
    "pp",
    "vp",
    "ep",
    "expert_tp",
    "sequence_parallel",
    "zero",
    "shard_ranks",
    "micro_batch",
)
UNPLANNED = (
    "of schedules 1F1B, GPipe and interleaved 1F1B are planned; Chimera (`hybridperf choose"
    " chimera`) and zero bubble are left out"
)
_USUAL_TOKENS = 2**22  # of a batch, where none is said


@dataclasses.dataclass(frozen=True)
class Choice:
    """One layout of a plan."""

    case: int
    at: int  # of the case's priced rows


@dataclasses.dataclass(frozen=True, repr=False)
class Plan:
    """Ranked layouts. `cases`: one per number of devices and batch; `ranked` the choices that fit,
    best first, as [case, at] int [K, 2].
    """

    setting: Setting
    economy: Economy
    objective: str
    tokens: float | None  # to be trained on in all
    cases: tuple[Priced, ...]
    ranked: np.ndarray
    legal: int
    orders: int  # legal, if orders that mean the same are counted apart
    seconds: float
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ranked)

    def __repr__(self) -> str:
        first, case = self.setting, self.cases[self.choice(0).case]
        where = (
            f"{first.shape.name} on {case.space.gpus} x {first.device.id}, batch"
            f" {case.space.global_batch}"
        )
        return (
            f"<Plan: {where}: {layout_words(self.best)}, {self.step_s(self.choice(0)):.4g} s;"
            f" {len(self):,} of {self.legal:,} fit>"
        )

    @property
    def prices(self) -> tuple[str, ...]:
        """Rates that money and energy were counted with, each with its unit, source and date."""
        return self.economy.said

    def distinct(self, count: int) -> list[int]:
        """Ranks of the best layouts, without copies of better ones: the same but for what is
        computed again, the schedule or the places, in no less memory.
        """
        found: dict[tuple[float, ...], int] = {}
        for rank in range(len(self)):
            case = self.cases[self.ranked[rank, 0]]
            base = case.space.base_of[case.rows[self.ranked[rank, 1]]]
            same = (float(getattr(case.space.base, name)[base]) for name in _DISTINCT)
            found.setdefault(
                (float(self.ranked[rank, 0]), float(case.memory_bytes[base]), *same), rank
            )
            if len(found) == count:
                break
        return list(found.values())

    def choice(self, rank: int) -> Choice:
        """The layout of a rank, from 0."""
        case, at = self.ranked[rank]
        return Choice(int(case), int(at))

    def layout(self, choice: Choice) -> Layout:
        case = self.cases[choice.case]
        return case.space.layout(int(case.rows[choice.at]))

    def config(self, choice: Choice) -> TransformerConfig:
        return self.cases[choice.case].setting.config(self.layout(choice))

    @property
    def best(self) -> Layout:
        """The winner."""
        return self.layout(self.choice(0))

    def step_s(self, choice: Choice) -> float:
        """Predicted seconds of a step."""
        return float(self.cases[choice.case].parts.step_s[choice.at])

    def top(self, count: int = 10) -> pd.DataFrame:
        """The best layouts, a row each: fields of the layout, `time_s` and its parts, memory,
        tokens/s, MFU, energy, money.
        """
        from hybridperf.training.plans import table

        return table.top(self, count)

    def front(self, one: str = "time", other: str = "memory") -> pd.DataFrame:
        """Layouts that no other beats in both of two of time (per token), memory, energy and cost;
        columns as `top`, ranks as index.
        """
        from hybridperf.training.plans import fronts, table

        return table.at_ranks(self, fronts.plan_front(self, one, other))

    def compared(self) -> pd.DataFrame:
        """Winner, runner-up, best other division and naive layout: columns of `top`, `low_s,
        high_s` (nine of ten), `chance` that the winner is the faster one, `differs` in words;
        indexed by what they are.
        """
        from hybridperf.training.plans import explain

        return explain.compared_table(self)

    def write(self, path: str | os.PathLike) -> int:
        """Write every legal layout (.parquet, .csv), those that fit first and best first; how many
        rows that were.
        """
        from hybridperf.training.plans import table

        return table.write_layouts(self, path)


def plan(
    model: str | TransformerShape, system: str, gpus: int | Sequence[int], *,
    batch: int | Sequence[int] | None = None, seq: int | None = None,
    tokens: float | str | None = None, objective: str = "time",
    prices: str | os.PathLike | None = None, device: str | None = None, framework: str = "",
    dtype: str = "bf16", quant: str = "", memory_bytes: float | None = None,
    only: Mapping[str, Any] | None = None, adapted: Adaptation | Adapted | None = None,
    bank: Bank | None = None, say: Callable[[str], None] | None = None,
) -> Plan:  # fmt: skip
    """Every legal layout of a model on so many devices of a system, priced and ranked.

    `model`: a published shape's name, a file of sizes, or a shape. `system`: a name of `hybridperf
    systems` or a file. `gpus`, `batch` (samples of a step over all devices): a number or several,
    ranked together; no batch: about 4 million tokens. `seq`: the model's own if not given.
    `tokens`: of the whole run, 300e9 or "300B", for days, money and energy. `prices`: a file over
    the shipped assumptions. `only`: narrows dimensions, `{"tp": [1, 2], "recompute": "none"}`.
    `adapted`: efficiencies fitted on measured steps, of this group or of several. `say`: called
    every few seconds with how far a long plan is. `InputError`, one sentence with the nearest thing
    that works, where nothing can run.
    """
    counts, batches = (
        whole_numbers("gpus", gpus),
        None if batch is None else whole_numbers("batch", batch),
    )
    with _without_collector():
        return _plan(
            model, system, counts, batches, seq,
            None if tokens is None else number_of_tokens(tokens), objective, prices, device,
            framework, dtype, quant, memory_bytes, None if only is None else narrowed(only),
            adapted, bank, Progress(say),
        )  # fmt: skip


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Python looks for cycles among hundreds of thousands of small objects again and again, which
    all live on: a fifth of a plan's time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _plan(
    model: str | TransformerShape, system: str, counts: Sequence[int], batch: Sequence[int] | None,
    seq: int | None, tokens: float | None, objective: str, prices: str | os.PathLike | None,
    device: str | None, framework: str, dtype: str, quant: str, memory_bytes: float | None,
    only: Mapping[str, Sequence[Any]] | None, adapted: Adaptation | Adapted | None,
    bank: Bank | None, progress: Progress,
) -> Plan:  # fmt: skip
    began = time.perf_counter()
    if objective not in OBJECTIVES:
        raise unknown("objective", objective, OBJECTIVES, f"known are {', '.join(OBJECTIVES)}")
    shape = model if isinstance(model, TransformerShape) else load_shape(model)
    if seq is not None:
        shape = dataclasses.replace(shape, seq=seq)
    shared = setting(
        shape,
        system,
        device=device,
        framework=framework,
        dtype=dtype,
        quant=quant,
        memory_bytes=memory_bytes,
        adapted=adapted,
        bank=bank,
    )
    rates = economy(shared.device, None if prices is None else Path(prices))
    if objective == "cost" and rates.usd_per_hour is None:
        raise InputError(
            f"expected a price to rank by cost, got none of {shared.device.id}; {rates.said[-1]}"
        )
    notes, cases, legal, orders = list(shared.notes), list[Priced](), 0, 0
    refused: list[
        Callable[[], str]
    ] = []  # why numbers of devices and batches have no plan; asked for when none has
    for count in counts:
        batches = _batches(batch, shape, count, notes)
        mine = shared.for_gpus(count)
        notes += mine.notes
        for samples in batches:
            one = space(shape, count, mine.gpus_per_node, samples, only, mine.strict, progress)
            if not len(one):
                refused.append(functools.partial(nothing_legal, mine, count, samples, only))
                continue
            legal, orders = legal + len(one), orders + one.orders
            needed = memory_of(mine, one, progress=progress)
            if not (needed <= mine.capacity_bytes).any():
                refused.append(functools.partial(nothing_fits, mine, one, needed, only))
                continue
            cases.append(priced(mine, one, needed, progress=progress))
    if not cases:
        raise InputError(refused[-1]())
    if objective == "time" and len({case.space.global_batch for case in cases}) > 1:
        notes.append(
            "ranked by the seconds of a step, which favour small batches: --objective tokens_per_s"
            " ranks by what a second trains"
        )
    notes.append(UNPLANNED)
    ranked = _ranked(cases, objective, rates)
    winner, at = cases[ranked[0, 0]], ranked[0, 1]
    best = winner.setting.config(winner.space.layout(int(winner.rows[at])))
    notes += doubts_of(best, winner.setting.prices).said
    notes += filter(
        None, (experts_said(best, float(winner.parts.host_s[at] / winner.parts.step_s[at])),)
    )
    return Plan(
        shared,
        rates,
        objective,
        tokens,
        tuple(cases),
        ranked,
        legal,
        orders,
        time.perf_counter() - began,
        tuple(dict.fromkeys(notes)),
    )


def scores(case: Priced, objective: str, rates: Economy) -> np.ndarray:
    """What is to be least, of a case's priced layouts [M]."""
    step_s, tokens = case.parts.step_s, tokens_of(case)
    if objective == "time":
        return step_s
    if objective == "energy":
        return np.asarray(rates.energy_j(case.space.gpus, case.parts)) / tokens
    if objective == "cost":
        return np.asarray(rates.usd(case.space.gpus, case.parts)) / tokens
    return step_s / tokens


def tokens_of(case: Priced) -> float:
    """Of one step."""
    return float(case.space.global_batch * case.setting.shape.seq)


def _ranked(cases: Sequence[Priced], objective: str, rates: Economy) -> np.ndarray:
    """[K, 2] of all priced, best first; of equal ones that with less memory."""
    parts, score, memory = [], [], []
    for number, case in enumerate(cases):
        at = np.arange(len(case.rows))
        parts.append(np.stack([np.full(len(at), number), at], 1))
        score.append(scores(case, objective, rates)[at])
        memory.append(case.row_memory_bytes[at])
    order = np.lexsort((np.concatenate(memory), np.concatenate(score)))
    return np.concatenate(parts)[order]


def _batches(
    batch: Sequence[int] | None, shape: TransformerShape, gpus: int, notes: list[str]
) -> list[int]:
    if batch is None:
        samples = max(_USUAL_TOKENS // shape.seq, gpus, 1)
        samples = max(1, samples // gpus) * gpus
        notes.append(
            f"a global batch of {samples} samples assumed on {counted(gpus, 'GPU')}: about"
            f" {_USUAL_TOKENS / 1e6:.1f} million tokens, give --batch"
        )
        return [samples]
    return list(batch)
