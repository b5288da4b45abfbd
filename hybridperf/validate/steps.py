"""`hybridperf validate steps`: Transformer training steps predicted, beside null models fitted on
the same rows.

    splits       what is given and what is judged: `step_splits.py`
    sources      every published row, by beliefs alone and with rows of all other sources given
    memory       peaks and failures of the ultra-scale sweep: `step_memory.py`
    layers       Chimera's profiles: `chimera.py`

Nothing is fitted on a row that is judged. Rows that contradict themselves are listed, predicted and
judged apart; rows that belong to a slow mode (`steps/cross_node.py`) are judged with and without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.io import InputError, read_table, write_table
from hybridperf.report import text
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.failures import endings
from hybridperf.training.steps.predict import predict_steps
from hybridperf.training.steps.rows import ResolvedRows, resolve
from hybridperf.validate import chimera, step_memory
from hybridperf.validate.step_nulls import NAMES, fit, null_rows
from hybridperf.validate.step_scores import Scores, headers, line, mean_of, scores
from hybridperf.validate.step_splits import DRAWS, FOLDS, GOALS, Split, splits

FILES = ("training_steps/vtrain_steps_dev.csv.gz", "training_steps/train_steps_dev.csv.gz")
QUICK_DRAWS, QUICK_FOLDS, QUICK_ROWS = 2, 1, 60
OTHERS_ROWS = 300  # of other sources: what they share with a source, they say by then
HOST_BOUND = 0.10  # share of a step that waits for the host
# what was published beside the rows, for the reader; calculon's and NeuSight's are computed from
# their own predictions in the rows
PUBLISHED = {"vtrain_single_node": "vTrain 8.4 %", "vtrain_multi_node": "vTrain 14.7 %"}
_THEIRS = {"calculon_pred_s": "calculon", "neusight_pred_s": "NeuSight"}
RECALLED = {"megatron_sc21_tab1": "recalled, not read"}


@dataclasses.dataclass(frozen=True)
class Measured:
    """Published rows that ran and can be predicted, and everything they were read from."""

    whole: pd.DataFrame  # every row
    resolved: ResolvedRows  # of every row
    at: np.ndarray  # places of those below among all rows
    # rows that were measured and can be predicted [N]; flagged ones included, with a column
    # `flagged`
    frame: pd.DataFrame

    @property
    def rows(self) -> list:
        """What each of them says [N]."""
        return [self.resolved.rows[at] for at in self.at]


def run(
    data: Path,
    out: Path,
    quick: bool = False,
    tasks: Sequence[str] | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Print all tables and write them to `out`; `tasks`: some of splits,
    sources, memory, layers.
    """
    known = ("splits", "sources", "memory", "layers")
    if tasks and (wrong := [task for task in tasks if task not in known]):
        raise InputError(f"expected tasks of {', '.join(known)}, got {wrong[0]!r}")
    wanted = tuple(tasks or known)
    measured = read(data)
    bank = PriceCache()
    say(_counts(measured))
    if "splits" in wanted:
        judged = judge_splits(measured, bank, quick)
        say("\n" + split_table(judged))
        say("\n" + detail_table(judged))
        write_table(judged, out / "steps_splits.csv")
    if "sources" in wanted:
        by_source = judge_sources(measured, bank, quick)
        say("\n" + source_table(by_source))
        write_table(by_source, out / "steps_sources.csv")
    if "memory" in wanted:
        ultra = np.flatnonzero(measured.whole["source"] == "ultrascale_playbook")
        part = measured.whole.iloc[ultra].reset_index(drop=True)
        found = step_memory.judge(
            part,
            ResolvedRows(tuple(measured.resolved.rows[at] for at in ultra)),
            QUICK_FOLDS + 1 if quick else FOLDS,
        )
        say("\n" + step_memory.table(found))
        write_table(
            pd.DataFrame([dataclasses.asdict(one) for one in found]), out / "steps_memory.csv"
        )
    if "layers" in wanted:
        report = chimera.chimera_report(data)
        say("\n" + report.text())
        write_table(report.lines, out / "steps_layers.csv")
    say("\n" + contradictions_text(measured))
    say(f"\ntables in {out}/steps_*.csv")


def read(data: Path) -> Measured:
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
    frame = (
        whole.iloc[at]
        .reset_index(drop=True)
        .assign(flagged=[bool(resolved.rows[one].flags) for one in at])
    )
    return Measured(whole, resolved, at, frame)


# --- splits ---------------------------------------------------------------------------------------


def judge_splits(measured: Measured, bank: PriceCache, quick: bool = False) -> pd.DataFrame:
    """A line for each judged row of each split: `task, part, step_time_s, predicted_s, low_s,
    high_s`, null models, its layout.
    """
    parts = []
    for split in splits(
        measured.frame, QUICK_DRAWS if quick else DRAWS, QUICK_FOLDS if quick else FOLDS
    ):
        judged = (
            split.judged
            if not quick
            else np.random.default_rng(0).permutation(split.judged)[:QUICK_ROWS]
        )
        parts.append(_judge(measured, dataclasses.replace(split, judged=np.sort(judged)), bank))
    return pd.concat(parts, ignore_index=True)


def _judge(measured: Measured, split: Split, bank: PriceCache) -> pd.DataFrame:
    given = split.given[~measured.frame["flagged"].to_numpy()[split.given]]
    frame = measured.frame.iloc[split.judged].reset_index(drop=True)
    predicted = predict_steps(
        frame,
        fit_on=measured.frame.iloc[given].reset_index(drop=True) if len(given) else None,
        cache=bank,
    ).frame
    # without rows the constants are told the judged rows' own times: the best that a constant could
    # do
    told = given if len(given) else split.judged
    return predicted.assign(
        task=split.task, part=split.part, **_nulls(measured, told, split.judged)
    )


