"""Pages: what they hold, that nothing given to them gets out of its place, and that a real browser
opens them from disk without a word.
"""

import dataclasses
import json
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from support.headless import Browser, Tab, browser_or_skip
from support.made_traces import made_trace
from test_perfetto import two_ranks

from hybridperf.collectives.model import CollectiveModel
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.prediction import predict
from hybridperf.engine.workload import CollectiveCall, GivenSeconds, Workload
from hybridperf.hardware import load_device, load_system
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.ops import Elementwise, Gemm, OpCall
from hybridperf.report.html import (
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
    prediction_page,
    render,
    trace_page,
    write_page,
)
from hybridperf.report.html.ticks import limits, linear_ticks, log_ticks
from hybridperf.report.html.tracks import lanes, merge_all, merged
from hybridperf.report.text import percent, quantity, seconds
from hybridperf.traces.steps import common_steps
from hybridperf.traces.summary import summaries

HOSTILE = (
    "</script><script>alert('x')</script> <b onmouseover=\"alert(1)\">&amp; \u202e\x00\ud800 µ"
)
_VOID = {"meta", "link", "br", "input"}


class Elements(HTMLParser):
    """Every element with its attributes and text; broken nesting is an error."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[tuple[str, str]] = []  # innermost element, text

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> ends nothing"
        assert self.open[-1] == tag, f"</{tag}> within {self.open[-4:]}"
        self.open.pop()

    def handle_data(self, data):
        self.text.append((self.open[-1] if self.open else "", data))

    def all_text(self) -> str:
        """As a reader sees it: a space that does not break is a space."""
        return " ".join(data for tag, data in self.text if tag not in ("script", "style")).replace(
            "\u00a0", " "
        )

    def tags(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for tag, attrs in self.found if tag == name]


def parsed(page: Page) -> Elements:
    text = render(page)
    elements = Elements()
    elements.feed(text)
    elements.close()
    assert not elements.open
    return elements


def packed(elements: Elements) -> list[dict]:
    """The numbers of every timeline."""
    return [
        json.loads(data) for tag, data in elements.text if tag == "script" and data.startswith("{")
    ]


def track(*slices, name="stream", kind=0, marked=False) -> Track:
    """Slices (start, end) in seconds, each with a label of its own."""
    start, end = np.array(slices, float).reshape(-1, 2).T
    n = len(slices)
    return Track(name, start, end, np.arange(n), np.full(n, kind), np.full(n, marked))


def every_block(text: str, n: int = 3) -> Page:
    """One of each block, with this text wherever text may stand."""
    timeline = Timeline(
        [
            dataclasses.replace(
                track(*[(i, i + 0.5) for i in range(n)], marked=True), name=f"{i} {text}"
            )
            for i in range(2)
        ],
        [text] * n,
        [(text, 0), (text, 3)],
        marked=text,
        more=text,
    )
    return Page(
        text,
        [
            Section(
                text,
                [
                    Text(text),
                    Notes([text, text]),
                    Notes([], text),
                    Facts([(text, text, text), (text, text, "")]),
                ],
            ),
            Section(
                text,
                [
                    Table(
                        [text, text],
                        [[text, Cell(text, 1.5, 0.5, 2)], [text, Cell(text, -1.0)]],
                        text,
                        best=1,
                    )
                ],
            ),
            Section(
                text,
                [
                    Bars(
                        [Bar(text, [(1.0, 0, text), (2.0, 1, text)], text)],
                        [(text, 0), (text, 1)],
                        text,
                    )
                ],
            ),
            Section(
                text,
                [
                    Ranges(
                        [Range(text, 2.0, text, 1.0, 3.0, [(text, 2.5, text)])],
                        lambda at: f"{at:g}{text}",
                        text,
                    )
                ],
            ),
            Section(
                text,
                [
                    Plot(
                        [
                            Series(text, [1, 10, 100], [1, 2, 3], labels=[text] * 3, mark=True),
                            Series(
                                text,
                                [1, 100],
                                [1, 3],
                                line=True,
                                dashed=True,
                                colour=7,
                                at_end=True,
                            ),
                        ],
                        text,
                        text,
                        lambda at: f"{at:g}{text}",
                        lambda at: f"{at:g}{text}",
                        x_log=True,
                        caption=text,
                    )
                ],
            ),
            Section(text, [timeline, Folded(text, [Text(text)])]),
        ],
        text,
        [text],
    )


# what stands in a page
# --------------------------------------------------------------------------------------------------


def test_text_from_anywhere_stays_text():
    page = parsed(every_block(HOSTILE))
    plain = parsed(every_block("words"))
    assert [tag for tag, _ in page.found] == [tag for tag, _ in plain.found]
    assert [sorted(attrs) for _, attrs in page.found] == [sorted(attrs) for _, attrs in plain.found]
    assert not any(name.startswith("on") for _, attrs in page.found for name in attrs)
    assert "alert('x')" in page.all_text()
    text = render(every_block(HOSTILE))
    assert text.count("</script>") == plain_scripts(render(every_block("words")))
    assert not set(text) & {"\x00", "\ud800", "\u202e"}
    (data,) = packed(page)
    assert "</script>" in data["labels"][0]
    text.encode()


def plain_scripts(text: str) -> int:
    return text.count("</script>")


def test_nothing_in_a_page_is_fetched():
    page = parsed(every_block("words"))
    links = [
        attrs[name]
        for _, attrs in page.found
        for name in ("src", "href", "srcset", "data", "action", "poster")
        if name in attrs
    ]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links), links
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org)", render(every_block("words")))
    (policy,) = [
        attrs["content"]
        for attrs in page.tags("meta")
        if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy
    assert any(
        attrs.get("name") == "schema" and attrs["content"] == "hybridperf/page 1"
        for attrs in page.tags("meta")
    )


def test_a_table_says_what_it_leaves_out_and_sorts_by_numbers_not_words():
    rows = [[f"op {i}", Cell(seconds(i * 1e-3), i * 1e-3)] for i in range(300)]
    page = parsed(Page("t", [Section("s", [Table(["op", "time"], rows, most=7)])]))
    assert not page.tags("details")
    assert len(page.tags("tr")) == 8
    assert "... 293 more rows are not on this page" in page.all_text()
    assert float(page.tags("td")[3]["data-v"]) == 0.003


def test_a_name_as_long_as_a_paragraph_is_folded():
    name = "void at::native::kernel<" + "int, " * 100 + ">"
    page = parsed(Page("t", [Section("s", [Table(["kernel", "n"], [[name, "1"]])])]))
    assert len(page.tags("details")) == 1
    assert name in page.all_text()


def test_a_frame_becomes_a_table():
    frame = pd.DataFrame(
        {"op": ["a", "b"], "s": [1e-3, np.nan], "share": [0.25, 0.75], "unused": [1, 2]}
    )
    made = frame_table(
        frame,
        {"op": ("Op", str), "s": ("time", seconds), "share": ("share", percent)},
        bars={"share": 4},
    )
    assert made.headers == ["Op", "time", "share"]
    assert made.rows == [
        [Cell("a"), Cell("1 ms", 1e-3), Cell("25.0 %", 0.25, 0.25, 4)],
        [Cell("b"), Cell("-"), Cell("75.0 %", 0.75, 0.75, 4)],
    ]  # fmt: skip


def test_bars_have_one_scale_and_intervals_one_axis():
    bars = Bars(
        [
            Bar("a", [(1.0, 0, "1")], "1"),
            Bar("b", [(1.0, 0, "1"), (3.0, 1, "3"), (float("nan"), 1, "-")], "4"),
        ],
        [("x", 0), ("y", 1)],
    )
    ranges = Ranges([Range("r", 2.0, "2", 1.0, 3.0, [("other", 4.0, "4")])], str)
    page = parsed(Page("t", [Section("s", [bars, ranges])]))
    widths = [
        attrs["style"]
        for attrs in page.tags("span")
        if (attrs.get("class") or "").startswith("k") and "width" in attrs.get("style", "")
    ]
    assert widths == ["width:25%", "width:25%", "width:75%"]
    (interval,) = [
        attrs["style"] for attrs in page.tags("span") if attrs.get("class") == "interval"
    ]
    left, width = (float(part.split(":")[1].rstrip("%")) for part in interval.split(";"))
    assert width == pytest.approx(2 * left, abs=0.02)


def test_a_plot_leaves_out_what_has_no_place_and_draws_a_spot_once():
    many = Series("many", np.full(5000, 3.0), np.full(5000, 2.0))
    few = Series("few", [1.0, 0.0, np.nan, 4.0], [1.0, 1.0, 1.0, -2.0])
    page = parsed(
        Page("t", [Section("s", [Plot([many, few], "x", "y", str, str, x_log=True, y_log=True)])])
    )
    assert len(page.tags("path")) == 2 + 2  # one spot each, and the legend
    assert "3 points without a place on these axes are left out" in page.all_text()
    empty = parsed(
        Page("t", [Section("s", [Plot([Series("none", [], [])], "x", "y", str, str, x_log=True)])])
    )
    assert len(empty.tags("svg")) == 1


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.0, 1.0), (0.0, 7.3e-6), (-3.0, 12.0), (99.0, 101.0), (0.0, 8e14), (5.0, 5.0)],
)
def test_linear_ticks_are_few_round_and_inside(low, high):
    ticks = linear_ticks(low, high)
    assert 1 <= len(ticks) <= 8
    span = (high - low) or 1.0
    assert all(low - 1e-9 * span <= at <= high + 1e-9 * span for at in ticks)


@pytest.mark.parametrize(
    ("low", "high"), [(1e-3, 1e3), (1e9, 4e15), (2.0, 7.0), (3.3, 3.4), (1e-30, 1e30), (0.5, 1.5)]
)
def test_log_ticks_are_few_and_inside(low, high):
    ticks = log_ticks(low, high)
    assert 1 <= len(ticks) <= 9
    assert ticks == [low] or all(low * (1 - 1e-9) <= at <= high * (1 + 1e-9) for at in ticks)


def test_limits_hold_all_values():
    for log in (False, True):
        for values in ([1.0, 5.0], [3.0], [1e-9, 1e9], []):
            low, high = limits(np.array(values), log)
            assert low < high
            assert all(low <= value <= high for value in values)


# timelines
# --------------------------------------------------------------------------------------------------


def unpacked(data: dict) -> list[list[tuple[float, float]]]:
    """(start, end) of every slice in seconds, as the page's script reads them."""
    found = []
    for one in data["tracks"]:
        at, slices = 0, []
        for gap, length in zip(one["gap"], one["length"], strict=True):
            slices.append(((at + gap) * data["tick"], (at + gap + length) * data["tick"]))
            at += gap + length
        found.append(slices)
    return found


