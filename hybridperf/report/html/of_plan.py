"""A plan as a page: the best layout, how sure it is, the others, what would move the optimum."""

from typing import Any

import numpy as np
import pandas as pd

from hybridperf.report import plan as report
from hybridperf.report.html import document as doc
from hybridperf.report.html.figures import Axis, Interval, Series, bars, intervals, plot
from hybridperf.report.known import device_facts, system_facts
from hybridperf.report.text import J_PER_WH, amount, energy, percent, quantity, seconds
from hybridperf.training.plans.explain import NAIVE, ComparedLayout, compared, differences
from hybridperf.training.plans.layout_text import LEGEND, counted, layout_words
from hybridperf.training.plans.ranked import PAIRS, plan_front
from hybridperf.training.plans.run import Plan
from hybridperf.training.plans.sensitivity import lever_effects
from hybridperf.training.plans.table import top

_LISTED = 100  # best layouts
_POINTS = 200_000  # layouts drawn: beyond it every n-th by rank
_PART_COLOURS = (0, 1, 5, 4)
_AXES = {"memory": "memory of the fullest GPU", "energy": "energy of a {}", "cost": "rent of a {}"}
_UNITS = {"memory": "B", "energy": "Wh", "cost": "USD"}


def plan_page(plan: Plan) -> doc.Page:
    """The page of a plan."""
    candidates = compared(plan)
    shape, case = plan.setup.shape, plan.cases[plan.choice(0).case]
    devices = f"{case.space.gpus:,} x {plan.setup.device.name}"
    batch = f"batch {case.space.global_batch:,}"
    lead = f"{shape.name} on {devices}, {batch}: {layout_words(plan.best)}."
    layouts: list[doc.Block] = [_best(plan), *(doc.Text(line) for line in LEGEND)]
    traded = [(one, other) for one, other in PAIRS if report.trades(plan, other)]
    fronts: list[doc.Block] = [_front_plot(plan, one, other) for one, other in traded]
    prices: list[doc.Block] = [doc.Text("Prices and power:"), doc.Notes(plan.economy.notes)]
    sections = [
        doc.Section("The best layout", _summary(plan, candidates[0])),
        doc.Section("How sure", _sure(plan, candidates)),
        doc.Section("Why", _why(plan, candidates)),
        doc.Section("Layouts", layouts),
        doc.Section("What is traded for what", fronts),
        doc.Section("What would move it", _levers(plan)),
        doc.Section("Notes and assumptions", [doc.Notes(plan.notes), *prices]),
        doc.Section("Provenance", _provenance(plan)),
    ]
    title = f"How to train {shape.name} on {counted(case.space.gpus, 'GPU')}"
    return doc.Page(title, sections, lead)


def _summary(plan: Plan, first: ComparedLayout) -> list[doc.Block]:
    row = top(plan, 1).iloc[0]
    speed = f"{row['tokens_per_s']:,.0f} tokens/s"
    mfu = f"MFU {percent(row['mfu'])}, of the {plan.setup.mfu_format} peak"
    memory, capacity = row["memory_bytes"], f"of {quantity(plan.setup.capacity_bytes, 'B')}"
    facts = [
        ("time of a step", report.step_words(row["time_s"]), _span(first)),
        ("speed", speed, mfu),
        ("memory of the fullest GPU", quantity(memory, "B"), capacity),
        ("energy of a step", energy(row["energy_j"]), _paid(plan, row["usd"])),
    ]
    if plan.tokens is not None:
        facts.append(
            (
                f"{amount(plan.tokens)} tokens",
                f"{row['days']:.1f} days",
                report.run_words(plan, row),
            )
        )
    kept = "kept" if plan.slower else "that fit"
    searched = f"Best of {len(plan):,} {kept}, of {counted(plan.legal, 'legal layout')}"
    return [doc.Facts(facts), doc.Text(f"{searched}, found in {seconds(plan.seconds)}.")]


def _paid(plan: Plan, usd: float) -> str:
    if np.isfinite(usd):
        return f"{report.dollars(usd)} of {plan.economy.money}"
    return f"{plan.economy.money} not known, see the notes"


def _sure(plan: Plan, candidates: list[ComparedLayout]) -> list[doc.Block]:
    step_s = [report.part(plan, one.choice, "step_s") for one in candidates]
    both = zip(candidates, step_s, strict=True)
    ranges = [Interval(one.what, took, one.low_s, one.high_s) for one, took in both]
    caption = "Time of a step; nine of ten measurements should lie inside."
    blocks: list[doc.Block] = [intervals(ranges, caption)]
    if len(candidates) > 1:
        explained = "Most of the uncertainty is shared, so intervals that overlap can still leave"
        explained += " the order nearly certain."
        if any(one.what == "naive" for one in candidates):
            explained += f" The naive layout is {NAIVE}."
        frame = pd.DataFrame(candidates)
        frame["step_s"], frame["span"] = step_s, [_span(one) for one in candidates]
        frame["differs"] = [differences(plan.best, plan.layout(one.choice)) for one in candidates]
        columns = {
            "what": "compared with the winner", "differs": "differs in", "step_s": "step",
            "span": "interval", "chance": "chance that the winner is faster",
            "overlap": "intervals overlap by",
        }  # fmt: skip
        write = {"step_s": report.step_words, "chance": report.chance_words, "overlap": percent}
        blocks += [doc.Text(explained), doc.frame_table(frame[1:], columns, write=write, words=2)]
    memory = report.memory_lines(plan)
    return [*blocks, *(doc.Text(f"{line[0].upper()}{line[1:]}.") for line in memory)]


def _span(one: ComparedLayout) -> str:
    return f"90 %: {seconds(one.low_s)} to {seconds(one.high_s)}"


