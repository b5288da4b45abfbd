"""A plan as a page: the best layout, how sure it is, the others, what would move the optimum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.report.html.document import (
    OTHER,
    Block,
    Column,
    Facts,
    Figure,
    Notes,
    Page,
    Section,
    Table,
    Text,
    count_words,
    frame_table,
    pairs_table,
    time_words,
)
from hybridperf.report.html.figures import Axis, Interval, Series, bars, intervals, plot
from hybridperf.report.html.of_model import device_rows, system_rows
from hybridperf.report.plan import (
    PARTS,
    REST,
    chance_words,
    dollars,
    elasticity_words,
    memory_lines,
    order_words,
    part,
    step_words,
    trades,
)
from hybridperf.report.text import amount, percent, quantity
from hybridperf.training.plans.explain import NAIVE, ComparedLayout, compared, differences
from hybridperf.training.plans.layout_text import LEGEND, counted, layout_words
from hybridperf.training.plans.ranked import PAIRS, plan_front
from hybridperf.training.plans.run import Plan
from hybridperf.training.plans.sensitivity import LeverEffect, lever_effects
from hybridperf.training.plans.table import top
from hybridperf.training.steps.step_features import StepParts

_LISTED = 100  # best layouts
_POINTS = 200_000  # layouts drawn: beyond it every n-th by rank
_PART_COLOURS = (0, 1, 5, 4)
_AXES = {
    "memory": ("memory of the fullest GPU", "B"),
    "energy": ("energy of a {}", "J"),
    "cost": ("rent of a {}", "USD"),
}


def plan_page(plan: Plan, title: str = "", moved: Sequence[LeverEffect] | None = None) -> Page:
    """The page of a plan; `moved` is what `lever_effects` (seconds of work) found, if known."""
    candidates = compared(plan)
    shape, case = plan.setup.shape, plan.cases[plan.choice(0).case]
    devices = f"{case.space.gpus:,} x {plan.setup.device.name}"
    batch = f"batch {case.space.global_batch:,}"
    lead = f"{shape.name} on {devices}, {batch}: {layout_words(plan.best)}."
    layouts: list[Block] = [_best(plan), *(Text(line) for line in LEGEND)]
    traded = [(one, other) for one, other in PAIRS if trades(plan, other)]
    fronts: list[Block] = [_front_plot(plan, one, other) for one, other in traded]
    assumed: list[Block] = [Notes(plan.notes), Text("Prices and power:"), Notes(plan.economy.notes)]
    levers = _levers(plan, lever_effects(plan) if moved is None else moved)
    sections = [
        Section("The best layout", _summary(plan, candidates[0])),
        Section("How sure", _sure(plan, candidates)),
        Section("Why", _why(plan, candidates)),
        Section("Layouts", layouts),
        Section("What is traded for what", fronts),
        Section("What would move it", levers),
        Section("Notes and assumptions", assumed),
        Section("Provenance", _provenance(plan)),
    ]
    title = title or f"How to train {shape.name} on {counted(case.space.gpus, 'GPU')}"
    return Page(title, sections, lead)


def _summary(plan: Plan, first: ComparedLayout) -> list[Block]:
    row = top(plan, 1).iloc[0]
    speed = f"{row['tokens_per_s']:,.0f} tokens/s"
    mfu = f"MFU {percent(row['mfu'])}, of the {plan.setup.mfu_format} peak"
    memory, capacity = row["memory_bytes"], f"of {quantity(plan.setup.capacity_bytes, 'B')}"
    facts = [
        ("time of a step", step_words(row["time_s"]), _span(first)),
        ("speed", speed, mfu),
        ("memory of the fullest GPU", quantity(memory, "B"), capacity),
        ("energy of a step", quantity(row["energy_j"], "J"), _paid(plan, row["usd"])),
    ]
    if plan.tokens is not None:
        paid = _paid(plan, row["total_usd"])
        facts.append((f"{amount(plan.tokens)} tokens", f"{row['days']:.1f} days", paid))
    searched = f"Best of {len(plan):,} that fit, of {counted(plan.legal, 'legal layout')}"
    return [Facts(facts), Text(f"{searched}, found in {time_words(plan.seconds)}.")]


def _paid(plan: Plan, usd: float) -> str:
    if np.isfinite(usd):
        return f"{dollars(usd)} of {plan.economy.money}"
    return f"{plan.economy.money} not known, see the notes"


def _sure(plan: Plan, candidates: list[ComparedLayout]) -> list[Block]:
    step_s = [part(plan, one.choice, "step_s") for one in candidates]
    ranges = [
        Interval(one.what, took, one.low_s, one.high_s)
        for one, took in zip(candidates, step_s, strict=True)
    ]
    caption = "Time of a step; nine of ten measurements should lie inside."
    blocks: list[Block] = [intervals(ranges, caption)]
    if len(candidates) > 1:
        explained = (
            "Most of the uncertainty is shared, so intervals that overlap can still leave the order"
            " nearly certain."
        )
        if any(one.what == "naive" for one in candidates):
            explained += f" The naive layout is {NAIVE}."
        frame = pd.DataFrame(candidates)
        frame["step_s"], frame["span"] = step_s, [_span(one) for one in candidates]
        frame["differs"] = [differences(plan.best, plan.layout(one.choice)) for one in candidates]
        frame["chance_words"] = [chance_words(one.chance) for one in candidates]
        columns = [
            Column("what", "compared with the winner"),
            Column("differs", "differs in"),
            Column("step_s", "step", step_words),
            Column("span", "interval"),
            Column("chance", "chance that the winner is faster", chance_words),
            Column("overlap", "intervals overlap by", percent),
        ]
        blocks += [Text(explained), frame_table(frame[1:], columns, words=2)]
    return [*blocks, *(Text(f"{line[0].upper()}{line[1:]}.") for line in memory_lines(plan))]


def _span(one: ComparedLayout) -> str:
    return f"90 %: {time_words(one.low_s)} to {time_words(one.high_s)}"


def _why(plan: Plan, candidates: list[ComparedLayout]) -> list[Block]:
    fields = [field for _, field in PARTS]
    frame = pd.DataFrame([
        {"what": one.what, "layout": layout_words(plan.layout(one.choice))}
        | {field: part(plan, one.choice, field) for field in [*fields, "step_s"]}
        for one in candidates
    ])  # fmt: skip
    amounts = frame[fields].to_numpy().tolist()
    steps = map(step_words, frame["step_s"])
    parts = [(name, colour) for (name, _), colour in zip(PARTS, _PART_COLOURS, strict=True)]
    rows = list(zip(frame["what"], amounts, steps, strict=True))
    drawn = bars(rows, parts, "What a step consists of.")
    columns = [
        Column("what", ""),
        Column("layout", "layout"),
        *(Column(field, name, time_words) for name, field in PARTS),
        Column("step_s", "step", time_words),
    ]
    return [drawn, frame_table(frame, columns, words=2, best=0, sortable=False)]


def _best(plan: Plan) -> Table:
    frame = top(plan, _LISTED)
    layouts = [plan.layout(plan.choice(int(rank))) for rank in frame.index]
    frame["layout"] = list(map(layout_words, layouts))
    frame["order"] = list(map(order_words, layouts))
    frame["rank"] = frame.index + 1
    several = [Column("gpus", "GPUs", count_words), Column("global_batch", "batch", count_words)]
    columns = [
        Column("layout", "layout"),
        Column("order", "fastest first"),
        Column("rank", "rank", count_words),
        *(several if len(plan.cases) > 1 else []),
        Column("time_s", "step", step_words),
        Column("tokens_per_s", "tokens/s", count_words),
        Column("mfu", "MFU", percent),
        Column("memory_bytes", "memory", lambda size: quantity(size, "B")),
        Column("energy_j", "energy", lambda energy: quantity(energy, "J")),
        Column("usd", f"{plan.economy.money}, USD", lambda usd: dollars(usd).removesuffix(" USD")),
    ]
    caption = (
        f"The best {len(frame)} of {len(plan):,} that fit, without copies of better ones (their"
        " ranks are missing)"
    )
    return frame_table(frame, columns, caption=caption, words=2, best=0)


def _front_plot(plan: Plan, one: str, other: str) -> Figure:
    every = max(1, -(-len(plan) // _POINTS))
    ranks, on_front = np.arange(0, len(plan), every), plan_front(plan, one, other)

    def series(name: str, these: np.ndarray, colour: int, **options: Any) -> Series:
        step_s, taken = _amounts(plan, these, other)
        return Series(
            name, step_s, taken, colour, words=lambda at: _words(plan, int(these[at])), **options
        )

    drawn = [
        series("layouts that fit", ranks, OTHER),
        series("front: no other is better in both", on_front, 1, line=True),
        series("on the front", on_front, 1),
    ]
    if other == "memory":
        ends = drawn[0].x[[drawn[0].x.argmin(), drawn[0].x.argmax()]]
        limit = np.full(2, plan.setup.capacity_bytes)
        drawn.append(Series("memory that may be used", ends, limit, 3, line=True))
    drawn.append(series("the best", np.zeros(1, int), 2, best=True))
    name, unit = _AXES[other]
    of = "sample" if _batches_differ(plan) else "step"
    shown = "all" if every == 1 else f"every {every}th of"
    caption = (
        f"{one.capitalize()} against {other}: {shown} {len(plan):,} layouts that fit; what falls on"
        " one spot is drawn once."
    )
    x, y = Axis(f"time of a {of}", "s", log=True), Axis(name.format(of), unit, log=True)
    return plot(drawn, x, y, caption)


def _words(plan: Plan, rank: int) -> str:
    choice = plan.choice(rank)
    return f"#{rank + 1}: {layout_words(plan.layout(choice))}; {step_words(plan.step_s(choice))}"


def _amounts(plan: Plan, ranks: np.ndarray, other: str) -> tuple[np.ndarray, np.ndarray]:
    """Seconds, and memory, energy or rent, of layouts by rank; per sample where batches differ."""
    step_s, taken = np.empty(len(ranks)), np.empty(len(ranks))
    for number, case in enumerate(plan.cases):
        here = plan.ranked[ranks, 0] == number
        at, gpus = plan.ranked[ranks[here], 1], case.space.gpus
        parts = StepParts(*(part[at] for part in case.parts))
        samples = case.space.global_batch if _batches_differ(plan) else 1
        step_s[here] = parts.step_s / samples
        if other == "memory":
            taken[here] = case.row_memory_bytes[at]
        elif other == "energy":
            taken[here] = plan.economy.energy_j(gpus, parts) / samples
        else:
            taken[here] = plan.economy.usd(gpus, parts) / samples
    return step_s, taken


def _batches_differ(plan: Plan) -> bool:
    return len({case.space.global_batch for case in plan.cases}) > 1


def _levers(plan: Plan, moved: Sequence[LeverEffect]) -> list[Block]:
    frame = pd.DataFrame([
        {
            "lever": one.lever,
            "then": "the same layout" if one.same else differences(plan.best, one.best),
            "elasticity": elasticity_words(one),
            "factor": f"{one.factor:g} times",
            "best_s": one.best_s,
        }
        for one in moved
    ])  # fmt: skip
    columns = [
        Column("lever", "more of"),
        Column("then", "the best layout then differs in"),
        Column("elasticity", "elasticity"),
        Column("factor", "as much"),
        Column("best_s", "best step then", step_words),
    ]
    explained = f"{REST[0].upper()}{REST[1:]}."
    explained += " The step with much more is of the layout that is best then."
    return [Text(explained), frame_table(frame, columns, words=2)]


def _provenance(plan: Plan) -> list[Block]:
    setting = plan.setup
    shape = setting.shape
    run = [
        ("model", shape.name),
        ("parameters", f"{shape.parameters:,.0f}"),
        ("layers x hidden", f"{shape.layers} x {shape.hidden}"),
        ("tokens of a sequence", f"{shape.seq:,}"),
        ("ranked by", plan.objective),
    ]
    return [
        pairs_table("the run", run),
        pairs_table("device", device_rows(setting.device)),
        pairs_table("system", system_rows(setting.machine.system)),
    ]
