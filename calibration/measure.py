"""Measures this machine: the program that `hybridperf calibrate` starts, once for each part.

    python -m hybridperf_calibration.measure --part ops --out DIR/ops.jsonl --setting quick --cores
    0 --budget-s 120 python -m hybridperf_calibration.measure --part host --out DIR/host.jsonl
    --cores 0

`--library torch`: ops of PyTorch in place of JAX', on the CPU by the same timer, on a GPU by CUDA
graphs (`microbench/gpu.py`).

Part `ops` runs with a memory allocator that keeps freed memory and with dispatch in the calling
thread, so that an op's time is the op's; part `host` measures what both cost as users have them.
Each pins itself before JAX starts, writes rows as it goes and resumes where an earlier run stopped.
Next to the store it leaves the merged rows as a table (`ops.csv`) and the machine's facts
(`ops.machine.json`).

`--device cuda`, `rocm`, `tpu`: that the library must see; `cpu` hides all others from it. Parts of
such a device, on a host as users have it, not pinned: `launches` (what issuing work costs PyTorch),
`copies` (between host and device), `memory` (a table alone, made anew each time).

Exit status: 0 all measured, 4 the time budget ran out first, 2 one sentence says what is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hybridperf_calibration.microbench import accelerator, machine

if TYPE_CHECKING:
    from hybridperf_calibration.microbench.timer import Case

# of the budget may pass waiting for a disturbed machine to be quiet again: where waiting helps, it
# does so within seconds, and a machine that is shared all along is not quiet after twice as long
WAITING_SHARE = 0.05
# what counts as the budget of a part where there is none
USUAL_S = {"ops": 150.0, "host": 40.0, "launches": 15.0, "copies": 20.0, "memory": 5.0}
_AS_USERS = ("launches", "copies", "memory")  # not pinned


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; see the module docstring."""
    parser = argparse.ArgumentParser(prog="hybridperf_calibration.measure")
    parser.add_argument("--out", required=True, help="row store (.jsonl), created or resumed")
    parser.add_argument("--library", default="jax", choices=["jax", "torch"])
    parser.add_argument("--part", default="ops", choices=list(USUAL_S))
    parser.add_argument("--device", default="", choices=["", *accelerator.KINDS])
    parser.add_argument("--setting", default="quick", choices=["quick", "full"])
    parser.add_argument("--cores", default="0", help="cores to pin to, such as 0 or 0,1 or 0-3")
    parser.add_argument("--budget-s", type=float, default=None)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the sizes that are measured")
    parser.add_argument("--only", default="", help="families of ops, separated by commas")
    options = parser.parse_args(arguments)
    return machine.exit_status(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    as_users = options.part in _AS_USERS
    pinned = () if as_users else machine.pin(machine.parse_cores(options.cores))
    accelerator.hide(options.library, options.device)
    if options.part == "ops":
        machine.steady_cpu()
    if options.library == "torch" and not as_users:
        machine.only_ops_of_torch(len(pinned) or 1)
    import pandas as pd

    from hybridperf.io import write_json, write_table
    from hybridperf_calibration.microbench.device_memory import memory_rows
    from hybridperf_calibration.microbench.engine import drift, merge_passes, run
    from hybridperf_calibration.microbench.quiet import Yardstick
    from hybridperf_calibration.microbench.store import RowStore

    budget_s = options.budget_s or USUAL_S[options.part]
    of, path = options.library, Path(options.out)
    facts = machine.machine_facts(of)
    seen = facts.get("accelerator", {"library": of, "kind": "cpu"})
    if options.device not in ("", seen["kind"]):
        raise ValueError(f"expected a device of kind {options.device}, {of} sees {seen['kind']}")
    if options.part == "memory":
        write_table(pd.DataFrame(memory_rows(seen)), path.with_suffix(".csv"))
        return 0
    cases = _cases(options, str(seen["kind"]))
    # the setting is not part of the fingerprint: a full run goes on where a quick one stopped
    settings = {"part": options.part} | ({} if as_users else {"cores": options.cores})
    fingerprint = machine.fingerprint(settings, of)
    with RowStore(options.out, fingerprint) as store:
        yardstick = Yardstick(allowance_s=WAITING_SHARE * budget_s)
        report = run(
            cases, store, passes=options.passes, budget_s=options.budget_s, yardstick=yardstick
        )
        left_out = {"error", "not_one_op"}
        rows = pd.DataFrame(row for row in merge_passes(store.rows) if not left_out & {*row})
        moved = drift(store.rows)
    if rows.empty:
        none = f"none of {report.total} measurements succeeded"
        raise RuntimeError(f"{none}; the rows in {path} say why")
    write_table(rows, path.with_suffix(".csv"))
    facts |= {**yardstick.facts(), "drift": moved}
    write_json(path.with_suffix(".machine.json"), "machine", 1, facts)
    if report.resumed or report.failed or report.dropped or not report.complete:
        print(f"hybridperf: {report.sentence()}", file=sys.stderr)
    return 0 if report.complete else 4


def _cases(options: argparse.Namespace, kind: str) -> list[Case]:
    """What a part measures on a device of that kind."""
    from hybridperf_calibration.microbench.cases import host_cases, op_cases
    from hybridperf_calibration.microbench.copies import copy_cases

    library, device = options.library, "cpu" if kind == "cpu" else "cuda"
    if options.part == "ops":
        only = tuple(name for name in options.only.split(",") if name)
        return op_cases(options.setting, only, library, options.seed, kind)
    if options.part == "host":
        return host_cases(library)
    if options.part == "copies":
        return copy_cases(library, device, options.setting)
    from hybridperf_calibration.microbench.launches import launch_cases

    return launch_cases(device)


if __name__ == "__main__":
    sys.exit(main())
