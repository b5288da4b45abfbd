"""A claim run as `python -m benchmarks.claims` runs it."""

import pytest

from benchmarks.claims import __main__ as claims


@pytest.fixture
def claim(capsys, monkeypatch):
    """Run a claim in this process: (exit status, standard output, standard error)."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["claims", *map(str, arguments)])
        status = 0
        try:
            claims.main()
        except SystemExit as ended:
            status = ended.code
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.fixture
def claim_refused(claim):
    """Run a claim that must be refused: exit status 2 and one sentence, which is returned."""

    def refused(*arguments):
        status, _, err = claim(*arguments)
        assert status == 2, err
        (line,) = err.strip().splitlines()
        assert line.startswith("benchmarks.claims: ")
        return line

    return refused
