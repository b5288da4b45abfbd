"""A plan as a page: the best layout and how sure it is, what it takes beside others, all layouts
that fit, what would move the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridperf.report.html.cells import count_cell, rate_cell, share_cell, time_cell, time_words
from hybridperf.report.html.document import (
    OTHER,
    Bar,
    Bars,
    Block,
    Cell,
    Facts,
    Folded,
    Notes,
    Page,
    Plot,
    Range,
    Ranges,
    Rows,
    Section,
    Series,
    Table,
    Text,
)
from hybridperf.report.html.of_model import device_rows, system_rows
from hybridperf.report.plan import (
    PARTS,
    REST,
    chance_words,
    dollars,
    elasticity_words,
    memory_lines,
    part,
    step_words,
)
from hybridperf.report.text import amount, percent, quantity
from hybridperf.training.plans.explain import NAIVE, ComparedLayout, compared, differences
from hybridperf.training.plans.fronts import PAIRS, plan_front
from hybridperf.training.plans.layout_text import LEGEND, counted, layout_words
from hybridperf.training.plans.run import Plan
from hybridperf.training.plans.sensitivity import LeverEffect, lever_effects
from hybridperf.training.plans.table import top
from hybridperf.training.steps.step_features import StepParts
from hybridperf.workloads.transformer.layout import Layout

_LISTED = 100  # best layouts
_POINTS = 200_000  # layouts drawn: beyond it every n-th by rank
_PART_COLOURS = (0, 1, 5, 4)
_AXES = {
    "memory": ("memory of the fullest GPU", "B"),
    "energy": ("energy of a {}", "J"),
    "cost": ("rent of a {}, USD", ""),
}


def plan_page(plan: Plan, title: str = "", moved: Sequence[LeverEffect] | None = None) -> Page:
    """The page of a plan; `moved`: what `lever_effects` said of it, which takes seconds, if it was asked
    before.
    """
    beside = compared(plan)
    shape, case = plan.setup.shape, plan.cases[plan.choice(0).case]
    lead = (
        f"{shape.name} on {case.space.gpus:,} x {plan.setup.device.name}, batch"
        f" {case.space.global_batch:,}: {layout_words(plan.best)}."
    )
    sections = [
        Section("The best layout", _summary(plan, beside)),
        Section("How sure", _sure(plan, beside)),
        Section("Why", _why(plan, beside)),
        Section("Layouts", [_best(plan), *map(Text, LEGEND)]),
        Section(
            "What is traded for what",
            [_front_plot(plan, one, other) for one, other in PAIRS if _differs(plan, other)],
        ),
        Section("What would move it", _levers(plan, moved)),
        Section(
            "Notes and assumptions",
            [Notes(plan.notes), Text("Prices and power:"), Notes(plan.economy.notes)],
        ),
        Section("Provenance", _provenance(plan)),
    ]
    return Page(
        title or f"How to train {shape.name} on {counted(case.space.gpus, 'GPU')}", sections, lead
    )


def _summary(plan: Plan, beside: list[ComparedLayout]) -> list[Block | Folded]:
    row = top(plan, 1).iloc[0]
    first = beside[0]
    facts = [
        ("time of a step", step_words(row["time_s"]), _span(first)),
        (
            "speed",
            f"{row['tokens_per_s']:,.0f} tokens/s",
            f"MFU {percent(row['mfu'])}, of the {plan.setup.mfu_format} peak",
        ),
        (
            "memory of the fullest GPU",
            quantity(row["memory_bytes"], "B"),
            f"of {quantity(plan.setup.capacity_bytes, 'B')}",
        ),
        ("energy of a step", quantity(row["energy_j"], "J"), _paid(plan, row["usd"])),
    ]
    if plan.tokens is not None:
        facts.append(
            (
                f"{amount(plan.tokens)} tokens",
                f"{row['days']:.1f} days",
                _paid(plan, row["total_usd"]),
            )
        )
    said = (
        f"Best of {len(plan):,} that fit, of {counted(plan.legal, 'legal layout')}, found in"
        f" {time_words(plan.seconds)}."
    )
    return [Facts(facts), Text(said)]


def _paid(plan: Plan, usd: float) -> str:
    return (
        f"{dollars(usd)} of {plan.economy.money}"
        if np.isfinite(usd)
        else f"{plan.economy.money} not known, see the notes"
    )


def _sure(plan: Plan, beside: list[ComparedLayout]) -> list[Block | Folded]:
    ranges = [
        Range(
            one.what,
            step_s := part(plan, one.choice, "step_s"),
            f"{step_words(step_s)} ({_span(one)})",
            one.low_s,
            one.high_s,
        )
        for one in beside
    ]
    rows: Rows = [
        [
            one.what,
            differences(plan.best, plan.layout(one.choice)),
            Cell(chance_words(one.chance), one.chance),
            share_cell(one.overlap),
        ]
        for one in beside[1:]
    ]
    blocks: list[Block | Folded] = [
        Ranges(ranges, time_words, "Steps with what nine of ten measurements would lie in.")
    ]
    if rows:
        said = (
            "Most of what is unsure is shared, so intervals that overlap can still leave the order"
            " nearly certain."
        )
        headers = [
            "beside the winner",
            "differs in",
            "chance that the winner is faster",
            "intervals overlap by",
        ]
        said += f" The naive layout is {NAIVE}." * any(one.what == "naive" for one in beside)
        blocks += [Text(said), Table(headers, rows, words=2)]
    return [*blocks, *(Text(f"{line[0].upper()}{line[1:]}.") for line in memory_lines(plan))]


def _span(one: ComparedLayout) -> str:
    return f"90 %: {time_words(one.low_s)} to {time_words(one.high_s)}"


def _why(plan: Plan, beside: list[ComparedLayout]) -> list[Block | Folded]:
    legend = [(name, colour) for (name, _), colour in zip(PARTS, _PART_COLOURS, strict=True)]
    bars = []
    rows: Rows = []
    for one in beside:
        seconds = [part(plan, one.choice, field) for _, field in PARTS]
        step_s = part(plan, one.choice, "step_s")
        segments = [(took, at, time_words(took)) for at, took in enumerate(seconds)]
        bars.append(
            Bar(
                f"{one.what}: {layout_words(plan.layout(one.choice))}", segments, step_words(step_s)
            )
        )
        rows.append([one.what, *map(time_cell, seconds), time_cell(step_s)])
    table = Table(["", *(name for name, _ in legend), "step"], rows, best=0, sortable=False)
    return [Bars(bars, legend, "What a step is made of."), Folded("The same as a table", [table])]


def _best(plan: Plan) -> Table:
    rows: Rows = []
    several = len(plan.cases) > 1
    for rank, row in top(plan, _LISTED).to_dict("index").items():
        layout = plan.layout(plan.choice(rank))
        of = [count_cell(int(row["gpus"])), count_cell(int(row["global_batch"]))] if several else []
        rows.append([
            layout_words(layout), _order(layout), count_cell(rank + 1), *of,
            Cell(step_words(row["time_s"]), row["time_s"]),
            Cell(f"{row['tokens_per_s']:,.0f}", row["tokens_per_s"]), share_cell(row["mfu"]),
            rate_cell(row["memory_bytes"], "B"), rate_cell(row["energy_j"], "J"),
            _money(row["usd"]),
        ])  # fmt: skip
    of_cases = ["GPUs", "batch"] if several else []
    headers = [
        "layout",
        "fastest first",
        "rank",
        *of_cases,
        "step",
        "tokens/s",
        "MFU",
        "memory",
        "energy",
        f"{plan.economy.money}, USD",
    ]
    return Table(
        headers,
        rows,
        f"The best {len(rows)} of {len(plan):,} that fit, without copies of better ones (their"
        " ranks are missing)",
        words=2,
        best=0,
    )


def _order(layout: Layout) -> str:
    return " ".join(name for name in layout.order if getattr(layout, name) > 1)


def _money(usd: float) -> Cell:
    return Cell(dollars(usd).removesuffix(" USD"), float(usd) if np.isfinite(usd) else None)


def _differs(plan: Plan, other: str) -> bool:
    """Whether a front is more than one point: rent is time on so many devices."""
    return other != "cost" or (
        bool(plan.economy.usd_per_hour) and len({case.space.gpus for case in plan.cases}) > 1
    )


def _front_plot(plan: Plan, one: str, other: str) -> Plot:
    every = max(1, -(-len(plan) // _POINTS))
    ranks, on_front = np.arange(0, len(plan), every), plan_front(plan, one, other)
    step_s, amount = _amounts(plan, ranks, other)
    front_s, front = _amounts(plan, on_front, other)
    best_s, best = _amounts(plan, np.zeros(1, int), other)
    words = [
        f"#{rank + 1}: {layout_words(plan.layout(plan.choice(int(rank))))}" for rank in on_front
    ]
    name, unit = _AXES[other]
    of = "sample" if _batches_differ(plan) else "step"
    drawn = (
        f"all {len(plan):,} layouts that fit"
        if every == 1
        else f"every {every}th of {len(plan):,} layouts that fit"
    )
    return Plot(
        [
            Series("layouts that fit", step_s, amount, colour=OTHER),
            Series("front: no other is better in both", front_s, front, colour=1, line=True),
            Series("on the front", front_s, front, colour=1, labels=words),
            *_limit(plan, step_s, other),
            Series("the best", best_s, best, colour=2, labels=[layout_words(plan.best)], mark=True),
        ],
        f"time of a {of}",
        name.format(of),
        time_words,
        lambda at: quantity(at, unit).strip(),
        x_log=True,
        y_log=True,
        caption=(
            f"{one.capitalize()} against {other}: {drawn}; what falls on one spot is drawn once."
        ),
    )


def _limit(plan: Plan, step_s: np.ndarray, other: str) -> list[Series]:
    """The memory that layouts may use, as a line."""
    if other != "memory":
        return []
    ends = np.array([step_s.min(), step_s.max()])
    return [
        Series(
            "memory that may be used",
            ends,
            np.full(2, plan.setup.capacity_bytes),
            colour=3,
            line=True,
        )
    ]


def _amounts(plan: Plan, ranks: np.ndarray, other: str) -> tuple[np.ndarray, np.ndarray]:
    """(seconds, memory, energy or rent) of layouts by rank: of a step, or of a sample where batches
    differ, as fronts have it.
    """
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


def _levers(plan: Plan, moved: Sequence[LeverEffect] | None) -> list[Block | Folded]:
    rows: Rows = []
    for one in lever_effects(plan) if moved is None else moved:
        then = "the same layout" if one.same else differences(plan.best, one.best)
        rows.append(
            [
                one.lever,
                then,
                Cell(elasticity_words(one), one.elasticity),
                f"{one.factor:g} times",
                Cell(step_words(one.best_s), one.best_s),
            ]
        )
    headers = [
        "more of",
        "the best layout then differs in",
        "elasticity",
        "as much",
        "best step then",
    ]
    said = (
        f"{REST[0].upper()}{REST[1:]}. The step with much more is of the layout that is best then."
    )
    return [Text(said), Table(headers, rows, words=2)]


def _provenance(plan: Plan) -> list[Block | Folded]:
    setup = plan.setup
    shape = setup.shape
    sizes = [
        ("model", shape.name), ("parameters", f"{shape.parameters:,.0f}"),
        ("layers x hidden", f"{shape.layers} x {shape.hidden}"),
        ("tokens of a sequence", f"{shape.seq:,}"), ("ranked by", plan.objective),
    ]  # fmt: skip
    tables = (
        ("the run", sizes),
        ("device", device_rows(setup.device)),
        ("system", system_rows(setup.machine.system)),
    )
    return [Table([what, ""], rows, words=2, sortable=False) for what, rows in tables]
