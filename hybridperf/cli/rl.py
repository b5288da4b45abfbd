"""`hybridperf rl`: steps of reinforcement learning, predicted row by row, or with --shape how a
model should be trained by it on some GPUs.
"""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from hybridperf.cli import common

# options of --shape by the field that each says
_FIELDS = {
    "algorithm": "algorithm", "framework": "framework", "rollouts": "rollouts",
    "train_batch": "train_batch", "prompt": "prompt_length", "mean": "mean_length",
    "longest": "max_length", "staleness": "staleness", "precision": "precision_generate",
}  # fmt: skip


def rl(
    rows: Annotated[Path | None, Argument()] = None,
    out: Path | None = None,
    shape: str = "",
    system: str = "",
    gpus: int = 0,
    algorithm: str = "grpo",
    framework: str = "",
    rollouts: int = 2048,
    train_batch: int = 512,
    prompt: int = 128,
    mean: float = 1024.0,
    longest: int = 4096,
    staleness: int = 1,
    precision: str = "bf16",
    prices: Path | None = None,
    top: int = 10,
) -> int:
    """Predict each row of a table of steps of reinforcement learning on language models: rollouts,
    log-probabilities, training, refit. With --shape instead: trainer and engines on the same GPUs
    or apart, how many of each, layouts of both, ranked by samples a second.

    Columns that are read; what is left out is as the framework's recipes have it, or assumed, and
    the note says so. A name that resembles one is refused:

    \b
    COLUMNS rl

    \b
    WRITTEN
    """
    given = locals()
    if rows is not None:
        from hybridperf.io import read_table
        from hybridperf.runs.rl.frames import predict_rl

        if option := common.first_given(rl, given, "rows", "out"):
            raise common.wrong(f"expected {option} without a table, got it with one; leave it out")
        common.table_ready(out, [rows])
        common.compilation_cache()
        return common.say_predicted(predict_rl(read_table(rows)), out)
    if not (shape and system and gpus >= 1):
        raise common.wrong(
            "expected a table of steps, or --shape, --system and --gpus of 1 or more, got neither"
        )
    if top < 1:
        raise common.wrong(f"expected --top of 1 or more, got {top}")
    from hybridperf.runs.rl.plan import plan_report, rl_plan

    common.table_ready(out, [prices])
    common.compilation_cache()
    fields: dict[str, Any] = {field: given[name] for name, field in _FIELDS.items() if given[name]}
    found = rl_plan(shape, system, gpus, fields | {"staleness": staleness}, prices)
    print(plan_report(found, top))
    common.result(plans=found.table.head(top), notes=list(found.notes))
    common.table_written(found.table, out, f"\n{len(found.table)} ways, the best first, in")
    return 0
