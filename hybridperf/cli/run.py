"""`hybridperf run`: what a whole training run takes."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from hybridperf.cli import common
from hybridperf.cli.plan import only_in

_SETTINGS = ("evaluation_share", "stalls_per_day", "stall_s", "warmup_s")
_MOST_GPUS = 10_000_000
_STEP = ("state_bytes", "gpus_per_node", "width")
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}


def run(
    rows: Annotated[Path | None, Argument()] = None,
    shape: Annotated[str, Option("--shape")] = "",
    system: str = "",
    gpus: int = 0,
    tokens: str = "",
    batch: int | None = None,
    ramp: list[str] | None = None,
    seq: int | None = None,
    device: str = "",
    framework: str = "",
    dtype: str = "",
    only: list[str] | None = None,
    step_time: str = "",
    steps: float = 0.0,
    checkpoint: str = "async",
    interval: str = "",
    spares: int | None = None,
    mtbf: list[str] | None = None,
    set_: Annotated[list[str] | None, Option("--set")] = None,
    by_hand: bool = False,
    prices: Path | None = None,
    elastic: bool = False,
    why: bool = False,
    out: Path | None = None,
) -> int:
    """Predict a whole training run: days, goodput, money and energy, with failures. A
    table of runs is predicted row by row.

    Failures by what large runs published, checkpoints by their bytes; the best interval between
    checkpoints and the cheapest number of spare nodes where none is given.

    Columns that are read of a table; what is left out is assumed, and the note says so:

    \b
    COLUMNS runs

    \b
    WRITTEN
    """
    from hybridperf.runs.report import run_report
    from hybridperf.runs.run_function import run_elasticities
    from hybridperf.runs.run_of_plan import given_step, run_cost
    from hybridperf.runs.training_run import BELIEFS, RunSettings, training_run

    if rows is not None:
        if option := common.first_given(run, locals(), "rows", "out"):
            raise common.wrong(
                f"expected {option} without a table, got it with one, whose columns say how runs"
                " are; leave it out"
            )
        from hybridperf.io import read_table
        from hybridperf.runs.frames import predict_runs

        common.table_ready(out, [rows])
        common.compilation_cache()
        return common.say_predicted(predict_runs(read_table(rows)), out, "predicted_days")
    common.table_ready(out, [prices])
    if not 1 <= gpus <= _MOST_GPUS:
        limit = "of 1 or more" if gpus < 1 else f"of at most {_MOST_GPUS:,}"
        raise common.wrong(f"expected --gpus {limit}, got {gpus}")
    given = _numbers(set_ or [], "--set", (*BELIEFS, *_SETTINGS, *_STEP, *_elastic_names()))
    if elastic:
        asked = {
            "--shape": shape, "--system": system, "--tokens": tokens, "--batch": batch,
            "--ramp": ramp, "--seq": seq, "--device": device, "--framework": framework,
            "--dtype": dtype, "--only": only, "--step-time": step_time, "--steps": steps,
            "--interval": interval,
            "--spares": spares is not None, "--mtbf": mtbf, "--by-hand": by_hand,
            "--prices": prices, "--why": why, "--checkpoint": checkpoint != "async",
        }  # fmt: skip
        if ignored := [option for option, value in asked.items() if value]:
            raise common.wrong(
                "expected only --gpus, --set and --out with --elastic, got"
                f" {', '.join(ignored)}; leave them out"
            )
        _elastic(gpus, given, out)
        return 0
    if of_workers := [name for name in given if name not in (*BELIEFS, *_SETTINGS, *_STEP)]:
        raise common.wrong(
            f"expected no {of_workers[0]} in --set without --elastic, got"
            f" {given[of_workers[0]]:g}; known are {', '.join((*BELIEFS, *_SETTINGS, *_STEP))}"
        )
    settings = RunSettings(
        checkpoint, common.seconds_in(interval) if interval else None, spares, _mtbf(mtbf or []),
        by_hand=by_hand,
        given={name: value for name, value in given.items() if name in BELIEFS},
        **{name: value for name, value in given.items() if name in _SETTINGS},
    )  # fmt: skip
    if bool(shape) == bool(step_time):
        got = "both" if shape else "neither"
        raise common.wrong(f"expected either --shape or --step-time, got {got}; give one of them")
    common.compilation_cache()
    if shape:
        if not (system and tokens) or steps:
            raise common.wrong("expected --system and --tokens, and no --steps, with --shape")
        if of_step := [name for name in _STEP if name in given]:
            raise common.wrong(
                f"expected no {of_step[0]} with --shape, which says it; leave it out"
            )
        found = run_cost(
            shape, system, gpus, tokens, settings=settings, batch=batch, seq=seq,
            ramp=_ramp(ramp or []), device=device or None, framework=framework,
            dtype=dtype or None, prices=prices, only=only_in(only or []) or None,
        )  # fmt: skip
    else:
        if steps <= 0 or tokens or system or batch or ramp or seq or framework or dtype or only:
            raise common.wrong(
                "expected --steps above 0 with --step-time, and none of --tokens, --system,"
                " --batch, --ramp, --seq, --framework, --dtype, --only"
            )
        more: dict[str, Any] = {name: given[name] for name in _STEP if name in given}
        if "gpus_per_node" in more:
            if more["gpus_per_node"] not in range(1, _MOST_GPUS + 1):
                raise common.wrong(
                    "expected a whole gpus_per_node of 1 or more in --set, got"
                    f" {more['gpus_per_node']:g}; mend it"
                )
            more["gpus_per_node"] = int(more["gpus_per_node"])
        step_s = common.seconds_in(step_time)
        step = given_step(step_s, gpus, device=device or None, prices=prices, **more)
        found = training_run(step, steps, settings)
    print(run_report(found))
    common.result(run=found.table, lost=found.lost, spares=found.spares,
                  interval_s=float(found.cycle.interval_s), notes=list(found.notes),
                  step=found.words)  # fmt: skip
    if why:
        given_results = found.table.loc[found.table["expected"].notna(), "what"]
        results = [name for name in ("days", "usd") if name in set(given_results)]
        common.say_elasticities({name: run_elasticities(found, name) for name in results})
    common.table_written(found.table, out, "\nwritten to")
    return 0


def _elastic_names() -> tuple[str, ...]:
    import dataclasses

    from hybridperf.runs.elastic import Workers

    return tuple(one.name for one in dataclasses.fields(Workers))


def _elastic(gpus: int, given: dict[str, float], out: Path | None) -> None:
    """Workers that come and go, up to so many."""
    from hybridperf.runs.elastic import Workers, elastic
    from hybridperf.runs.report import elastic_report

    if "lifetime_s" not in given:
        raise common.wrong("expected --set lifetime_s=SECONDS of a worker with --elastic, got none")
    names = _elastic_names()
    if other := [name for name in given if name not in names]:
        raise common.wrong(f"expected no {other[0]} with --elastic; it takes {', '.join(names)}")
    counts = sorted({max(1, gpus >> power) for power in range(6)})
    found = elastic(Workers(**given), counts)
    print(elastic_report(found))
    common.result(workers=found.table, fastest=found.fastest, fastest_rigid=found.fastest_rigid)
    common.table_written(found.table, out, "\nwritten to")


def _numbers(given: list[str], option: str, known: tuple[str, ...]) -> dict[str, float]:
    from hybridperf.io import unknown

    found = common.named_in(given, f"{option} NAME=NUMBER", f"{known[0]}=1", common.number_in)
    for name in found:
        if name not in known:
            raise unknown("setting", name, known, f"known are {', '.join(known)}")
    return found


def _ramp(given: list[str]) -> list[tuple[str, int]]:
    def samples(text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise ValueError
        return int(text)

    option = "--ramp TOKENS=SAMPLES of a step"
    return [*common.named_in(given, option, "252B=1024", samples).items()]


def _mtbf(given: list[str]) -> dict[str, float]:
    def seconds(text: str) -> float:
        if text[-1:] not in _UNITS:
            raise ValueError
        return _UNITS[text[-1]] * common.number_in(text[:-1])

    return common.named_in(given, "--mtbf COMPONENT=TIME", "gpu=50000h, 90m or 2d", seconds)
