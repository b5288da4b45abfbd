"""Processes: what a fork of one that computed would wait for, and where compiled code is kept."""

import multiprocessing
import os
from pathlib import Path

import pytest

from hybridperf.cli.common import cache_folder, compilation_cache
from hybridperf.io import InputError
from hybridperf.io.process import check_not_forked, keeping


def _says(answers) -> None:
    try:
        check_not_forked()
        answers.put("computes")
    except InputError as error:
        answers.put(str(error))


@pytest.mark.parametrize(("how", "said"), [("spawn", "computes"), ("fork", "was forked from one")])
def test_a_fork_of_a_process_that_computed_is_refused_with_the_reason(how: str, said: str) -> None:
    check_not_forked()
    context = multiprocessing.get_context(how)
    answers = context.Queue()
    process = context.Process(target=_says, args=(answers,))
    process.start()
    assert said in answers.get(timeout=300)
    process.join()


def test_an_interrupt_says_what_is_kept() -> None:
    def work() -> None:
        with keeping("nothing"), keeping("half of it"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="half of it"):
        work()


def test_compiled_code_of_others_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, object] = {}
    monkeypatch.setattr("jax.config.update", kept.__setitem__)
    monkeypatch.delenv("HYBRIDPERF_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compilation_cache()
    assert kept["jax_compilation_cache_dir"] == str(cache_folder())
    kept.clear()
    monkeypatch.setattr(os, "getuid", lambda: cache_folder().stat().st_uid + 1)
    compilation_cache()
    assert not kept


def test_a_home_that_is_none_costs_the_cache_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYBRIDPERF_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for home in ("/proc/nothing", "/dev/null/x"):
        monkeypatch.setenv("HOME", home)
        compilation_cache()
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without a name
    compilation_cache()
    assert not Path("~").exists()
