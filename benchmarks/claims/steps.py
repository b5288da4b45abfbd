"""Transformer training steps predicted, next to baselines fitted on
the same rows.

    splits       what is given and what is judged: `step_splits.py`
    sources      every published row, by beliefs alone and with rows of all other sources given
    memory       peaks and failures of the ultra-scale sweep: `step_memory.py`
    layers       Chimera's profiles: `published_runs.py`
    published    famous runs, by regime: `published_runs.py`
    papers       tables of two papers: `published_runs.py`
    strangers    sources of the second delivery: `stranger_steps.py`

Nothing is fitted on a row that is judged. Rows that contradict themselves are listed, predicted and
judged apart; rows that stalled by a rule that needs no model (`steps/cross_node.py`) are judged
with and without.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.claims import harness, published_runs, step_memory, stranger_steps
from benchmarks.claims.harness import Columns, Found, ResultLine
from benchmarks.claims.published_rows import with_told
from benchmarks.claims.scores import Scores, mean_of
from benchmarks.claims.step_splits import (
    DRAWS,
    FOLDS,
    MEDIAN_GOALS,
    NAMES,
    STEP_GOALS,
    baseline_rows,
    fit,
    splits,
)
from hybridperf.io import InputError, read_table
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.cross_node import stalled
from hybridperf.training.steps.memory_fit import endings
from hybridperf.training.steps.predict import predict_steps
from hybridperf.training.steps.rows import ResolvedRows, resolve

FILES = ("training_steps/vtrain_steps_dev.csv.gz", "training_steps/train_steps_dev.csv.gz")
TASKS = ("splits", "sources", "published", "memory", "layers", "papers", "strangers")
QUICK_DRAWS, QUICK_FOLDS, QUICK_ROWS = 2, 1, 60
OTHER_SOURCES_ROWS = 300  # more of other sources teach no more
_PUBLISHED: dict[str, str] = harness.facts("steps.toml")["published"]
_THEIRS = {"calculon": "calculon_pred_s", "NeuSight": "neusight_pred_s"}


@dataclasses.dataclass(frozen=True)
class MeasuredSteps:
    """Published rows that ran and can be predicted, and everything they were read from."""

    whole: pd.DataFrame  # every row
    resolved: ResolvedRows  # of every row
    at: np.ndarray  # places of those below among all rows
    # rows that were measured and can be predicted [N], with columns `flagged` and `stalled`
    frame: pd.DataFrame
    prices: PriceCache = dataclasses.field(default_factory=PriceCache)

    def predicted(self, judged: np.ndarray, given: np.ndarray) -> pd.DataFrame:
        """Rows of `frame` with what is predicted of them, fitted on those that are given."""
        frame, fit_on = (self.frame.iloc[at].reset_index(drop=True) for at in (judged, given))
        known = fit_on if len(given) else None
        return predict_steps(frame, fit_on=known, cache=self.prices).frame

    def baselines(self, given: np.ndarray, judged: np.ndarray) -> dict[str, np.ndarray]:
        """Seconds of judged rows by each baseline that the given ones are enough for."""
        measured_s = self.frame["step_time_s"].to_numpy(float)
        known, asked = (
            baseline_rows([self.resolved.rows[at] for at in self.at[places]])
            for places in (given, judged)
        )
        # given the judged rows themselves, trees would know them by heart
        same = np.array_equal(given, judged)
        names = [name for name in NAMES if not (same and name == "trees")]
        made = {name: fit(name, known, measured_s[given]) for name in names}
        return {name: predicts(asked) for name, predicts in made.items() if predicts is not None}


@harness.claim("steps", TASKS, by_data=True)
def run(data: Path, wanted: Sequence[str], quick: bool) -> Iterator[Found]:
    """All tables of `wanted` tasks."""
    measured = read(data)
    yield Found("", {"counts": _counts(measured)})
    if "splits" in wanted:
        judged = judge_splits(measured, quick)
        lines = [
            line
            for task, part in judged[~judged["flagged"]].groupby("task", sort=False)
            for line in (
                ResultLine.of(str(task), _scores(part), STEP_GOALS.get(str(task))),
                *_without_stalled(str(task), part),
            )
        ]
        yield Found("", {"splits": judged}, lines)
    if "sources" in wanted:
        by_source = judge_sources(measured, quick)
        lines = [
            line
            for source, part in by_source[~by_source["flagged"]].groupby("source", sort=False)
            for line in _of_source(str(source), part)
        ]
        told = "; ".join(f"{source}: {said}" for source, said in _PUBLISHED.items())
        yield Found(f"published, {told}", {"sources": by_source}, lines)
    if "published" in wanted and (data / published_runs.FILE).exists():
        yield published_runs.judge(data, 1 if quick else published_runs.DRAWS)
    if "memory" in wanted:
        ultra = np.flatnonzero(measured.whole["source"] == "ultrascale_playbook")
        part = measured.whole.iloc[ultra].reset_index(drop=True)
        rows = ResolvedRows(tuple(measured.resolved.rows[at] for at in ultra))
        peaks = step_memory.judge(part, rows, QUICK_FOLDS + 1 if quick else FOLDS)
        yield Found("", {"memory": peaks}, step_memory.result_lines(peaks))
    if "layers" in wanted:
        yield published_runs.judge_layers(read_table(data / published_runs.LAYERS))
    if "papers" in wanted:
        yield published_runs.judge_papers()
    if "strangers" in wanted and stranger_steps.tables(data):
        yield stranger_steps.judge(data, QUICK_ROWS if quick else None)
    yield Found(contradictions_text(measured))


def read(data: Path) -> MeasuredSteps:
    """All published rows under a folder of measured data."""
    there = [data / name for name in FILES if (data / name).exists()]
    if not there:
        raise InputError(
            f"expected {' or '.join(FILES)} under {data}, found neither; give the folder that holds"
            " them"
        )
    whole = with_told(pd.concat([read_table(path) for path in there], ignore_index=True))
    resolved = resolve(whole)
    ran = pd.to_numeric(whole["step_time_s"], errors="coerce").gt(0) & endings(whole).eq("ok")
    good = np.array([row.config is not None for row in resolved])
    at = np.flatnonzero(ran.to_numpy() & good)
    flagged = [bool(resolved.rows[one].flags) for one in at]
    frame = whole.iloc[at].reset_index(drop=True).assign(flagged=flagged)
    configs = [config for one in at if (config := resolved.rows[one].config) is not None]
    frame["stalled"] = stalled(configs, frame["step_time_s"].to_numpy(float))
    return MeasuredSteps(whole, resolved, at, frame)


def judge_splits(measured: MeasuredSteps, quick: bool = False) -> pd.DataFrame:
    """A line for each judged row of each split: `task, part, step_time_s, predicted_s, low_s,
    high_s`, baselines, its layout.
    """
    parts, flagged = [], measured.frame["flagged"].to_numpy()
    draws, folds = (QUICK_DRAWS, QUICK_FOLDS) if quick else (DRAWS, FOLDS)
    for split in splits(measured.frame, draws, folds):
        judged, given = split.judged, split.given[~flagged[split.given]]
        if quick:
            judged = np.random.default_rng(0).permutation(judged)[:QUICK_ROWS]
        judged = np.sort(judged)
        predicted = measured.predicted(judged, given)
        # without rows the constants get the judged rows' own times: the best a constant could do
        baselines = measured.baselines(given if len(given) else judged, judged)
        parts.append(predicted.assign(task=split.task, part=split.part, **baselines))
    return pd.concat(parts, ignore_index=True)


def judge_sources(measured: MeasuredSteps, quick: bool = False) -> pd.DataFrame:
    """Every row by beliefs alone (`predicted_s`) and with other sources given (`others_s`)."""
    frame, parts = measured.frame, []
    for source in frame["source"].unique():
        judged = np.flatnonzero(frame["source"] == source)
        if quick:
            judged = judged[:QUICK_ROWS]
        given = np.flatnonzero((frame["source"] != source) & ~frame["flagged"])
        given = np.sort(np.random.default_rng(0).permutation(given)[:OTHER_SOURCES_ROWS])
        alone = measured.predicted(judged, given[:0])
        if len(given) and not quick:
            alone = alone.assign(others_s=measured.predicted(judged, given)["predicted_s"])
        parts.append(alone.assign(**measured.baselines(judged, judged)))
    return pd.concat(parts, ignore_index=True)


def _without_stalled(name: str, part: pd.DataFrame) -> Iterator[ResultLine]:
    """Of rows that did not stall, where any did: the median error."""
    if not part["stalled"].any():
        return
    found = _scores(part[~part["stalled"]])
    line = ResultLine.of(f"{name}, without stalled runs", found, MEDIAN_GOALS.get(name))
    yield dataclasses.replace(line, ours=found.median, measure="median error", baselines={})


def _of_source(source: str, part: pd.DataFrame) -> Iterator[ResultLine]:
    """By beliefs alone, beside what was published with the rows; and with other sources given."""
    theirs = {name: pd.to_numeric(part[column]) for name, column in _THEIRS.items()
              if column in part and part[column].notna().all()}  # fmt: skip
    columns = part.assign(**theirs)
    name = f"{source}, none given"
    yield ResultLine.of(name, step_scores(columns, (*NAMES[:2], *theirs)))
    yield from _without_stalled(name, part)
    if "others_s" in part and part["others_s"].notna().all():
        others = step_scores(part.drop(columns=["low_s", "high_s"]).assign(
            predicted_s=part["others_s"]
        ))  # fmt: skip
        yield ResultLine.of(f"{source}, other sources given", others)


def step_scores(frame: pd.DataFrame, baselines: Sequence[str] = ()) -> Scores:
    """Of rows with `step_time_s`, `predicted_s`, `low_s`, `high_s` and a column per baseline."""
    ends = ("low_s", "high_s") if "low_s" in frame else None
    return Columns(
        "step_time_s", interval=ends, baselines={name: name for name in baselines}
    ).scores(frame)


def _scores(part: pd.DataFrame) -> Scores:
    """Of one task: the mean over the draws of the same rows, where there are any."""
    if "part" not in part or not part["part"].str.startswith("draw").all():
        return step_scores(part, NAMES)
    return mean_of([step_scores(one, NAMES) for _, one in part.groupby("part", sort=False)])


def _counts(measured: MeasuredSteps) -> pd.DataFrame:
    """Rows of each source: published, measured and predictable, refused."""
    resolved = list(measured.resolved)
    return pd.DataFrame([
        {
            "source": source, "published": len(places),
            "predictable": int(np.isin(places, measured.at).sum()),
            "refused": sum(bool(resolved[at].refused) for at in places),
        }
        for source, places in measured.whole.groupby("source", sort=False).indices.items()
    ])  # fmt: skip


def contradictions_text(measured: MeasuredSteps) -> str:
    """Rows that contradict themselves, one line each."""
    ids = measured.whole["id"]
    found = [
        f"  {ids.iloc[at]} ({row.source}): {'; '.join(row.flags).replace('contradiction: ', '')}"
        for at, row in enumerate(measured.resolved)
        if row.flags
    ]
    return "\n".join([f"{len(found)} rows contradict themselves:", *found])
