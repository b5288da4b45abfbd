"""A plan in words: the best layouts, why the first wins, how sure that is, what would change it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd

from hybridperf.engine.step_features import StepParts
from hybridperf.report import text
from hybridperf.report.text import dollars, span_words, step_words
from hybridperf.training.offload.layouts import OffloadedLayout
from hybridperf.training.plans import explain
from hybridperf.training.plans.layout_text import LEGEND, counted, layout_words
from hybridperf.training.plans.ranked import PAIRS, plan_front
from hybridperf.training.plans.run import Plan
from hybridperf.training.plans.sensitivity import SURE, LeverEffect, lever_effects, memory_headroom
from hybridperf.workloads.transformer import Layout

_FRONT_ROWS = 6
REST = (
    "elasticity: percent of the best layout's time for one percent more; what they lack to -1 is"
    " exposed seconds of kernels and what a step takes whatever the machine; link latency are links"
    " with a shorter latency; memory has none, it admits layouts one after the other"
)
PARTS = (
    ("computing", "compute_s"),
    ("exposed communication", "exposed_comm_s"),
    ("pipeline bubble", "bubble_s"),
    ("host-bound", "host_s"),
)


def plan_report(plan: Plan, count: int = 10) -> str:
    """A plan as text: the best layouts, why the first wins, how sure that is, what would change it.

    Args:
        plan: what `hp.plan` returned.
        count: how many layouts are listed.
    """
    return "\n".join(plan_sections(plan, count))


def plan_sections(plan: Plan, count: int = 10) -> Iterator[str]:
    """The sections of `plan_report`, an empty line before each but the first."""
    yield f"{_head(plan)}\n\n{_best(plan, count)}"
    compared = plan.compared()
    yield f"\n{_why(compared)}\n\n{_sure(plan, compared)}"
    yield f"\n{_levers(plan, lever_effects(plan))}"
    pieces = []
    for one, other in PAIRS:
        # whether a front of time and `other` is more than a point: rent is time on so many devices
        several = len({case.space.gpus for case in plan.cases}) > 1
        if not (other != "cost" or (bool(plan.economy.usd_per_hour) and several)):
            continue
        ranks = plan_front(plan, one, other)
        shown = ranks[:: max(1, -(-len(ranks) // _FRONT_ROWS))]
        rows = [_front_row(plan, int(rank), other) for rank in shown]
        more = f", {len(rows)} of them" if len(rows) < len(ranks) else ""
        among = f" among the best {len(plan):,}" if plan.slower else ""
        head = f"Pareto front of {one} and {other}{among}: {counted(len(ranks), 'layout')}{more}"
        pieces.append(f"{head}\n{text.table(['', 'step', other, 'layout'], rows)}")
    if fronts := "\n\n".join(pieces):
        yield f"\n{fronts}"
    notes = [f"note: {note}" for note in plan.notes]
    yield "\n".join(["", *notes, *(f"price: {note}" for note in plan.economy.notes)])


def _head(plan: Plan) -> str:
    shape, case = plan.setup.shape, plan.cases[plan.choice(0).case]
    fitting = sum(len(case.rows) for case in plan.cases)
    sizes = f"{text.amount(shape.parameters)} parameters, sequences of {shape.seq}"
    orders = f"{plan.orders:,} if orders that place every group alike count apart"
    found = f"{counted(plan.legal, 'legal layout')} ({orders}), {fitting:,} fit and are priced"
    rates = f"{plan.seconds:.1f} s, {plan.legal / plan.seconds:,.0f} legal ones a second"
    if plan.slower:
        orders = f"whatever their order on the nodes; {plan.orders:,} with every order"
        found = (
            f"{counted(plan.legal, 'legal layout')} ({orders}), the best {len(plan):,} that fit are"
            f" kept; {plan.slower:,} were ruled out unpriced: lower bounds put them behind the last"
        )
    elif len(plan) < fitting:
        found += f", the best {len(plan):,} are kept"
    where = f"{counted(case.space.gpus, 'GPU')}, batch {case.space.global_batch}"
    lines = [
        f"{shape.name} ({sizes}) on {plan.setup.device.name}, {plan.setup.machine.system.id}",
        f"{found}; {rates}",
        f"best: {layout_words(plan.best)} on {where}",
    ]
    return "\n".join(lines)


def _best(plan: Plan, count: int) -> str:
    frame = plan.top(count)
    layouts = {rank: plan.layout(plan.choice(rank)) for rank in frame.index}
    columns: dict[str, Callable[[Any], Any]] = {
        "GPUs": lambda row: row.gpus,
        "batch": lambda row: row.global_batch,
        "": lambda row: row.Index + 1,
        "layout": lambda row: layout_words(layouts[row.Index]),
        "rank order": lambda row: order_words(layouts[row.Index]),
        "step": lambda row: step_words(row.time_s),
        "90 % interval": lambda row: span_words(text.step_words, row.low_s, row.high_s),
        "tokens/s": lambda row: f"{row.tokens_per_s:,.0f}",
        "MFU": lambda row: text.percent(row.mfu),
        "memory": lambda row: text.quantity(row.memory_bytes, "B"),
        "energy": lambda row: text.energy(row.energy_j),
        plan.economy.money: lambda row: dollars(row.usd),
    }
    if len(plan.cases) == 1:
        del columns["GPUs"], columns["batch"]
    lines = [text.items_table(frame.itertuples(), columns), *LEGEND]
    if plan.economy.unknown:
        lines.append(f"{plan.economy.money} -: {plan.economy.unknown}")
    if plan.tokens is not None:
        first = frame.iloc[0]
        energy_j = first["total_energy_j"]
        energy_usd = dollars(float(plan.economy.energy_usd(energy_j)))
        meter = "" if plan.economy.owned else f" ({energy_usd} by the meter)"
        run = run_words(plan, first)
        energy = f"{text.energy(energy_j)}{meter}"
        lines.append(f"{text.amount(plan.tokens)} tokens: {run}, {energy}")
    return "\n".join(lines)


def run_words(plan: Plan, row: pd.Series) -> str:
    """Days and money of a whole run by one layout of `top`, with their intervals."""
    days, low, high = (f"{row[name]:.1f}" for name in ("days", "days_low", "days_high"))
    found = f"{days} days ({low} to {high}), {dollars(row['total_usd'])}"
    if plan.economy.usd_per_hour is not None:
        found += f" ({span_words(dollars, row['total_usd_low'], row['total_usd_high'])})"
    return f"{found} of {plan.economy.money}"


def order_words(layout: Layout) -> str:
    """The dimensions of a layout that are cut, those with the fastest links first."""
    return " ".join(name for name in layout.order if getattr(layout, name) > 1)


def _why(compared: pd.DataFrame) -> str:
    rows = [
        [name, *map(step_words, compared[field])] for name, field in (*PARTS, ("step", "time_s"))
    ]
    others = compared["differs"].iloc[1:].items()
    lines = ["Why", text.table(["", *compared.index], rows), "compared with the winner:"]
    lines += [f"  {what}: {differs}" for what, differs in others]
    lines += [f"  naive is {explain.NAIVE}"] if "naive" in compared.index else []
    return "\n".join(lines)


def _sure(plan: Plan, compared: pd.DataFrame) -> str:
    winner, *others = compared.itertuples()
    lines = [f"How sure: {step_words(winner.low_s)} to {step_words(winner.high_s)}, 90 % interval"]
    for one in others:
        chance = f"with a chance of {chance_words(one.chance)}"
        overlap = f"their intervals overlap by {text.percent(one.overlap)}"
        lines.append(f"  faster than the {one.Index} {chance} ({overlap})")
    return "\n".join([*lines, *(f"  {line}" for line in memory_lines(plan))])


def memory_lines(plan: Plan) -> list[str]:
    """How surely the winner fits, and what lies on either side of the limit."""
    headroom, step_s = memory_headroom(plan), plan.step_s(plan.choice(0))
    taken = f"the winner takes {text.percent(headroom.share)} of the memory that layouts may use"
    lines = [f"{taken}, and fits with a chance of {chance_words(headroom.chance)}"]
    if headroom.surer is not None and headroom.chance < SURE:
        slower = text.percent(plan.step_s(headroom.surer) / step_s - 1)
        surer = layout_words(plan.layout(headroom.surer))
        lines[0] += f"; {slower} slower and surer to fit: {surer}"
    if headroom.missed is not None:
        faster = text.percent(1 - headroom.missed_s / step_s)
        needs = text.quantity(headroom.missed_bytes, "B")
        missed = layout_words(headroom.missed)
        lines.append(f"just too large: {missed}, {faster} faster, would need {needs}")
    return lines


def chance_words(chance: float) -> str:
    """A probability as a percentage."""
    return "over 99.9 %" if chance > 0.999 else f"{100 * chance:.1f} %"


def _levers(plan: Plan, found: list[LeverEffect]) -> str:
    columns: dict[str, Callable[[LeverEffect], str]] = {
        "more of": lambda one: one.lever,
        "elasticity": elasticity_words,
        "best step with": lambda one: f"{one.factor:g} times as much: {step_words(one.best_s)}",
        "best layout then differs in": lambda one: (
            "the same" if one.same else explain.differences(plan.best, one.best)
        ),
    }
    return f"What would move it\n{text.items_table(found, columns)}\n{REST}"


def elasticity_words(one: LeverEffect) -> str:
    """Elasticity of the best layout's time; memory has none: it only admits layouts."""
    return "-" if one.lever == "memory" else f"{one.elasticity:+.2f}"