def test_a_small_timeline_is_whole():
    slices = [(0.5, 1.0), (1.0, 1.0 + 1e-6), (1.5, 2.5)]
    (data,) = packed(
        parsed(Page("t", [Section("s", [Timeline([track(*slices)], ["a", "b", "c"], [("k", 0)])])]))
    )
    (found,) = unpacked(data)
    np.testing.assert_allclose(
        found, np.array(slices) - 0.5, atol=3e-9
    )  # a page's clock begins with the first slice
    assert data["tracks"][0]["several"] == []
    assert [data["labels"][at] for at in data["tracks"][0]["label"]] == ["a", "b", "c"]


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


def test_a_large_timeline_stays_small_and_says_so():
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
    block = Timeline(
        tracks,
        [f"op {i}" for i in range(50)],
        [("k", at) for at in range(4)],
        most_tracks=25,
        more="More is in the file.",
    )
    page = Page("t", [Section("s", [block])])
    text = render(page)
    assert len(text) < 1_500_000
    said = parsed(page).all_text()
    assert "The first 25 of 40 tracks are shown" in said
    assert re.search(r"slices shorter than .* are merged", said)
    assert "More is in the file." in said
    done, resolution_s = merge_all(tracks[:25], 1.0, 20_000)
    assert sum(len(one.start_s) for one in done) <= 20_000
    finer = sum(len(merged(one, resolution_s / 2).start_s) for one in tracks[:25])
    assert finer > 20_000


