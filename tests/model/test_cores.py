"""On which core a machine is measured: the least busy one, and the same one again."""

import os

import pytest

from hybridperf.model.fit import programs
from hybridperf.model.fit.this_machine import cores_for
from hybridperf_calibration.microbench.store import RowStore


@pytest.fixture(autouse=True)
def asked_anew():
    programs.usable_core.cache_clear()
    yield
    programs.usable_core.cache_clear()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin")
def test_the_least_busy_core_is_taken_and_this_process_may_run_on_all_again(monkeypatch) -> None:
    before = os.sched_getaffinity(0)
    if len(before) == 1:
        pytest.skip("one core")
    monkeypatch.setattr(programs, "_loops", lambda core: 10 + (core == max(before)))
    assert programs.usable_core() == str(max(before))
    programs.usable_core.cache_clear()
    monkeypatch.undo()
    assert int(programs.usable_core()) in before
    assert os.sched_getaffinity(0) == before


def test_a_stopped_calibration_goes_on_where_it_ran(tmp_path, monkeypatch) -> None:
    """Rows of two cores are not told apart, and a store refuses those of another."""
    monkeypatch.setattr("hybridperf.model.fit.this_machine.usable_core", lambda: "0")
    assert cores_for(tmp_path) == "0"
    with RowStore(tmp_path / "ops.jsonl", {"setting cores": "5"}):
        pass
    assert cores_for(tmp_path) == "5"
    (tmp_path / "ops.jsonl").write_text("damaged")
    assert cores_for(tmp_path) == "0"
