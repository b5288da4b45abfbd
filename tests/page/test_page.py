"""The page in a real browser: what it shows is what the command says.

One browser and one server for the whole file. `axe.min.js` is the checker that `axe-core-python`
ships.
"""

import io
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.headless import Browser, Tab, browser_or_skip
from support.made_traces import made_trace
from support.page_tab import SETTLED, answer_of, axe, command_of, move, shown, wait_for
from support.served_page import Served, held_bytes, keep_moving

from hybridperf.cli.ask import ask
from hybridperf.traces.perfetto import write_traces

# small questions, so that views answer within seconds on a busy machine
SMALL = {
    "step": "#step?model=gpt2-xl&tp=1&pp=1&n_gpus=1&global_batch=1&sharding=none",
    "layouts": "#layouts?shape=gpt2-xl&gpus=2&batch=2&only=zero%3D0+cp%3D1",
    "grid": "#grid?model=gpt2-xl&n_gpus=8&tp=1&pp=1%2C2&micro_batch=1%2C2&global_batch=64",
    "serving": "#serving?shape=llama2-7b&gpus=1",
    "run": "#run?shape=gpt2-xl&gpus=2&tokens=1B&batch=4",
    "machine": "#machine",
    "trace": "#trace",
    "tables": "#tables",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = browser_or_skip()
    yield found
    found.close()


def opened(browser: Browser, page: Served, view: str, **window) -> Tab:
    return Tab(browser, page.address + SMALL[view], **window)


def test_a_step_is_the_commands_step_and_answers_at_once(browser: Browser, page: Served) -> None:
    tab = opened(browser, page, "step")
    wait_for(tab, "document.querySelector('[data-name=\"time of a step\"]')")
    first = shown(tab, "time of a step")
    move(tab, "micro_batch", 2)
    move(tab, "global_batch", 2)
    step = "document.querySelector('[data-question=step]').dataset"
    wait_for(tab, f"{step}.asked === {step}.answered")
    changed = shown(tab, "time of a step")
    assert changed > first
    row = answer_of(command_of(tab, "step"))["rows"][0]
    assert row["micro_batch"] == 2
    assert row["predicted_s"] == pytest.approx(changed, rel=1e-12)
    # inside it: the graph's number is near, its knobs can be dragged
    wait_for(tab, "document.querySelector('[data-knob]')", "the graph")
    assert shown(tab, "by its graph") == pytest.approx(changed, rel=0.03)
    assert tab.value("document.querySelectorAll('[data-question=inside] svg rect').length") > 20
    inside = str(tab.value("document.querySelector('[data-question=inside]').textContent"))
    (longest, *_) = answer_of(command_of(tab, "inside"))["explained"]
    assert longest["price"] in inside
    tab.value(
        "(() => { const knob = document.querySelector('[data-knob=memory_bytes_per_s]');"
        " knob.value = 1; knob.dispatchEvent(new Event('input', { bubbles: true })); })()"
    )
    wait_for(tab, "document.querySelector('[data-name=\"what if\"]')?.dataset.value")
    wait_for(tab, SETTLED)
    faster = shown(tab, "what if")
    assert faster < shown(tab, "by its graph")
    assert "knobs=memory_bytes_per_s%3D2" in tab.value("location.hash")
    command = str(tab.value("[...document.querySelectorAll('.command')].at(-1).textContent"))
    said = answer_of(command)
    assert said["what_if"]["time_s"] == pytest.approx(faster, rel=1e-6)
    tab.value(
        "(() => { const knob = document.querySelector('[data-knob=memory_bytes_per_s]');"
        " knob.value = 0; knob.dispatchEvent(new Event('input', { bubbles: true })); })()"
    )
    assert not tab.value("document.querySelector('[data-name=\"what if\"]') !== null")
    assert tab.complaints() == []
    assert axe(tab) == []
    # a link holds the state
    other = Tab(browser, tab.value("location.href"))
    wait_for(other, "document.querySelector('[data-name=\"time of a step\"]')")
    assert shown(other, "time of a step") == changed
    other.close()
    tab.close()


def test_a_cell_of_a_grid_opens_in_step(browser: Browser, page: Served, tmp_path: Path) -> None:
    tab = opened(browser, page, "grid")
    wait_for(tab, "document.querySelector('[data-name=\"the quickest step\"]')")
    command = command_of(tab, "grid").replace("grid.parquet", str(tmp_path / "grid.parquet"))
    answer = answer_of(command)
    assert answer["points"] == len(answer["grid"]) == 8
    best = min(answer["grid"], key=lambda row: row["predicted_s"])
    assert shown(tab, "the quickest step") == pytest.approx(best["predicted_s"], rel=1e-12)
    tab.value(
        "(() => { const menu = [...document.querySelectorAll('label')]"
        ".find(one => one.textContent.startsWith('apart')).querySelector('select');"
        " menu.value = 'gpu'; menu.dispatchEvent(new Event('change')); })()"
    )
    assert tab.value("document.querySelectorAll('svg .opens').length") == 8  # two pictures of four
    assert axe(tab) == []
    words = json.dumps([f"{name} {best[name]}" for name in ("gpu", "micro_batch", "pp")])
    tab.value(
        f"(() => {{ const words = {words}; [...document.querySelectorAll('svg .opens')]"
        ".find(one => words.every(word => one.textContent.split(', ').includes(word)))"
        ".dispatchEvent(new MouseEvent('click')); })()"
    )
    wait_for(tab, "document.querySelector('[data-name=\"time of a step\"]')")
    assert shown(tab, "time of a step") == pytest.approx(best["predicted_s"], rel=1e-9)
    assert tab.complaints() == []
    tab.close()


def test_another_accelerator_stands_beside(browser: Browser, page: Served) -> None:
    tab = Tab(browser, page.address + "#step?beside=b200_sxm")
    name = "time of a step on b200_sxm"
    wait_for(tab, f"document.querySelector('[data-name=\"{name}\"]')")
    command = tab.value(
        "[...document.querySelectorAll('[data-question=step] .command')].at(-1).textContent"
    )
    other = answer_of(str(command))["rows"][0]
    assert (other["gpu"], "system" in other) == ("b200_sxm", False)
    assert shown(tab, name) == pytest.approx(other["predicted_s"], rel=1e-12)
    ratio = tab.value(
        "document.querySelector('[data-name=beside] tbody tr').children[3].dataset.value"
    )
    assert float(ratio) == pytest.approx(shown(tab, name) / shown(tab, "time of a step"), rel=1e-9)
    legible(tab)
    move(tab, "beside", "")
    wait_for(tab, f"!document.querySelector('[data-name=\"{name}\"]')")
    move(tab, "beside", "nobodys_gpu")
    wait_for(tab, "document.querySelector('[data-question=step] .error')")
    assert tab.complaints() == []
    tab.close()


@pytest.mark.parametrize(
    ("view", "question", "name", "field", "to", "number"),
    [
        ("layouts", "plan", "time of a step", "batch", 4, lambda a: a["layouts"][0]["time_s"]),
        (
            "serving", "serve", "tokens per second and GPU", "tpot_ms", 12,
            lambda a: a["deployments"][0]["tokens_per_s_gpu"],
        ),
        ("run", "run", "days", "tokens", "2B", lambda a: a["run"][0]["expected"]),
    ],
)  # fmt: skip
def test_a_view_shows_the_commands_number(
    browser: Browser, page: Served, view, question, name, field, to, number
) -> None:
    tab = opened(browser, page, view)
    wait_for(tab, f"document.querySelector('[data-name=\"{name}\"]')")
    before = shown(tab, name)
    move(tab, field, to)
    wait_for(tab, f"document.querySelector('[data-question={question}]').dataset.asked > 1")
    wait_for(tab, SETTLED)
    wait_for(tab, f"document.querySelector('[data-name=\"{name}\"]').dataset.value != {before}")
    after = shown(tab, name)
    assert math.isfinite(after)
    found = number(answer_of(command_of(tab, question)))
    assert found == pytest.approx(after, rel=1e-9)
    assert tab.complaints() == []
    assert axe(tab) == []
    tab.close()


@pytest.mark.parametrize(
    ("view", "results", "owner"),
    [
        ("layouts", ["time_s"], "the training software"),
        ("run", ["days", "usd"], "prices and power"),
        ("serving", ["tokens_per_s", "ttft_s", "tpot_s"], "the load"),
    ],
)
def test_a_strip_says_what_one_percent_is_worth(
    browser: Browser, page: Served, view: str, results: list[str], owner: str
) -> None:
    """Of each number of the machine: the elasticities that the command prints."""
    tab = opened(browser, page, view)
    wait_for(tab, "document.querySelector('[data-driver]')")
    wait_for(tab, SETTLED)
    rows = answer_of(command_of(tab, "drives"))["elasticities"]
    assert list(dict.fromkeys(row["result"] for row in rows)) == results
    for result in results:
        tab.value(
            "(() => { const menu = document.querySelector('[aria-label=\"Worth by\"]');"
            f" if (menu) menu.value = '{result}';"
            " menu?.dispatchEvent(new Event('change')); })()"
        )
        said = tab.value(
            "[...document.querySelectorAll('[data-driver]')]"
            ".map(one => [one.dataset.driver, Number(one.dataset.value)])"
        )
        expected = [[row["knob"], row["elasticity"]] for row in rows if row["result"] == result]
        assert said == [[knob, pytest.approx(value)] for knob, value in expected[: len(said)]]
        assert len(said) == min(len(expected), 14)
    assert any(row["knob"] == "memory_bytes_per_s" for row in rows)
    tab.value(
        "(() => { const menu = document.querySelector('[aria-label=\"Whose numbers\"]');"
        f" menu.value = '{owner}'; menu.dispatchEvent(new Event('change')); }})()"
    )
    words = "[...document.querySelectorAll('[data-driver]')].map(one => one.textContent)"
    assert tab.value(words)
    assert all(f"of {owner}, now" in one for one in tab.value(words))
    assert tab.complaints() == []
    legible(tab)
    tab.close()


def test_a_launch_file_is_of_the_row_that_is_shown(browser: Browser, page: Served) -> None:
    """Rows that are copies of better ones are not shown, and count all the same."""
    tab = Tab(browser, page.address + "#layouts?shape=llama2-7b&gpus=8&batch=64&only=pp%3D2")
    wait_for(tab, "document.querySelector('[data-name=\"the best layout\"]')")
    shown_rows = (
        "[...document.querySelectorAll('table[data-name=layouts] tbody tr')].map(row =>"
        " [row.children[0].textContent, row.children[2].textContent])"
    )
    rows = [(int(row), words) for row, words in tab.value(shown_rows)]
    wanted = answer_of(command_of(tab, "plan"))["layouts"][: len(rows)]
    assert rows == [(one["row"], one["layout"]) for one in wanted]
    at = next(at for at, (row, _) in enumerate(rows) if row != at + 1)
    button = f"document.querySelectorAll('table[data-name=layouts] tbody button')[{at}]"
    tab.value(f"(() => {{ const one = {button}; one.focus(); one.click(); }})()")
    assert tab.value(f"{button} === document.activeElement")  # though it was drawn again
    assert tab.value(f"{button}.getAttribute('aria-pressed')") == "true"
    tab.value("(() => { document.querySelector('#target').value = 'megatron'; })()")
    tab.value(
        "[...document.querySelectorAll('button')].find(b => b.textContent == 'Write').click()"
    )
    wait_for(tab, "document.querySelector('[data-question=launch] pre[aria-label=\"launch.sh\"]')")
    script = "document.querySelector('[data-question=launch] pre[aria-label=\"launch.sh\"]')"
    assert f"llama2-7b, {rows[at][1]}" in tab.value(f"{script}.textContent")
    assert f"--row={rows[at][0]}" in command_of(tab, "launch")
    legible(tab)
    # the table's file has every layout with every number as it came
    tab.value(
        "(() => { window.made = ''; URL.createObjectURL = blob => { window.made = blob.text();"
        " return '#'; }; HTMLAnchorElement.prototype.click = () => {};"
        " document.querySelector('button[aria-label=\"CSV: The best layouts\"]').click(); })()"
    )
    kept = pd.read_csv(io.StringIO(str(tab.value("window.made"))))
    wanted = pd.DataFrame(answer_of(command_of(tab, "plan"))["layouts"])
    assert len(kept) == len(wanted) > len(rows) / 2
    for name in ("layout", "time_s", "low_s", "memory_bytes"):
        assert kept[name].tolist() == wanted[name].tolist()
    # and a layout opens in the view of steps, where it takes as long
    tab.value(
        "(() => { document.querySelectorAll('table[data-name=layouts] a')[1].id = 'other'; })()"
    )
    tab.value("(() => { location.hash = document.getElementById('other').hash; })()")
    wait_for(
        tab,
        "document.querySelector('[data-name=\"time of a step\"]')?.closest('[data-question=step]')",
    )
    assert shown(tab, "time of a step") == pytest.approx(wanted["time_s"][1], rel=2e-3)
    tab.close()


@pytest.mark.parametrize("view", list(SMALL))
def test_every_view_is_legible(browser: Browser, page: Served, view: str) -> None:
    tab = opened(browser, page, view)
    wait_for(tab, "document.querySelector('nav a[aria-current]')", view)
    if view not in ("trace", "tables"):  # which wait for a file
        wait_for(tab, "document.querySelector('#answer .command')", view)
    for width, dark in ((1280, False), (390, True)):
        tab.resize(width)
        tab.dark(dark)
        tab.settle()
        assert tab.value("document.documentElement.scrollWidth - innerWidth") <= 0
        assert axe(tab) == []
    assert tab.value("document.querySelectorAll('nav a[aria-current]').length") == 1
    assert tab.complaints() == []
    own = page.address.rsplit("/", 2)[0]
    assert all(one.startswith((own, "data:")) for one in tab.requests())
    tab.close()


def test_many_moves_leave_no_memory_behind(browser: Browser, page: Served) -> None:
    """`benchmarks/bench_moves.py` does it for a minute."""
    tab = opened(browser, page, "step")
    wait_for(tab, "document.querySelector('[data-knob]')", "the graph")
    step = "document.querySelector('[data-question=step]').dataset"
    keep_moving(tab, 20)
    before = held_bytes(tab, page)
    keep_moving(tab, 60)
    wait_for(tab, f"{step}.asked === {step}.answered")
    assert int(tab.value(f"{step}.answered")) == 81
    grown = {name: after - before[name] for name, after in held_bytes(tab, page).items()}
    assert grown["page"] < 1 << 20, grown
    assert grown["server"] < 4 << 20, grown
    assert tab.complaints() == []
    tab.close()


def test_what_was_typed_is_text(browser: Browser, page: Served) -> None:
    tab = opened(browser, page, "step")
    wait_for(tab, "document.querySelector('[data-name=\"time of a step\"]')")
    move(tab, "model", "<img src=x onerror=document.title=1>")
    wait_for(tab, "document.querySelector('[data-question=step] .error')")
    said = tab.value("document.querySelector('[data-question=step] .error').textContent")
    assert "got '<img src=x" in said
    assert tab.value("document.querySelectorAll('#answer img').length") == 0
    wait_for(tab, SETTLED)
    assert tab.value("document.querySelectorAll('#answer .error').length") == 1
    assert tab.value("document.querySelector('[data-question=inside]').hidden")
    tab.close()


def test_a_machine_shows_its_residuals(browser: Browser, page: Served) -> None:
    tab = opened(browser, page, "machine")
    wait_for(tab, "document.querySelectorAll('#answer svg circle').length > 100")
    move(tab, "name", "a100_sxm4_80g")
    wait_for(tab, SETTLED)
    wait_for(tab, "document.querySelector('pre[aria-label]')")
    command = command_of(tab, "show")
    assert command == "hybridperf show a100_sxm4_80g"
    text = "document.querySelector('pre[aria-label=\"All that is known\"]').textContent"
    assert tab.value(text) == answer_of(command)["text"]
    tab.close()


def drop(tab: Tab, field: str, path: object) -> None:
    """Give a file to a field, as a reader does who drops it."""
    root = tab.call("DOM.getDocument")["root"]["nodeId"]
    node = tab.call("DOM.querySelector", nodeId=root, selector=f"#field-{field}")["nodeId"]
    tab.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])