def test_slices_that_overlap_stand_beside_each_other():
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


def test_a_prediction_says_what_it_says_elsewhere(predicted):
    page = parsed(prediction_page(predicted))
    said = page.all_text()
    assert seconds(predicted.time_s) in said
    assert quantity(predicted.workload.flops / predicted.time_s, "FLOP/s") in said
    for note in predicted.notes:
        assert note in said
    for row in predicted.breakdown().itertuples():
        assert {row.group, seconds(row.seconds), seconds(row.roofline_s), percent(row.share)} <= {
            data for _, data in page.text
        }
    assert predicted.model.device.source in said
    assert "no interval" in said  # a datasheet has none
    assert "bf16" in said
    (data,) = packed(page)
    assert [one["name"] for one in data["tracks"]] == [
        f"rank {rank} {line}" for rank in (0, 1) for line in ("host", "compute", "comm")
    ]
    ends = [end for slices in unpacked(data) for _, end in slices]
    assert max(ends) == pytest.approx(
        predicted.time_s - predicted.timeline.launch_start_s.min(), rel=1e-6
    )


def test_the_critical_path_of_the_breakdown_adds_up_to_the_step(predicted):
    (breakdown,) = [
        block for block in prediction_page(predicted).sections[1].blocks if isinstance(block, Table)
    ]
    column = list(breakdown.headers).index("on the critical path")
    assert sum(row[column].value for row in breakdown.rows) == pytest.approx(
        predicted.time_s, rel=1e-6
    )
    assert breakdown.rows[-1][0] == "host: launches"


