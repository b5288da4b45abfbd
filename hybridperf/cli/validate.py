"""`hybridperf validate here`: is a calibration right on the machine that it was made on?"""

from pathlib import Path
from typing import Annotated

from typer import Argument

from hybridperf.cli import common
from hybridperf.cli.common import names_in, wrong


def validate(
    what: Annotated[str, Argument()],
    model: str = "",
    folder: Path = Path("validate-out"),
    cores: str | None = None,
    steps: str = "all",
    ops: bool = False,
    quick: bool = False,
    tasks: str = "",
) -> None:
    """Predict what this machine's calibration has not seen, run it, print both and baselines."""
    if what != "here":
        raise wrong(
            f"expected here, got {what!r}; claims on published measurements are recomputed from a"
            " checkout of the repository: python -m benchmarks.claims"
        )
    common.keep_files({"--folder": folder}, [Path(model) if model else None])
    if tasks == "workers":
        from hybridperf.validate import unequal

        unequal.run(folder, rounds=1 if quick else 6)
        return _found(folder)
    if not model:
        makes = "`hybridperf calibrate --quick --folder FOLDER` makes one"
        raise wrong(f"expected --model FOLDER, got none; {makes}")
    common.compilation_cache()
    from hybridperf.model import model_or_datasheet
    from hybridperf.validate import harness, here

    loaded = model_or_datasheet(model)
    if steps != "all" and not (steps.isdecimal() and 1 <= int(steps) <= len(here.STEPS)):
        raise wrong(f"expected --steps from 1 to {len(here.STEPS)} or all, got {steps!r}")
    count = None if steps == "all" else int(steps)
    of = here.steps_of(loaded)
    if ops and of is here.TORCH_STEPS:
        raise wrong("expected no --ops with a model of PyTorch, whose steps are not profiled")
    asked = harness.tasks_of(names_in(tasks), here.TASKS)
    here.run(
        loaded, folder, cores=cores, steps=of[:count], kinds=here.kinds_of(loaded)[:count],
        ops=ops, tasks=asked,
    )  # fmt: skip
    return _found(folder)


def _found(folder: Path) -> None:
    """What `--json` prints."""
    from hybridperf.io import read_json
    from hybridperf.validate.harness import RESULTS, SCHEMA, SCHEMA_VERSION

    if (folder / RESULTS).exists():
        common.result(**read_json(folder / RESULTS, SCHEMA, SCHEMA_VERSION))
