"""Sections of a Markdown page from results: what was measured stands between two marks and is
replaced when it is measured again; what is written around them stays.

    <!-- steps: begin -->  ...  <!-- steps: end -->
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.claims.harness import RESULTS, SCHEMA, SCHEMA_VERSION
from hybridperf.io import InputError, read_json, replacing
from hybridperf.report import text

_HEADERS = (
    "what", "n", "measure", "ours", "goal", "best baseline", "Pearson r", "coverage", "half-width",
)  # fmt: skip
_INTRODUCTION = (
    "# Accuracy\n\nTables are made by `python -m benchmarks.claims page` from the results of the"
    " commands above them.\nErrors are |predicted / measured - 1| on rows that no fit has seen."
    " Coverage: the share of\nmeasurements inside their 90 % interval.\n"
)


def run(results: Sequence[Path], out: Path) -> None:
    """Put a table per claim into a page, a new one where there is none; `results`: files of
    results, or folders that hold one.
    """
    if not results:
        raise InputError("expected results, got none; `python -m benchmarks.claims page FOLDER`")
    files = [path / RESULTS if path.is_dir() else path for path in map(Path, results)]
    claims = [read_json(path, SCHEMA, SCHEMA_VERSION) for path in files]
    page = out.read_text(encoding="utf-8") if out.exists() else _INTRODUCTION
    for claim in claims:
        page = with_section(page, claim["claim"], _section(claim))
    with replacing(out) as handle:
        handle.write(page)


def with_section(page: str, name: str, body: str) -> str:
    """The page with `body` between the marks of `name`, at its end where it has none."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, found, rest = page.partition(begin)
    if not found:
        return f"{page.rstrip()}\n\n## {name}\n\n{begin}\n{body.strip()}\n\n{end}"
    _, closed, after = rest.partition(end)
    if not closed:
        raise InputError(f"expected the mark {end.strip()!r} after {begin.strip()!r}, got none")
    return f"{before}{begin}\n{body.strip()}\n\n{end}{after}"


def made_text(made: Mapping[str, Any]) -> str:
    """Date, commit, machine and versions of a figure as one line."""
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    return f"{made['date']}, commit {made['commit'] or 'unknown'}, {made['machine']}; {versions}"


def _section(claim: Mapping[str, Any]) -> str:
    """One claim: how it was made, then its lines."""
    rows = [_HEADERS, ["---", *["---:"] * (len(_HEADERS) - 1)], *map(_cells, claim["lines"])]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    command = f"`{claim['command']}`\n\n" if claim["command"] else ""
    return f"{command}{made_text(claim)}\n\n{table}"


def _cells(line: Mapping[str, Any]) -> list[str]:
    known = {name: error for name, error in line["baselines"].items() if error is not None}
    best = min(known, key=lambda name: known[name], default=None)
    name = str(line["name"]).strip().replace("|", "/")
    baseline = "" if best is None else f"{text.percent(known[best])} ({best.replace('_', ' ')})"
    pearson = "" if line["pearson"] is None else f"{line['pearson']:.3f}"
    goal, *interval = (
        "" if line[share] is None else text.percent(line[share])
        for share in ("goal", "coverage", "half_width")
    )
    ours = text.percent(line["ours"])
    measure = line["measure"].replace("|", "\\|")  # of |error|, within a table's cell
    return [name, str(line["n"]), measure, ours, goal, baseline, pearson, *interval]
