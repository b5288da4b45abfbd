"""The page as one file: the numbers of the commands, in a browser that is offline."""

import base64
import gzip
import json
import re
import shlex
from pathlib import Path

import pytest
from support.headless import Tab, browser_or_skip
from support.page_tab import SETTLED, answer_of, axe, command_of, move, shown, wait_for

from hybridperf.cli.page import PROGRAM
from hybridperf.io import InputError
from hybridperf.page.exported import write_exported

_WORDS = {"models": ("llama3-8b", "llama3-70b"), "systems": ("dgx_h100",), "gpus": (8,)}
_DIGITS = 5e-6  # half of the sixth, the last of the file's numbers


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    write_exported(path, PROGRAM, **_WORDS)
    return path


def told(page: Path) -> dict:
    """What the file holds."""
    (packed,) = re.findall(r'id="told">(.*?)</script>', page.read_text("utf-8"))
    found: dict = json.loads(gzip.decompress(base64.b64decode(packed)))
    return found


def test_every_answer_is_its_commands(page: Path) -> None:
    kinds = {
        "step step": ("rows", "predicted_s"), "layouts plan": ("layouts", "time_s"),
        "serving serve": ("deployments", "tokens_per_s_gpu"),
    }  # fmt: skip
    answers = told(page)["answers"]
    assert answers.keys() == kinds.keys()
    for asked, (rows, number) in kinds.items():
        found = [*answers[asked]["found"].values()]
        for words, python, answer in found[:: max(1, len(found) // 6)]:
            assert "import hybridperf" in python
            if isinstance(answer, str):
                with pytest.raises(InputError, match=re.escape(answer)):
                    answer_of(words)
                continue
            own, wanted = answer[rows], answer_of(words)[rows]
            assert len(own) <= len(wanted)
            for ours, theirs in zip(own[:3], wanted, strict=False):
                if theirs[number] is None:
                    assert ours["note"] == theirs["note"].removeprefix("row 1: ") != ""
                else:
                    assert ours[number] == pytest.approx(theirs[number], rel=_DIGITS), words


def test_a_layout_that_cannot_be_says_why(page: Path) -> None:
    for words, _, answer in told(page)["answers"]["step step"]["found"].values():
        tp, pp = (int(re.findall(rf"{name}=(\d+)", words)[0]) for name in ("tp", "pp"))
        (row,) = answer["rows"]
        assert (row["predicted_s"] is None) == (tp * pp > 8), words
        assert row["note"]


def test_in_a_browser_without_a_network(page: Path) -> None:
    browser = browser_or_skip()
    try:
        tab = Tab(browser, page)
        wait_for(tab, "document.querySelector('[data-name=\"time of a step\"]')")
        move(tab, "tp", 4)
        wait_for(tab, SETTLED)
        row = answer_of(command_of(tab, "step"))["rows"][0]
        assert row["tp"] == 4
        assert shown(tab, "time of a step") == pytest.approx(row["predicted_s"], rel=_DIGITS)
        link = tab.value("location.hash")
        assert "tp=4" in link
        for view, name in (("layouts", "the best layout"), ("serving", "time to first token")):
            tab.value(f"location.hash = '#{view}'")
            wait_for(tab, f"document.querySelector('[data-name=\"{name}\"]')", view)
            wait_for(tab, SETTLED)
            assert axe(tab) == []
            assert not tab.value("document.querySelector('.error')?.textContent ?? ''")
        tab.value(f"location.hash = {json.dumps(link)}")
        wait_for(tab, "document.querySelector('[data-name=\"time of a step\"]')")
        assert shown(tab, "time of a step") == pytest.approx(row["predicted_s"], rel=_DIGITS)
        for width, dark in ((390, True), (1280, False)):
            tab.resize(width)
            tab.dark(dark)
            tab.settle()
            assert tab.value("document.documentElement.scrollWidth - innerWidth") <= 0
            assert axe(tab) == []
        assert {one for one in tab.requests() if not one.startswith("data:")} == {page.as_uri()}
        assert tab.complaints() == []
    finally:
        browser.close()


def test_a_damaged_file_says_so(page: Path, tmp_path: Path) -> None:
    text = page.read_text("utf-8")
    at = text.index('id="told">') + 2000
    (broken := tmp_path / "broken.html").write_text(
        text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :], "utf-8"
    )
    browser = browser_or_skip()
    try:
        tab = Tab(browser, broken)
        wait_for(tab, "document.getElementById('lead').textContent.includes('damaged')")
    finally:
        browser.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model llama3-8b", "expected --export FILE"),
        ("--export {}/page.html --model nobodys", "unknown model"),
        ("--export {}/page.html --system nobodys", "unknown system"),
        ("--export {}/page.html --gpus 8,x", "expected --gpus such as 8,64, got 'x'"),
        ("--export {}", "got the folder"),
    ],
)
def test_a_wrong_word_is_one_sentence(words: str, said: str, tmp_path: Path, refused) -> None:
    assert said in refused("page", *shlex.split(words.format(tmp_path)))
    assert not [*tmp_path.iterdir()]
