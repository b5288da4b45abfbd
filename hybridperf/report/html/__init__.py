"""Pages: one HTML file that a browser opens from disk, with nothing to fetch.

`document` has the blocks of a page, `figures` and `tracks` draw with Bokeh, `page` makes the file
from the templates. Another result gets a page the same way:

    page = Page("title", [Section("Summary", [Facts([("time of a step", "12.3 ms", "")])])])
    write_page(page, "result.html")
"""

from hybridperf.report.html.of_prediction import prediction_page
from hybridperf.report.html.of_trace import trace_page
from hybridperf.report.html.page import render, write_page

__all__ = ["prediction_page", "render", "trace_page", "write_page"]
