"""Shared fixtures."""

import os
from pathlib import Path

import pytest

from hybridperf.cli import app as cli


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
