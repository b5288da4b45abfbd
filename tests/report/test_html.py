"""Pages: what they hold, that nothing given to them gets out of its place, and that a real browser
opens them from disk without a complaint.
"""

import dataclasses
import json
import re

import numpy as np
import pandas as pd
import pytest
from support.headless import Browser, Tab, browser_or_skip
from support.made_traces import made_trace, two_ranks
from support.pages import parsed

from hybridperf.collectives.model import CollectiveModel
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.prediction import predict
from hybridperf.engine.workload import Workload
from hybridperf.hardware import load_device, load_system
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.model.calls import CollectiveCall, GivenSeconds
from hybridperf.ops import Elementwise, Gemm, OpCall
from hybridperf.report.html import prediction_page, render, trace_page, write_page
from hybridperf.report.html.document import (
    Cell,
    Column,
    Facts,
    Figure,
    Folded,
    Notes,
    Page,
    Section,
    Table,
    Text,
    frame_table,
)
from hybridperf.report.html.figures import (
    DARK,
    Axis,
    Interval,
    Series,
    bars,
    intervals,
    log_ticks,
    plot,
)
from hybridperf.report.html.tracks import timeline
from hybridperf.report.slices import Track, lanes, merge_all, merged
from hybridperf.report.text import percent, quantity, seconds
from hybridperf.traces.steps import common_steps
from hybridperf.traces.summary import summaries

HOSTILE = (
    "</script><script>alert('x')</script> <b onmouseover=\"alert(1)\">&amp; $$x$$ \u202e\x00"
    "\ud800 µ"
)


def figures(page: Page | list) -> list[Figure]:
    """Every figure of a page or of blocks."""
    blocks = [b for one in page.sections for b in one.blocks] if isinstance(page, Page) else page
    return [block for block in blocks if isinstance(block, Figure)]


def columns_of(figure: Figure, name: str) -> dict:
    """Columns of the data of those glyphs that have this column, put together."""
    sources = [one.data_source.data for one in figure.model.renderers]
    sources = [data for data in sources if name in data]
    return {k: [v for data in sources for v in data[k]] for k in sources[0]}


def items(page: Page) -> list[dict]:
    """The figures' JSON as it stands in the page."""
    found = [data for tag, data in parsed(page).text if tag == "script" and data.startswith("{")]
    return [json.loads(data) for data in found if "target_id" in data]


def track(*slices, name="stream", kind=0, marked=False) -> Track:
    """Slices (start, end) in seconds, each with a label of its own."""
    start, end = np.array(slices, float).reshape(-1, 2).T
    n = len(slices)
    return Track(name, start, end, np.arange(n), np.full(n, kind), np.full(n, marked))


def every_block(text: str, n: int = 3) -> Page:
    """One of each block, with this text wherever text may stand."""
    tracks = [track(*[(i, i + 0.5) for i in range(n)], name=text, marked=True) for _ in range(2)]
    table = Table([text, text], [[Cell(text), Cell(text, 1.5, 0.5, 2)]] * 2, text, best=1)
    x = np.array([1.0, 10.0, 100.0])
    points = Series(text, x, x, words=lambda at: text)
    drawn = [
        bars([(text, [1.0, 2.0], text)], [(text, 0), (text, 1)], text),
        intervals([Interval(text, 2.0, 1.0, 3.0), Interval(text, 2.5)], text),
        plot([points, Series(text, x, x, 7, line=True)], Axis(text, log=True), Axis(text), text),
        *timeline(tracks, [text] * n, [(text, 0), (text, 3)], text),
    ]
    blocks = [Text(text), Notes([text]), Notes([], text), Facts([(text, text, text)]), table]
    folded = Folded(text, [Text(text)])
    return Page(text, [Section(text, blocks), Section(text, [*drawn, folded])], text, [text])


# what stands in a page
# --------------------------------------------------------------------------------------------------