def _why(plan: Plan, candidates: list[ComparedLayout]) -> list[doc.Block]:
    fields = [field for _, field in report.PARTS]
    frame = pd.DataFrame([
        {"what": one.what, "layout": layout_words(plan.layout(one.choice))}
        | {field: report.part(plan, one.choice, field) for field in [*fields, "step_s"]}
        for one in candidates
    ])  # fmt: skip
    amounts = frame[fields].to_numpy().tolist()
    steps = map(report.step_words, frame["step_s"])
    parts = [(name, colour) for (name, _), colour in zip(report.PARTS, _PART_COLOURS, strict=True)]
    rows = list(zip(frame["what"], amounts, steps, strict=True))
    times = {field: name for name, field in report.PARTS}
    columns = {"what": "", "layout": "layout", **times, "step_s": "step"}
    table = doc.frame_table(frame, columns, words=2, best=0, sortable=False)
    return [bars(rows, parts, "What a step consists of."), table]


def _best(plan: Plan) -> doc.Table:
    frame = top(plan, _LISTED)
    layouts = [plan.layout(plan.choice(int(rank))) for rank in frame.index]
    frame["layout"] = list(map(layout_words, layouts))
    frame["order"] = list(map(report.order_words, layouts))
    frame["rank"] = frame.index + 1
    several = {"gpus": "GPUs", "global_batch": "batch"} if len(plan.cases) > 1 else {}
    columns = {
        "layout": "layout", "order": "fastest first", "rank": "rank", **several, "time_s": "step",
        "tokens_per_s": "tokens/s", "mfu": "MFU", "memory_bytes": "memory", "energy_j": "energy",
        "usd": f"{plan.economy.money}, USD",
    }  # fmt: skip
    write = {
        "time_s": report.step_words, "mfu": percent, "energy_j": energy,
        "usd": lambda usd: report.dollars(usd).removesuffix(" USD"),
    }  # fmt: skip
    copies = "without copies of better ones (their ranks are missing)"
    caption = f"The best {len(frame)} of {len(plan):,}, {copies}"
    return doc.frame_table(frame, columns, write=write, caption=caption, words=2, best=0)


def _front_plot(plan: Plan, one: str, other: str) -> doc.Figure:
    every = max(1, -(-len(plan) // _POINTS))
    ranks, on_front = np.arange(0, len(plan), every), plan_front(plan, one, other)

    def series(name: str, these: np.ndarray, colour: int, **options: Any) -> Series:
        step_s, taken = _amounts(plan, these, other)
        options["words"] = lambda at: _words(plan, int(these[at]))
        return Series(name, step_s, taken, colour, **options)

    drawn = [
        series("layouts that fit", ranks, doc.OTHER),
        series("front: no other is better in both", on_front, 1, line=True),
        series("on the front", on_front, 1),
    ]
    if other == "memory":
        ends = drawn[0].x[[drawn[0].x.argmin(), drawn[0].x.argmax()]]
        limit = np.full(2, plan.setup.capacity_bytes)
        drawn.append(Series("memory that may be used", ends, limit, 3, line=True))
    drawn.append(series("the best", np.zeros(1, int), 2, best=True))
    of = "sample" if _batches_differ(plan) else "step"
    shown = f"{'all' if every == 1 else f'every {every}th of'} {len(plan):,} layouts that fit"
    once = "what falls on one spot is drawn once"
    caption = f"{one.capitalize()} against {other}: {shown}; {once}."
    x = Axis(f"time of a {of}", "s", log=True)
    return plot(drawn, x, Axis(_AXES[other].format(of), _UNITS[other], log=True), caption)


def _words(plan: Plan, rank: int) -> str:
    choice = plan.choice(rank)
    step = report.step_words(plan.step_s(choice))
    return f"#{rank + 1}: {layout_words(plan.layout(choice))}; {step}"


def _amounts(plan: Plan, ranks: np.ndarray, other: str) -> tuple[np.ndarray, np.ndarray]:
    """Seconds, and memory, energy or rent, of layouts by rank; per sample where batches differ."""
    step_s, taken = np.empty(len(ranks)), np.empty(len(ranks))
    for number, case in enumerate(plan.cases):
        here = plan.ranked[ranks, 0] == number
        samples = case.space.global_batch if _batches_differ(plan) else 1
        step, amount = report.amounts(plan, number, plan.ranked[ranks[here], 1], other)
        amount = amount / J_PER_WH if other == "energy" else amount
        step_s[here] = step / samples
        taken[here] = amount if other == "memory" else amount / samples
    return step_s, taken


def _batches_differ(plan: Plan) -> bool:
    return len({case.space.global_batch for case in plan.cases}) > 1


def _levers(plan: Plan) -> list[doc.Block]:
    frame = pd.DataFrame([
        {
            "lever": one.lever,
            "then": "the same layout" if one.same else differences(plan.best, one.best),
            "elasticity": report.elasticity_words(one),
            "factor": f"{one.factor:g} times",
            "best_s": one.best_s,
        }
        for one in lever_effects(plan)
    ])  # fmt: skip
    columns = {
        "lever": "more of", "then": "the best layout then differs in", "elasticity": "elasticity",
        "factor": "as much", "best_s": "best step then",
    }  # fmt: skip
    explained = f"{report.REST[0].upper()}{report.REST[1:]}."
    explained += " The step with much more is of the layout that is best then."
    return [
        doc.Text(explained),
        doc.frame_table(frame, columns, write={"best_s": report.step_words}, words=2),
    ]


def _provenance(plan: Plan) -> list[doc.Block]:
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
        doc.pairs_table("the run", run),
        doc.pairs_table("device", device_facts(setting.device)),
        doc.pairs_table("system", system_facts(setting.machine.system)),
    ]
