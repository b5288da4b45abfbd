"""`hybridperf validate`: accuracy claims recomputed. Like the other commands, it imports what is
heavy when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridperf.cli.common import Out, compilation_cache, keep_files, model_named, names_in

app = typer.Typer()


@app.command()
def validate(
    what: Annotated[
        str,
        typer.Argument(
            help=(
                "whose accuracy: here (steps on this machine), sharded (on two cores), ops"
                " (held-out), collectives, lin, steps"
                " (published), plans (does the best on paper run best?)"
            )
        ),
    ],
    model: Annotated[
        str, typer.Option("--model", help="model folder, shipped calibration, or device name")
    ] = "",
    out: Out = Path("validate-out"),
    cores: Annotated[
        str | None,
        typer.Option("--cores", help="cores to pin to; those of the calibration if not given"),
    ] = None,
    steps: Annotated[
        str, typer.Option("--steps", help="how many of the twelve steps, or all")
    ] = "all",
    ops: Annotated[bool, typer.Option("--ops", help="also compare the steps op by op")] = False,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="folder of measured data: judges devices or systems left out"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="of `--data`: a small part, a minute")
    ] = False,
    families: Annotated[
        str,
        typer.Option("--families", help="of `ops --data`: families of ops, separated by commas"),
    ] = "",
    leave: Annotated[
        str,
        typer.Option(
            "--leave", help="of `ops --data`: which devices are left out, separated by commas"
        ),
    ] = "",
    tasks: Annotated[
        str,
        typer.Option(
            "--tasks",
            help=(
                "of `collectives`, `steps`, `plans`: which of its tasks, separated by commas; of"
                " `sharded`: how many models"
            ),
        ),
    ] = "",
    placements: Annotated[
        int,
        typer.Option("--placements", help="of `sharded`: models whose placements compete", min=0),
    ] = 28,
    passes: Annotated[
        int,
        typer.Option("--passes", help="of `sharded`: times that the models are measured", min=1),
    ] = 2,
) -> None:
    """Predict what a calibration has not seen, show it beside the measurement and beside null
    models.
    """
    from hybridperf.io import InputError, unknown

    if what not in (known := ["here", "sharded", "ops", "collectives", "lin", "steps", "plans"]):
        raise unknown("claim", what, known, f"known are {', '.join(known)}")
    keep_files(
        {"--out": out}, [Path(model) if model else None, data]
    )  # `validate ops` would replace measured rows by its own
    if what == "lin":
        from hybridperf.validate import lin

        if data is None:
            raise InputError(
                "expected --data FOLDER, got none; `validate lin` judges on what Lin et al."
                " published"
            )
        compilation_cache()
        lin.run(data, out, model or lin.MODEL)
        return
    if what == "collectives":
        from hybridperf.validate import collectives as of_collectives

        if data is None:
            raise InputError(
                "expected --data FOLDER, got none; `validate collectives` judges on measured"
                " collectives"
            )
        compilation_cache()
        of_collectives.run(data, out, quick=quick, tasks=names_in(tasks) or None)
        return
    if what == "steps":
        from hybridperf.validate import steps as published

        if data is None:
            raise InputError(
                "expected --data FOLDER, got none; `validate steps` judges on published training"
                " steps"
            )
        compilation_cache()
        published.run(data, out, quick=quick, tasks=names_in(tasks) or None)
        return
    if what == "plans":
        from hybridperf.validate import plans

        compilation_cache()
        plans.run(data, out, quick=quick, tasks=names_in(tasks) or None)
        return
    if what == "ops" and data is not None:
        from hybridperf.model.families import FAMILIES
        from hybridperf.validate import gpu_ops

        compilation_cache()
        gpu_ops.run(
            data,
            out,
            quick=quick,
            families=names_in(families) or FAMILIES,
            splits=names_in(leave) or None,
        )
        return
    if not model:
        raise InputError(
            "expected --model FOLDER, got none; `hybridperf calibrate --quick --out FOLDER`"
            " makes one"
        )
    if what == "ops":
        from hybridperf.validate import ops as held_out

        loaded = model_named(model)
        compilation_cache()
        held_out.run(loaded, Path(model), out)
        return
    if what == "sharded":
        from hybridperf.validate import sharded_here

        if tasks and not tasks.isdecimal():
            raise InputError(f"expected --tasks as a number of models, such as 30, got {tasks!r}")
        compilation_cache()
        sharded_here.run(
            model_named(model), out, tasks=int(tasks or 30), to_shard=placements, passes=passes
        )
        return
    from hybridperf.validate import here

    if steps != "all" and not (steps.isdecimal() and 1 <= int(steps) <= len(here.STEPS)):
        raise InputError(f"expected --steps from 1 to {len(here.STEPS)} or all, got {steps!r}")
    compilation_cache()
    chosen = here.STEPS if steps == "all" else here.STEPS[: int(steps)]
    here.run(model_named(model), out, cores=cores, steps=chosen, ops=ops)
