"""One flipped bit in every kind of file that we write and read again: refused, or harmless.

    python benchmarks/flips.py [--flips 2000] [--seed 0] [--only KIND ...] [--copies]

Prints by kind how many flips were refused, how many read to the same answer, and how many gave
another answer in silence; exit status 1 where any did. `--copies`: of files that were copied, which
lose what the file system keeps of them (`hybridperf/io/sums.py`).
"""

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.artefacts import artefacts, flipped, outcome  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--flips", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--copies", action="store_true")
    given = parser.parse_args()
    rng, total, known = random.Random(given.seed), Counter(), artefacts()
    names = given.only or list(known)
    copy = shutil.copyfile if given.copies else shutil.copy2
    for name in names:
        with tempfile.TemporaryDirectory() as home:
            whole, changed = Path(home) / "whole", Path(home) / "changed"
            whole.mkdir()
            known[name].make(whole)
            said, counts = known[name].read(whole), Counter()
            files = sorted(one for one in whole.rglob("*") if one.is_file())
            for _ in range(-(-given.flips // len(names))):
                shutil.rmtree(changed, ignore_errors=True)
                shutil.copytree(whole, changed, copy_function=copy)
                path = changed / rng.choice(files).relative_to(whole)
                at = flipped(path, rng)
                found = outcome(known[name], changed, said)
                if found not in ("refused", "harmless"):
                    print(f"{name}: bit {at} of {path.name}: {found}", flush=True)
                counts[found.split()[0]] += 1
        total += counts
        print(f"{name:14}", dict(counts), flush=True)
    print(f"{'all':14}", dict(total))
    sys.exit(bool(total["silent"] + total["unexpected"]))


if __name__ == "__main__":
    main()
