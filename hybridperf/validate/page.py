"""docs/accuracy.md from the results that claims wrote: a Markdown table per claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridperf.io import InputError, replacing
from hybridperf.report import text
from hybridperf.validate.harness import read_results

_HEADERS = (
    "what", "n", "measure", "ours", "goal", "best baseline", "Pearson r", "coverage", "half-width",
)  # fmt: skip
_INTRODUCTION = (
    "# Accuracy\n\nMade by `hybridperf validate page` from the results of the commands below; do"
    " not edit.\nErrors are |predicted / measured - 1| on rows that no fit has seen. Coverage: the"
    " share of\nmeasurements inside their 90 % interval.\n"
)


def run(results: Sequence[Path], out: Path) -> None:
    """Write the page; `results` are files of results or folders that hold one.

    Raises:
        InputError: no results, or one that cannot be read.
    """
    if not results:
        raise InputError("expected results, got none; `hybridperf validate page OUT/results.json`")
    claims = [read_results(path) for path in results]
    with replacing(out) as handle:
        handle.write("\n".join([_INTRODUCTION, *map(section, claims)]))


def section(claim: Mapping[str, Any]) -> str:
    """One claim: how it was made, then its lines."""
    versions = ", ".join(f"{name} {version}" for name, version in claim["versions"].items())
    made = f"{claim['date']}, commit {claim['commit'] or 'unknown'}, {claim['machine']}; {versions}"
    rows = [_HEADERS, ["---", *["---:"] * (len(_HEADERS) - 1)], *map(_cells, claim["lines"])]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    command = f"    {claim['command']}\n\n" if claim["command"] else ""
    return f"## {claim['claim']}\n\n{command}{made}\n\n{table}\n"


def _cells(line: Mapping[str, Any]) -> list[str]:
    known = {name: error for name, error in line["baselines"].items() if error is not None}
    best = min(known, key=lambda name: known[name], default=None)
    pearson = "" if line["pearson"] is None else f"{line['pearson']:.3f}"
    return [
        str(line["name"]).strip().replace("|", "/"),
        str(line["n"]),
        line["measure"],
        text.percent(line["ours"]),
        _percent(line["goal"]),
        "" if best is None else f"{text.percent(known[best])} ({best.replace('_', ' ')})",
        pearson,
        _percent(line["coverage"]),
        _percent(line["half_width"]),
    ]


def _percent(value: float | None) -> str:
    return "" if value is None else text.percent(value)
