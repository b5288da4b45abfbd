"""The examples of the documentation: each program runs, prints what its page says, and draws its
picture.
"""

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
FOLDER = Path(__file__).parents[2] / "docs" / "examples"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.stem != "index")
LARGE = ("llama_70b",)  # half a minute
_PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
_PRINTED = re.compile(r"^```text\n(.*?)^```$", re.M | re.S)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_NEAR = 0.1  # calibrations change; a page whose numbers have moved further is to be made again


def numbers(text: str) -> list[float]:
    return [float(one.replace(",", "")) for one in _NUMBER.findall(text)]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[pytest.mark.slow] * (page.stem in LARGE))
        for page in PAGES
    ],
)
def test_a_program_prints_what_its_page_says(page, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    program, said = _PROGRAM.findall(text)[0], _PRINTED.findall(text)[0]
    path = tmp_path / f"{page.stem}.py"
    path.write_text(program)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(path), run_name="__main__")
    words, said_words = (_NUMBER.sub("N", one).split() for one in (printed.getvalue(), said))
    assert words == said_words
    assert numbers(printed.getvalue()) == pytest.approx(numbers(said), rel=_NEAR)
    assert (tmp_path / f"{page.stem}.png").stat().st_size > 0


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES])
def test_pictures_are_small(page) -> None:
    assert 0 < page.with_suffix(".png").stat().st_size < 100_000
