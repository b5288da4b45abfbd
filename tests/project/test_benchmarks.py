"""Benchmarks are run by hand; what they import exists, and each has a section of docs/speed.md."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"
BENCHES = sorted(path.name for path in FOLDER.glob("bench_*.py"))


def imported(source: str):
    """(module, names) of what a program imports from us, programs within its strings included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "hybridperf":
            yield node.module, [name.name for name in node.names]
        if isinstance(node, ast.Constant) and "\nfrom hybridperf" in str(node.value):
            yield from imported(node.value)


@pytest.mark.parametrize("name", BENCHES)
def test_what_a_benchmark_imports_exists(name: str) -> None:
    found = list(imported((FOLDER / name).read_text()))
    assert found or name in ("bench_import.py", "bench_moves.py")  # commands and a browser
    for module, names in found:
        loaded = importlib.import_module(module)
        for one in names:
            submodule = f"{module}.{one}"
            assert hasattr(loaded, one) or importlib.util.find_spec(submodule), submodule


def test_the_page_runs_every_benchmark() -> None:
    spec = importlib.util.spec_from_file_location("benchmarks_page", FOLDER / "page.py")
    page = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = page
    spec.loader.exec_module(page)
    of_evaluator = "bench_predictions.py"  # which bench_evaluator.py runs at its end
    run = {command.split()[0] for command in page.COMMANDS.values()}
    assert run == {*BENCHES} - {of_evaluator}
