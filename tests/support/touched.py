"""Tests for what differs from a commit: `python tests/support/touched.py [COMMIT]`.

A file of `hybridperf/ROOM/` leads to `tests/ROOM`, one of `calibration/` to `tests/calibration`, a
test to itself. `tests/project` always counts (the order of rooms, names, one price), but for what
runs pages: minutes, for who touches these pages.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
# tests of `tests/project` that run whole pages, by what holds these
PAGES = {
    "test_notebooks.py": ("notebooks",), "test_benchmarks.py": ("benchmarks",),
    "test_gallery.py": ("docs",), "test_docs.py": ("docs", "README.md", "CHANGELOG.md"),
}  # fmt: skip


def tests_of(paths: list[str]) -> list[str]:
    """Tests, relative to the root, for files relative to the root."""
    tops = {Path(path).parts[0] for path in paths}
    found = {
        str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "project").glob("test_*.py")
        if tops.intersection(PAGES.get(path.name, tops))
    }  # fmt: skip
    for path in map(Path, paths):
        if path.parts[0] == "hybridperf" and len(path.parts) > 2:
            found.add(f"tests/{path.parts[1]}")
        elif path.parts[0] == "calibration":
            found.add("tests/calibration")
        elif path.parts[0] == "tests" and path.name.startswith("test_"):
            found.add(str(path))
    inside = {one for one in found if any(str(up) in found for up in Path(one).parents)}
    return sorted(one for one in found - inside if (ROOT / one).exists())


def changed(base: str) -> list[str]:
    """Files that differ from a commit, those git does not know yet among them."""
    said = [
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for words in (["diff", "--name-only", base], ["ls-files", "-o", "--exclude-standard"])
    ]
    return "".join(said).split()


if __name__ == "__main__":
    print("\n".join(tests_of(changed(sys.argv[1] if len(sys.argv) > 1 else "HEAD"))))