def _front_row(plan: Plan, rank: int, other: str) -> list[str]:
    choice = plan.choice(rank)
    step_s, taken = amounts(plan, choice.case, choice.at, other)
    words = {"memory": lambda size: text.quantity(size, "B"), "energy": text.energy}
    layout = layout_words(plan.layout(choice))
    if len(plan.cases) > 1:
        space = plan.cases[choice.case].space
        layout = f"{counted(space.gpus, 'GPU')}, batch {space.global_batch}: {layout}"
    return [f"#{rank + 1}", step_words(step_s), words.get(other, dollars)(taken), layout]


def amounts(plan: Plan, number: int, at: Any, other: str) -> tuple[Any, Any]:
    """Seconds of some layouts of a case by number, and their memory, energy or cost."""
    case = plan.cases[number]
    parts = StepParts(*(part[at] for part in case.parts))
    if other == "memory":
        return parts.step_s, case.row_memory_bytes[at]
    of_power = plan.economy.energy_j if other == "energy" else plan.economy.usd
    return parts.step_s, of_power(case.space.gpus, parts)


def confirmed_report(plan: Plan, found: list[explain.Confirmed]) -> str:
    """Neighbours of the winner by the plan and by the full graph, each over the winner's time."""
    first = found[0]
    winner = plan.layout(first.choice)
    columns: dict[str, Callable[[explain.Confirmed], str]] = {
        "neighbour differs in": lambda one: explain.differences(winner, plan.layout(one.choice)),
        "time over the winner's": lambda one: f"{one.plan_s / first.plan_s:.3f}",
        "by the graph": lambda one: f"{one.graph_s / first.graph_s:.3f}",
    }
    best = min(found, key=lambda one: one.graph_s)
    verdict = "the graph confirms the winner"
    if best.graph_s < first.graph_s:
        faster = f"{100 * (first.graph_s / best.graph_s - 1):.1f} % faster"
        other = explain.differences(winner, plan.layout(best.choice))
        verdict = f"the graph finds one {faster} ({other})"
    return f"{text.items_table(found[1:], columns)}\n{verdict}\n{_apart(first)}"


