"""How much of recorded GPU time finds a price on another GPU, and by what (`other_device.py`).

Nobody has recorded these steps on both GPUs, so this is a coverage, not an accuracy: what goes by
measurements of both devices, by their datasheets, by kernels' names alone, and what keeps its
seconds. Beside it how far the replay of each typical step is off.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from benchmarks.claims import harness
from benchmarks.claims.harness import Found, ResultLine
from hybridperf.io import InputError
from hybridperf.model import model_or_datasheet
from hybridperf.report import text
from hybridperf.traces.other_device import KEPT, PRICED_BY, other_device
from hybridperf.traces.readers.kineto import read_traces
from hybridperf.traces.replay import replay

QUICK = 1


@harness.claim("traces", ("priced",), by_data=True)
def run(data: Path | None, wanted: Sequence[str], quick: bool) -> Iterator[Found]:
    """Shares of the device's time by what prices them; `quick`: one trace."""
    del wanted
    given = harness.facts("traces.toml")
    folder = Path(data or "") / "traces"
    listed = [(folder / name, *rest) for name, *rest in given["traces"]]
    listed = [one for one in listed if one[0].exists()][: QUICK if quick else None]
    if not listed:
        raise InputError(f"expected recorded traces in {folder}, found none; give --data FOLDER")
    new, rows, lines = model_or_datasheet(given["onto"]), [], []
    for path, model, name in listed:
        step = replay(read_traces([path]))
        change = other_device(step, model_or_datasheet(model), new)
        total_s = sum(change.by.values())
        shares = {by: change.by[by] / total_s for by in PRICED_BY}
        off = abs(step.error).max()
        rows.append({"trace": name, "device": model, **shares, "replay_error": off})
        priced = 1 - shares[KEPT]
        measure = f"share of {text.seconds(total_s)} that is priced"
        lines.append(ResultLine(name, priced, len(step.rows), given["goal"], measure=measure))
    yield Found(f"onto {given['onto']}", {"priced": pd.DataFrame(rows)}, lines, "calls")