def test_text_from_anywhere_stays_text():
    page, plain = parsed(every_block(HOSTILE)), parsed(every_block("words"))
    assert [tag for tag, _ in page.found] == [tag for tag, _ in plain.found]
    assert [sorted(attrs) for _, attrs in page.found] == [sorted(attrs) for _, attrs in plain.found]
    assert not any(name.startswith("on") for _, attrs in page.found for name in attrs)
    assert "alert('x')" in page.all_text()
    text = render(every_block(HOSTILE))
    assert text.count("</script>") == render(every_block("words")).count("</script>")
    assert not set(text.replace(bokeh_script(text), "")) & {"\x00", "\ud800", "\u202e"}
    data = json.dumps(items(every_block(HOSTILE)))
    assert "</script>" in data
    assert "$$" not in data  # Bokeh would read it as TeX
    text.encode()


def bokeh_script(text: str) -> str:
    """The library as it stands in a page, which is not ours to check."""
    return max(re.findall(r"<script>(.*?)</script>", text, re.S), key=len)


def test_nothing_in_a_page_is_fetched():
    page, text = parsed(every_block("words")), render(every_block("words"))
    names = ("src", "href", "srcset", "data", "action", "poster")
    links = [attrs[name] for _, attrs in page.found for name in names if name in attrs]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links), links
    assert not re.search(r"url\(|@import|https?://", text.replace(bokeh_script(text), ""))
    metas = page.tags("meta")
    (policy,) = [attrs["content"] for attrs in metas if "Content-Security-Policy" in attrs.values()]
    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy
    assert "unsafe-eval" not in policy
    assert any(attrs.get("content") == "hybridperf/page 2" for attrs in metas)


def test_a_page_without_figures_is_small():
    assert len(render(Page("t", [Section("s", [Text("words")])]))) < 20_000


