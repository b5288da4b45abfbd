"""Whatever is damaged is refused in one sentence: mutations of every file that people give us, of
arguments, and of saved models.

    python benchmarks/fuzz.py [--mutations 50000] [--seed 3] [--only TARGET] [--out FILE]

Each mutation is made from its target's name and its number, so that any can be made again:
`--only TARGET --number N` runs one and shows what it raises. A worker process does one target's
mutations; the counts so far stand in OUT, from which the same command goes on. Exit status 1 where
anything was found:

    unexpected  an error that is no sentence for the user, or a process that died
    hangs       more than 30 seconds, twice: once may be another process's doing
    memory      more than 4 GiB more than before
    changed     a number changed in a file with a checksum, and read
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from support.fuzz_targets import ChangedNumber, Target, targets  # noqa: E402

from hybridperf.io import InputError  # noqa: E402

HANG_S, MOST_BYTES, PATIENCE_S = 30, 4 * 2**30, 120
FOUND = ("unexpected", "hangs", "memory", "changed")
_CHUNK = 500  # mutations of a worker
SEED = os.environ.get("HYBRIDPERF_FUZZ_SEED", "")  # --seed, for workers too


class _Hang(BaseException):
    pass


def _late(*_: Any) -> None:
    raise _Hang


def shown(name: str, target: Target, number: int, folder: Path) -> str:
    """What a mutation shows: "" for nothing, or a kind of FOUND and the sentence."""
    said = one(name, target, number, folder)
    return one(name, target, number, folder) if said == "hangs" else said


def one(name: str, target: Target, number: int, folder: Path) -> str:
    """What a mutation shows at once."""
    rng = random.Random(f"{name}-{number}{SEED}")
    made = target.make(folder, rng)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(HANG_S)
    try:
        target.read(made)
    except InputError as error:
        if len(str(error)) > 1500:
            return f"unexpected a sentence of {len(str(error))} characters"
    except ChangedNumber as error:
        return f"changed {error}"
    except _Hang:
        return "hangs"
    except Exception as error:
        return f"unexpected {type(error).__name__}: {str(error)[:300]}"
    finally:
        signal.alarm(0)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return f"memory {grown / 2**20:.1f} GiB" if grown * 1024 > MOST_BYTES else ""


def work(name: str, first: int, count: int) -> None:
    """A worker: a line for each mutation, empty where all is well."""
    out, sys.stdout = sys.stdout, sys.stderr
    target = targets()[name]()
    resource.setrlimit(resource.RLIMIT_DATA, (3 * MOST_BYTES, 3 * MOST_BYTES))
    with tempfile.TemporaryDirectory(prefix="hybridperf-fuzz-") as folder:
        for number in range(first, first + count):
            said = shown(name, target, number, Path(folder))
            print(" ".join(said.split()), file=out, flush=True)


def lines_of(name: str, first: int, count: int) -> Iterator[str]:
    """What a worker says of each mutation; one that dies or is silent is ended."""
    command = [sys.executable, __file__, "--work", name, str(first), str(count)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as worker:
        assert worker.stdout is not None
        for _ in range(count):
            ready, _, _ = select.select([worker.stdout], [], [], PATIENCE_S)
            line = worker.stdout.readline() if ready else None
            if not line:
                worker.kill()
                yield "hangs" if line is None else f"unexpected end {worker.wait()}"
                return
            yield line.strip()


def run(mutations_: int, names: list[str], out: Path) -> int:
    """All targets in turn; how many things were found."""
    state = json.loads(out.read_text()) if out.exists() else {}
    share = -(-mutations_ // len(names))
    while left := [name for name in names if state.get(name, {}).get("done", 0) < share]:
        name = min(left, key=lambda one: state.get(one, {}).get("done", 0))
        mine = state.setdefault(name, {"done": 0, "seconds": 0.0, "found": []})
        start_s = time.monotonic()
        for line in lines_of(name, mine["done"], min(_CHUNK, share - mine["done"])):
            if line:
                mine["found"].append([mine["done"], line])
                print(f"{name} {mine['done']}: {line}", flush=True)
            mine["done"] += 1
        mine["seconds"] += time.monotonic() - start_s
        out.write_text(json.dumps(state, indent=1))
    total = {kind: 0 for kind in FOUND}
    for name in names:
        kinds = [line.split()[0] for _, line in state[name]["found"]]
        counts = {kind: kinds.count(kind) for kind in FOUND}
        total = {kind: total[kind] + counts[kind] for kind in FOUND}
        words = ", ".join(f"{kind} {count}" for kind, count in counts.items())
        print(f"{name:17} {state[name]['done']:6} in {state[name]['seconds']:5.0f} s: {words}")
    words = ", ".join(f"{kind} {count}" for kind, count in total.items())
    print(f"{'all':17} {sum(state[name]['done'] for name in names):6}: {words}")
    return sum(total.values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mutations", type=int, default=50_000)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--number", type=int)
    parser.add_argument(
        "--out", type=Path, default=Path(tempfile.gettempdir()) / "hybridperf-fuzz.json"
    )
    parser.add_argument("--work", nargs=3)
    parser.add_argument("--seed", default="", help="others than the usual ones")
    given = parser.parse_args()
    if given.seed:
        os.environ["HYBRIDPERF_FUZZ_SEED"] = globals()["SEED"] = f" of {given.seed}"
        given.out = given.out.with_stem(f"{given.out.stem}-{given.seed}")
    if given.work:
        name, first, count = given.work
        work(name, int(first), int(count))
    elif given.number is not None:
        (name,) = given.only
        target = targets()[name]()
        made = target.make(Path(tempfile.mkdtemp()), random.Random(f"{name}-{given.number}{SEED}"))
        print(made)
        target.read(made)
    else:
        sys.exit(bool(run(given.mutations, given.only or list(targets()), given.out)))


if __name__ == "__main__":
    main()
