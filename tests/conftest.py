"""Shared fixtures."""

import gc
import os
import signal
from pathlib import Path

import pytest

from hybridperf.cli import app as cli
from hybridperf.cli.common import cache_folder

# files that take a minute or more come first, the longest before others, so that none is left alone
# at the end; see Makefile
LONGEST = (
    "test_one_price.py", "test_notebooks.py", "test_docs.py", "test_step_function.py",
    "test_pricing.py", "test_sharding.py", "test_cli.py", "test_gradients.py",
    "test_measurement_plan.py", "test_random_laws.py", "test_transformer_step.py", "test_price.py",
    "test_embedding_bag.py", "test_torch_published.py", "test_workload_plan.py",
    "test_new_user.py", "test_project.py", "test_engine_load.py",
)  # fmt: skip


def pytest_configure() -> None:
    """Let all processes of a run share what they compile, before any of them imports JAX."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_folder()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def pytest_runtest_setup() -> None:
    """Have processes that a test starts take interrupts: a command that was interrupted in this one
    takes no second (`cli/app.py`), nor does what a shell runs behind `&`; children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; files keep their order otherwise, and tests theirs."""
    rank = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


def pytest_collection_finish() -> None:
    """Look for garbage seldom, and never in what was imported: a tenth of the time goes there."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of public measurements, which is not part of the project."""
    folder = Path(
        os.environ.get("HYBRIDPERF_DATA", Path(__file__).parent.parent.parent / "shared" / "data")
    )
    if not (folder / "devices.csv").is_file():
        pytest.skip(
            f"no measured data at {folder}; set HYBRIDPERF_DATA to the folder that holds"
            " devices.csv"
        )
    return folder


@pytest.fixture
def run(capsys):
    """Run a command in this process: (exit status, standard output, standard error)."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main([str(a) for a in arguments])
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return run


@pytest.fixture
def refused(run):
    """Run a command that must be refused: exit status 2 and one sentence, which is returned."""

    def refused(*arguments):
        status, _, err = run(*arguments)
        assert status == 2, err
        lines = err.strip().splitlines()
        assert len(lines) == 1, err
        assert lines[0].startswith("hybridperf: ")
        assert "Traceback" not in err
        return lines[0]

    return refused