def test_points_of_the_roofline_lie_where_the_formula_says(predicted):
    (plot,) = [
        block for block in prediction_page(predicted).sections[2].blocks if isinstance(block, Plot)
    ]
    (gemm,) = [one for one in plot.series if one.name == "gemm"]
    n = 4096.0
    assert gemm.x[0] == pytest.approx(2 * n**3 / (3 * n * n * 2))
    assert gemm.y[0] == pytest.approx(2 * n**3 / predicted.op_s[0])
    roofs = {one.name: one for one in plot.series if one.line}
    assert (
        max(roofs["bf16: 989.5 TFLOP/s" if "bf16: 989.5 TFLOP/s" in roofs else next(iter(roofs))].y)
        > 0
    )
    for one in plot.series:
        if not one.line:
            roof = max(np.max(line.y) for line in roofs.values())
            assert (
                np.asarray(one.y) <= roof * (1 + 1e-9)
            ).all()  # a datasheet's step is under its own roof


def test_an_interval_is_shown_where_one_is_known(predicted):
    known = dataclasses.replace(
        predicted, low_s=0.8 * predicted.time_s, high_s=1.3 * predicted.time_s
    )
    said = parsed(prediction_page(known)).all_text()
    assert f"90 %: {seconds(known.low_s)} to {seconds(known.high_s)}" in said


def test_a_step_without_arithmetic_has_no_roofline():
    builder = GraphBuilder()
    builder.op(1, label="read")
    step = Workload("waiting", builder.build(), (GivenSeconds(1e-3),))
    page = parsed(prediction_page(predict(PerfModel.datasheet(load_device("h100_sxm")), step)))
    assert "nothing to place under a roofline" in page.all_text()


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
    said = page.all_text()
    (found,) = summaries(traces, [step.steps for step in common_steps(traces)])
    for row in found.rows:
        assert seconds(row.gpu_span_s) in said
        assert seconds(row.exposed_comm_s) in said
    assert said.count("a note") == 1
    assert "for rank 1 at" in said
    (data,) = packed(page)
    assert {"rank 0 stream 7", "rank 0 stream 20", "rank 1 stream 7"} <= {
        one["name"] for one in data["tracks"]
    }
    assert [one["name"] for one in data["tracks"]].count("rank 0 thread 0") == 1


def test_of_nested_ops_the_outermost_are_drawn():
    host = [
        ("mark", "ProfilerStep#1", 0, 100),
        ("op", "outer", 0, 50),
        ("mark", "in between", 5, 40),
        ("op", "inner", 10, 20),
        ("call", "k", 12, 14),
    ]
    traces = [made_trace([*host, ("op", "next", 60, 70)], [("gemm", 7, 20, 90, "k")])]
    (data,) = packed(parsed(page_of(traces)))
    assert [one["name"] for one in data["tracks"]] == ["thread 0", "stream 7"]
    assert [data["labels"][at] for at in data["tracks"][0]["label"]] == ["outer", "next"]


def test_parts_of_a_steps_bar_add_up_to_its_span():
    traces = two_ranks()
    (bars,) = [block for block in page_of(traces).sections[1].blocks if isinstance(block, Bars)]
    (found,) = summaries(traces, [step.steps for step in common_steps(traces)])
    for bar, row in zip(bars.bars, found.rows, strict=True):
        assert sum(amount for amount, _, _ in bar.segments) == pytest.approx(row.gpu_span_s)


