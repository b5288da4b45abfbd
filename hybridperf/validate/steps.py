"""`hybridperf validate steps`: Transformer training steps predicted, next to baselines fitted on
the same rows.

    splits       what is given and what is judged: `step_splits.py`
    sources      every published row, by beliefs alone and with rows of all other sources given
    memory       peaks and failures of the ultra-scale sweep: `step_memory.py`
    layers       Chimera's profiles: `chimera.py`
    published    famous runs, by regime: `published_runs.py`
    papers       tables of two papers: `paper_steps.py`

Nothing is fitted on a row that is judged. Rows that contradict themselves are listed, predicted and
judged apart; rows that stalled by a rule that needs no model (`steps/cross_node.py`) are judged
with and without, and so are rows far slower than predicted.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.io import InputError, read_table
from hybridperf.report import text
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.cross_node import stalled
from hybridperf.training.steps.memory_fit import endings
from hybridperf.training.steps.predict import predict_steps
from hybridperf.training.steps.rows import ResolvedRows, resolve
from hybridperf.validate import chimera, harness, paper_steps, published_runs, step_memory
from hybridperf.validate.harness import Columns, Found, ResultLine
from hybridperf.validate.scores import SLOW, Scores, mean_of
from hybridperf.validate.step_baselines import NAMES, baseline_rows, fit
from hybridperf.validate.step_splits import DRAWS, FOLDS, MEDIAN_GOALS, STEP_GOALS, splits

FILES = ("training_steps/vtrain_steps_dev.csv.gz", "training_steps/train_steps_dev.csv.gz")
TASKS = ("splits", "sources", "published", "memory", "layers", "papers")
QUICK_DRAWS, QUICK_FOLDS, QUICK_ROWS = 2, 1, 60
OTHER_SOURCES_ROWS = 300  # more of other sources teach no more
HOST_BOUND = 0.10  # share of a step that waits for the host
_PUBLISHED: dict[str, str] = harness.facts("steps.toml")["published"]
_THEIRS = {"calculon_pred_s": "calculon", "neusight_pred_s": "NeuSight"}


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


@harness.claim("steps", TASKS)
def run(data: Path, wanted: Sequence[str], quick: bool) -> Iterator[Found]:
    """All tables of `wanted` tasks."""
    measured = read(data)
    yield Found(_counts(measured))
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
        shown = split_table(judged) + "\n\n" + detail_table(judged)
        yield Found(shown, {"splits": judged}, lines)
    if "sources" in wanted:
        by_source = judge_sources(measured, quick)
        lines = [
            line
            for source, part in by_source[~by_source["flagged"]].groupby("source", sort=False)
            for line in (
                ResultLine.of(f"{source}, none given", step_scores(part, NAMES[:2])),
                *_without_stalled(f"{source}, none given", part),
            )
        ]
        yield Found(source_table(by_source), {"sources": by_source}, lines)
    if "published" in wanted and (data / published_runs.FILE).exists():
        yield published_runs.judge(data, 1 if quick else published_runs.DRAWS)
    if "memory" in wanted:
        ultra = np.flatnonzero(measured.whole["source"] == "ultrascale_playbook")
        part = measured.whole.iloc[ultra].reset_index(drop=True)
        rows = ResolvedRows(tuple(measured.resolved.rows[at] for at in ultra))
        peaks = step_memory.judge(part, rows, QUICK_FOLDS + 1 if quick else FOLDS)
        yield Found(step_memory.table(peaks), {"memory": peaks}, step_memory.result_lines(peaks))
    if "layers" in wanted:
        report = chimera.report(read_table(data / chimera.FILE))
        yield Found(report.text(), {"layers": report.lines}, report.result_lines())
    if "papers" in wanted:
        yield paper_steps.judge()
    yield Found(contradictions_text(measured))


def read(data: Path) -> MeasuredSteps:
    """All published rows under a folder of measured data."""
    there = [data / name for name in FILES if (data / name).exists()]
    if not there:
        raise InputError(
            f"expected {' or '.join(FILES)} under {data}, found neither; give the folder that holds"
            " them"
        )
    whole = pd.concat([read_table(path) for path in there], ignore_index=True)
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


def _headers(baselines: Sequence[str]) -> list[str]:
    errors = ["MAPE", "median", "bias", "in interval", *baselines]
    return ["", "rows", *errors, "goal", f"slower than {SLOW} x", "stalled", ""]


def _without_stalled(name: str, part: pd.DataFrame) -> Iterator[ResultLine]:
    """Of rows that did not stall, where any did: the median error."""
    if not part["stalled"].any():
        return
    found = _scores(part[~part["stalled"]])
    line = ResultLine.of(f"{name}, without stalled runs", found, MEDIAN_GOALS.get(name))
    yield dataclasses.replace(line, ours=found.median, measure="median error", baselines={})


def _cells(
    name: str, part: pd.DataFrame, baselines: Sequence[str], goal: float | None, remark: str
) -> list[str]:
    """A row of the table that `_headers` heads."""
    found, halted = _scores(part, baselines), ""
    if part["stalled"].any():
        rest = _scores(part[~part["stalled"]], baselines)
        halted = (
            f"{int(part['stalled'].sum())}: {text.percent(rest.mape)}, median"
            f" {text.percent(rest.median)} without"
        )
    slow = f"{found.slow}: {text.percent(found.fast_mape)} without" if found.slow else ""
    errors = [found.mape, found.median, found.bias, found.coverage]
    errors += [found.baselines.get(baseline, np.nan) for baseline in baselines]
    cells = ["" if np.isnan(value) else text.percent(value) for value in errors]
    reached = "" if goal is None else step_memory.reached_text(goal, found.mape <= goal)
    return [name, str(found.rows), *cells, reached, slow, halted, remark]


def step_scores(frame: pd.DataFrame, baselines: Sequence[str] = ()) -> Scores:
    """Of rows with `step_time_s`, `predicted_s`, `low_s`, `high_s` and a column per baseline."""
    ends = ("low_s", "high_s") if "low_s" in frame else None
    return Columns(
        "step_time_s", interval=ends, baselines={name: name for name in baselines}
    ).scores(frame)


def _scores(part: pd.DataFrame, baselines: Sequence[str] = NAMES) -> Scores:
    """Of one task: the mean over the draws of the same rows, where there are any."""
    if "part" not in part or not part["part"].str.startswith("draw").all():
        return step_scores(part, baselines)
    return mean_of([step_scores(one, baselines) for _, one in part.groupby("part", sort=False)])


def split_table(judged: pd.DataFrame) -> str:
    """One line for each task, draws averaged, flagged rows out; a remark where flagged rows are."""
    lines = []
    for task, part in judged.groupby("task", sort=False):
        remark, flagged = "", int(part["flagged"].sum())
        if flagged:
            remark = f"with {flagged} flagged {text.percent(_scores(part).mape)}"
        clean, goal = part[~part["flagged"]], STEP_GOALS.get(str(task))
        lines.append(_cells(str(task), clean, NAMES, goal, remark))
    return text.table(_headers(NAMES), lines)


def detail_table(judged: pd.DataFrame) -> str:
    """Errors by tensor-parallel degree, stages and micro-batch; share of host-bound steps."""
    lines = []
    for task, part in judged[~judged["flagged"]].groupby("task", sort=False):
        busy_s = part[["compute_s", "exposed_comm_s", "bubble_s"]].sum(axis=1)
        waits = 1 - busy_s / part["predicted_s"]
        cells = [text.percent(float((waits > HOST_BOUND).mean()))]
        error = (part["predicted_s"] / part["step_time_s"] - 1).abs()
        for field in ("tp", "pp", "micro_batch"):
            means = error.groupby(pd.to_numeric(part[field])).mean()
            cells.append(" ".join(f"{int(size)}:{100 * mean:.0f}" for size, mean in means.items()))
        lines.append([str(task), *cells])
    return text.table(["mean error in % by", "host-bound", "tp", "pp", "micro-batch"], lines)


def source_table(by_source: pd.DataFrame) -> str:
    """One line for each source."""
    lines, constants = [], NAMES[:2]
    for source, part in by_source.groupby("source", sort=False):
        clean, others = part[~part["flagged"]], ""
        if "others_s" in part and clean["others_s"].notna().any():
            with_others = step_scores(clean.assign(predicted_s=clean["others_s"])).mape
            others = "" if np.isnan(with_others) else text.percent(with_others)
        remarks = [_PUBLISHED.get(str(source), ""), *_published(clean)]
        remark = "; ".join(filter(None, remarks))
        cells = _cells(str(source), clean, constants, None, remark)
        lines.append([*cells[:3], others, *cells[3:]])
    head = _headers(constants)
    titles = ["by source, nothing of it given", *head[1:3], "other sources given", *head[3:-4]]
    return text.table([*titles, "", *head[-3:]], lines)


def _published(part: pd.DataFrame) -> list[str]:
    """Errors of predictions that were published with the rows."""
    found = []
    for column, name in _THEIRS.items():
        if column in part and part[column].notna().any():
            some = part[part[column].notna()]
            error = (pd.to_numeric(some[column]) / some["step_time_s"] - 1).abs().mean()
            found.append(f"{name} {text.percent(float(error))}")
    return found


def _counts(measured: MeasuredSteps) -> str:
    refused = np.array([bool(row.refused) for row in measured.resolved])
    lines = []
    for source, places in measured.whole.groupby("source", sort=False).indices.items():
        predictable = int(np.isin(places, measured.at).sum())
        counts = (len(places), predictable, int(refused[places].sum()))
        lines.append([str(source), *map(str, counts)])
    return text.table(["rows", "published", "measured and predictable", "refused"], lines)


def contradictions_text(measured: MeasuredSteps) -> str:
    """Rows that contradict themselves, one line each."""
    ids = measured.whole["id"]
    found = [
        f"  {ids.iloc[at]} ({row.source}): {'; '.join(row.flags).replace('contradiction: ', '')}"
        for at, row in enumerate(measured.resolved)
        if row.flags
    ]
    return "\n".join([f"{len(found)} rows contradict themselves:", *found])
