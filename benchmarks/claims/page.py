"""Sections of a Markdown page from results: what was measured stands between two marks and is
replaced when it is measured again; what is written around them stays.

    <!-- steps: begin -->  ...  <!-- steps: end -->
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.claims.harness import RESULTS, SCHEMA, SCHEMA_VERSION
from hybridperf.io import InputError, read_json, replacing, write_table
from hybridperf.report import text

COLUMNS = [
    "what", "n", "measure", "ours", "goal", "baseline", "which", "pearson", "coverage",
    "half_width",
]  # fmt: skip
_HEADERS = ("what", "n", "measure", "ours", "goal", "best baseline", "coverage", "half-width")
_SHOWN = 5  # lines of a claim on the page
_INTRODUCTION = (
    "# Accuracy\n\nTables are made by `python -m benchmarks.claims page` from the results of the"
    " commands above them.\nErrors are |predicted / measured - 1| on rows that no fit has seen."
    " Coverage: the share of\nmeasurements inside their 90 % interval.\n"
)


def run(results: Sequence[Path], out: Path) -> None:
    """Put a table per claim into a page, a new one where there is none, and all its lines into a
    table beside it, PAGE/CLAIM.csv; `results`: files of results, or folders that hold one.
    """
    if not results:
        raise InputError("expected results, got none; `python -m benchmarks.claims page FOLDER`")
    files = [path / RESULTS if path.is_dir() else path for path in map(Path, results)]
    claims = [read_json(path, SCHEMA, SCHEMA_VERSION) for path in files]
    page = out.read_text(encoding="utf-8") if out.exists() else _INTRODUCTION
    for claim in claims:
        beside = f"{out.stem}/{claim['claim']}.csv"
        page = with_section(page, claim["claim"], section(claim, beside))
        write_table(table(claim["lines"]), out.parent / beside)
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


def table(lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """All lines of a claim, shares as numbers; the baseline is the best one."""
    rows = []
    for line in lines:
        known = {name: error for name, error in line["baselines"].items() if error is not None}
        best = min(known, key=lambda name: known[name], default="")
        figures = (line["ours"], line["goal"], known.get(best), best.replace("_", " "))
        others = (line["pearson"], line["coverage"], line["half_width"])
        rows.append((str(line["name"]).strip(), line["n"], line["measure"], *figures, *others))
    return pd.DataFrame(rows, columns=COLUMNS)


def section(claim: Mapping[str, Any], beside: str) -> str:
    """One claim: how it was made, then its lines; of many those with a goal, the farthest beyond
    it first.
    """
    found = table(claim["lines"])
    aimed = found[found["goal"].notna() & found["ours"].notna()]
    beyond = (aimed["ours"] / aimed["goal"]).fillna(0.0)  # 0 of 0 is met
    far = beyond.sort_values(ascending=False, kind="stable")
    shown = found if len(found) <= _SHOWN else found.loc[far.index[:_SHOWN]]
    command = f"`{claim['command']}`, " if claim["command"] else ""
    within = f"{(far <= 1).sum()} of {len(far)} goals are met" if len(far) else "no goals"
    which = "" if len(shown) == len(found) else ", the farthest from their goals below"
    rows = [_HEADERS, ["---", *["---:"] * (len(_HEADERS) - 1)]]
    rows += [_cells(row) for row in shown.to_dict("records")]
    lines = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return (
        f"{command}{made_text(claim)}\n\n{within}; [all {len(found)} lines]({beside}){which}."
        f"\n\n{lines}"
    )


def _cells(line: Mapping[Any, Any]) -> list[str]:
    def share(value: float | None) -> str:
        return "" if pd.isna(value) else text.percent(value)

    measure = line["measure"].replace("|", "\\|")  # of |error|, within a table's cell
    baseline = share(line["baseline"])
    baseline += f" ({line['which']})" if baseline else ""
    return [
        line["what"].replace("|", "/"), str(line["n"]), measure, share(line["ours"]),
        share(line["goal"]), baseline, share(line["coverage"]), share(line["half_width"]),
    ]  # fmt: skip
