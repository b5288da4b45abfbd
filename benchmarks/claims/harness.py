"""One frame for all claims of accuracy.

A claim takes measured rows, deals them into what is given and what is judged (`Split`), predicts
the judged rows with ours and with baselines given the same rows, and scores both (`scores`). What
takes long is kept in OUT/parts and OUT/priors, and not computed again while program, tables, seed
and effort are the same. What was found are lines (`ResultLine`), printed as a table and written to
OUT/results.json, from which `page.py` makes tables of
docs/accuracy.md.
"""

import contextlib
import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

import hybridperf
from benchmarks.claims.scores import COLUMN, Scores, scores
from hybridperf.io import InputError, read_json, shipped_toml, write_json, write_table
from hybridperf.learning.prior import FamilyPrior
from hybridperf.learning.prior.shipped import Prior, load_prior
from hybridperf.report import text
from hybridperf.validate.harness import RESULTS as RESULTS
from hybridperf.validate.harness import SCHEMA as SCHEMA
from hybridperf.validate.harness import SCHEMA_VERSION as SCHEMA_VERSION
from hybridperf.validate.harness import ResultLine as ResultLine
from hybridperf.validate.harness import lines_table as lines_table
from hybridperf.validate.harness import made_by as made_by
from hybridperf.validate.harness import model_record as model_record
from hybridperf.validate.harness import refuse_other_backend as refuse_other_backend
from hybridperf.validate.harness import tasks_of as tasks_of
from hybridperf.validate.harness import write_results as write_results

_PART_VERSION = 1
_SHOWN = 40  # rows of a table that is printed; the others are in files alone


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
class Columns:
    """Where a table of judged rows has what is compared."""

    measured: str = "measured_s"
    predicted: str = "predicted_s"
    interval: tuple[str, str] | None = ("low_s", "high_s")
    baselines: Mapping[str, str] = dataclasses.field(default_factory=dict)  # by name, where there

    def scores(self, rows: pd.DataFrame) -> Scores:
        """Of some rows."""
        low, high = (rows[name] for name in self.interval) if self.interval else (None, None)
        known = {name: column for name, column in self.baselines.items() if column in rows}
        others = {name: rows[column] for name, column in known.items()}
        return scores(rows[self.measured], rows[self.predicted], low, high, others)

    def line(
        self, name: str, rows: pd.DataFrame, goal: float | None = None, measure: str = "MAPE"
    ) -> ResultLine:
        """Of some rows; `measure` as in `ResultLine.of`."""
        return ResultLine.of(name, self.scores(rows), goal, measure)


def facts(name: str) -> dict[str, Any]:
    """A table of what is judged, of a .toml file beside the claims."""
    return shipped_toml(__package__, name)


def baselines_in(line: Mapping[str, Any]) -> dict[str, float | None]:
    """Errors of the baselines in a written line."""
    names = [name for name in line if name.startswith(COLUMN)]
    return {name.removeprefix(COLUMN): line[name] for name in names}


