"""Progress: what a program tells on its output, the process that started it shows."""

import io
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import tqdm.auto
import tqdm.std

from hybridperf.io import progress
from hybridperf.io.progress import Progress
from hybridperf.model.fit import programs

PROGRAM = """
import sys
from hybridperf.io.progress import Progress, told
with told("work") as tell:
    for done in range(4):
        tell(Progress(done, 3, "gemm", 200.0))
print("a remark of a library")
print("hybridperf: a remark of ours", file=sys.stderr)
sys.exit(4)
"""


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (Progress(120, 2824, "gemm", 200.0), "120 of 2,824, gemm, about 3 minutes left"),
        (Progress(120, 824, "gemm", 60.0), "120 of 824, gemm, a minute left"),
        (Progress(120, 824, "", 10.0), "120 of 824, less than a minute left"),
        (Progress(120, 824, "gemm"), "120 of 824, gemm"),
        (Progress(824, 824, "gemm", 0.0), "824 of 824"),
    ],
)
def test_words(now: Progress, words: str) -> None:
    assert now.words() == words


def test_what_is_told_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv(progress.READ, "1")
    with progress.told("work") as tell:
        for done in range(101):  # at once: only the first and the last
            tell(Progress(done, 100, "gemm", 1.5))
    lines = capsys.readouterr().out.splitlines()
    assert [*map(progress.read, lines)] == [
        Progress(0, 100, "gemm", 1.5), Progress(100, 100, "gemm", 1.5),
    ]  # fmt: skip
    with progress.told("work") as tell:  # the time was up
        for done in range(8):
            tell(Progress(done, 100, "gemm", 1.5))
    assert progress.read(capsys.readouterr().out.splitlines()[-1]) == Progress(7, 100)
    assert progress.read("a line of a library") is None
    assert progress.read(lines[0][:40]) is None  # the program was killed within it


def test_without_a_terminal_it_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.delenv(progress.READ, raising=False)
    with progress.told("work") as tell:
        for done in range(101):
            tell(Progress(done, 100))
    assert capsys.readouterr().err.splitlines() == [
        "hybridperf: work: 0 of 100", "hybridperf: work: 100 of 100",
    ]  # fmt: skip


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    with progress.shown("measuring ops") as show:
        assert not terminal.getvalue()  # nothing before it is known how long it is
        show(Progress(1, 2, "gemm", 200.0))
        show(Progress(2, 2))
    said = terminal.getvalue()
    assert "measuring ops" in said
    assert "1 of 2, gemm, about 3 minutes left" in said
    assert "2 of 2" in said


def test_a_bar_in_a_notebook_is_not_red(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(config={"IPKernelApp": {}}))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setattr("tqdm.auto.tqdm", tqdm.std.tqdm)  # as where ipywidgets is not installed
    with progress.shown("measuring ops") as show:
        show(Progress(1, 3, "gemm", 200.0))
        show(Progress(2, 3, "gemm", 100.0))
    progress.say("fitting")
    out, err = capsys.readouterr()
    assert not err
    assert "measuring ops |" in out
    assert "1 of 3, gemm, about 3 minutes left" in out
    *_, bar, fitting = re.split(r"[\r\n]+", out.rstrip())
    assert bar.endswith("| 2 of 3")
    assert fitting == "hybridperf: fitting"


def test_a_program_is_shown_and_its_remarks_are_passed_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Where standard error is no file: what a library prints goes there, too."""
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    status = programs._status_of([sys.executable, "-c", PROGRAM], "work")
    assert status == 4
    out, err = capsys.readouterr()
    assert not out
    assert {"hybridperf: work: 3 of 3", "a remark of a library", "hybridperf: a remark of ours"} < {
        *err.splitlines()
    }
    assert '"progress"' not in err


def test_a_program_that_nobody_reads_shows_it_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert "hybridperf: work: 3 of 3" in done.stderr
    assert done.stdout == "a remark of a library\n"
