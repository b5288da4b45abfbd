"""Pages of answers: what they hold, that nothing given to them gets out of its place, and that a
real browser draws them from disk without a complaint.
"""

import base64
import dataclasses
import hashlib
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
from hybridperf.report import prediction as of_prediction
from hybridperf.report.answer_page import answer_page, write_answer_page
from hybridperf.report.text import seconds
from hybridperf.traces import tables as trace_tables
from hybridperf.traces.steps import common_steps
from hybridperf.traces.summary import summaries
from hybridperf.training.plans.report import plan_report
from hybridperf.training.plans.run import plan

HOSTILE = (
    "</script><script>alert('x')</script> <!--<b onmouseover=\"alert(1)\">&amp; \u202e\x00\ud800 µ"
)


def told(text: str) -> dict:
    """What a page holds for its script."""
    (found,) = [data for tag, data in parsed(text).text if tag == "script" and data[0] == "{"]
    return json.loads(found)


def every_part(text: str, n: int = 3) -> dict:
    """One of each part, with this text wherever text may stand."""
    at, text = np.arange(float(n)), text.replace("\ud800", "")  # which no frame holds
    sizes = {"intensity": at + 1, "flops_per_s": 1e12, "peak_flops_per_s": 1e15, "total_s": 1e-3}
    slices = {"track": text, "start_s": at, "end_s": at + 0.5, "critical": True, "members": 1}
    named = {"label": text, "group": text}
    return {
        "time_s": 1.0, "low_s": 0.5, "high_s": 2.0, "bandwidth_bytes_per_s": 1e12,
        "notes": [text], "layout": text, "of": {text: 1.0},
        "breakdown": pd.DataFrame({"group": [text] * n, "seconds": at}),
        "timeline": pd.DataFrame(named | slices),
        "roofline": pd.DataFrame(named | {"sizes": text, "share": 0.5} | sizes),
        "layouts": pd.DataFrame({"schedule": text, "memory_bytes": 1e9, "time_s": at + 1}),
        "deployments": [{"mode": text, "tokens_per_s_user": 1.0, "tokens_per_s_gpu": 2.0}],
        "steps": [{"step": text, "computation_s": 1.0, "rank": 0}],
        text: [{text: text, "long": text * 100}] * 60,
    }  # fmt: skip


# what stands in a page
# --------------------------------------------------------------------------------------------------


def test_text_from_anywhere_stays_text():
    text = answer_page(HOSTILE, every_part(HOSTILE), HOSTILE)
    page, plain = parsed(text), parsed(answer_page("words", every_part("words"), "words"))
    for _, attributes in (*page.found, *plain.found):
        attributes.pop("data-sum", None)
    assert page.found == plain.found
    assert not any(name.startswith("on") for _, attrs in page.found for name in attrs)
    assert told(text)["printed"] == HOSTILE
    assert told(text)["answer"]["notes"] == every_part(HOSTILE)["notes"]
    assert not set(text) & {"\x00", "\ud800", "\u202e"}
    text.encode()