def _nulls(measured: Measured, given: np.ndarray, judged: np.ndarray) -> dict[str, np.ndarray]:
    rows, measured_s = measured.rows, measured.frame["step_time_s"].to_numpy(float)
    known, asked = null_rows([rows[at] for at in given]), null_rows([rows[at] for at in judged])
    found = {}
    for name in NAMES:
        if name == "trees" and np.array_equal(given, judged):
            continue  # told the judged rows themselves, trees would know them by heart
        made = fit(name, known, measured_s[given])
        if made is not None:
            found[name] = made(asked)
    return found


def split_table(judged: pd.DataFrame) -> str:
    """One line for each task, draws averaged, flagged rows out; a second line where flagged rows
    are.
    """
    lines = []
    for task, part in judged.groupby("task", sort=False):
        clean = part[~part["flagged"]]
        found = _scores(clean)
        said = (
            f"with {int(part['flagged'].sum())} flagged {text.percent(_scores(part).mape)}"
            if part["flagged"].any()
            else ""
        )
        lines.append(line(str(task), found, NAMES, GOALS.get(str(task)), said))
    return text.table(headers(NAMES), lines)


def _scores(part: pd.DataFrame) -> Scores:
    """Of one task: of all judged rows, or the mean over draws of the same rows."""
    if part["part"].str.startswith("draw").all():
        return mean_of([scores(one, NAMES) for _, one in part.groupby("part", sort=False)])
    return scores(part, NAMES)


def detail_table(judged: pd.DataFrame) -> str:
    """Errors of each task by tensor-parallel degree, stages and micro-batch, and the share of steps
    that wait for their host.
    """
    lines = []
    for task, part in judged[~judged["flagged"]].groupby("task", sort=False):
        waits = (
            1 - part[["compute_s", "exposed_comm_s", "bubble_s"]].sum(axis=1) / part["predicted_s"]
        )
        cells = [f"{text.percent(float((waits > HOST_BOUND).mean()))}"]
        for field in ("tp", "pp", "micro_batch"):
            error = (part["predicted_s"] / part["step_time_s"] - 1).abs()
            means = error.groupby(pd.to_numeric(part[field])).mean()
            cells.append(" ".join(f"{int(size)}:{100 * mean:.0f}" for size, mean in means.items()))
        lines.append([str(task), *cells])
    return text.table(["mean error in % by", "host-bound", "tp", "pp", "micro-batch"], lines)


# --- sources --------------------------------------------------------------------------------------


def judge_sources(measured: Measured, bank: PriceCache, quick: bool = False) -> pd.DataFrame:
    """Every measured row by beliefs alone (`predicted_s`) and with rows of all other sources given
    (`others_s`).
    """
    frame, parts = measured.frame, []
    for source in frame["source"].unique():
        judged = np.flatnonzero(frame["source"] == source)
        if quick:
            judged = judged[:QUICK_ROWS]
        given = np.flatnonzero((frame["source"] != source) & ~frame["flagged"])
        given = np.sort(np.random.default_rng(0).permutation(given)[:OTHERS_ROWS])
        part = frame.iloc[judged].reset_index(drop=True)
        alone = predict_steps(part, cache=bank).frame
        if len(given) and not quick:
            with_others = predict_steps(
                part, fit_on=frame.iloc[given].reset_index(drop=True), cache=bank
            ).frame
            alone = alone.assign(others_s=with_others["predicted_s"])
        parts.append(alone.assign(**_nulls(measured, judged, judged)))
    return pd.concat(parts, ignore_index=True)


def source_table(by_source: pd.DataFrame) -> str:
    """One line for each source."""
    lines = []
    for source, part in by_source.groupby("source", sort=False):
        clean = part[~part["flagged"]]
        others = float("nan")
        if "others_s" in part and clean["others_s"].notna().any():
            others = scores(clean.assign(predicted_s=clean["others_s"])).mape
        said = [PUBLISHED.get(str(source), ""), RECALLED.get(str(source), ""), *_published(clean)]
        found = line(
            str(source), scores(clean, NAMES[:2]), NAMES[:2], None, "; ".join(filter(None, said))
        )
        lines.append([*found[:3], "" if np.isnan(others) else text.percent(others), *found[3:]])
    head = headers(NAMES[:2])
    return text.table(
        [
            "by source, nothing of it given",
            *head[1:3],
            "other sources given",
            *head[3:-3],
            "",
            *head[-2:],
        ],
        lines,
    )


def _published(part: pd.DataFrame) -> list[str]:
    found = []
    for column, name in _THEIRS.items():
        if column in part and part[column].notna().any():
            some = part[part[column].notna()]
            error = (pd.to_numeric(some[column]) / some["step_time_s"] - 1).abs().mean()
            found.append(f"{name} {text.percent(float(error))}")
    return found


# --- what was read --------------------------------------------------------------------------------


def _counts(measured: Measured) -> str:
    refused = np.array([bool(row.refused) for row in measured.resolved])
    lines = []
    for source, places in measured.whole.groupby("source", sort=False).indices.items():
        predictable = int(np.isin(places, measured.at).sum())
        lines.append(
            [str(source), str(len(places)), str(predictable), str(int(refused[places].sum()))]
        )
    return text.table(["rows", "published", "measured and predictable", "refused"], lines)


def contradictions_text(measured: Measured) -> str:
    """Rows that contradict themselves, one line each."""
    found = [
        f"  {measured.whole['id'].iloc[at]} ({row.source}):"
        f" {'; '.join(row.flags).replace('contradiction: ', '')}"
        for at, row in enumerate(measured.resolved)
        if row.flags
    ]
    return "\n".join([f"{len(found)} rows contradict themselves:", *found])
