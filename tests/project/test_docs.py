"""What the documentation shows runs, its links lead somewhere, and README fits a screen.

Blocks of a page marked `python` and `bash` run one after the other in an empty folder. A comment
above a block says `nightly` (it measures this machine for minutes: `pytest -m slow`) or `needs:
FILE` (the reader's own, here a shared one).
"""

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from benchmarks.claims.__main__ import claims
from hybridperf.cli.app import app, main

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
TRACES = {  # what stands in for the reader's own files
    "traces.tar.gz": "param_dlrm_8xV100_kineto.tar.gz",
    "execution_trace.json.gz": "param_resnet_2gpu_et_chakra1.1.0.json.gz",
}
_BLOCK = re.compile(
    r"^(?:<!-- (nightly|needs: .*?) -->\n)?```(python|bash)\n(.*?)^```$", re.M | re.S
)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


class Example(NamedTuple):
    """A block of a page."""

    mark: str
    language: str
    text: str


def examples(page: Path) -> list[Example]:
    return [Example(*found) for found in _BLOCK.findall(page.read_text())]


def named(pages: list[Path]) -> list[Any]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in dict.fromkeys(pages)]


def command(line: str) -> None:
    """Run a line of a shell block in this process; it must end with status 0."""
    words = shlex.split(line, comments=True)
    assert words[0] == "hybridperf", line
    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        pytest.raises(SystemExit) as ended,
    ):
        main(words[1:])
    assert ended.value.code == 0, f"{line}\n{printed.getvalue()}"


def run_page(page: Path, marks: tuple[str, ...]) -> None:
    names: dict[str, object] = {"__name__": "example"}
    for example in examples(page):
        if example.mark and example.mark not in marks:
            continue
        if example.language == "python":
            exec(compile(example.text, str(page), "exec"), names)
            continue
        for line in filter(None, map(str.strip, example.text.splitlines())):
            command(line)


@pytest.mark.parametrize("page", named([page for page in PAGES if examples(page)]))
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run_page(page, ())


def test_examples_on_traces_run(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "tutorials" / "trace.md"
    monkeypatch.chdir(tmp_path)
    marks = tuple(example.mark for example in examples(page))
    for mark in marks:
        name = mark.removeprefix("needs: ")
        shutil.copy(data_dir / "traces" / TRACES[name], tmp_path / name)
    run_page(page, marks)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", named([page for page in PAGES if any(e.mark == "nightly" for e in examples(page))])
)
def test_slow_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page, ("nightly",))


def test_tutorials_and_concepts_take_public_names_alone() -> None:
    for page in PAGES:
        if page.parent.name in ("tutorials", "concepts"):
            private = re.findall(
                r"^(?:from hybridperf|import hybridperf\.).*", page.read_text(), re.M
            )
            assert not private, page.name


@pytest.mark.parametrize(
    "page",
    named([*PAGES, *sorted(ROOT.glob("*.md")), *sorted((ROOT / "calibration").glob("*.md"))]),
)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text()):
        if not link.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / link).exists(), link


def test_files_that_docs_name_exist() -> None:
    """Paths in backticks that begin with a folder of the project."""
    for page in PAGES:
        for path in re.findall(
            r"`((?:hybridperf|tests|benchmarks|notebooks|docs|calibration)/[\w./]*)`",
            page.read_text(),
        ):
            assert (ROOT / path).exists(), f"{page.relative_to(ROOT)}: {path}"


@pytest.mark.parametrize("name", ["accuracy.md", "speed.md"])
def test_pages_of_figures_are_read_in_one_sitting(name: str) -> None:
    assert len((ROOT / "docs" / name).read_text().splitlines()) <= 200


def test_tables_of_accuracy_hold_every_line_that_the_page_shows() -> None:
    page = (ROOT / "docs" / "accuracy.md").read_text()
    tables = re.findall(r"<!-- (\w+): begin -->\n(.*?)<!-- \1: end -->", page, re.S)
    assert len(tables) >= 10
    for name, section in tables:
        beside = pd.read_csv(ROOT / "docs" / "accuracy" / f"{name}.csv")
        shown = re.findall(r"^\| ([^|]*) \| (\d+) \|", section, re.M)
        assert shown
        assert f"[all {len(beside)} lines](accuracy/{name}.csv)" in section
        assert {what for what, _ in shown} <= {*beside["what"].str.replace("|", "/")}
        met = (beside["ours"] <= beside["goal"])[beside["goal"].notna()]
        assert f"{met.sum()} of {len(met)} goals are met" in section


def test_no_page_names_a_place_of_somebody_s_machine() -> None:
    """A path of a home or a working folder, in docs, tables and notes of releases."""
    written = [*PAGES, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.csv")]
    for page in written:
        found = re.findall(r"(?<![\w.])/(?:home|root|work|tmp|Users)/[\w.-]+", page.read_text())
        assert not found, f"{page.relative_to(ROOT)}: {found[0]}"


def test_commands_in_text_exist() -> None:
    """`hybridperf NAME` anywhere in the documentation is a command, as is each claim."""
    import typer

    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    for page in PAGES:
        for name in re.findall(r"`hybridperf ([a-z][\w-]*)", page.read_text()):
            assert name in known, f"{page.relative_to(ROOT)}: hybridperf {name}"
        for name in re.findall(r"benchmarks\.claims ([a-z]\w*)", page.read_text()):
            assert name in claims(), f"{page.relative_to(ROOT)}: benchmarks.claims {name}"


def test_readme_shows_what_its_examples_print() -> None:
    """Numbers of the indented lines below the Python blocks, as other JAX versions round them."""
    readme = ROOT / "README.md"
    shown = re.findall(
        r"```python\n.*?^```$\n\n((?:    [^\n]*\n)+)", readme.read_text(), re.M | re.S
    )
    printed, names = io.StringIO(), dict[str, object]()
    with contextlib.redirect_stdout(printed):
        for example in examples(readme):
            if example.language == "python":
                exec(compile(example.text, str(readme), "exec"), names)

    def numbers(text: str) -> list[float]:
        return [float(one) for one in re.findall(r"-?\d+\.\d+", text)]

    assert shown
    assert numbers(printed.getvalue()) == pytest.approx(numbers("".join(shown)), rel=1e-3)


def test_readme_is_a_screen() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90