def test_a_dropped_config_is_a_model_in_every_layout(
    browser: Browser, page: Served, tmp_path: Path
) -> None:
    path = tmp_path / "<img src=x onerror=document.title=1>.json"
    path.write_text(
        '{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "vocab_size": 32000,'
        ' "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 8192}'
    )
    tab = opened(browser, page, "step")
    named = "document.querySelector('[data-name=\"time of a step\"]')"
    wait_for(tab, named)
    before = shown(tab, "time of a step")
    drop(tab, "model ~ details input", path)
    wait_for(tab, f"{named} && {named}.dataset.value != {before}")
    wait_for(tab, SETTLED)
    command = command_of(tab, "step")
    assert "onerror" in command
    row = answer_of(command.replace(f"model={path.name}", f"model={path}"))["rows"][0]
    assert row["predicted_s"] == pytest.approx(shown(tab, "time of a step"), rel=1e-12)
    assert "file" not in tab.value("location.hash")
    assert tab.value("document.querySelectorAll('#answer img').length") == 0
    legible(tab)
    move(tab, "model", "gpt2-xl")  # a name counts again
    wait_for(tab, f"{named} && {named}.dataset.value == {before}")
    tab.close()


def test_a_dropped_trace_shows_where_its_time_went(
    browser: Browser, page: Served, tmp_path: Path
) -> None:
    host = [
        ("mark", "ProfilerStep#1", 0, 60), ("op", "aten::mm", 5, 20), ("call", "a", 10, 15),
        ("op", "aten::relu", 30, 40), ("call", "b", 32, 36),
    ]  # fmt: skip
    device = [("gemm_kernel", 7, 20, 420, "a"), ("relu_kernel", 7, 430, 480, "b")]
    path = tmp_path / "one.json"
    write_traces([made_trace(host, device)], path)
    tab = opened(browser, page, "trace")
    wait_for(tab, "document.querySelector('#field-file')")
    drop(tab, "file", path)
    wait_for(tab, "document.querySelector('[data-name=busy]')", "the summary")
    longest = max(ask("trace", "summary", str(path))["steps"], key=lambda one: one["gpu_span_s"])
    for name in ("gpu_busy_s", "idle_s"):
        found = shown(tab, name.removeprefix("gpu_").removesuffix("_s"))
        assert found == pytest.approx(longest[name], rel=1e-9)
    wait_for(tab, "document.querySelector('[data-name=after]')", "the replay")
    wait_for(tab, SETTLED)
    before = shown(tab, "after")
    move(tab, "faster", "aten::mm=2")
    wait_for(tab, f"document.querySelector('[data-name=after]')?.dataset.value < {before}")
    wait_for(tab, SETTLED)
    said = ask("trace", "replay", str(path), "--faster", "aten::mm=2")["steps"][0]
    assert shown(tab, "after") == pytest.approx(said["after_s"], rel=1e-9)
    legible(tab)
    tab.close()