def _apart(first: explain.Confirmed) -> str:
    """How far the graph's seconds of the winner are from the plan's, and why."""
    return (
        f"winner by the plan {step_words(first.plan_s)}, by the graph {step_words(first.graph_s)}"
        f" ({100 * (first.graph_s / first.plan_s - 1):+.0f} %): the graph runs kernels at the op"
        " model's own speeds; the plan adds what measured steps show in addition (exposed seconds"
        " of each kernel, slower products and loops, launches), so only orders compare"
    )


def offloaded_report(
    found: Sequence[OffloadedLayout], cpu_bytes: float, fitting_s: float | None
) -> str:
    """Layouts that fit with state in CPU memory; `fitting_s`: of the best that fits without."""
    without = "none fits without" if fitting_s is None else f"{step_words(fitting_s)} without"
    where = f"with {text.quantity(cpu_bytes, 'B')} of CPU memory a node"
    if not found:
        return f"{where}: every layout fits without"
    columns: dict[str, Callable[[OffloadedLayout], Any]] = {
        "layout": lambda one: layout_words(one.layout),
        "step": lambda one: step_words(one.step_s),
        "of it transfers": lambda one: step_words(one.offload.cost_s),
    }
    best = f"{where}: best {step_words(found[0].step_s)}, {without}"
    return f"{best}\n\n{text.items_table(found, columns)}\n{found[0].offload.worst.says()}"
