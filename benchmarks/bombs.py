"""Small files that would become gigabytes, each read by a command of its own: what it took.

    python benchmarks/bombs.py [--only BOMB ...] [--gib 6]

Prints for each the file's size, the exit status, seconds of a clock and the largest memory; exit
status 1 where a command took over 2.5 GiB or 20 seconds, or said more than one sentence.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.bombs import BOMBS  # noqa: E402

MOST_BYTES, MOST_S = 2.5 * 2**30, 20.0


def _made(name: str, folder: Path, size: int) -> list[str]:
    return BOMBS[name](folder, size)


def took(command: list[str], folder: Path) -> tuple[int, float, int, str]:
    """(exit status, seconds, most bytes, standard error) of a command; killed after a minute."""
    start_s = time.monotonic()
    with open(folder / "said", "wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "hybridperf.cli", *command], stdout=subprocess.DEVNULL,
            stderr=said,
        )  # fmt: skip
        late = threading.Timer(60, process.kill)
        late.start()
        _, status, usage = os.wait4(process.pid, 0)
        late.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    words = (folder / "said").read_text(errors="replace").strip()
    return process.returncode, time.monotonic() - start_s, usage.ru_maxrss * 1024, words


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--gib", type=float, default=6.0)
    given = parser.parse_args()
    failed = 0
    for name in given.only or BOMBS:
        with tempfile.TemporaryDirectory() as home:
            # in a process of its own: what it takes is no measure of those that are started later
            with ProcessPoolExecutor(1) as made:
                command = made.submit(_made, name, Path(home), int(given.gib * 2**30)).result()
            size = sum(one.stat().st_size for one in Path(home).iterdir())
            status, seconds, most, said = took(command, Path(home))
            lines = [one for one in said.splitlines() if "hybridperf: " in one]
            bad = most > MOST_BYTES or seconds > MOST_S or status not in (0, 2, 3)
            bad = bad or "unexpected" in said or "Traceback" in said
            failed += bad
            words = (lines or said.splitlines() or [""])[-1].replace(home, "")[:150]
            print(
                f"{name:16} {size:>10,} B  exit {status:>3}  {seconds:5.1f} s"
                f"  {most / 2**30:4.1f} GiB  {'FALLS ' * bad}{words}",
                flush=True,
            )
    print(f"{failed} of {len(given.only or BOMBS)} fall")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
