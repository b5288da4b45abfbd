"""The page of a plan: what it says is what the plan says, and a browser opens it."""

import pytest
from support.headless import Browser, Tab, browser_or_skip
from support.pages import parsed

from hybridperf.report.html import write_page
from hybridperf.report.html.document import Facts, Figure, Table
from hybridperf.report.html.of_plan import plan_page
from hybridperf.report.html.page import whole_figures
from hybridperf.report.text import seconds
from hybridperf.training.plans.explain import compared
from hybridperf.training.plans.layout_text import layout_words
from hybridperf.training.plans.run import plan


@pytest.fixture(scope="module")
def planned():
    return plan(
        "gpt3-1.3b",
        "aic_a100_sxm",
        [8, 16],
        batch=32,
        tokens=1e9,
        only={"recompute": ["none", "full"]},
    )


@pytest.fixture(scope="module")
def page(planned):
    return plan_page(planned)


def blocks(page, kind):
    return [
        block for section in page.sections for block in section.blocks if isinstance(block, kind)
    ]


def test_the_page_says_what_the_plan_says(planned, page):
    words = parsed(page).all_text()
    assert layout_words(planned.best) in words
    for sentence in (*planned.notes, *planned.economy.notes):
        assert sentence in words
    table = next(table for table in blocks(page, Table) if "interval" in table.headers)
    for row, one in zip(table.rows, compared(planned)[1:], strict=True):
        assert row[0].text == one.what
        assert row[3].text == f"90 %: {seconds(one.low_s)} to {seconds(one.high_s)}"
    best = next(table for table in blocks(page, Table) if table.headers[0] == "layout")
    step = list(best.headers).index("step")
    assert best.rows[0][step].value == pytest.approx(
        min(case.parts.step_s.min() for case in planned.cases)
    )
    assert best.best == 0


def test_a_front_has_nothing_on_its_lower_left(planned, page):
    plots = blocks(page, Figure)[2:]
    assert len(plots) == 3  # rent, too: two numbers of GPUs
    for drawn in plots:
        every, line, *_, best = (one.data_source.data for one in drawn.model.renderers)
        assert len(every["x"]) <= len(planned)
        for x, y in zip(line["x"], line["y"], strict=True):
            assert not ((every["y"] < y) & (every["x"] < x)).any()
        assert layout_words(planned.best) in best["words"][0]
        assert drawn.legend[-1] == ("★", "m", "the best")


@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_opens_it_without_a_complaint(page, tmp_path, width):
    browser: Browser = browser_or_skip()
    try:
        write_page(page, tmp_path / "plan.html")
        tab = Tab(browser, tmp_path / "plan.html", width=width)
        assert tab.value("document.documentElement.scrollWidth") <= width
        if width == 1280:  # no column is cut
            wide = "[...document.querySelectorAll('.wide')]"
            cut = f"{wide}.filter(w => w.scrollWidth > w.clientWidth).map(w => w.innerText)"
            assert tab.value(cut) == []
        assert tab.complaints() == []
        fetched = {url for url in tab.requests() if not url.startswith("data:")}
        assert fetched == {(tmp_path / "plan.html").resolve().as_uri()}
    finally:
        browser.close()


def test_cards_say_what_they_are_and_figures_keep_their_units(planned, page):
    (facts,) = blocks(page, Facts)
    assert [what for what, _, _ in facts.items][3] == "energy of a step"
    assert len(facts.items) == 5, "one row of cards"
    assert (
        whole_figures("5.76 s, 73 GB and 8 x micro-batch")
        == "5.76\u00a0s, 73\u00a0GB and 8 x micro-batch"
    )
    table = next(table for table in blocks(page, Table) if table.headers[0] == "layout")
    assert table.headers[-1] == "rent, USD"
    assert "GPUs" in table.headers


def test_one_case_has_no_columns_that_are_all_the_same():
    alone = plan_page(
        plan("gpt3-125m", "dgx_h100", 8, batch=16, only={"recompute": ["none"], "cp": [1]})
    )
    table = next(table for table in blocks(alone, Table) if table.headers[0] == "layout")
    assert "GPUs" not in table.headers
    assert all(len(row) == len(table.headers) for row in table.rows)


def test_layouts_are_not_broken_over_many_lines_on_a_narrow_page(page, tmp_path):
    browser: Browser = browser_or_skip()
    try:
        write_page(page, tmp_path / "plan.html")
        tab = Tab(browser, tmp_path / "plan.html", width=400)
        narrowest = (
            "Math.min(...[...document.querySelectorAll('.grid td.long')].map(one =>"
            " one.getBoundingClientRect().width).filter(wide => wide))"
        )
        assert tab.value(narrowest) >= 200
    finally:
        browser.close()
