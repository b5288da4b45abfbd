"""A plan in words: the best layouts, why the first wins, how sure that is, what would change it."""

from __future__ import annotations

import pandas as pd

from hybridperf.report import text
from hybridperf.training.plans.confirm import Confirmed
from hybridperf.training.plans.explain import NAIVE, ComparedLayout, compared, differences
from hybridperf.training.plans.fronts import PAIRS, plan_front
from hybridperf.training.plans.headroom import SURE, memory_headroom
from hybridperf.training.plans.layout_text import LEGEND, counted, layout_words
from hybridperf.training.plans.ranked import Choice
from hybridperf.training.plans.run import Plan
from hybridperf.training.plans.sensitivity import LeverEffect, lever_effects
from hybridperf.training.plans.table import top
from hybridperf.training.steps.step_features import StepParts

_FRONT_ROWS = 6
REST = (
    "elasticity: percent of the best layout's time for one percent more; what they lack to -1 is"
    " exposed seconds of kernels and what a step takes whatever the machine; quick links are links"
    " with a shorter latency; memory has none, it admits layouts one after the other"
)
PARTS = (
    ("computing", "compute_s"),
    ("communication that shows", "exposed_comm_s"),
    ("waiting for other stages", "bubble_s"),
    ("waiting for its host", "host_s"),
)


def plan_report(plan: Plan, count: int = 10) -> str:
    """A plan as text: the best layouts, why the first wins, how sure that is, what would change it.

    Args:
        plan: what `hp.plan` returned.
        count: how many layouts are listed.
    """
    beside = compared(plan)
    pieces = [
        _head(plan),
        _best(plan, count),
        _why(plan, beside),
        _sure(plan, beside),
        _levers(plan, lever_effects(plan)),
        _fronts(plan),
        _end(plan),
    ]
    return "\n\n".join(pieces)


def _head(plan: Plan) -> str:
    shape, case = plan.setup.shape, plan.cases[plan.choice(0).case]
    rates = (
        f"{plan.legal / plan.seconds:,.0f} legal and {len(plan) / plan.seconds:,.0f} fitting ones a"
        " second"
    )
    fitting = (
        f"{counted(plan.legal, 'legal layout')} ({plan.orders:,} if orders that place every group"
        f" alike count apart), {len(plan):,} fit and are priced"
    )
    return (
        f"{shape.name} ({text.amount(shape.parameters)} parameters, sequences of {shape.seq}) on"
        f" {plan.setup.device.name}, {plan.setup.machine.system.id}\n{fitting};"
        f" {plan.seconds:.1f} s, {rates}\nbest: {layout_words(plan.best)} on"
        f" {counted(case.space.gpus, 'GPU')}, batch {case.space.global_batch}"
    )


def _best(plan: Plan, count: int) -> str:
    frame = top(plan, count)
    rows = []
    for rank, row in frame.iterrows():
        layout = plan.layout(plan.choice(rank))
        order = " ".join(name for name in layout.order if getattr(layout, name) > 1)
        cells = [
            str(rank + 1), layout_words(layout), order, step_words(row["time_s"]),
            f"{row['tokens_per_s']:,.0f}", text.percent(row["mfu"]),
            text.quantity(row["memory_bytes"], "B"), text.quantity(row["energy_j"], "J"),
            dollars(row["usd"]),
        ]  # fmt: skip
        rows.append(
            [str(row["gpus"]), str(row["global_batch"]), *cells] if len(plan.cases) > 1 else cells
        )
    head = [
        "",
        "layout",
        "fastest first",
        "step",
        "tokens/s",
        "MFU",
        "memory",
        "energy",
        plan.economy.money,
    ]
    table = text.table((["GPUs", "batch"] if len(plan.cases) > 1 else []) + head, rows)
    lines = [table, *LEGEND]
    if plan.economy.unknown:
        lines.append(f"{plan.economy.money} -: {plan.economy.unknown}")
    if plan.tokens is not None:
        first = frame.iloc[0]
        meter = (
            ""
            if plan.economy.owned
            else (
                f" ({dollars(float(plan.economy.energy_usd(first['total_energy_j'])))} by the"
                " meter)"
            )
        )
        run = f"{first['days']:.1f} days, {dollars(first['total_usd'])} of {plan.economy.money}"
        lines.append(
            f"{text.amount(plan.tokens)} tokens: {run},"
            f" {text.quantity(first['total_energy_j'], 'J')}{meter}"
        )
    return "\n".join(lines)


def _why(plan: Plan, beside: list[ComparedLayout]) -> str:
    rows = []
    for name, field in PARTS:
        rows.append([name, *(step_words(part(plan, one.choice, field)) for one in beside)])
    rows.append(["step", *(step_words(part(plan, one.choice, "step_s")) for one in beside)])
    lines = [
        f"  {one.what}: {differences(plan.best, plan.layout(one.choice))}" for one in beside[1:]
    ]
    lines += [f"  naive is {NAIVE}"] * any(one.what == "naive" for one in beside)
    return "\n".join(
        ["Why", text.table(["", *(one.what for one in beside)], rows), "beside the winner:", *lines]
    )


def part(plan: Plan, choice: Choice, field: str) -> float:
    """Seconds of one part of a step."""
    return float(getattr(plan.cases[choice.case].parts, field)[choice.at])


def _sure(plan: Plan, beside: list[ComparedLayout]) -> str:
    lines = [
        f"How sure: {step_words(beside[0].low_s)} to {step_words(beside[0].high_s)}, nine of ten"
    ]
    for one in beside[1:]:
        lines.append(
            f"  faster than the {one.what} with a chance of {chance_words(one.chance)} (their"
            f" intervals overlap by {text.percent(one.overlap)})"
        )
    return "\n".join([*lines, *(f"  {line}" for line in memory_lines(plan))])


