"""What a search found: the optimum, what holds it back, what that costs, and how it was found."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridperf.explore.searches.around import ActiveConstraint, BlockingConstraint
from hybridperf.explore.searches.run import SearchResult
from hybridperf.report.plots import new_figure, save_figure
from hybridperf.report.text import items_table, table

_PHASES = {"descent": "C0", "polish": "C1", "whole numbers": "C2"}
_LEAST, _LEAST_APART = 1e-300, 1e-8  # a constraint is kept by that much


def _number(value: float) -> str:
    return f"{value:,.6g}" if 1e-3 <= abs(value) < 1e6 or value == 0 else f"{value:.5g}"


_KNOBS: dict[str, Callable[[Any], Any]] = {
    "knob": lambda knob: knob.name,
    "optimum": lambda knob: _number(knob.value),
    "min": lambda knob: _number(knob.least),
    "max": lambda knob: _number(knob.most),
    "at": lambda knob: knob.at,
    "elasticity": lambda knob: f"{knob.elasticity:+.3f}",
    "% per 1 % more bound": lambda knob: f"{knob.bound_multiplier:+.3f}" if knob.at else "",
}
_ACTIVE: dict[str, Callable[[ActiveConstraint], Any]] = {
    "active constraint": lambda one: one.name,
    "condition": lambda one: one.text,
    "lesser side": lambda one: _number(one.less),
    "greater side": lambda one: _number(one.more),
    "limit": lambda one: one.limit or "loosened",
    "% per 1 % more": lambda one: f"{one.multiplier:+.3f}",
}
_STOPS: dict[str, Callable[[BlockingConstraint], Any]] = {
    "stopped by": lambda one: one.name,
    "condition": lambda one: one.text,
    "whole number": lambda one: one.knob,
    "better would be": lambda one: _number(one.value),
    "objective then": lambda one: _number(one.objective),
    "lesser side": lambda one: _number(one.less),
    "greater side": lambda one: _number(one.more),
}
_ELASTICITY = (
    "elasticity: percent of the objective for one percent more of the knob, the others as they are"
)


def search_report(result: SearchResult) -> str:
    """A search result as text: the optimum, what holds it back, and what that is worth."""
    sense = "most" if result.maximise else "least"
    lines = [f"{sense} {result.objective_name}: {result.objective:.6g}"]
    lines += [f"note: {note}" for note in result.notes]
    if result.relaxed_objective is not None:
        lines.append(f"(without whole numbers {result.relaxed_objective:.6g})")
    lines += [f"{name}: {value}" for name, value in result.choices.items()]
    lines += ["", items_table(result.knobs, _KNOBS), "", _ELASTICITY] if result.knobs else []
    lines += [
        f"{name}: any value from {_number(low)} to {_number(high)} does"
        for name, (low, high) in result.plateaus.items()
    ]
    knobs = {one.name for one in result.knobs}
    rows = [[name, _number(value)] for name, value in result.columns.items() if name not in knobs]
    lines += ["", table(["evaluated again at the optimum", "value"], rows)] if rows else []
    lines += ["", _held_back(result)] if result.active or not result.stops else []
    lines += ["", items_table(result.stops, _STOPS)] if result.stops else []
    for one in result.active:
        lines += ["", _one_more(one, result)]
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
    optimum = {"label": "optimum, evaluated again", "color": "black", "lw": 0.8, "ls": "--"}
    above.axhline(result.objective, **optimum)
    evaluations = frame["evaluations"]
    per_step = evaluations.diff().iloc[1] if len(frame) > 1 else 0
    probing = max(0, int(evaluations.iloc[0] - per_step))
    above.set(ylabel=f"best {result.objective_name[:40]} so far")
    below.set(yscale="log", ylabel="distance from the optimum, relative")
    below.set_xlabel(f"points evaluated, after {probing:,} of probing")
    nearer = f"nearer than {_LEAST_APART:g} drawn as that"
    below.text(0.01, 0.03, nearer, transform=below.transAxes, fontsize=7)
    above.legend(fontsize=8)
    save_figure(figure, path)


def _held_back(result: SearchResult) -> str:
    if not result.active:
        bounds = ", ".join(f"{one.name} at its {one.at}" for one in result.knobs if one.at)
        if bounds:
            return f"no constraint is active: the bounds hold the optimum, {bounds}"
        return "no constraint is active: the optimum lies within the bounds"
    return items_table(result.active, _ACTIVE)


def _one_more(one: ActiveConstraint, result: SearchResult) -> str:
    gained = one.objective_then / result.objective - 1 if result.objective else float("nan")
    moves = [
        f"{knob.name} {one.knobs_then[knob.name] / knob.value - 1:+.2%}"
        for knob in result.knobs
        if not knob.integer and abs(one.knobs_then[knob.name] / knob.value - 1) > 1e-5
    ]
    return f"{one.what_if}: objective {gained:+.2%}; " + (", ".join(moves) or "no knob moves")