@dataclasses.dataclass(frozen=True)
class Parts:
    """Parts of one claim in a folder: files of a schema, each with the `version` it was made by."""

    folder: Path
    schema: str
    version: Mapping[str, Any]

    @classmethod
    def of(cls, out: Path, schema: str, files: tuple[str, ...], tables: bytes, **how: Any) -> Self:
        """In OUT/parts, made by a program (`files` under `hybridperf/`), of tables, and how."""
        digest = hashlib.sha256(tables).hexdigest()[:16]
        return cls(
            out / "parts", schema, {"program": program_digest(files), "tables": digest, **how}
        )

    def kept(self, name: str) -> dict[str, Any] | None:
        """A part that the same program finished from the same data."""
        with contextlib.suppress(InputError):  # none yet, or a damaged one
            part = read_json(self.folder / f"{name}.json", self.schema, _PART_VERSION)
            return part if part.get("version") == self.version else None
        return None

    def keep(self, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Write a finished part; returns it with its version."""
        part = {"version": self.version, **content}
        write_json(self.folder / f"{name}.json", self.schema, _PART_VERSION, part)
        return part

    def results(
        self,
        jobs: Mapping[tuple[str, str], Callable[[], Mapping[str, Any]]],
        unit: str,
        say: Callable[[str], None],
        again: Collection[tuple[str, str]] = (),
    ) -> list[dict[str, Any]]:
        """The part of each job, with its `results` and `processor_s`, which other programs on the
        machine do not change; says how long the jobs left may take.

        `unit`: what results are called; `again`: jobs to compute even where their part is kept.
        """
        begun_s, found = time.monotonic(), []
        for done, (job, compute) in enumerate(jobs.items(), start=1):
            part = None if job in again else self.kept("_".join(job))
            if part is None:
                worked_s = time.process_time()
                made = compute()
                worked_s = time.process_time() - worked_s
                part = self.keep("_".join(job), {**made, "processor_s": worked_s})
                left_s = (time.monotonic() - begun_s) / done * (len(jobs) - done)
                count = f"{len(part['results'])} {unit}, {worked_s:.0f} s of the processor"
                say(f"{' '.join(job)}: {count}; about {left_s / 60:.0f} min left")
            found.append(part)
        return found


def kept_prior(
    folder: Path, family: str, made_by: Mapping[str, Any], train: Callable[[], FamilyPrior]
) -> Prior:
    """A prior of one family, from its folder where it was made by the same, else trained and kept
    there; its provenance: `made_by`, and the `seconds` of its training.
    """
    with contextlib.suppress(InputError):  # none yet, or a damaged one
        before = load_prior(folder)
        if before.provenance.get("made_by") == made_by:
            return before
    begun_s = time.monotonic()
    families = {family: train()}
    prior = Prior(families, {"made_by": made_by, "seconds": time.monotonic() - begun_s})
    prior.save(folder)
    return prior


@functools.cache
def program_digest(names: tuple[str, ...]) -> str:
    """Digest of program files and folders, under `hybridperf/` or in the repository, read once:
    what runs stays as is.
    """
    library, root = Path(hybridperf.__file__).parent, Path(__file__).parents[2]
    digest = hashlib.sha256()
    for name in names:
        folder = root / name if name.startswith(("benchmarks/", "calibration/")) else library / name
        for path in sorted(folder.rglob("*.*")) if folder.is_dir() else [folder]:
            if path.suffix in (".py", ".toml"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def left_out_text(left_out: Mapping[str, Mapping[str, int]]) -> str:
    """Rows of each table that could not be used, by reason."""
    lines = [
        f"  {name}: {count} rows, {reason}"
        for name, reasons in sorted(left_out.items())
        for reason, count in reasons.items()
    ]
    return "rows left out:\n" + "\n".join(lines) if lines else "no row was left out"


@dataclasses.dataclass(frozen=True)
class Found:
    """What one task of a claim found: lines, tables by name, and what is said besides."""

    remarks: str = ""
    tables: Mapping[str, pd.DataFrame] = dataclasses.field(default_factory=dict)
    lines: Sequence[ResultLine] = ()
    counts: str = "rows"  # what `n` of the lines counts

    @property
    def text(self) -> str:
        """All of it as people read it; of the tables those of few rows."""
        said = [lines_table(self.lines, self.counts)] if self.lines else []
        said += [text.frame_table(one) for one in self.tables.values() if len(one) <= _SHOWN]
        return "\n\n".join([*said, *([self.remarks] if self.remarks else [])])


def publish(out: Path, claim: str, tasks: Iterable[Found], say: Callable[[str], None]) -> None:
    """Say what each task found as it comes; leave its tables, CLAIM_TABLE.csv, and
    `results.json` in `out`.
    """
    lines: list[ResultLine] = []
    for number, found in enumerate(tasks):
        say(("\n" if number else "") + found.text)
        for name, frame in found.tables.items():
            write_table(frame, out / f"{claim}_{name}.csv")
        lines += found.lines
    write_results(out, claim, lines)
    say(f"\ntables in {out}/{claim}_*.csv")


# of the folder of measured data, the tasks, and whether only a small part is asked for
Finds = Callable[[Any, Sequence[str], bool], Iterable[Found]]


def claim(
    name: str, known: Sequence[str], by_data: bool = False
) -> Callable[[Finds], Callable[..., None]]:
    """Makes the `run(data, out, quick, tasks, say)` of a claim, of what finds what its tasks say;
    `tasks` are all that are `known` if not given; `by_data`: nothing can be done without data.
    """

    def of(find: Finds) -> Callable[..., None]:
        def run(
            data: Path | None = None, out: Path = Path(), quick: bool = False,
            tasks: Sequence[str] | None = None, say: Callable[[str], None] = print,
        ) -> None:  # fmt: skip
            if by_data and data is None:
                raise InputError(f"expected --data FOLDER with {name}, got none: it judges on that")
            publish(out, name, find(data, tasks_of(tasks, known), quick), say)

        return run

    return of