def test_dropped_tables_are_placed(browser: Browser, page: Served, tmp_path: Path) -> None:
    path = tmp_path / "tables.csv"
    rows = "".join(f"t{at},{10 ** (3 + at % 4)},64,{1 + at}\n" for at in range(8))
    path.write_text("name,rows,dim,pooling\n" + rows)
    tab = opened(browser, page, "tables")
    wait_for(tab, "document.querySelector('#field-gpus')")
    move(tab, "gpus", 2)
    drop(tab, "file", path)
    wait_for(tab, "document.querySelector('[data-name=\"time of a step\"]')", "the placement")
    wait_for(tab, SETTLED)
    command = command_of(tab, "shard")
    assert "tables.csv" in command
    said = answer_of(command.replace("tables.csv", str(path)))
    assert shown(tab, "time of a step") == pytest.approx(said["step_s"], rel=1e-9)
    assert len(said["per_rank"]) == 2
    legible(tab)
    tab.close()


def test_rows_of_a_machine_have_a_learning_curve(
    browser: Browser, page: Served, tmp_path: Path
) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "ops.csv"
    rows = pd.DataFrame(2 ** rng.integers(6, 12, (60, 3)), columns=["m", "n", "k"])
    flops = 2.0 * rows.prod(axis=1)
    time_s = (3e-6 + flops / 30e12) * rng.lognormal(0, 0.02, len(rows))
    rows.assign(op="matmul", dtype="fp32", time_s=time_s).to_csv(path, index=False)
    tab = opened(browser, page, "machine")
    wait_for(tab, "document.querySelector('[data-question=show] .command')")
    drop(tab, "rows", path)
    wait_for(tab, "document.querySelector('[data-question=rows] table')")
    told = str(tab.value("document.querySelector('[data-question=rows] table').textContent"))
    assert " µs roofline x " in told
    button = (
        "[...document.querySelectorAll('button')].find(one => one.textContent.startsWith('Fit'))"
    )
    wait_for(tab, f"!{button}.closest('section').hidden")
    tab.value(f"{button}.click()")
    drawn = "document.querySelectorAll('[data-question=curve] svg circle').length"
    wait_for(tab, f"{drawn} > 3", "the learning curve")
    said = tab.value("document.querySelector('[data-question=curve] table').textContent")
    assert "gemm" in said
    assert command_of(tab, "curve").startswith("hybridperf fit ops.csv --device=h100_sxm --curve")
    legible(tab)
    tab.close()


def legible(tab: Tab) -> None:
    """Both widths and themes, without a word of the console or of axe."""
    for width, dark in ((1280, False), (390, True)):
        tab.resize(width)
        tab.dark(dark)
        tab.settle()
        assert tab.value("document.documentElement.scrollWidth - innerWidth") <= 0
        assert axe(tab) == []
    assert tab.complaints() == []
