"""Facts behind a result: device, system, fitted knobs, and where a fit comes from."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from hybridperf.model import PerfModel
from hybridperf.ops import GROUPS
from hybridperf.report.html import document as doc
from hybridperf.report.known import device_facts, flat, over_datasheet, system_facts, within_words

_MOST_FACTS = 80  # of a provenance


def model_facts(model: PerfModel) -> list[doc.Block]:
    """Tables of a model's device, system and measurements, and where those come from."""
    blocks: list[doc.Block] = [doc.pairs_table("device", device_facts(model.device))]
    facts = fact_rows(model.provenance)
    if model.groups:
        blocks.append(doc.Folded("Where the model comes from", [doc.pairs_table("model", facts)]))
        measured: list[doc.Block] = [_groups(model)]
        measured += [doc.Notes(over)] if (over := over_datasheet(model)) else []
        blocks.append(doc.Folded("What was measured, by group of ops", measured))
    else:
        what = ("what it is", "the datasheet roofline: nothing was measured")
        blocks.append(doc.pairs_table("model", [what, *facts]))
    if model.collectives is not None:
        adapted = model.collectives.adapted
        learned = "datasheet alone" if adapted is None else f"fitted to {adapted.rows:,} rows"
        facts = [("collectives", learned), *fact_rows(model.collectives.provenance)]
        blocks.append(doc.pairs_table("system", system_facts(model.collectives.system)))
        blocks.append(doc.Folded("Where the collectives come from", [doc.pairs_table("", facts)]))
    return blocks


def fact_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Nested facts as pairs of words; a long list is cut and the rest counted."""
    rows = [(name.replace("_", " "), said) for name, said in flat(facts).items()]
    left = len(rows) - _MOST_FACTS
    return [*rows[:_MOST_FACTS], *([("...", f"{left} more")] if left > 0 else [])]


def _groups(model: PerfModel) -> doc.Table:
    rows = [
        {
            "group": group,
            "rows": model.groups[group].rows,
            "floor_s": float(model.knobs.floor_s[at]),
            "peak_share": float(model.knobs.compute_efficiency[at]),
            "bandwidth_share": float(model.knobs.memory_efficiency[at]),
            "within": within_words(model.groups[group].half_width),
            "formats": ", ".join(model.groups[group].dtypes) or "-",
        }
        for at, group in enumerate(GROUPS)
        if group in model.groups
    ]
    columns = {
        "group": "group", "rows": "rows", "floor_s": "floor", "peak_share": "of peak",
        "bandwidth_share": "of bandwidth", "within": "90 % within", "formats": "number formats",
    }  # fmt: skip
    return doc.frame_table(pd.DataFrame(rows), columns)
