"""One frame for all claims of accuracy.

A claim takes measured rows, deals them into what is given and what is judged (`Split`), predicts
the judged rows with ours and with baselines given the same rows (`baselines`), and scores both
(`scores`). What it found are lines (`ResultLine`), printed as a table and written to
OUT/results.json, from which `page` makes docs/accuracy.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib.metadata
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hybridperf
from hybridperf.io import InputError, read_json, write_json
from hybridperf.validate.baselines import COLUMN
from hybridperf.validate.scores import Scores

RESULTS, SCHEMA, SCHEMA_VERSION = "results.json", "validate-results", 1
_LIBRARIES = ("hybridperf", "jax", "numpy", "scipy", "scikit-learn")


@dataclasses.dataclass(frozen=True)
class Split:
    """One task: given rows and judged ones, as places in a table. Splits of one `task` are judged
    together. Nothing is fitted on a row that is judged.
    """

    task: str
    part: str
    given: np.ndarray  # [G]
    judged: np.ndarray  # [J]


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
    def of(cls, name: str, found: Scores, goal: float | None = None, n: int = 0) -> ResultLine:
        """A line whose figure is the MAPE."""
        return cls(
            name, found.mape, n or found.rows, goal, found.baselines,
            pearson=found.pearson, coverage=found.coverage, half_width=found.half_width,
        )  # fmt: skip

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {name: _plain(value) for name, value in dataclasses.asdict(self).items()}


def baselines_in(line: Mapping[str, Any]) -> dict[str, float | None]:
    """Errors of the baselines in a written line."""
    names = [name for name in line if name.startswith(COLUMN)]
    return {name.removeprefix(COLUMN): line[name] for name in names}


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
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": f"{platform.machine()}, {_processor()}",
        "lines": [line.record() for line in lines],
    }
    write_json(Path(out) / RESULTS, SCHEMA, SCHEMA_VERSION, content)


def read_results(path: Path) -> dict[str, Any]:
    """A file of results, or that of a claim's folder."""
    path = Path(path)
    return read_json(path / RESULTS if path.is_dir() else path, SCHEMA, SCHEMA_VERSION)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def _command() -> str | None:
    """The command that runs, None where a program calls the library."""
    words = sys.argv[1:]
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


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown processor"
