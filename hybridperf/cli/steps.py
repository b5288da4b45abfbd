"""`hybridperf steps`: measured or planned training steps, predicted."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from hybridperf.cli import common


def steps(
    table: Annotated[list[str], Argument(metavar="ROWS | NAME=VALUE...")],
    out: Path | None = None,
    device: str = "",
    system: str = "",
    host: Path | None = None,
    fit_on: list[Path] | None = None,
    knobs: Path | None = None,
    save_knobs: Path | None = None,
    save: Path | None = None,
    explain: bool = False,
) -> int:
    """Predict each row of a table of training steps: time with interval, tokens/s, MFU, memory,
    what the time is made of, note. A single row can be written as words: model=gpt3-13b tp=8 ...

    Columns that are read; what is left out follows from others or is assumed, and the note says so.
    Names that frameworks give them are read, too; a name that resembles one is refused:

    \b
    COLUMNS steps

    \b
    WRITTEN
    """
    import pandas as pd

    from hybridperf.fields.columns import kept_as, reads, row_of, said_by
    from hybridperf.hardware import load_host
    from hybridperf.io import read_table
    from hybridperf.io.tables import with_own_text
    from hybridperf.training.steps.frames import predict_steps, step_effects
    from hybridperf.training.steps.predict import COLUMNS, before_predictions
    from hybridperf.training.steps.saved import saved_model

    rows, in_words = (
        Path(table[0]),
        len(table) > 1 or ("=" in table[0] and not Path(table[0]).exists()),
    )
    if (save_knobs or save) and not fit_on:
        nothing, option = "without measured steps there is nothing to save", "--save-knobs"
        option = option if save_knobs else "--save"
        raise common.wrong(f"expected --fit-on ROWS with {option}: {nothing}")
    if knobs and host:
        theirs = "fitted efficiencies hold their host's"
        raise common.wrong(f"expected one of --knobs and --host, got both: {theirs}")
    if save_knobs and save_knobs.suffix != ".json":
        named = f"expected a name ending in .json in --save-knobs, got {save_knobs}"
        raise common.wrong(f"{named}; rename it")
    given = [None if in_words else rows, knobs, *(fit_on or [])]
    common.table_ready(out, given, save_knobs=save_knobs)
    if in_words:
        frame = row_of(table, "steps")
    else:
        frame = read_table(rows)
        frame = with_own_text(frame, rows, reads("steps", frame.columns))
    tables = [read_table(path) for path in fit_on or []]
    for path, one in zip(fit_on or [], tables, strict=True):
        if "step_time_s" not in said_by(one.columns, "steps"):
            lacking = f"expected a column step_time_s in {path}, given to fit on, found none"
            raise common.wrong(f"{lacking}; give measured steps")
    measured = pd.concat(tables, ignore_index=True) if tables else None
    common.compilation_cache()
    overheads = load_host(host) if host else None
    where = {"device": device or None, "system": system or None}
    fitted, remarks = step_effects(measured, knobs, overheads, **where)
    common.warn(*remarks)
    predicted = predict_steps(frame, **where, host=overheads, knobs=fitted, explain=explain)
    if renamed := kept_as(before_predictions(frame), COLUMNS):
        new = ", ".join(renamed.values())
        common.warn(f"columns {', '.join(renamed)} of {rows} are kept as {new}")
    if save_knobs:
        assert fitted is not None
        fitted.save(save_knobs)
        print(f"efficiencies in {save_knobs}")
    if save:
        assert fitted is not None
        assert measured is not None
        saved = saved_model(save, fitted, measured, device or None, system or None)
        print(f"a model of {saved.device.id} with these efficiencies in {save}")
    return common.say_predicted(predicted, out)
