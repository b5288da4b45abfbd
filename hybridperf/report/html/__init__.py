"""Pages: one HTML file that a browser opens from disk, with nothing to fetch.

`document` says what a page may hold (text, facts, tables, bars, intervals, plots, timelines),
`page` makes the file. What a prediction or the summary of a trace shows is in files of their own,
written in terms of `document` alone; another result gets a page the same way:

    page = Page("title", [Section("Summary", [Facts([("time of a step", "12.3 ms", "")]),
    Notes(["assumed: ..."])])]) write_page(page, "result.html")
"""

from hybridperf.report.html.cells import count_cell, rate_cell, share_cell, time_cell, time_words
from hybridperf.report.html.document import (
    Bar,
    Bars,
    Cell,
    Facts,
    Folded,
    Notes,
    Page,
    Plot,
    Range,
    Ranges,
    Section,
    Series,
    Table,
    Text,
    Timeline,
    Track,
    frame_table,
)
from hybridperf.report.html.of_model import model_facts
from hybridperf.report.html.of_prediction import prediction_page
from hybridperf.report.html.of_trace import trace_page
from hybridperf.report.html.page import render, write_page

__all__ = [
    "Bar", "Bars", "Cell", "Facts", "Folded", "Notes", "Page", "Plot", "Range", "Ranges", "Section",
    "Series", "Table", "Text", "Timeline", "Track", "count_cell", "frame_table", "model_facts",
    "prediction_page", "rate_cell", "render", "share_cell", "time_cell", "time_words", "trace_page",
    "write_page",
]  # fmt: skip