def test_the_footer_has_the_command_line(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/bin/hybridperf", "plan", "--html", "a page.html"])
    assert "hybridperf plan --html 'a page.html'" in parsed(Page("t", [])).all_text()


def test_a_table_counts_what_it_leaves_out_and_sorts_by_numbers_not_words():
    rows = [[Cell(f"op {i}"), Cell(seconds(i * 1e-3), i * 1e-3)] for i in range(793)]
    page = parsed(Page("t", [Section("s", [Table(["op", "time"], rows)])]))
    assert len(page.tags("tr")) == 501
    assert "... 293 more rows are not on this page" in page.all_text()
    assert float(page.tags("td")[7]["data-v"]) == 0.003


def test_a_name_as_long_as_a_paragraph_is_folded():
    name = "void at::native::kernel<" + "int, " * 100 + ">"
    page = parsed(Page("t", [Section("s", [Table(["kernel", "n"], [[Cell(name), Cell("1")]])])]))
    assert len(page.tags("details")) == 1
    assert name in page.all_text()


def test_a_frame_becomes_a_table():
    frame = pd.DataFrame(
        {"op": ["a", "b"], "s": [1e-3, np.nan], "share": [0.25, 0.75], "hue": [4, 2]}
    )
    columns = [Column("op", "Op"), Column("s", "time", seconds)]
    made = frame_table(frame, [*columns, Column("share", "share", percent, "hue")])
    assert made.headers == ["Op", "time", "share"]
    assert made.rows == [
        [Cell("a"), Cell("1 ms", 1e-3), Cell("25.0 %", 0.25, 0.25, 4)],
        [Cell("b"), Cell("-"), Cell("75.0 %", 0.75, 0.75, 2)],
    ]


# figures
# --------------------------------------------------------------------------------------------------


def test_bars_begin_where_the_part_before_ends():
    rows = [("a", [1.0, 0.0], "1"), ("b", [1.0, 3.0], "4"), ("c", [float("nan"), 2.0], "2")]
    drawn = bars(rows, [("x", 0), ("y", 1)], "caption")
    data = columns_of(drawn, "left")
    assert data["left"] == [0, 0, 0, 1, 1, 0]
    assert data["right"] == [1, 1, 0, 1, 4, 2]
    assert "b: y 3 s" in data["words"]


def test_intervals_begin_at_zero_and_show_their_values():
    drawn = intervals([Interval("r", 2e-3, 1e-3, 3e-3), Interval("other", 4e-3)], "")
    assert drawn.model.x_range.start == 0
    assert drawn.model.xaxis.axis_label == "ms"
    data = columns_of(drawn, "left")
    assert (data["left"], data["right"]) == ([1.0], [3.0])
    # on pointing at a band, and at any value
    band, marks, *_ = (list(one.data_source.data.get("words", [])) for one in drawn.model.renderers)
    assert band == ["r: 2 ms (90 %: 1 ms to 3 ms)"]
    assert marks == [*band, "other: 4 ms"]


def test_a_plot_leaves_out_what_has_no_place_and_draws_a_spot_once():
    many = Series("many", np.full(5000, 3.0), np.full(5000, 2.0), words=lambda at: f"no. {at}")
    few = Series("few", np.array([1.0, 0.0, np.nan, 4.0]), np.array([1.0, 1.0, 1.0, -2.0]))
    drawn = plot([many, few], Axis("x", log=True), Axis("y", log=True), "c")
    assert columns_of(drawn, "words")["words"] == ["no. 0", "0"]
    assert "3 points without a place on these axes are left out" in drawn.caption
    empty = plot([Series("none", np.zeros(0), np.zeros(0))], Axis("x", log=True), Axis("y"), "")
    assert not empty.model.renderers


@pytest.mark.parametrize(("low", "high"), [(1e-3, 1e3), (2.0, 7.0), (3.3, 3.4), (0.5, 1.5)])
def test_log_ticks_are_few_and_around_the_values(low, high):
    ticks = log_ticks(np.array([low, high]))
    assert len(ticks) <= 15
    assert ticks[0] <= low
    assert ticks == sorted(ticks)


# timelines
# --------------------------------------------------------------------------------------------------


def slices_of(blocks: Page | list) -> dict:
    """Columns of the slices of the timeline, which is the last figure."""
    return columns_of(figures(blocks)[-1], "took")


def test_a_small_timeline_is_whole():
    slices = [(0.5, 1.0), (1.0, 1.0 + 2e-6), (1.5, 2.5)]
    data = slices_of(timeline([track(*slices)], ["a", "b", "c"], [("k", 0)]))
    found = np.array([data["left"], data["right"]]).T
    np.testing.assert_allclose(found, np.array(slices) - 0.5)  # time begins with the first slice
    assert data["words"] == ["a", "b", "c"]
    assert data["took"] == ["500 ms", "2 µs", "1 s"]


def test_merging_keeps_seconds_counts_marks_and_what_is_long():
    rng = np.random.default_rng(0)
    length = np.where(rng.random(5000) < 0.01, 1e-2, 1e-6) * rng.uniform(0.5, 1, 5000)
    start = np.cumsum(np.append(0, length[:-1] + rng.exponential(1e-6, 4999)))
    one = Track(
        "t",
        start,
        start + length,
        np.arange(5000) % 7,
        np.arange(5000) % 3,
        rng.random(5000) < 0.001,
    )
    for resolution_s in (0.0, 1e-6, 1e-5, 1e-4, 1.0):
        found = merged(one, resolution_s)
        assert found.members.sum() == 5000
        assert found.busy_s.sum() == pytest.approx(length.sum())
        assert (found.start_s[1:] >= found.end_s[:-1] - 1e-12).all()
        assert found.marked.sum() <= one.marked.sum()
        assert one.marked.any() == found.marked.any()
        whole = found.members == 1
        assert np.isin(start[length >= resolution_s], found.start_s[whole]).all()
        assert (found.end_s[~whole] - found.start_s[~whole] <= 2 * resolution_s).all()
    assert len(merged(one, 0.0).members) == 5000
    assert len(merged(one, 1e-4).members) < 500


def test_the_kind_of_merged_slices_is_the_one_with_the_most_seconds():
    one = Track(
        "t",
        np.array([0, 1, 2.0]),
        np.array([0.1, 1.1, 2.9]),
        np.array([4, 4, 4]),
        np.array([0, 0, 1]),
        np.zeros(3, bool),
    )
    found = merged(one, 10.0)
    assert (found.kind.tolist(), found.label.tolist(), found.members.tolist()) == ([1], [4], [3])
    assert merged(dataclasses.replace(one, label=np.array([4, 5, 4])), 10.0).label.tolist() == [-1]


def test_a_large_timeline_stays_small_and_tells_what_it_merged():
    rng = np.random.default_rng(1)
    start = np.sort(rng.uniform(0, 1, (40, 10_000)), axis=1)
    end = np.minimum(start + 1e-6, np.append(start[:, 1:], np.ones((40, 1)), axis=1))
    tracks = [
        Track(
            f"rank {i}",
            start[i],
            end[i],
            rng.integers(0, 50, 10_000),
            rng.integers(0, 4, 10_000),
            np.zeros(10_000, bool),
        )
        for i in range(40)
    ]
    labels, kinds = [f"op {i}" for i in range(50)], [("k", at) for at in range(4)]
    blocks = timeline(tracks, labels, kinds, "More is in the file.", most_tracks=25)
    page = Page("t", [Section("s", blocks)])
    text = render(page)
    assert len(text) - len(bokeh_script(text)) < 1_900_000
    words = parsed(page).all_text()
    assert "The first 25 of 40 tracks are shown" in words
    assert re.search(r"slices shorter than .* are merged", words)
    assert "More is in the file." in words
    assert any(re.match(r"\d+ slices, busy for", took) for took in slices_of(blocks)["took"])
    done, resolution_s = merge_all(tracks[:25], 1.0, 20_000)
    assert sum(len(one.start_s) for one in done) <= 20_000
    finer = sum(len(merged(one, resolution_s / 2).start_s) for one in tracks[:25])
    assert finer > 20_000


def test_slices_that_overlap_get_rows_of_their_own():
    one = track((0, 10), (2, 3), (4, 5), (4.5, 12), (10, 11))
    found = lanes(one)
    assert [lane.name for lane in found] == ["stream", "stream (2)", "stream (3)"]
    assert sorted(np.concatenate([lane.label for lane in found]).tolist()) == [0, 1, 2, 3, 4]
    for lane in found:
        assert (lane.start_s[1:] >= lane.end_s[:-1]).all()
    (same,) = lanes(track((0, 1.0000005), (1, 2)))  # a clock of whole microseconds
    assert same.end_s.tolist() == [1, 2]


# predictions
# --------------------------------------------------------------------------------------------------


def a_step(name="a made-up step", ranks=2, layers=3) -> Workload:
    """Products and sums on each rank, gradients exchanged beside the next product, a host that
    launches.
    """
    builder = GraphBuilder()
    gradients: dict[int, int] = {}
    for layer in range(layers):
        for rank in range(ranks):
            builder.op(1, label=f"product {layer}", rank=rank, launch_row=4)
            last = builder.op(
                2,
                label="sum",
                rank=rank,
                after=[gradients[rank]] if gradients else [],
                launch_row=4,
            )
        gradients = builder.collective(3, label="gradients", ranks=range(ranks), after=[last])
    calls = (
        OpCall(Gemm("bf16", 4096.0, 4096.0, 4096.0)), OpCall(Elementwise("fp32", 1e4, 1e4)),
        CollectiveCall("all_reduce", 1e8, 8), GivenSeconds(5e-6),
    )  # fmt: skip
    return Workload(
        name,
        builder.build(),
        calls,
        flops=layers * ranks * 2 * 4096.0**3,
        notes=("gradients in fp32",),
    )


@pytest.fixture(scope="module")
def predicted():
    model = PerfModel.datasheet(load_device("h100_sxm")).with_collectives(
        CollectiveModel.datasheet(load_system("dgx_h100"))
    )
    return predict(model, a_step())


def test_a_prediction_shows_its_own_figures(predicted):
    page = parsed(prediction_page(predicted))
    words = page.all_text()
    assert seconds(predicted.time_s) in words
    assert quantity(predicted.workload.flops / predicted.time_s, "FLOP/s") in words
    for note in predicted.notes:
        assert note in words
    for row in predicted.breakdown().itertuples():
        assert {row.group, seconds(row.seconds), seconds(row.roofline_s), percent(row.share)} <= {
            data for _, data in page.text
        }
    assert predicted.model.device.source in words
    assert "no interval" in words  # a datasheet has none
    assert "bf16" in words
    data = slices_of(prediction_page(predicted))
    lines = [f"rank {rank} {line}" for rank in (0, 1) for line in ("host", "compute", "comm")]
    assert list(dict.fromkeys(data["track"])) == lines
    ends_s = np.array(data["right"]) * 1e-3
    assert figures(prediction_page(predicted))[-1].model.xaxis.axis_label == "ms"
    first_s = predicted.timeline.launch_start_s.min()
    assert max(ends_s) == pytest.approx(predicted.time_s - first_s, rel=1e-6)


def test_the_critical_path_of_the_breakdown_adds_up_to_the_step(predicted):
    (breakdown,) = [
        block for block in prediction_page(predicted).sections[1].blocks if isinstance(block, Table)
    ]
    column = list(breakdown.headers).index("on the critical path")
    assert sum(row[column].value for row in breakdown.rows) == pytest.approx(
        predicted.time_s, rel=1e-6
    )
    assert breakdown.rows[-1][0].text == "host: launches"


def test_points_of_the_roofline_lie_where_the_formula_puts_them(predicted):
    _, drawn, _ = figures(prediction_page(predicted))
    assert drawn.model.yaxis.axis_label == "rate, TFLOP/s"
    points = [one for one in drawn.model.renderers if "size" in one.data_source.data]
    gemm = next(
        one.data_source.data for one in points if "gemm" in one.data_source.data["words"][0]
    )
    n = 4096.0
    assert gemm["x"][0] == pytest.approx(2 * n**3 / (3 * n * n * 2))
    assert gemm["y"][0] == pytest.approx(2 * n**3 / predicted.op_s[0] / 1e12)
    lines = [one.data_source.data for one in drawn.model.renderers if one not in points]
    roof = max(max(line["y"]) for line in lines)
    assert all(max(one.data_source.data["y"]) <= roof * (1 + 1e-9) for one in points)


def test_an_interval_is_shown_where_one_is_known(predicted):
    known = dataclasses.replace(
        predicted, low_s=0.8 * predicted.time_s, high_s=1.3 * predicted.time_s
    )
    words = parsed(prediction_page(known)).all_text()
    assert f"90 %: {seconds(known.low_s)} to {seconds(known.high_s)}" in words


def test_a_step_without_arithmetic_has_no_roofline():
    builder = GraphBuilder()
    builder.op(1, label="read")
    step = Workload("waiting", builder.build(), (GivenSeconds(1e-3),))
    page = parsed(prediction_page(predict(PerfModel.datasheet(load_device("h100_sxm")), step)))
    assert "there is no roofline to draw" in page.all_text()


# traces
# --------------------------------------------------------------------------------------------------


def page_of(traces) -> Page:
    chosen = common_steps(traces)
    return trace_page(
        traces, chosen, summaries(traces, [step.steps for step in chosen]), ["a note", "a note"]
    )


def test_a_trace_shows_its_summary_and_its_streams():
    traces = two_ranks()
    page = parsed(page_of(traces))
    words = page.all_text()
    (found,) = summaries(traces, [step.steps for step in common_steps(traces)])
    for row in found.rows:
        assert seconds(row.gpu_span_s) in words
        assert seconds(row.exposed_comm_s) in words
    assert words.count("a note") == 1
    assert "for rank 1 at" in words
    tracks = set(slices_of(page_of(traces))["track"])
    assert {"rank 0 stream 7", "rank 0 stream 20", "rank 1 stream 7", "rank 0 thread 0"} <= tracks


def test_of_nested_ops_the_outermost_are_drawn():
    host = [
        ("mark", "ProfilerStep#1", 0, 100),
        ("op", "outer", 0, 50),
        ("mark", "in between", 5, 40),
        ("op", "inner", 10, 20),
        ("call", "k", 12, 14),
    ]
    traces = [made_trace([*host, ("op", "next", 60, 70)], [("gemm", 7, 20, 90, "k")])]
    data = slices_of(page_of(traces))
    assert data["track"] == ["thread 0", "thread 0", "stream 7"]
    assert data["words"][:2] == ["outer", "next"]


def test_parts_of_a_steps_bar_add_up_to_its_span():
    traces = two_ranks()
    drawn, *_ = figures(page_of(traces))
    (found,) = summaries(traces, [step.steps for step in common_steps(traces)])
    data, scale = columns_of(drawn, "left"), {"ms": 1e-3, "µs": 1e-6}[drawn.model.xaxis.axis_label]
    for at, row in enumerate(found.rows):
        ends = [end for end, y in zip(data["right"], data["y"], strict=True) if y == at]
        assert max(ends) * scale == pytest.approx(row.gpu_span_s)


# files and commands
# --------------------------------------------------------------------------------------------------


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "deep" / "page.html"
    write_page(Page("first", []), file)
    before = file.read_bytes()

    with pytest.raises(TypeError):
        write_page(Page("t", None), file)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["page.html"]
    with pytest.raises(InputError, match="cannot write"):
        write_page(Page("t", []), file / "below.html")


def test_the_command_writes_a_page_of_a_prediction(run, tmp_path, monkeypatch):
    (tmp_path / "stepped.py").write_text(
        "import jax.numpy as jnp\ndef step():\n    return lambda a: (a @ a).sum(), (jnp.ones((64,"
        " 64)),)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = load_device("h100_sxm").model_copy(update={"kind": "cpu"})
    PerfModel.datasheet(spec).save(tmp_path / "model")
    status, out, err = run(
        "predict",
        "--jax",
        "stepped:step",
        "--model",
        tmp_path / "model",
        "--html",
        tmp_path / "p.html",
    )
    assert status == 0, err
    assert f"page in {tmp_path / 'p.html'}" in out
    assert "stepped:step" in (tmp_path / "p.html").read_text()


def test_the_command_writes_a_page_of_a_trace(run, data_dir, tmp_path):
    file = data_dir / "traces" / "hta_ns_resolution_V100_1gpu.json.gz"
    status, out, err = run("trace", "summary", file, "--html", tmp_path / "t.html")
    assert status == 0, err
    assert "page in" in out
    text = (tmp_path / "t.html").read_text()
    assert "ProfilerStep#101" in text
    assert len(text) < 4_000_000


# in a browser
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    found: Browser = browser_or_skip()
    yield found
    found.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Open a page from a file, offline; at the end it must have been silent and have asked for
    nothing but itself.
    """
    tabs: list[tuple[Tab, str]] = []

    def finished() -> None:
        for tab, address in tabs:
            assert tab.complaints() == []
            assert {url for url in tab.requests() if not url.startswith("data:")} == {address}
            tab.close()
        tabs.clear()

    def opened(page: Page, **window) -> Tab:
        finished()
        file = tmp_path / "page.html"
        write_page(page, file)
        tabs.append((Tab(browser, file, **window), file.resolve().as_uri()))
        return tabs[0][0]

    yield opened
    finished()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_open_without_a_complaint_and_fit_their_window(opened, predicted, dark, width):
    for page in (prediction_page(predicted), page_of(two_ranks()), every_block(HOSTILE)):
        tab = opened(page, width=width, dark=dark)
        assert tab.value("document.documentElement.scrollWidth") <= width
        if width == 1280 and page.title != HOSTILE:  # no column is cut
            open_all = "document.querySelectorAll('details').forEach(d => d.open = true)"
            tab.value(f"{open_all} || 0")
            tab.settle()
            wide = "[...document.querySelectorAll('.wide')]"
            cut = f"{wide}.filter(w => w.scrollWidth > w.clientWidth).map(w => w.innerText)"
            assert tab.value(cut) == []
        background = tab.value("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(20, 24, 29)" if dark else "rgb(253, 253, 253)")
        count = len(figures(page))
        assert tab.value("document.querySelectorAll('.drawn > div').length") == count
        hue = (
            f"Bokeh.documents.every(d => {BACKGROUND} === '{DARK['page'] if dark else '#fdfdfd'}')"
        )
        assert tab.value(hue)


BACKGROUND = "d.roots()[0].background_fill_color"


def test_the_theme_is_followed(opened, predicted):
    tab = opened(prediction_page(predicted))
    tab.dark(True)
    tab.settle()
    drawn = "Bokeh.documents.at(-1).roots()[0].background_fill_color"
    assert tab.value(drawn) == DARK["page"]
    assert tab.value("document.querySelectorAll('.drawn > div').length") == 3


def test_headers_sort_tables(opened):
    rows = [
        [Cell(name), Cell(words, value)]
        for name, words, value in (("b", "9 ms", 9e-3), ("a", "1 s", 1.0), ("c", "-", None))
    ]
    tab = opened(Page("t", [Section("s", [Table(["op", "time"], rows)])]))
    column = (
        "[...document.querySelectorAll('tbody tr')].map(row => row.cells[0].textContent).join('')"
    )
    assert tab.value(column) == "bac"
    for clicked, expected in ((1, "abc"), (1, "bac"), (0, "cba"), (0, "abc")):
        tab.value(f"document.querySelectorAll('thead button')[{clicked}].click()")
        assert tab.value(column) == expected


def test_pointing_at_a_slice_tells_its_name_and_seconds(opened, predicted):
    tab = opened(prediction_page(predicted))
    view = "Bokeh.index.get_by_id(Bokeh.documents.at(-1).roots()[0].id)"
    tab.value("[...document.querySelectorAll('.drawn')].at(-1).scrollIntoView({block: 'center'})")
    x, y = tab.value(
        "(v => { const b = v.el.getBoundingClientRect(), f = v.frame, end = v.model.x_range.end;"
        " return [b.left + f.x_scale.compute(0.25 * end), b.top + f.y_scale.compute(1)]; })"
        f"({view})"
    )
    tab.mouse("mouseMoved", x, y)
    tip = (
        "(function find(root) { for (const one of root.querySelectorAll('*')) { const inner ="
        " one.className === 'bk-tooltip-content' ? one.textContent : one.shadowRoot &&"
        " find(one.shadowRoot); if (inner) return inner; } return ''; })(document)"
    )
    assert re.search(r"(product|sum).*: .*s, from .* ms \(rank 0 compute", tab.value(tip))


def test_only_the_pages_own_script_runs(opened):
    """Should text ever get out of its place, the page's policy still lets nothing of it run."""
    tab = opened(every_block("words"))
    tab.value("document.body.insertAdjacentHTML('beforeend', '<p>added</p>')")
    tab.value(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.broken = 1';"
        " document.body.append(s); })()"
    )
    assert tab.value("window.broken === undefined")
    blocked = tab.complaints()
    assert blocked
    assert all("Content Security Policy" in text for text in blocked)
    tab._browser.events.clear()
    tab.call("Page.reload")
    tab._browser.wait_for("Page.loadEventFired")
