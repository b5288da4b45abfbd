"""What a search found, as people read it: the optimum, what holds it back and what that is worth; a
picture of how it was found.
"""

from __future__ import annotations

import os

import numpy as np

from hybridperf.explore.searches.result import ActiveConstraint, BlockingConstraint, SearchResult
from hybridperf.report.plots import new_figure, save_figure
from hybridperf.report.text import table

_PHASES = {"descent": "C0", "polish": "C1", "whole numbers": "C2"}
_LEAST, _LEAST_APART = 1e-300, 1e-8  # a constraint is kept by that much


def search_report(result: SearchResult) -> str:
    """A search result as text: the optimum, what holds it back, and what that is worth."""
    sense = "most" if result.maximise else "least"
    lines = [f"{sense} {result.objective_name}: {result.objective:.6g}"]
    lines += [f"note: {note}" for note in result.notes]
    if result.relaxed_objective is not None:
        lines.append(f"(without whole numbers {result.relaxed_objective:.6g})")
    rows = [
        [
            one.name,
            _number(one.value),
            _number(one.least),
            _number(one.most),
            one.at,
            f"{one.elasticity:+.3f}",
        ]
        for one in result.knobs
    ]
    lines += ["", table(["knob", "optimum", "min", "max", "at", "elasticity"], rows)]
    lines += [
        "",
        (
            "elasticity: percent of the objective for one percent more of the knob, the others as"
            " they are"
        ),
    ]
    lines += [
        f"{name}: any value from {_number(low)} to {_number(high)} does"
        for name, (low, high) in result.plateaus.items()
    ]
    others = {
        name: value
        for name, value in result.columns.items()
        if name not in {one.name for one in result.knobs}
    }
    rows = [[name, _number(value)] for name, value in others.items()] + _trusted(result)
    lines += ["", table(["evaluated anew at the optimum", "value"], rows)] if rows else []
    lines += (
        [f"note: {result.trust.note}"] if result.trust is not None and result.trust.note else []
    )
    lines += ["", _held_back(result)] if result.active or not result.stops else []
    lines += ["", _stopped(result.stops)] if result.stops else []
    for one in result.active:
        lines += ["", _one_more(one, result)]
    if result.prices:
        rows = [
            [name, _number(price.value), price.unit, price.date, price.source]
            for name, price in result.prices.items()
        ]
        lines += ["", table(["price", "value", "unit", "date", "source"], rows)]
    lines += ["", f"{result.evaluations:,} points evaluated in {result.seconds:.1f} s"]
    return "\n".join(lines)


def convergence_plot(result: SearchResult, path: str | os.PathLike) -> None:
    """Plot how a search converged: best objective that meets the constraints, by evaluations.

    Args:
        result: what `hp.search` returned.
        path: the image file to write.
    """
    figure, (above, below) = new_figure(7, 5.5, lines=2)
    frame = result.convergence
    for phase, part in frame.groupby("phase", sort=False):
        colour = _PHASES[str(phase)]
        above.plot(part["evaluations"], part["objective"], color=colour, lw=1.5, label=phase)
        apart = np.abs(part["objective"] - result.objective) / max(abs(result.objective), _LEAST)
        below.plot(part["evaluations"], np.maximum(apart, _LEAST_APART), color=colour, lw=1.5)
    above.axhline(result.objective, color="black", lw=0.8, ls="--", label="optimum, evaluated anew")
    begun = max(
        0,
        int(
            frame["evaluations"].iloc[0]
            - (frame["evaluations"].diff().iloc[1] if len(frame) > 1 else 0)
        ),
    )
    above.set(ylabel=f"best {result.objective_name[:40]} so far")
    below.set(
        yscale="log",
        xlabel=f"points evaluated, after {begun:,} of probing",
        ylabel="its distance from the optimum, relative",
    )
    below.text(
        0.01,
        0.03,
        f"nearer than {_LEAST_APART:g} drawn as that",
        transform=below.transAxes,
        fontsize=7,
    )
    above.legend(fontsize=8)
    for axes in (above, below):
        axes.grid(alpha=0.2)
    save_figure(figure, path)


def _trusted(result: SearchResult) -> list[list[str]]:
    if result.trust is None:
        return []
    low_s, high_s = result.trust.low_s, result.trust.high_s
    interval = (
        "not known" if low_s is None or high_s is None else f"{_number(low_s)} to {_number(high_s)}"
    )
    said = [
        ["time_s, 90 % of measurements", interval],
        ["in the measured range", "yes" if result.trust.in_range else "no"],
    ]
    return said


def _held_back(result: SearchResult) -> str:
    if not result.active:
        bounds = ", ".join(f"{one.name} at its {one.at}" for one in result.knobs if one.at)
        if bounds:
            return f"no constraint is active: the bounds hold the optimum, {bounds}"
        return "no constraint is active: the optimum lies within the bounds"
    rows = [
        [
            one.name,
            one.text,
            _number(one.less),
            _number(one.more),
            one.limit or "loosened",
            f"{one.multiplier:+.3f}",
        ]
        for one in result.active
    ]
    return table(
        [
            "active constraint",
            "condition",
            "lesser side",
            "greater side",
            "limit",
            "% per 1 % more",
        ],
        rows,
    )


def _stopped(stops: tuple[BlockingConstraint, ...]) -> str:
    rows = [
        [
            one.name,
            one.text,
            one.knob,
            _number(one.value),
            _number(one.objective),
            _number(one.less),
            _number(one.more),
        ]
        for one in stops
    ]
    return table(
        [
            "stopped by",
            "condition",
            "whole number",
            "better would be",
            "objective then",
            "lesser side",
            "greater side",
        ],
        rows,
    )


def _one_more(one: ActiveConstraint, result: SearchResult) -> str:
    gained = one.objective_then / result.objective - 1 if result.objective else float("nan")
    moves = [
        f"{knob.name} {one.knobs_then[knob.name] / knob.value - 1:+.2%}"
        for knob in result.knobs
        if not knob.integer and abs(one.knobs_then[knob.name] / knob.value - 1) > 1e-5
    ]
    return f"{one.what_if}: objective {gained:+.2%}; " + (", ".join(moves) or "no knob moves")


def _number(value: float) -> str:
    return f"{value:,.6g}" if 1e-3 <= abs(value) < 1e6 or value == 0 else f"{value:.5g}"
