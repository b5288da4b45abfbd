"""Folders of tests for what differs from a commit: `python tests/support/touched.py [COMMIT]`.

A file of `hybridperf/ROOM/` leads to `tests/ROOM`, one of `calibration/` to `tests/calibration`, a
test to itself. `tests/project` always counts: the order of rooms, examples of the documentation.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def tests_of(paths: list[str]) -> list[str]:
    """Tests, relative to the root, for files relative to the root."""
    found = {"tests/project"}
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
