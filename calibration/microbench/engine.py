"""Takes a list of cases through the timer into a store, in passes far apart in time.

Each pass measures every case once, in an order of its own. The two times of a case are then minutes
apart and differ by what the machine did meanwhile: `merge_passes` frees them of what all cases
shared for a while, and keeps their usual value as the target and their |log ratio| as the noise.

A run may end at any time (budget, full disk, kill -9): the store has what was measured, the same
call goes on there.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from hybridperf.io.progress import told
from hybridperf_calibration.microbench.quiet import Yardstick
from hybridperf_calibration.microbench.store import Row, RowStore
from hybridperf_calibration.microbench.tally import Tally
from hybridperf_calibration.microbench.timer import Budget, Case, Compiled, compile_ahead, time_case

LONGEST_CAP_S = 1.0  # more repeats than fit into this no longer lower the minimum
SHORTEST_CAP_S = 0.03
ALIKE = math.log(1.25)  # of two passes
STRETCH_ROWS = 100  # half a minute or so
DRIFT_STRETCHES = 3
_POLISHING_TURNS = 10
_QUIET = 0.1  # quantile of the stretches
_DRIFT_QUANTILES = 11
LONGEST_WAIT_S = 3.0  # before one measurement


def run(
    cases: Sequence[Case], store: RowStore, *, passes: int = 2, budget_s: float | None = None,
    seed: int = 0, yardstick: Yardstick | None = None,
) -> Tally:  # fmt: skip
    """Measure every case in every pass unless the store has it; each has its share of the budget.

    Args:
        cases: with different keys.
        store: where rows go.
        passes: over all cases.
        budget_s: seconds after which no new case starts.
        seed: of inputs and of the order of cases.
        yardstick: waits a while before each measurement until the machine is quiet; cases to come
            are compiled meanwhile.
    """
    keys = Counter(case.key for case in cases)
    for key, times in keys.items():
        if times > 1:
            raise ValueError(f"two cases have the key {key!r}; rows could not be told apart.")
    todo = [
        (cases[index], pass_no)
        for pass_no in range(1, passes + 1)
        for index in np.random.default_rng([seed, pass_no]).permutation(len(cases))
        if not store.has(cases[index].key, pass_no)
    ]
    kept: dict[str, Compiled] = {}  # by the first pass, for the later ones
    ahead = compile_ahead([case for case, _ in todo], kept)
    tally = Tally(
        "measurements", len(cases) * passes - len(todo), len(todo), len(cases) * passes,
        SHORTEST_CAP_S, LONGEST_CAP_S, budget_s, store.dropped,
    )  # fmt: skip
    with told("measuring") as tell:
        tell(tally.progress())
        for case, pass_no in todo:
            cap_s = tally.cap_s()
            if cap_s <= 0:
                break
            slowness = {}
            if yardstick is not None:
                waited = yardstick.wait(LONGEST_WAIT_S, lambda: next(ahead, False))
                slowness["slowness"] = round(waited, 3)
            row, repeating_s = _measure(case, pass_no, cap_s, seed, kept)
            store.append({**row, **slowness})
            tally.add(row, repeating_s)
            tell(tally.progress(_without_sizes(case.key)))
    return tally


def merge_passes(rows: Sequence[Row]) -> list[Row]:
    """One row per case as on the machine left alone; `rows` in the order measured.

    Every time is freed of what all cases shared while it was measured (`slowness_of`). Of a case's
    passes those within `ALIKE` of the least are alike and their geometric median is its `time_s`.
    Adds `passes`, the number of passes that succeeded, and `noise`, the absolute log ratio of the
    lowest two, None after one. A case that never succeeded keeps a row with its `error`.
    """
    slowness = slowness_of(rows)
    by_key: dict[str, list[Row]] = {}
    for row, slow in zip(rows, slowness, strict=True):
        freed = row if "error" in row else {**row, "time_s": row["time_s"] / math.exp(slow)}
        by_key.setdefault(row["key"], []).append(freed)
    merged = []
    for repeats in by_key.values():
        succeeded = [row for row in repeats if "error" not in row]
        timed = sorted(succeeded, key=lambda row: row["time_s"])
        if not timed:
            merged.append({**repeats[0], "passes": 0, "noise": None})
            continue
        log_s = np.log([row["time_s"] for row in timed])
        usual_s = math.exp(np.median(log_s[log_s <= log_s[0] + ALIKE]))
        noise = float(log_s[1] - log_s[0]) if len(timed) > 1 else None
        merged.append({**timed[0], "time_s": usual_s, "passes": len(timed), "noise": noise})
    return merged


def slowness_of(rows: Sequence[Row]) -> np.ndarray:
    """Log of how much slower the machine was at each row than when it was left alone [rows].

    With log time = case + stretch of `STRETCH_ROWS` rows in a row + noise, cases that were measured
    in several stretches tell the stretches apart; Tukey's median polish finds both. The quiet
    machine is the tenth percentile of the stretches. All zero for less than three stretches.
    """
    usable = np.array(["error" not in row and not row["unreliable"] for row in rows], bool)
    stretch = np.arange(len(rows)) // STRETCH_ROWS
    if len(rows) < 3 * STRETCH_ROWS:
        return np.zeros(len(rows))
    # what is left over belongs to the last one
    stretch = np.minimum(stretch, len(rows) // STRETCH_ROWS - 1)
    frame = pd.DataFrame({"case": [row["key"] for row in rows], "stretch": stretch})
    frame["log_s"] = [math.log(row["time_s"] or 1.0) for row in rows]
    told = frame[usable]
    told = told[told.groupby("case")["log_s"].transform("size") > 1]
    effect = pd.Series(0.0, index=range(stretch[-1] + 1))
    for _ in range(_POLISHING_TURNS):
        left = told["log_s"] - told["stretch"].map(effect)
        case = left.groupby(told["case"]).transform("median")
        effect = effect.add((left - case).groupby(told["stretch"]).median(), fill_value=0.0)
    return np.asarray(frame["stretch"].map(effect - effect.quantile(_QUIET)), np.float64)


def drift(rows: Sequence[Row]) -> list[float]:
    """Quantiles of log slowness in the quietest of `DRIFT_STRETCHES` stretches in a row."""
    stretches = slowness_of(rows)[STRETCH_ROWS - 1 :: STRETCH_ROWS]
    if len(stretches) < DRIFT_STRETCHES:
        return []
    least = np.lib.stride_tricks.sliding_window_view(stretches, DRIFT_STRETCHES).min(1)
    return np.quantile(least, np.linspace(0, 1, _DRIFT_QUANTILES)).tolist()


def _without_sizes(key: str) -> str:
    """`embedding bag update sgd` of `embedding_bag_update sgd 3977 216 432 spread 0`."""
    words = re.match(r"[A-Za-z_]+(?: [a-z]{3,})*", key)
    return words.group().replace("_", " ") if words else key


def _measure(
    case: Case, pass_no: int, cap_s: float, seed: int, kept: dict[str, Compiled]
) -> tuple[Row, float]:
    """The row of one case, timed or failed, and the seconds that its repeats took."""
    name = {"key": case.key, "pass_no": pass_no}
    # Seeded by name, so that a case has the same inputs whether or not the run was interrupted
    # before it.
    rng = np.random.default_rng([seed, pass_no, zlib.crc32(case.key.encode())])
    try:
        timing = time_case(case, Budget(cap_s=cap_s), rng, kept)
    except Exception as error:  # out of memory, an unsupported dtype: the others can be measured
        first_line = (str(error).splitlines() or [""])[0]
        why = f"{type(error).__name__}: {first_line}"[:300]
        return {**case.columns, **name, "time_s": None, "error": why}, 0.0
    # in tables flags are 0 and 1
    taken = {at: int(one) if isinstance(one, bool) else one for at, one in vars(timing).items()}
    del taken["described"]
    columns = timing.described or case.columns
    return {**taken, **columns, **name, "calls_ops": case.divisor}, timing.repeating_s