def test_nothing_in_a_page_is_fetched():
    text = answer_page("words", every_part("words"))
    page = parsed(text)
    names = ("src", "href", "srcset", "data", "action", "poster")
    links = [attrs[name] for _, attrs in page.found for name in names if name in attrs]
    assert links == ["data:,"]
    addresses = set(re.findall(r"https?://[^\"]*", text))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of a language"
    assert not re.search(r"url\(|@import", text)
    metas = page.tags("meta")
    (policy,) = [attrs["content"] for attrs in metas if "Content-Security-Policy" in attrs.values()]
    assert policy.startswith("default-src 'none'")
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)[-1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.endswith(f"script-src 'sha256-{digest}'")
    assert any(attrs.get("content") == "hybridperf/page 3" for attrs in metas)
    assert len(answer_page("words", {})) < 50_000


def test_numbers_that_json_has_not_are_unknown():
    page = answer_page("t", {"time_s": float("inf"), "rows": pd.DataFrame({"a_s": [np.nan, 1.0]})})
    assert told(page)["answer"] == {"time_s": None, "rows": [{"a_s": None}, {"a_s": 1.0}]}


def test_the_footer_has_the_command_line(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/bin/hybridperf", "plan", "--html", "a page.html"])
    assert "hybridperf plan --html &#x27;a page.html&#x27;" in answer_page("t", {})


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "deep" / "page.html"
    write_answer_page(file, "first", {})
    before = file.read_bytes()
    with pytest.raises(TypeError):
        write_answer_page(file, None, {})
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["page.html"]
    with pytest.raises(InputError, match="cannot write"):
        write_answer_page(file / "below.html", "t", {})


# answers
# --------------------------------------------------------------------------------------------------


def a_step(name="a made-up step", ranks=2, layers=3) -> Workload:
    """Products and sums on each rank, gradients exchanged beside the next product, a host that
    launches.
    """
    builder = GraphBuilder()
    gradients: dict[int, int] = {}
    for layer in range(layers):
        for rank in range(ranks):
            after = [gradients[rank]] if gradients else []
            builder.op(1, label=f"product {layer}", rank=rank, launch_row=4)
            last = builder.op(2, label="sum", rank=rank, after=after, launch_row=4)
        gradients = builder.collective(3, label="gradients", ranks=range(ranks), after=[last])
    calls = (
        OpCall(Gemm("bf16", 4096.0, 4096.0, 4096.0)), OpCall(Elementwise("fp32", 1e4, 1e4)),
        CollectiveCall("all_reduce", 1e8, 8), GivenSeconds(5e-6),
    )  # fmt: skip
    return Workload(name, builder.build(), calls, flops=layers * ranks * 2 * 4096.0**3)


@pytest.fixture(scope="module")
def predicted():
    model = PerfModel.datasheet(load_device("h100_sxm")).with_collectives(
        CollectiveModel.datasheet(load_system("dgx_h100"))
    )
    found = predict(model, a_step())
    return dataclasses.replace(found, low_s=0.8 * found.time_s, high_s=1.3 * found.time_s)


@pytest.fixture(scope="module")
def planned():
    few = {"recompute": ["none", "full"]}
    return plan("gpt3-1.3b", "aic_a100_sxm", [8, 16], batch=32, tokens=1e9, only=few)


def of_a_prediction(found) -> dict:
    return {
        "time_s": found.time_s, "low_s": found.low_s, "high_s": found.high_s,
        "notes": found.notes, "breakdown": found.breakdown(),
        "timeline": of_prediction.slices(found, 1000), "roofline": of_prediction.roofline(found),
        "bandwidth_bytes_per_s": found.model.device.memory_bytes_per_s,
    }  # fmt: skip


def of_traces(traces) -> dict:
    chosen = common_steps(traces)
    (found,) = summaries(traces, [step.steps for step in chosen])
    rows = found.rows
    return {"steps": rows, "timeline": trace_tables.slices(traces, chosen, 1000)}


def of_a_plan(found) -> dict:
    capacity_bytes = found.setup.capacity_bytes
    rows, compared = found.top(300), found.compared()
    return {"layouts": rows, "compared": compared, "capacity_bytes": capacity_bytes}


def of_a_sweep() -> dict:
    rows = [
        {"gpu": gpu, "gpus": gpus, "tp": tp, "batch": batch,
         "predicted_s": 100.0 * len(gpu) / gpus + tp + batch, "memory_bytes": 8e10 / tp + batch}
        for gpu in ("a", "bb") for gpus in (256, 512, 1024) for tp in (1, 2, 4) for batch in (0, 1)
    ]  # fmt: skip
    return {"rows": len(rows), "grid": rows}


def test_slices_of_a_prediction_end_with_its_step(predicted):
    found = of_prediction.slices(predicted, 1000)
    lines = [f"rank {rank} {line}" for rank in (0, 1) for line in ("host", "compute", "comm")]
    assert found["track"].unique().tolist() == lines
    first_s = predicted.timeline.launch_start_s.min()
    assert found["end_s"].max() == pytest.approx(predicted.time_s - first_s, rel=1e-6)


def test_the_critical_path_adds_up_to_the_step(predicted):
    by_group, launches_s = of_prediction.critical_seconds(predicted)
    assert sum(by_group.values()) + launches_s == pytest.approx(predicted.time_s, rel=1e-6)
    assert launches_s > 0


def test_points_of_the_roofline_lie_where_the_formula_puts_them(predicted):
    found = of_prediction.roofline(predicted)
    gemm = found[found["group"] == "gemm"].iloc[0]
    n = 4096.0
    assert gemm["intensity"] == pytest.approx(2 * n**3 / (3 * n * n * 2))
    assert gemm["flops_per_s"] == pytest.approx(2 * n**3 / predicted.op_s[0])
    assert gemm["peak_of"] == "bf16"
    device = predicted.model.device
    roof = np.minimum(found["peak_flops_per_s"], found["intensity"] * device.memory_bytes_per_s)
    assert (found["flops_per_s"] <= roof * (1 + 1e-6)).all()


def test_the_longest_ops_are_explained_with_all_their_executions(predicted):
    found, calls = of_prediction.explained(predicted, 3), predicted.workload.calls
    runs = np.bincount(predicted.workload.graph.row, minlength=len(calls) + 1)[1:]
    total_s = runs * predicted.op_s
    ops = [at for at, call in enumerate(calls) if isinstance(call, OpCall)]
    longest = max(ops, key=lambda at: total_s[at])
    assert found["seconds"].iloc[0] == pytest.approx(total_s[longest])
    assert found["price"].iloc[0] == str(predicted.model.explain(calls[longest]))
    assert found["times"].iloc[0] == runs[longest] * calls[longest].times


def test_a_step_without_arithmetic_has_no_roofline():
    builder = GraphBuilder()
    builder.op(1, label="read")
    step = Workload("waiting", builder.build(), (GivenSeconds(1e-3),))
    found = predict(PerfModel.datasheet(load_device("h100_sxm")), step)
    assert not len(of_prediction.roofline(found))


def test_a_trace_has_its_streams_and_of_nested_ops_the_outermost():
    tracks = set(of_traces(two_ranks())["timeline"]["track"])
    assert {"rank 0 stream 7", "rank 0 stream 20", "rank 1 stream 7", "rank 0 thread 0"} <= tracks
    host = [
        ("mark", "ProfilerStep#1", 0, 100),
        ("op", "outer", 0, 50),
        ("mark", "in between", 5, 40),
        ("op", "inner", 10, 20),
        ("call", "k", 12, 14),
    ]
    traces = [made_trace([*host, ("op", "next", 60, 70)], [("gemm", 7, 20, 90, "k")])]
    found = of_traces(traces)["timeline"]
    assert found["track"].tolist() == ["thread 0", "thread 0", "stream 7"]
    assert found["label"].tolist()[:2] == ["outer", "next"]


# commands
# --------------------------------------------------------------------------------------------------


def test_the_command_writes_a_page_of_a_prediction(run, tmp_path, monkeypatch):
    (tmp_path / "stepped.py").write_text(
        "import jax.numpy as jnp\ndef step():\n    return lambda a: (a @ a).sum(), (jnp.ones((64,"
        " 64)),)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = load_device("h100_sxm").model_copy(update={"kind": "cpu"})
    PerfModel.datasheet(spec).save(tmp_path / "model")
    file = tmp_path / "p.html"
    asked = ("predict", "--jax", "stepped:step", "--model", tmp_path / "model", "--html", file)
    status, out, err = run(*asked)
    assert status == 0, err
    assert f"page in {file}" in out
    found = told(file.read_text())
    assert found["printed"] in out, "the page says what the command says"
    assert "stepped:step" in found["printed"]
    assert found["answer"].keys() >= {"time_s", "breakdown", "timeline", "roofline", "elasticities"}
    status, out, err = run(*asked, "--json")
    kept = json.loads(out)
    assert found["answer"]["breakdown"] == kept["breakdown"]


def test_the_command_writes_a_page_of_a_trace(run, data_dir, tmp_path):
    file = data_dir / "traces" / "hta_ns_resolution_V100_1gpu.json.gz"
    status, out, err = run("trace", "summary", file, "--html", tmp_path / "t.html")
    assert status == 0, err
    assert "page in" in out
    text = (tmp_path / "t.html").read_text()
    assert "ProfilerStep#101" in text
    assert len(text) < 2_000_000


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

    def opened(title: str, answer: dict, printed: str = "", **window) -> Tab:
        finished()
        file = tmp_path / "page.html"
        write_answer_page(file, title, answer, printed)
        tabs.append((Tab(browser, file, **window), file.resolve().as_uri()))
        return tabs[0][0]

    yield opened
    finished()


@pytest.fixture(scope="module")
def printed(planned):
    return plan_report(planned, 3)


@pytest.fixture(scope="module")
def pages(predicted, planned):
    """Answers, and how many figures each has."""
    return (
        (of_a_prediction(predicted), 3),
        (of_traces(two_ranks()), 1),
        (of_a_plan(planned), 1),
        (every_part(HOSTILE), 5),
        (of_a_sweep(), 3),
    )


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_open_without_a_complaint_and_fit_their_window(opened, pages, printed, dark, width):
    for answer, figures in pages:
        tab = opened("words", answer, printed, width=width, dark=dark)
        tab.value("document.querySelectorAll('details').forEach(d => d.open = true) || 0")
        tab.settle()
        assert tab.value("document.documentElement.scrollWidth") <= width
        background = tab.value("getComputedStyle(document.documentElement).backgroundColor")
        assert background == ("rgb(20, 24, 29)" if dark else "rgb(253, 253, 253)")
        assert tab.value("document.querySelectorAll('figure svg').length") == figures
        assert tab.value("document.querySelector('pre').textContent") == printed


def test_a_page_says_what_the_answer_says(opened, predicted):
    tab = opened("words", of_a_prediction(predicted))
    words = tab.value("document.body.textContent").replace("\u00a0", " ")
    for note in predicted.notes:
        assert note in words
    for group in predicted.breakdown()["group"]:
        assert group in words
    assert f"90 %: {seconds(predicted.low_s)}"[:9] in words
    said = "Number(document.querySelector('[data-name=time]').dataset.value)"
    assert tab.value(said) == pytest.approx(predicted.time_s)


def test_a_front_has_nothing_on_its_lower_left(opened, planned):
    answer = of_a_plan(planned)
    tab = opened("words", answer)
    of_front = "[...document.querySelectorAll('circle.point.k0')].map(p => p.textContent)"
    said = [int(words.split(":")[0]) - 1 for words in tab.value(of_front)]
    assert said
    rows = answer["layouts"].reset_index()
    for row in rows.iloc[said].itertuples():
        better = (rows["time_s"] < row.time_s) & (rows["memory_bytes"] < row.memory_bytes)
        assert not better.any()
    assert "memory that may be used" in tab.value("document.body.textContent")


def test_parts_of_a_steps_bar_add_up_to_its_span(opened):
    answer = of_traces(two_ranks())
    tab = opened("words", answer)
    tracks = "[...document.querySelectorAll('.track')]"
    sums = f"{tracks}.map(t => [...t.children].reduce((s, p) => s + parseFloat(p.style.width), 0))"
    spans = answer["steps"]["gpu_span_s"].to_numpy()
    assert np.array(tab.value(sums)) / 100 == pytest.approx(spans / spans.max(), rel=1e-4)


def test_a_table_counts_what_it_leaves_out(opened):
    rows = [{"op": f"op {i}", "time_s": i * 1e-3} for i in range(793)]
    tab = opened("words", {"rows": rows})
    assert tab.value("document.querySelectorAll('tr').length") == 501
    assert "... 293 more rows are not on this page" in tab.value("document.body.textContent")
    assert tab.value("document.querySelectorAll('td')[7].dataset.value") == "0.003"


def test_headers_sort_tables(opened):
    rows = [{"op": name, "time_s": value} for name, value in (("b", 9e-3), ("a", 1.0), ("c", None))]
    tab = opened("words", {"rows": rows})
    column = (
        "[...document.querySelectorAll('tbody tr')].map(row => row.cells[0].textContent).join('')"
    )
    assert tab.value(column) == "bac"
    for clicked, expected in ((1, "abc"), (1, "bac"), (0, "cba"), (0, "abc")):
        tab.value(f"document.querySelectorAll('thead button')[{clicked}].click()")
        assert tab.value(column) == expected


def test_a_slice_tells_its_name_and_a_timeline_zooms(opened, predicted):
    tab = opened("words", of_a_prediction(predicted))
    slices = "[...document.querySelectorAll('svg rect title')].map(t => t.textContent)"
    assert any(re.search(r"(product|sum).*\d\s.s", words) for words in tab.value(slices))
    widest = (
        "Math.max(...[...document.querySelectorAll('svg rect')]"
        ".filter(r => r.textContent.includes('product')).map(r => r.width.baseVal.value))"
    )
    before = tab.value(widest)
    wheel = "new WheelEvent('wheel', {ctrlKey: true, deltaY: -100, cancelable: true})"
    of_timeline = "[...document.querySelectorAll('svg')].find(s => s.textContent.includes('prod'))"
    tab.value(f"{of_timeline}.dispatchEvent({wheel})")
    assert tab.value(widest) > 1.2 * before
    tab.value(f"{of_timeline}.dispatchEvent(new MouseEvent('dblclick'))")
    assert tab.value(widest) == pytest.approx(before)


def test_only_the_pages_own_script_runs(opened):
    """Should text ever get out of its place, the page's policy still lets nothing of it run."""
    tab = opened("words", every_part("words"))
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


_CELLS = """[...document.querySelectorAll('figure rect[fill-opacity]:not(.grip)')]
    .map(r => r.textContent)"""


def test_a_sweeps_cells_hold_the_best_and_brushing_leaves_rows_out(opened):
    answer = of_a_sweep()
    tab = opened("words", answer, width=1280)
    tab.settle()
    assert tab.value("document.querySelector('.status').textContent") == "36 of 36 rows"
    cells = tab.value(_CELLS)
    assert len(cells) == 9, "3 numbers of GPUs, 3 degrees"
    assert all("gpu a, " in one and "batch 0" in one for one in cells), "the least of each cell"
    tab.value("""
        (() => {
          const grip = [...document.querySelectorAll("rect.grip")].find(r => r.textContent == "tp");
          const box = grip.getBoundingClientRect();
          grip.setPointerCapture = () => {};
          const at = (type, share) => grip.dispatchEvent(new PointerEvent(type, {
            pointerId: 1, clientX: box.x, clientY: box.bottom - 6 - share * (box.height - 12)}));
          at("pointerdown", 0.9); at("pointermove", 1); at("pointerup", 1);
          return 0;
        })()""")
    tab.settle()
    said = "12 of 36 rows within what is brushed"
    assert tab.value("document.querySelector('.status').textContent") == said
    assert all("tp 4" in one for one in tab.value(_CELLS))
    tab.value("""
        (() => {
          const most = document.querySelectorAll("select")[2];
          most.value = "most"; most.dispatchEvent(new Event("change"));
          return 0;
        })()""")
    tab.settle()
    assert all("gpu bb, " in one and "batch 1" in one for one in tab.value(_CELLS))
