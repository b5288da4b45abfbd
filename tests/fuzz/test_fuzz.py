"""A slice of `benchmarks/fuzz.py`: whatever is damaged is refused in one sentence, and nothing else
happens. What is whole is read.
"""

import importlib.util
import sys
import time
from pathlib import Path

import pytest

PATH = Path(__file__).parent.parent.parent / "benchmarks" / "fuzz.py"
SPEC = importlib.util.spec_from_file_location("benchmarks_fuzz", PATH)
fuzz = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = fuzz
SPEC.loader.exec_module(fuzz)
MUTATIONS, SECONDS = 60, 0.3  # of each target; the shorter of both


@pytest.mark.parametrize("name", fuzz.targets())
def test_what_is_damaged_is_one_sentence(name, tmp_path):
    target = fuzz.targets()[name]()
    target.read(target.make(tmp_path, None))
    ends_s = time.monotonic() + SECONDS
    for number in range(MUTATIONS):
        assert fuzz.shown(name, target, number, tmp_path) == "", f"mutation {number}"
        if time.monotonic() > ends_s:
            break
