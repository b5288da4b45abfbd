"""`hybridperf plan-measurements`: which shapes are worth measuring."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from hybridperf.cli.common import Out, compilation_cache, seconds_in


def plan_measurements(
    device: Annotated[str, Option(help="device name, or a .toml file that describes one")],
    budget: Annotated[str, Option(help="how long measuring may take, such as 60m")],
    out: Out,
    ops: Annotated[str, Option(help="only these ops, separated by commas")] = "",
    dtype: Annotated[str, Option(help="number formats, separated by commas")] = "fp32",
    model: Annotated[
        str, Option(help="model of the device so far: measure what it is unsure of")
    ] = "",
) -> None:
    """The most informative shapes to measure on a machine without JAX, as a table to fill in."""
    from hybridperf.hardware import load_device
    from hybridperf.io import write_table
    from hybridperf.model import load_model
    from hybridperf.model.fit.measurement_plan import DEFAULT_OPS, plan
    from hybridperf.report import text

    budget_s, spec = seconds_in(budget), load_device(device)
    compilation_cache()
    made = plan(
        spec,
        budget_s,
        ops=[name for name in ops.split(",") if name] if ops else DEFAULT_OPS,
        dtypes=[name for name in dtype.split(",") if name],
        model=load_model(model) if model else None,
    )
    write_table(made.table, out)
    print(
        text.table(
            ["op", "dtype", "cases", "time", "variance removed"],
            [
                [r.op, r.dtype, str(r.cases), f"{r.measuring_s:.0f} s", text.percent(r.removed)]
                for r in made.summary.itertuples()
            ],
        )
    )
    print(
        f"{len(made.table)} cases in {out}, the most informative first: {made.seconds:.0f} of"
        f" {budget_s:.0f} s"
    )
    if (short := made.summary.loc[made.summary["cases"] == 0, "op"].unique()).size:
        print(f"the budget ends before any case of {', '.join(short)}")
    print(
        "put the least time of one op over its repeats, in seconds, into time_s (rows left empty"
        f" are skipped), then: hybridperf fit {out} --device {device} --out MODEL"
    )
