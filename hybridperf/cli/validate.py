"""`hybridperf validate`: accuracy claims recomputed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hybridperf.cli.common import (
    ModelName,
    Out,
    compilation_cache,
    keep_files,
    model_named,
    names_in,
)

_WHAT = (
    "whose accuracy: here (steps on this machine), sharded (on two cores), ops (held-out),"
    " collectives, lin, steps (published), plans (does the best on paper run best?); page (of"
    " results)"
)
_PUBLISHED = {  # claims that need --data, and what they judge on
    "lin": "what Lin et al. published", "collectives": "measured collectives",
    "steps": "published training steps",
}  # fmt: skip


def validate(
    what: Annotated[str, Argument(help=_WHAT)],
    results: Annotated[
        list[Path] | None, Argument(help="of `page`: results.json of claims, or their folders")
    ] = None,
    model: ModelName = "",
    out: Out = Path("validate-out"),
    cores: Annotated[
        str | None, Option(help="cores to pin to; those of the calibration if not given")
    ] = None,
    steps: Annotated[str, Option(help="how many of the twelve steps, or all")] = "all",
    ops: Annotated[bool, Option("--ops", help="also compare the steps op by op")] = False,
    data: Annotated[
        Path | None, Option(help="folder of measured data: judges devices or systems left out")
    ] = None,
    quick: Annotated[bool, Option("--quick", help="of `--data`: a small part, a minute")] = False,
    families: Annotated[
        str, Option(help="of `ops --data`: families of ops, separated by commas")
    ] = "",
    leave: Annotated[
        str, Option(help="of `ops --data`: which devices are left out, separated by commas")
    ] = "",
    tasks: Annotated[
        str, Option(help="tasks of `collectives`, `steps`, `plans`; of `sharded`: how many models")
    ] = "",
    placements: Annotated[
        int, Option(help="of `sharded`: models whose placements compete", min=0)
    ] = 28,
    passes: Annotated[
        int, Option(help="of `sharded`: times that the models are measured", min=1)
    ] = 2,
) -> None:
    """Predict what no fit has seen, next to the measurement and to baselines."""
    from hybridperf.io import InputError, unknown

    if what not in (
        known := ["here", "sharded", "ops", "collectives", "lin", "steps", "plans", "page"]
    ):
        raise unknown("claim", what, known, f"known are {', '.join(known)}")
    if results and what != "page":
        raise InputError(f"expected results for `validate page` only, got {results[0]}")
    # `validate ops` would replace measured rows by its own
    keep_files({"--out": out}, [Path(model) if model else None, data, *(results or [])])
    if what == "page":
        from hybridperf.validate import harness

        harness.page(results or [], out if out.suffix == ".md" else out / "accuracy.md")
        return
    chosen = names_in(tasks) or None
    if data is None and what in _PUBLISHED:
        raise InputError(
            f"expected --data FOLDER, got none; `validate {what}` judges on {_PUBLISHED[what]}"
        )
    if what == "plans" or (data is not None and what in (*_PUBLISHED, "ops")):
        compilation_cache()
    if what == "lin" and data is not None:
        from hybridperf.validate import lin

        lin.run(data, out, model or lin.MODEL)
        return
    if what == "collectives" and data is not None:
        from hybridperf.validate import collectives as collectives_claim

        collectives_claim.run(data, out, quick=quick, tasks=chosen)
        return
    if what == "steps" and data is not None:
        from hybridperf.validate import steps as steps_claim

        steps_claim.run(data, out, quick=quick, tasks=chosen)
        return
    if what == "plans":
        from hybridperf.validate import plans

        plans.run(data, out, quick=quick, tasks=chosen)
        return
    if what == "ops" and data is not None:
        from hybridperf.model.families import FAMILIES
        from hybridperf.validate import devices

        families_judged = names_in(families) or FAMILIES
        left_out = names_in(leave) or None
        devices.run(data, out, quick=quick, families=families_judged, splits=left_out)
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
        from hybridperf.validate import sharded

        if tasks and not tasks.isdecimal():
            raise InputError(f"expected --tasks as a number of models, such as 30, got {tasks!r}")
        compilation_cache()
        sharded.run(
            model_named(model), out, tasks=int(tasks or 30), to_shard=placements, passes=passes
        )
        return
    from hybridperf.validate import here

    if steps != "all" and not (steps.isdecimal() and 1 <= int(steps) <= len(here.STEPS)):
        raise InputError(f"expected --steps from 1 to {len(here.STEPS)} or all, got {steps!r}")
    compilation_cache()
    some = here.STEPS if steps == "all" else here.STEPS[: int(steps)]
    here.run(model_named(model), out, cores=cores, steps=some, ops=ops)