# files and commands
# --------------------------------------------------------------------------------------------------


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "deep" / "page.html"
    write_page(Page("first", []), file)
    before = file.read_bytes()

    def fails(_: float) -> str:
        raise RuntimeError("no words")

    with pytest.raises(RuntimeError):
        write_page(Page("t", [Section("s", [Ranges([Range("r", 1.0, "1")], fails)])]), file)
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
    assert len(text) < 3_000_000


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
            assert set(tab.requests()) - {"data:,"} == {address}
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
@pytest.mark.parametrize("width", [360, 1200])
def test_pages_open_without_a_word_and_fit_their_window(opened, predicted, tmp_path, dark, width):
    for page in (prediction_page(predicted), page_of(two_ranks()), every_block(HOSTILE)):
        tab = opened(page, width=width, dark=dark)
        assert tab.value("document.documentElement.scrollWidth") <= width
        assert tab.value("getComputedStyle(document.body).backgroundColor") == (
            "rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)"
        )
        # the timeline is drawn: its canvas holds more than its background
        colours = (
            "new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width,"
            " c.height).data.buffer)).size"
        )
        assert (
            tab.value(
                f"(() => {{ const c = document.querySelector('canvas'); return {colours}; }})()"
            )
            > 3
        )
        assert tab.screenshot(tmp_path / "page.png").stat().st_size > 10_000


def test_headers_sort_tables(opened):
    rows = [
        [name, Cell(words, value)]
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


def test_a_long_table_shows_its_first_rows_until_asked_for_all(opened):
    rows = [[f"op {i}", Cell(str(i), i)] for i in range(40)]
    tab = opened(Page("t", [Section("s", [Table(["op", "n"], rows, first=10)])]))
    seen = (
        "[...document.querySelectorAll('tbody tr')].filter(row => row.offsetHeight).map(row =>"
        " Number(row.cells[1].textContent))"
    )
    assert tab.value(seen) == list(range(10))
    tab.value("document.querySelectorAll('thead button')[1].click()")
    assert tab.value(seen) == list(range(39, 29, -1))
    assert tab.value("document.querySelector('button.more').textContent") == "all 40 rows"
    tab.value("document.querySelector('button.more').click()")
    assert len(tab.value(seen)) == 40


def test_a_timeline_zooms_moves_and_speaks(opened, predicted):
    tab = opened(prediction_page(predicted))
    view = "document.querySelector('.timeline').dataset.view.split(' ').map(Number)"
    detail = "document.querySelector('.detail').textContent"
    whole = tab.value(view)
    assert whole == [0, 1e9]
    tab.value("document.querySelector('[data-do=in]').click()")
    tab.settle()
    assert tab.value(view) == [2.5e8, 7.5e8]
    tab.value("document.querySelector('canvas').focus()")
    tab.press("ArrowLeft")
    assert tab.value(view)[0] == pytest.approx(0.5e8)
    tab.press("-")
    tab.press("-")
    assert tab.value(view) == whole
    tab.value("document.querySelector('canvas').scrollIntoView({block: 'center'})")
    box = tab.value(
        "(b => [b.left, b.top, b.width])(document.querySelector('canvas').getBoundingClientRect())"
    )
    middle = box[0] + 0.6 * box[2], box[1] + 24 + 24 + 9  # the second track: rank 0's computation
    tab.mouse("mouseMoved", *middle)
    assert re.search(r"(product|sum).* from .*rank 0 compute", tab.value(detail))
    tab.mouse("mouseWheel", *middle, deltaX=0, deltaY=-400, modifiers=2)
    low, high = tab.value(view)
    assert high - low < 0.5e9
    tab.mouse("mousePressed", *middle, button="left", clickCount=1)
    tab.mouse("mouseReleased", *middle, button="left", clickCount=1)
    kept = tab.value(detail)
    tab.mouse("mouseMoved", middle[0] - 200, middle[1] + 24)
    assert tab.value(detail) == kept
    tab.press("0")
    assert tab.value(view) == whole


def test_a_merged_slice_says_how_many_it_stands_for(opened):
    one = track(*[(i * 1e-3, i * 1e-3 + 5e-4) for i in range(1000)])
    block = Timeline([one], [f"op {i}" for i in range(1000)], [("k", 0)], most_slices=40)
    tab = opened(Page("t", [Section("s", [block])]))
    box = tab.value(
        "(b => [b.left, b.top, b.width])(document.querySelector('canvas').getBoundingClientRect())"
    )
    tab.mouse("mouseMoved", box[0] + 0.5 * box[2], box[1] + 24 + 9)
    assert re.search(
        r"\d+ slices, busy for", tab.value("document.querySelector('.detail').textContent")
    )


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
    assert all("Content Security Policy" in said for said in blocked)
    tab._browser.events.clear()
    tab.call("Page.reload")
    tab._browser.wait_for("Page.loadEventFired")
