"""How commands end when nobody reads them, when they are interrupted, and where characters,
descriptors or a writable place are missing: in processes of their own, several checks in each.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "hybridperf.cli"]
OPS = "op,dtype,m,n,k\ngemm,fp16,128,4096,4096\ngemm,fp32,512,1024,1024\n"


def in_shell(text: str, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    (folder / "ops.csv").write_text(OPS)
    words = " ".join(COMMAND)
    return subprocess.run(
        ["bash", "-c", text.replace("HYBRIDPERF", words)], cwd=folder, capture_output=True,
        text=True, env={**os.environ, **environment}, timeout=300, errors="replace",
    )  # fmt: skip


def test_a_reader_who_has_seen_enough_leaves_the_files_written(tmp_path: Path) -> None:
    asked = "HYBRIDPERF plan --shape gpt2-medium --system dgx_h100 --gpus 2 --batch 4 --only zero=0"
    done = in_shell(
        f'{asked} --out plan.csv --html plan.html | true; echo "${{PIPESTATUS[0]}}"', tmp_path,
        LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0",
    )  # fmt: skip
    assert done.stdout.strip() == "0", done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "plan.csv").stat().st_size > 1000
    assert "</html>" in (tmp_path / "plan.html").read_bytes().decode("utf-8")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors(tmp_path: Path, closed: str) -> None:
    done = in_shell(f"HYBRIDPERF ops ops.csv --model v100 --out out.csv {closed}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"},
        {"PYTHONIOENCODING": "ascii"},
    ],
)
def test_locales(tmp_path: Path, settings: dict[str, str]) -> None:
    (tmp_path / "öps.csv").write_text(OPS)
    done = in_shell(
        "HYBRIDPERF ops öps.csv --model v100 && HYBRIDPERF steps model=lläma gpu=h100_sxm",
        tmp_path, **settings,
    )  # fmt: skip
    assert done.returncode in (2, 3)
    assert "unexpected" not in done.stderr
    assert "us" in done.stdout or "µs" in done.stdout or "\ufffds" in done.stdout


def interrupted(command: list[str], folder: Path, after_s: float) -> tuple[int, str]:
    """After so long in the command: until then Python starts, however long that takes."""
    begin = "import sys, hybridperf.cli as cli; print(flush=True); cli.main(sys.argv[1:])"
    with subprocess.Popen(
        [sys.executable, "-c", begin, *command], cwd=folder, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        process.stdout.readline()
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=300)
    return process.returncode, said


@pytest.mark.parametrize("after_s", [0.3, 1.0, 2.5])
def test_an_interrupt_at_any_moment_says_what_is_kept(tmp_path: Path, after_s: float) -> None:
    (tmp_path / "ops.csv").write_text(
        OPS.replace("\ngemm", "\ngemm,fp16,64,64,64" * 300 + "\ngemm")
    )
    words = ["sweep", "ops", "--op", "gemm", "--m", "1..300", "--n", "1..300", "--k", "64"]
    command = [*words, "--dtype", "fp16", "--model", "v100", "--out", "out.parquet", "--json"]
    status, said = interrupted(command, tmp_path, after_s)
    if status != 0:  # or it had ended
        assert status in (130, -signal.SIGINT), said
        assert "Traceback" not in said, said
        assert "interrupted; " in said, said


def test_what_was_written_before_an_interrupt_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from hybridperf.cli import app
    from hybridperf.report import answer_page

    def interrupt(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(answer_page, "answer_page", interrupt)
    asked = "plan --shape gpt2-medium --system dgx_h100 --gpus 1 --batch 4 --only zero=0 --out"
    with pytest.raises(SystemExit) as ended:
        app.main([*asked.split(), str(tmp_path / "a.csv"), "--html", str(tmp_path / "a.html")])
    assert ended.value.code == 130
    said = capsys.readouterr().err
    assert f"interrupted; written were {tmp_path / 'a.csv'}" in said
    assert json.dumps([one.name for one in tmp_path.iterdir()]) == '["a.csv"]'


@pytest.mark.parametrize("busy_s", [0.0, 0.5])
def test_an_interrupt_that_python_dropped_comes_again(tmp_path: Path, busy_s: float) -> None:
    """No error leaves a callback of garbage collection, and JAX has one: the command went on; nor
    the hook that is told of it, in which a busy machine stays longer.
    """
    code = """if True:
        import _thread, gc, signal, sys, threading, time
        from hybridperf.cli import app
        from hybridperf.model import frames

        start = _thread.start_new_thread

        def slowly(*given):
            found = start(*given)
            time.sleep(float(sys.argv[1]))
            return found

        def drop(*_):
            _thread.start_new_thread = threading._start_new_thread = slowly
            gc.callbacks.remove(drop)
            signal.raise_signal(signal.SIGINT)

        def never(*_, **__):
            gc.callbacks.append(drop)
            gc.collect()
            while True:
                pass

        frames.predict_ops = never
        app.main(["ops", "ops.csv", "--model", "v100"])
    """
    (tmp_path / "ops.csv").write_text(OPS)
    done = subprocess.run(
        [sys.executable, "-c", code, str(busy_s)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, "interrupted; " in done.stderr) == (130, True), done.stderr


def test_an_interrupt_after_the_end_changes_nothing(tmp_path: Path) -> None:
    """What Python tidies up after a command was interrupted as if answers were not written."""
    code = """if True:
        import atexit, signal
        from hybridperf.cli import app

        atexit.register(signal.raise_signal, signal.SIGINT)
        app.main(["ops", "ops.csv", "--model", "v100", "--out", "out.csv"])
    """
    (tmp_path / "ops.csv").write_text(OPS)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out.csv").exists()