def memory_lines(plan: Plan) -> list[str]:
    """How surely the winner fits, and what lies on either side of the limit."""
    said = memory_headroom(plan)
    taken = f"the winner takes {text.percent(said.share)} of the memory that layouts may use"
    chance = f"{taken}, and fits with a chance of {chance_words(said.chance)}"
    if said.surer is not None and said.chance < SURE:
        slower = plan.step_s(said.surer) / plan.step_s(plan.choice(0)) - 1
        chance += (
            f"; {text.percent(slower)} slower and surer to fit:"
            f" {layout_words(plan.layout(said.surer))}"
        )
    lines = [chance]
    if said.missed is not None:
        faster = 1 - said.missed_s / plan.step_s(plan.choice(0))
        needs = text.quantity(said.missed_bytes, "B")
        lines.append(
            f"just too large: {layout_words(said.missed)}, {text.percent(faster)} faster, would"
            f" need {needs}"
        )
    return lines


def step_words(seconds: float) -> str:
    """Four digits: the best layouts lie near each other."""
    scale, unit = next(
        ((s, u) for s, u in ((1.0, "s"), (1e-3, "ms")) if seconds >= s), (1e-6, "µs")
    )
    return f"{seconds / scale:.4g} {unit}" if seconds else "0 s"


def chance_words(chance: float) -> str:
    """A chance."""
    return "over 99.9 %" if chance > 0.999 else f"{100 * chance:.1f} %"


def _levers(plan: Plan, found: list[LeverEffect]) -> str:
    rows = []
    for one in found:
        then = "the same" if one.same else differences(plan.best, one.best)
        rows.append(
            [
                one.lever,
                elasticity_words(one),
                f"{one.factor:g} times as much: {step_words(one.best_s)}",
                then,
            ]
        )
    return (
        "What would move it\n"
        + text.table(
            ["more of", "elasticity", "best step with", "best layout then differs in"], rows
        )
        + f"\n{REST}"
    )


def elasticity_words(one: LeverEffect) -> str:
    """Of the best layout's time; memory has none: it admits layouts, one after the other."""
    return "-" if one.lever == "memory" else f"{one.elasticity:+.2f}"


def _fronts(plan: Plan) -> str:
    pieces = []
    for one, other in PAIRS:
        if other == "cost" and (
            not plan.economy.usd_per_hour or len({case.space.gpus for case in plan.cases}) == 1
        ):
            continue  # money is time on so many rented devices, or energy
        ranks = plan_front(plan, one, other)
        shown = ranks[:: max(1, -(-len(ranks) // _FRONT_ROWS))]
        rows = [_front_row(plan, int(rank), other) for rank in shown]
        more = f", {len(rows)} of them" if len(rows) < len(ranks) else ""
        pieces.append(
            f"Pareto front of {one} and {other}: {counted(len(ranks), 'layout')}{more}\n"
            + text.table(["", "step", other, "layout"], rows)
        )
    return "\n\n".join(pieces)


def _front_row(plan: Plan, rank: int, other: str) -> list[str]:
    choice = plan.choice(rank)
    case = plan.cases[choice.case]
    gpus, parts = case.space.gpus, StepParts(*(part[choice.at] for part in case.parts))
    said = {
        "memory": lambda: text.quantity(case.row_memory_bytes[choice.at], "B"),
        "energy": lambda: text.quantity(plan.economy.energy_j(gpus, parts), "J"),
        "cost": lambda: dollars(plan.economy.usd(gpus, parts)),
    }[other]()
    where = (
        f"{counted(gpus, 'GPU')}, batch {case.space.global_batch}: " if len(plan.cases) > 1 else ""
    )
    return [
        f"#{rank + 1}",
        step_words(parts.step_s),
        said,
        where + layout_words(plan.layout(choice)),
    ]


def _end(plan: Plan) -> str:
    lines = [f"note: {note}" for note in plan.notes] + [
        f"price: {said}" for said in plan.economy.notes
    ]
    return "\n".join(lines)


def dollars(value: float) -> str:
    """Money; - where nobody knows."""
    if pd.isna(value):
        return "-"
    return (
        f"{value:,.0f} USD" if value >= 1000 else f"{value:.4g} USD"
    )  # four digits: ten ranks must differ


def confirmed_report(plan: Plan, found: list[Confirmed]) -> str:
    """Neighbours of the winner by the plan and by the full graph, each over the winner's time."""
    first = found[0]
    rows = [
        [
            differences(plan.layout(first.choice), plan.layout(one.choice)),
            f"{one.plan_s / first.plan_s:.3f}",
            f"{one.graph_s / first.graph_s:.3f}",
        ]
        for one in found[1:]
    ]
    best = min(found, key=lambda one: one.graph_s)
    said = "the graph confirms the winner"
    if best.graph_s < first.graph_s:
        other = differences(plan.layout(first.choice), plan.layout(best.choice))
        said = (
            f"the graph finds one {100 * (first.graph_s / best.graph_s - 1):.1f} % faster ({other})"
        )
    table = text.table(["neighbour differs in", "time over the winner's", "by the graph"], rows)
    return f"{table}\n{said}\n{_apart(first)}"


def _apart(first: Confirmed) -> str:
    """How far the graph's seconds of the winner are from the plan's, and why."""
    return (
        f"winner by the plan {step_words(first.plan_s)}, by the graph {step_words(first.graph_s)}"
        f" ({100 * (first.graph_s / first.plan_s - 1):+.0f} %): the graph runs kernels at the op"
        " model's own speeds; the plan adds what measured steps show beside them (exposed seconds"
        " of each kernel, slower products and loops, launches), so only orders compare"
    )
