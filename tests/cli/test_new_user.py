"""The tasks of benchmarks/new_user.py: all commands stand on their pages, what a user gets wrong
is one sentence; `-m slow` runs every task as a user does.
"""

import dataclasses
import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "new_user.py"
_SPEC = importlib.util.spec_from_file_location("new_user", SCRIPT)
new_user = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = new_user
_SPEC.loader.exec_module(new_user)
# these need a calibration of this machine, or a trace that is not part of the project
QUICK = [task for task in new_user.TASKS if not task.slow and "trace" not in task.wants]


def of(wants):
    return next(task for task in new_user.TASKS if task.wants == wants)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a user works, who has been told what to measure: later Python of that page reads it."""
    folder = tmp_path_factory.mktemp("user")
    assert new_user.tried(of("which shapes to measure"), folder)[0] == ""
    return folder


def test_there_are_twenty():
    assert len(new_user.TASKS) == len({task.wants for task in new_user.TASKS}) == 20
    for task in new_user.TASKS:
        assert task.command in (SCRIPT.parent.parent / task.page).read_text()


@pytest.mark.parametrize("task", QUICK, ids=lambda task: task.wants)
def test_what_a_user_gets_wrong_is_one_sentence(task, folder, run, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    assert new_user.prepared(task, folder) == ""
    status, _, said = run(*shlex.split(new_user.wrong_command(task))[1:])
    assert new_user.refusal(task, status, said) == ""


@pytest.mark.parametrize(
    "wants", ["times of training steps", "ops on a shipped GPU", "a grid of messages"]
)
def test_a_task_is_no_dead_end(wants, folder):
    assert new_user.tried(of(wants), folder)[0] == ""


def test_a_dead_end_is_found(folder):
    task = of("ops on a shipped GPU")
    said = new_user.tried(dataclasses.replace(task, says="nothing of it"), folder)[0]
    assert "does not say 'nothing of it'" in said
    silent = dataclasses.replace(task, wrong=("on_h100.csv", "on_gpu.csv"), makes=("other.csv",))
    said = new_user.tried(silent, folder)[0]
    assert "wrong input ends with 0" in said
    assert "did not make other.csv" in said
    elsewhere = dataclasses.replace(task, command="hybridperf fly")
    assert "has no such command" in new_user.tried(elsewhere, folder)[0]


@pytest.mark.slow
def test_all_twenty(data_dir, tmp_path):
    words = [sys.executable, str(SCRIPT), "--folder", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
