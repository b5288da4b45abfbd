"""`hybridperf validate`: accuracy claims recomputed."""

import importlib
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hybridperf.cli import common
from hybridperf.cli.common import names_in, wrong

_PUBLISHED = {  # claims that need --data, and what they judge on
    "lin": "what Lin et al. published", "collectives": "measured collectives",
    "steps": "published training steps", "serving": "measured operating points",
    "requests": "measured runs, request by request",
    "stragglers": "recorded workers of production jobs",
    "sparse": "measured sparse products",
    "traces": "recorded traces", "models": "measured ops of whole models",
}  # fmt: skip
_BY_DATA = (
    "collectives", "steps", "serving", "requests", "plans", "agreement", "traces", "models",
    "topology", "jobs", "stragglers", "runs", "sparse", "programs",
)  # fmt: skip
_CLAIMS = ("here", "ranks", "sharded", "repeats", "ops", "lin", *_BY_DATA, "page")


def validate(
    what: Annotated[str, Argument()],
    results: Annotated[list[Path] | None, Argument()] = None,
    model: str = "",
    folder: Path = Path("validate-out"),
    out: Path | None = None,
    cores: str | None = None,
    steps: str = "all",
    ops: bool = False,
    data: Path | None = None,
    quick: bool = False,
    families: str = "",
    leave: str = "",
    sizes: str = "",
    ablate: bool = False,
    devices: str = "",
    rows: str = "",
    tasks: str = "",
    placements: Annotated[int, Option(min=0)] = 28,
    passes: Annotated[int, Option(min=1)] = 2,
) -> None:
    """Predict what no fit has seen, next to the measurement and to baselines."""
    from hybridperf.io import unknown

    if what not in _CLAIMS:
        raise unknown("claim", what, _CLAIMS, f"known are {', '.join(_CLAIMS)}")
    if out is not None and what != "page":
        common.warn("--out of `validate` is now --folder; the old spelling works, too")
        folder = out
    if results and what not in ("page", "repeats"):
        raise wrong(
            "expected results for `validate page`, folders for `validate repeats`, and neither"
            f" for `validate {what}`, got {results[0]}"
        )
    # `validate ops` would replace measured rows by its own
    written = {"--folder": folder, "--out": out if what == "page" else None}
    common.keep_files(written, [Path(model) if model else None, data, *(results or [])])
    if what == "page":
        from hybridperf.validate import page

        page.run(results or [], out or folder / "accuracy.md")
        return
    if what == "repeats":
        from hybridperf.validate import repeats

        common.compilation_cache()
        repeats.run(results or [], folder)
        _found(folder)
        return
    if what == "here" and tasks == "workers":
        from hybridperf.validate import unequal

        unequal.run(folder, rounds=1 if quick else 6)
        _found(folder)
        return
    by_model = what in ("here", "ranks", "sharded") or (what == "ops" and data is None)
    if data is not None and not data.is_dir():
        raise wrong(f"expected a folder in --data, found none at {data}; check the path")
    if data is None and what in _PUBLISHED:
        judges = f"`validate {what}` judges on {_PUBLISHED[what]}"
        raise wrong(f"expected --data FOLDER, got none; {judges}")
    if ablate and (what not in ("ops", "collectives") or data is None):
        raise wrong("expected --ablate with `validate ops` or `collectives`, and --data FOLDER")
    if by_model and not model:
        makes = "`hybridperf calibrate --quick --folder FOLDER` makes one"
        raise wrong(f"expected --model FOLDER, got none; {makes}")
    common.compilation_cache()
    from hybridperf.model import model_or_datasheet

    if ablate and data is not None:
        _ablate(what, data, folder, quick, families, devices, rows)
        _found(folder)
        return
    of_gpus = what == "ops" and not by_model
    claim = importlib.import_module(f"hybridperf.validate.{'devices' if of_gpus else what}")
    loaded = model_or_datasheet(model) if by_model else None
    if what in _BY_DATA:
        claim.run(data, folder, quick=quick, tasks=names_in(tasks) or None)
    elif what == "lin":
        claim.run(data, folder, model or claim.MODEL)
    elif of_gpus:
        claim.run(
            data, folder, quick=quick, families=names_in(families) or claim.FAMILIES,
            splits=names_in(leave) or None, sizes=names_in(sizes) or claim.FEW_SIZES,
        )  # fmt: skip
    elif what == "ops":
        claim.run(loaded, Path(model), folder)
    elif what == "ranks":
        claim.run(loaded, folder)
    elif what == "sharded":
        if tasks and not tasks.isdecimal():
            raise wrong(f"expected --tasks as a number of models, such as 30, got {tasks!r}")
        claim.run(loaded, folder, tasks=int(tasks or 30), to_shard=placements, passes=passes)
    else:
        from hybridperf.validate import harness

        if steps != "all" and not (steps.isdecimal() and 1 <= int(steps) <= len(claim.STEPS)):
            raise wrong(f"expected --steps from 1 to {len(claim.STEPS)} or all, got {steps!r}")
        count = None if steps == "all" else int(steps)
        of = claim.steps_of(loaded)
        if ops and of is claim.TORCH_STEPS:
            raise wrong("expected no --ops with a model of PyTorch, whose steps are not profiled")
        asked = harness.tasks_of(names_in(tasks), claim.TASKS)
        claim.run(
            loaded, folder, cores=cores, steps=of[:count], kinds=claim.kinds_of(loaded)[:count],
            ops=ops, tasks=asked,
        )  # fmt: skip
    _found(folder)


def _ablate(
    what: str, data: Path, folder: Path, quick: bool, families: str, devices: str, rows: str
) -> None:
    """What each part of the price of ops or collectives brings."""
    from hybridperf.validate import ablation, link_ablation

    counts = names_in(rows)
    if strange := [count for count in counts if not count.isdecimal()]:
        raise wrong(f"expected --rows as numbers, such as 0,50,200,4000, got {strange[0]!r}")
    given, left_out = [int(count) for count in counts], names_in(devices)
    if what == "collectives":
        link_ablation.run(
            data, folder, systems=left_out, rows=given or link_ablation.ROWS, quick=quick
        )
        return
    ablation.run(
        data, folder, families=names_in(families) or ablation.FAMILIES, devices=left_out,
        rows=given or ablation.ROWS,
    )  # fmt: skip


def _found(folder: Path) -> None:
    """What `--json` prints."""
    from hybridperf.io import read_json
    from hybridperf.validate.harness import RESULTS, SCHEMA, SCHEMA_VERSION

    if (folder / RESULTS).exists():
        common.result(**read_json(folder / RESULTS, SCHEMA, SCHEMA_VERSION))
