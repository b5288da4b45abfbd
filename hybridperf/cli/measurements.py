"""`hybridperf plan-measurements`: which shapes are worth measuring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from typer import Option

from hybridperf.cli.common import DeviceName, Out, compilation_cache, seconds_in

_MODEL = "model of the device so far: measure what it is unsure of"


def plan_measurements(
    device: DeviceName,
    budget: Annotated[str, Option(help="how long measuring may take, such as 60m")],
    out: Out,
    ops: Annotated[str, Option(help="only these ops, separated by commas")] = "",
    dtype: Annotated[str, Option(help="number formats, separated by commas")] = "fp32",
    model: Annotated[str, Option(help=_MODEL)] = "",
) -> None:
    """The most informative shapes to measure on a machine without JAX, as a table to fill in."""
    from hybridperf.hardware import load_device
    from hybridperf.io import write_table
    from hybridperf.model import load_model
    from hybridperf.model.fit.measurement_plan import DEFAULT_OPS, plan
    from hybridperf.report import text

    budget_s, spec = seconds_in(budget), load_device(device)
    compilation_cache()
    chosen = [name for name in ops.split(",") if name] if ops else DEFAULT_OPS
    dtypes = [name for name in dtype.split(",") if name]
    known = load_model(model) if model else None
    made = plan(spec, budget_s, ops=chosen, dtypes=dtypes, model=known)
    write_table(made.table, out)
    columns: dict[str, Callable[[Any], Any]] = {
        "op": lambda row: row.op,
        "dtype": lambda row: row.dtype,
        "cases": lambda row: row.cases,
        "time": lambda row: f"{row.measuring_s:.0f} s",
        "variance removed": lambda row: text.percent(row.removed),
    }
    print(text.items_table(made.summary.itertuples(), columns))
    taken = f"{made.seconds:.0f} of {budget_s:.0f} s"
    print(f"{len(made.table)} cases in {out}, the most informative first: {taken}")
    if (short := made.summary.loc[made.summary["cases"] == 0, "op"].unique()).size:
        print(f"the budget ends before any case of {', '.join(short)}")
    print(
        "put the lowest time of one op over its repeats, in seconds, into time_s (rows left empty"
        f" are skipped), then: hybridperf fit {out} --device {device} --out MODEL"
    )
