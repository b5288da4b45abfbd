"""Ranked deployments as a page: the best, the front with its uncertainty, all others."""

from collections.abc import Sequence

import pandas as pd

from hybridperf.report.html import document as doc
from hybridperf.report.html.figures import Axis, Series, plot
from hybridperf.report.plan import dollars, step_words
from hybridperf.report.serving import LEGEND, commands, layout_words, scheme_words

_LISTED = 100


def serving_page(
    found: pd.DataFrame, head: str, model: str, money: str, notes: Sequence[str]
) -> doc.Page:
    """The page of `deployments`."""
    best = next(found.head(1).itertuples())
    speed = f"{best.tokens_per_s_gpu_low:,.0f} to {best.tokens_per_s_gpu_high:,.0f}, nine of ten"
    facts = [
        ("tokens/s/GPU", f"{best.tokens_per_s_gpu:,.0f}", speed),
        ("TPOT", step_words(best.tpot_s), f"{best.tokens_per_s_user:,.0f} tokens/s/user"),
        ("TTFT", step_words(best.ttft_s), scheme_words(best)),
        (f"{money} of 1M tokens", dollars(best.usd_per_million), ""),
    ]
    lines = [f"{name}: {line}" for name, line in commands(best._asdict(), model).items()]
    start = doc.Section("To start it", [doc.Notes(lines)])
    table = found.head(_LISTED).copy()
    table["deployment"] = [layout_words(row) for row in table.itertuples()]
    table["weights"] = [scheme_words(row) for row in table.itertuples()]
    columns = {
        "deployment": "deployment", "weights": "weights", "sequences": "sequences",
        "chunk": "chunk", "ttft_s": "TTFT", "tpot_s": "TPOT", "tokens_per_s_gpu": "tokens/s/GPU",
        "memory_bytes": "memory", "usd_per_million": f"{money} of 1M tokens",
    }  # fmt: skip
    write = {"ttft_s": step_words, "tpot_s": step_words, "usd_per_million": dollars}
    caption = f"The best {len(table)} of {len(found):,}"
    listed = doc.frame_table(table, columns, write=write, caption=caption, words=2, best=0)
    sections = [
        doc.Section("The best deployment", [doc.Facts(facts)]), start,
        doc.Section("Throughput against speed", [_front(found), *map(doc.Text, LEGEND)]),
        doc.Section("Deployments", [listed]),
        doc.Section("Notes and assumptions", [doc.Notes(notes)]),
    ]  # fmt: skip
    return doc.Page(f"How to serve {model}", sections, f"{head}: {layout_words(best)}.")


def _front(found: pd.DataFrame) -> doc.Figure:
    front = found[found["front"]].sort_values("tokens_per_s_user")

    def series(name: str, some: pd.DataFrame, y: str, colour: int, line: bool = False) -> Series:
        rows = list(some.itertuples())
        return Series(
            name, some["tokens_per_s_user"].to_numpy(), some[y].to_numpy(), colour, line,
            lambda at: f"{layout_words(rows[at])}, {rows[at].sequences} sequences",
        )  # fmt: skip

    drawn = [
        series("deployments that fit", found, "tokens_per_s_gpu", doc.OTHER),
        series("front", front, "tokens_per_s_gpu", 1, line=True),
        series("front, low end", front, "tokens_per_s_gpu_low", 2, line=True),
        series("front, high end", front, "tokens_per_s_gpu_high", 3, line=True),
    ]
    x, y = Axis("tokens/s/user", log=True), Axis("tokens/s/GPU", log=True)
    return plot(drawn, x, y, "Output tokens a second of a GPU against those of a user.")
