"""Measures this machine's ops: the program that `hybridperf calibrate` starts.

    python -m hybridperf_calibration.measure --out rows.jsonl --setting quick --cores 0 --budget-s 120

It pins itself before JAX starts, writes rows as it goes and resumes where an earlier run stopped. Exit status: 0 all measured, 4 the
time budget ran out first, 2 one sentence says what is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hybridperf_calibration.microbench import machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; see the module docstring."""
    parser = argparse.ArgumentParser(prog="hybridperf_calibration.measure")
    parser.add_argument("--out", required=True, help="row store (.jsonl), created or resumed")
    parser.add_argument("--setting", default="quick", choices=["quick", "full"])
    parser.add_argument("--cores", default="0", help="cores to pin to, such as 0 or 0,1 or 0-3")
    parser.add_argument("--budget-s", type=float, default=None)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--only", default="", help="families of ops, separated by commas")
    parser.add_argument("--plain", action="store_true", help="leave the memory allocator and dispatch as users have them")
    options = parser.parse_args(arguments)
    try:
        cores = machine.parse_cores(options.cores)
        machine.pin(cores)
        if not options.plain:
            machine.steady_cpu()
        return _measure(options)
    except (RuntimeError, ValueError) as error:
        print(str(error), file=sys.stderr)
        return 2


def _measure(options: argparse.Namespace) -> int:
    from hybridperf_calibration.microbench.cases import cases
    from hybridperf_calibration.microbench.engine import run
    from hybridperf_calibration.microbench.store import RowStore

    only = tuple(name for name in options.only.split(",") if name)
    listed = cases(options.setting, only)
    # the setting is not part of the fingerprint: a full run goes on where a quick one stopped
    with RowStore(options.out, machine.fingerprint({"cores": options.cores})) as store:
        report = run(listed, store, passes=options.passes, budget_s=options.budget_s)
    print(report.sentence(), file=sys.stderr)
    return 0 if report.complete else 4


if __name__ == "__main__":
    sys.exit(main())
