"""`hybridperf search`: the best point within bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hybridperf.cli.common import compilation_cache

_SPEC = "a .toml file or a shipped example: cheapest_platform, best_batch, next_dollar"


def search(
    spec: Annotated[str, Argument(help=_SPEC)],
    out: Annotated[Path | None, Option(help="folder for search.json and convergence.png")] = None,
    starts: Annotated[int | None, Option(help="points to descend from")] = None,
    seed: Annotated[int | None, Option(help="of the starts")] = None,
) -> None:
    """Find the best point within bounds and constraints, such as the lowest cost, and what limits
    it.
    """
    from hybridperf.explore.searches.run import search as run_search
    from hybridperf.io import check_folder_writable
    from hybridperf.report import search as reports

    if out:
        check_folder_writable(out)  # before minutes of work
    compilation_cache()
    result = run_search(spec, starts=starts, seed=seed, quiet=False)
    print(reports.search_report(result))
    if out:
        written = result.save(out)
        reports.convergence_plot(result, out / "convergence.png")
        print(f"result in {written}, how it was found in {out / 'convergence.png'}")
