"""What is found about accuracy, as lines: printed as a table, and written to `results.json`."""

import contextlib
import dataclasses
import datetime
import functools
import importlib.metadata
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import hybridperf
from hybridperf.hardware import this_cpu
from hybridperf.io import InputError, plain, shipped_toml, write_json
from hybridperf.report import text
from hybridperf.validate.scores import Scores, finite

RESULTS, SCHEMA, SCHEMA_VERSION = "results.json", "validate-results", 1
_SMALL = 5e-4
_LIBRARIES = ("hybridperf", "jax", "numpy", "scipy", "scikit-learn")


@dataclasses.dataclass(frozen=True)
class ResultLine:
    """What a claim found for one set of rows; errors are shares, None where nothing is known."""

    name: str
    ours: float | None
    n: int  # what `ours` is taken over: rows, groups, cases
    goal: float | None = None
    baselines: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    measure: str = "MAPE"
    pearson: float | None = None  # of logs
    coverage: float | None = None
    half_width: float | None = None

    @classmethod
    def of(cls, name: str, found: Scores, goal: float | None = None, measure: str = "MAPE") -> Self:
        """A line whose figure is the mean error, or the median one where `measure` says so."""
        middle = measure.startswith("median")
        return cls(
            name, found.median if middle else found.mape, found.rows, goal,
            found.medians if middle else found.baselines, measure,
            found.pearson, finite(found.coverage), finite(found.half_width),
        )  # fmt: skip


def lines_table(lines: Sequence[ResultLine], rows: str = "rows", of: str = "") -> str:
    """Lines as people read them: what each was taken over, ours, goal, baselines, what intervals
    hold.

    Args:
        lines: of a task; a column of measures where these differ.
        rows: what `n` counts.
        of: head of the names.
    """
    names = [*dict.fromkeys(name for line in lines for name in line.baselines)]
    columns: dict[str, Callable[[ResultLine], Any]] = {of: lambda line: line.name}
    measures = {line.measure for line in lines}
    if len(measures) > 1:
        columns["measure"] = lambda line: line.measure
    ours = "ours" if len(measures) > 1 else f"ours, {measures.pop()}"
    columns |= {rows: lambda line: line.n, ours: lambda line: _share(line.ours)}
    if any(line.goal is not None for line in lines):
        columns["goal"] = lambda line: "" if line.goal is None else _share(line.goal)

    def of_baseline(name: str) -> Callable[[ResultLine], str]:
        return lambda line: _share(line.baselines.get(name))

    columns |= {name.replace("_", " "): of_baseline(name) for name in names}
    of_all: dict[str, Callable[[ResultLine], float | None]] = {
        "in interval": lambda line: line.coverage, "half-width": lambda line: line.half_width,
    }  # fmt: skip
    for name, figure in of_all.items():
        if any(figure(line) is not None for line in lines):
            columns[name] = functools.partial(lambda figure, line: _share(figure(line)), figure)
    return text.items_table(lines, columns)


def _share(value: float | None) -> str:
    """A percentage; what would round to nothing as it is."""
    small = value is not None and 0 < abs(value) < _SMALL
    return f"{value:.2g}" if small else text.percent(value)


def facts(name: str) -> dict[str, Any]:
    """A table of what is judged, of a .toml file beside the claims."""
    return shipped_toml(__package__, name)


def tasks_of(asked: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    """The tasks that were asked for, all if none were."""
    if wrong := [task for task in asked or () if task not in known]:
        raise InputError(f"expected tasks of {', '.join(known)}, got {wrong[0]!r}")
    return tuple(asked or known)


def refuse_other_backend(device: Any, backend: str) -> None:
    """`InputError` where a model is not of this machine: before a minute of measuring."""
    if device.kind != backend:
        raise InputError(
            f"the model is of {device.name}, a {device.kind}, and JAX runs on a {backend} here;"
            " choose a model of this machine"
        )


def model_record(model: Any) -> dict[str, Any]:
    """What a summary keeps of the model that was judged."""
    kept = {name: model.provenance.get(name) for name in ("made_by", "date", "rows_sha256")}
    return {"device": model.device.id, **kept}


def write_results(out: Path, claim: str, lines: Sequence[ResultLine]) -> None:
    """Leave `results.json` in `out`: the lines of a claim, and what they were made by."""
    content = {
        "claim": claim,
        "command": _command(),
        **made_by(),
        "lines": plain(list(map(dataclasses.asdict, lines))),
    }
    write_json(Path(out) / RESULTS, SCHEMA, SCHEMA_VERSION, content)


def made_by() -> dict[str, Any]:
    """What figures of today hang on: date, commit, versions, machine."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": f"{platform.machine()}, {this_cpu().name}",
    }


def _command() -> str | None:
    """The command that runs, None where a program calls the library."""
    words = sys.argv[1:]
    if Path(sys.argv[0]).parent.name == "claims":
        return f"python -m benchmarks.claims {shlex.join(words)}"
    return shlex.join(["hybridperf", *words]) if {"validate", "demo"} & {*words[:2]} else None


def _commit() -> str | None:
    """Of the checkout that the library is in; None where it was installed."""
    folder = Path(hybridperf.__file__).parent
    asked = ["git", "-C", str(folder), "log", "-1", "--format=%h", "--", str(folder)]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10)
        return done.stdout.strip() or None
    return None


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
