"""Whose a line is."""

import pytest

from hybridperf.workloads import own


@pytest.mark.parametrize(
    ("file", "foreign"),
    [
        ("/home/me/train.py", False),
        ("<stdin>", False),
        # borrowed from an environment that is not the running one
        ("/elsewhere/.venv/lib/python3.11/site-packages/jax/_src/numpy/ops.py", True),
        ("/usr/lib/python3.12/contextlib.py", True),
        ("<frozen importlib._bootstrap>", True),
        (own.__file__, True),
        (own.__file__.replace("workloads/own", "cli/predict"), True),
    ],
)
def test_installed_packages_are_not_the_users(file, foreign) -> None:
    assert own.is_foreign(file) == foreign
