"""How should this model be trained on these devices: every legal layout, memory as a constraint,
ranked.

    import hybridperf as hp

    found = hp.plan("gpt3-175b", "aic_a100_sxm", 512, batch=1536, tokens=300e9)
    print(hp.plan_report(found))    # best layouts, why, how sure, what would change it
    found.best                      # the winner, an hp.Layout
    found.top(10)                   # a table: time_s, tokens_per_s, days, memory_bytes, usd, ...
    found.write("plan.parquet")     # all legal layouts

Several numbers of devices or batches make several spaces, ranked together by an objective
(`ranked.py`).
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.engine.economy import economy
from hybridperf.io import InputError, unknown
from hybridperf.io import workers as workers_of_dask
from hybridperf.io.numbers import number_of_tokens
from hybridperf.model.adapted_steps import Adaptation, Adapted
from hybridperf.training.plans import explain, table
from hybridperf.training.plans.arguments import narrowed, whole_numbers
from hybridperf.training.plans.bounds import BoundedLayouts, Search
from hybridperf.training.plans.costs import PricedSpace, bytes_of, price_space
from hybridperf.training.plans.layout_text import counted, layout_words
from hybridperf.training.plans.progress import Progress
from hybridperf.training.plans.ranked import (
    OBJECTIVES,
    RankedLayouts,
    plan_front,
    ranking,
    with_intervals,
)
from hybridperf.training.plans.setup import TrainingSetup, training_setup
from hybridperf.training.plans.space import laid_out
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.features import experts_note, unmeasured_of
from hybridperf.training.steps.record import without_collector
from hybridperf.workloads.transformer import TransformerShape

UNPLANNED = (
    "of schedules 1F1B, GPipe and interleaved 1F1B are planned, and ZB-V and DualPipeV of"
    " frameworks that have them (torchtitan_eager); these, zero bubble (ZB-H1) and DualPipe of any"
    " with --only schedule=zb_v, dualpipe_v, zero_bubble or dualpipe; Chimera by rows of"
    " `hybridperf steps` with schedule=chimera"
)
LIMIT = 100_000  # layouts that a plan keeps
_USUAL_TOKENS = 2**22  # of a batch, where none is given
_DOUBLINGS = 8  # of devices, that are tried where nothing fits
_NEAREST_BATCHES = 64


class Plan(RankedLayouts):
    """Ranked layouts of a model on a cluster, with tables of them; what `hp.plan` returns."""

    def top(self, count: int = 10) -> pd.DataFrame:
        """A table of the best layouts, without copies of better ones: fields, `time_s` and its
        parts, memory, tokens/s, money, and days where `tokens` were given; `low_s, high_s` and
        other low and high columns are 90 % intervals.
        """
        ranks = np.array(self.distinct(whole_numbers("top", count)[0]))
        return with_intervals(self, self.ranked[ranks], table.at_ranks(self, ranks))

    def as_steps(self, count: int = 10) -> pd.DataFrame:
        """The best layouts that differ, as `top`, each as a row that `hybridperf steps` takes: the
        model, the cluster, the layout, and all that was assumed of them, in its columns.
        """
        ranks = self.distinct(whole_numbers("count", count)[0])
        chosen = [self.choice(rank) for rank in ranks]
        rows = [self.cases[one.case].setup.as_row(self.config(one)) for one in chosen]
        return pd.DataFrame(rows, index=ranks, dtype=object)

    def front(self, one: str = "time", other: str = "memory") -> pd.DataFrame:
        """Layouts on the Pareto front of two of "time", "memory", "energy" and "cost", as `top`."""
        return table.at_ranks(self, plan_front(self, one, other))

    def compared(self) -> pd.DataFrame:
        """The winner next to the runner-up, the best different layout and a naive one.

        Columns of `top`, and `layout` (in words), `low_s, high_s` (90 % interval), `chance`
        (probability that the winner is the faster one), `overlap` (share of the narrower interval
        that both cover), `differs` (in words).
        """
        found, best = explain.compared(self), self.best
        at = np.array([(one.choice.case, one.choice.at) for one in found])
        frame = table.of_choices(self, at, pd.Index([one.what for one in found]))
        frame["layout"] = [layout_words(self.layout(one.choice)) for one in found]
        for name in ("low_s", "high_s", "chance", "overlap"):
            frame[name] = [getattr(one, name) for one in found]
        differs = [explain.differences(best, self.layout(one.choice)) for one in found]
        return frame.assign(differs=differs)

    def write(self, path: str | os.PathLike) -> int:
        """Write the layouts that are kept to .parquet or .csv, the best first; returns how many."""
        return table.write_layouts(self, path)


def plan(
    model: str | TransformerShape, system: str, gpus: int | Sequence[int], *,
    batch: int | Sequence[int] | None = None, seq: int | None = None,
    tokens: float | str | None = None, objective: str = "time",
    prices: str | os.PathLike | None = None, device: str | None = None, framework: str = "",
    dtype: str | None = None, quant: str = "", memory_bytes: float | None = None,
    only: Mapping[str, Any] | None = None, adapted: Adaptation | Adapted | None = None,
    cache: PriceCache | None = None, say: Callable[[str], None] | None = None,
    limit: int | None = LIMIT, workers: int | None = None, scheduler: str | None = None,
) -> Plan:  # fmt: skip
    """Every legal layout of a model on so many devices of a system, priced and ranked.

    Where more layouts are legal than are kept, those that cannot be among the best are not priced:
    a lower bound of their seconds rules them out (`bounds.py`).

    Args:
        model: name of a published model, a file of its sizes, or a shape (`hp.load_shape`).
        system: name of a system (`hybridperf systems` lists them), or a .toml file.
        gpus: number of devices; several numbers are ranked together.
        batch: samples of a step over all devices; several are ranked together; None: about 4
            million tokens.
        seq: tokens of a sample; None: the model's own.
        tokens: tokens of the whole training run, 300e9 or "300B", for days, money and energy.
        objective: what ranks layouts: "time" (of a step), "tokens_per_s", "cost" or "energy".
        prices: a file with rates that replace the shipped assumptions.
        device: name of the accelerator; None: the system's own.
        framework: framework whose habits and memory are assumed; "": Megatron-Core.
        dtype: number format of activations and weights; None, without `quant`: the precision that
            the framework takes on this device.
        quant: scheme in which layers multiply ("fp8", "fp8_block", "mxfp8", ...); "": in `dtype`.
        memory_bytes: memory of each device, bytes; None: the datasheet's.
        only: values that fields of a layout may take, `{"tp": [1, 2], "recompute": "none"}`.
        adapted: step effects fitted to measured steps.
        cache: prices of ops, to share among several plans.
        say: called every few seconds with the progress of a long plan, as text.
        limit: how many of the best layouts are kept; None: all.
        workers: local Dask processes that share the pricing of a space too large to price as a
            whole; None: this process alone.
        scheduler: address of a Dask scheduler whose workers share it.

    Raises:
        InputError: when no layout can run; the message names the nearest thing that works.
    """
    counts = whole_numbers("gpus", gpus)
    batches = None if batch is None else whole_numbers("batch", batch)
    total = None if tokens is None else number_of_tokens(tokens)
    narrow = None if only is None else narrowed(only)
    most = None if limit is None else whole_numbers("limit", limit)[0]
    workers_of_dask.check_workers(workers, scheduler)
    progress = Progress(say)
    began = time.perf_counter()
    with without_collector():
        if objective not in OBJECTIVES:
            raise unknown("objective", objective, OBJECTIVES, f"known are {', '.join(OBJECTIVES)}")
        shared = training_setup(
            model, system, seq=seq, device=device, framework=framework, dtype=dtype, quant=quant,
            memory_bytes=memory_bytes, adapted=adapted, cache=cache,
        )  # fmt: skip
        rates = economy(shared.device, None if prices is None else Path(prices))
        if objective == "cost" and rates.usd_per_hour is None:
            raise InputError(
                f"expected a price to rank by cost, got none of {shared.device.id};"
                f" {rates.notes[-1]}"
            )
        notes, legal, orders, slower = list(shared.notes), 0, 0, 0
        cases, bounded = list[PricedSpace](), list[BoundedLayouts]()
        refused: list[Callable[[], str]] = []  # why nothing runs; asked for when nothing does
        for count in counts:
            mine = shared.for_gpus(count)
            samples_of = _usual_batch(shared.shape, count, notes) if batches is None else batches
            notes += mine.notes
            for samples in samples_of:
                one = BoundedLayouts(mine, mine.partial(count, samples, narrow), progress)
                bases = int(one.partial.completions.sum())
                if not bases:
                    refused.append(functools.partial(nothing_legal, mine, count, samples, narrow))
                    continue
                orders += one.partial.orders
                if most is None or bases <= most:
                    priced, of_case = _all(one)
                else:
                    search = Search(one, objective, rates, most, mine.capacity_bytes)
                    priced, ruled_out = search.priced_best(workers, scheduler)
                    of_case, slower = bases, slower + ruled_out
                legal += of_case
                if priced is None:
                    refused.append(functools.partial(nothing_fits, one, narrow))
                    continue
                cases.append(priced)
                bounded.append(one)
        if not cases:
            raise InputError(refused[-1]())
        if objective == "time" and len({case.space.global_batch for case in cases}) > 1:
            notes.append(
                "ranked by the seconds of a step, which favour small batches: --objective"
                " tokens_per_s ranks by what a second trains"
            )
        notes.append(UNPLANNED)
        ranked = ranking(cases, objective, rates)[:most]
        winner, at = cases[ranked[0, 0]], ranked[0, 1]
        best = winner.setup.config(winner.space.layout(int(winner.rows[at])))
        notes += unmeasured_of(best, winner.setup.prices).notes
        host_share = float(winner.parts.host_s[at] / winner.parts.step_s[at])
        notes += filter(None, (experts_note(best, host_share),))
        return Plan(
            shared, rates, objective, total, tuple(cases), tuple(bounded), ranked, most, legal,
            slower, orders, time.perf_counter() - began, tuple(dict.fromkeys(notes)),
        )  # fmt: skip


def _all(one: BoundedLayouts) -> tuple[PricedSpace | None, int]:
    """(all layouts priced that fit, None where none does; how many are legal)."""
    partial, setup, progress = one.partial, one.setup, one.progress
    whole = laid_out(partial, partial.all_bases, progress)
    needed = bytes_of(setup, whole.base, progress=progress)
    if not (needed <= setup.capacity_bytes).any():
        return None, len(whole)
    return price_space(setup, whole, needed, progress=progress), len(whole)


def _usual_batch(shape: TransformerShape, gpus: int, notes: list[str]) -> list[int]:
    samples = max(_USUAL_TOKENS // shape.seq, gpus, 1)
    samples = max(1, samples // gpus) * gpus
    notes.append(
        f"a global batch of {samples} samples assumed on {counted(gpus, 'GPU')}: about"
        f" {_USUAL_TOKENS / 1e6:.1f} million tokens, give --batch"
    )
    return [samples]


def nothing_legal(
    setup: TrainingSetup, gpus: int, batch: int, only: Mapping[str, Sequence[Any]] | None
) -> str:
    """No layout is legal: because of what was pinned, or of the batch."""
    where = f"{setup.shape.name} on {counted(gpus, 'GPU')} with a global batch of {batch}"

    def legal(samples: int, narrowed: Mapping[str, Sequence[Any]] | None) -> bool:
        return setup.partial(gpus, samples, narrowed).completions.sum() > 0

    if only and legal(batch, None):
        pinned = ", ".join(f"{name} {'/'.join(map(str, values))}" for name, values in only.items())
        return f"no layout of {where} is legal with {pinned}; without --only there are some"
    steps = range(1, max(_NEAREST_BATCHES, batch))
    others = (other for step in steps for other in (batch - step, batch + step) if other >= 1)
    near = itertools.islice(others, 4 * _NEAREST_BATCHES)  # nearest first
    nearest = next((samples for samples in near if legal(samples, only)), None)
    if nearest is not None:
        batch_words = f"a global batch of {nearest} is the nearest that has one"
        return f"no layout of {where} is legal; {batch_words}"
    return (
        f"no layout of {where} is legal: fewer GPUs than heads x layers x samples of a batch are"
        " needed; take a larger batch"
    )


def nothing_fits(one: BoundedLayouts, only: Mapping[str, Sequence[Any]] | None) -> str:
    """No layout has room: what the smallest needs, and how many devices would do."""
    tried, setup, per_node = one.partial, one.setup, one.setup.gpus_per_node
    base = tried.all_bases
    needed = bytes_of(setup, base)
    smallest = int(np.argmin(needed))
    x = {name: int(column[smallest]) for name, column in base._asdict().items()}
    ranks = ", ".join(f"{name} {x[name]}" for name in ("tp", "pp", "cp", "dp"))
    why = (
        f"no layout of {setup.shape.name} fits on {counted(tried.gpus, 'GPU')} with"
        f" {setup.capacity_bytes / 1e9:.0f} GB to use each: the smallest needs"
        f" {needed[smallest] / 1e9:.0f} GB ({ranks}, ZeRO-{x['zero']}, micro-batch"
        f" {x['micro_batch']})"
    )
    for doubling in range(1, _DOUBLINGS + 1):
        gpus = tried.gpus * 2**doubling
        whole = gpus if gpus <= per_node else -(-gpus // per_node) * per_node
        batch = max(tried.global_batch, whole)
        batch = -(-batch // whole) * whole if tried.global_batch % whole else tried.global_batch
        more = setup.for_gpus(whole).partial(whole, batch, only)
        if (bytes_of(setup, more.all_bases) <= setup.capacity_bytes).any():
            with_batch = "" if batch == tried.global_batch else f" with a global batch of {batch}"
            return f"{why}; {whole} GPUs{with_batch} would do"
    return f"{why}; not even {whole} GPUs would do, take devices with more memory"
