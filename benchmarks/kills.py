"""Commands killed while they save: what they leave is all old or all new.

    python benchmarks/kills.py [--kills 4] [--only fit ...]

Each command runs over what an earlier run left, is killed (SIGKILL) a random moment after the first
temporary file of a save is seen, and what it leaves is read. Prints how many kills left the old and
the new; exit status 1 where any left neither.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd

import hybridperf as hp
from hybridperf.collectives.model import load_collectives
from hybridperf.learning.prior.shipped import load_prior

COMMAND = [sys.executable, "-m", "hybridperf.cli"]
DATA = Path(os.environ.get("HYBRIDPERF_DATA", "../shared/data"))
_WAIT_S = 600
SWEEP = "sweep ops --op gemm --dtype fp16 --n 128 --k 128 --model v100 --restart"


def model(out: Path) -> str:
    return hp.load_model(out).fingerprint()


def table(out: Path) -> str:
    frame = pd.read_parquet(out) if out.suffix == ".parquet" else pd.read_csv(out)
    return str(pd.util.hash_pandas_object(frame).sum())


def shipped(out: Path) -> str:
    load_prior(out / "prior")  # a commit of its own after each family: any is whole
    return model(out / "t4")


def rows(path: Path, slower: float) -> Path:
    lines = [f"gemm,fp16,{128 * at},512,512,{slower * 1e-6 * at}" for at in range(1, 40)]
    path.write_text("\n".join(["op,dtype,m,n,k,time_s", *lines]) + "\n")
    return path


def collectives(path: Path, slower: float) -> Path:
    lines = [f"all_reduce,{2**at},8,1,{slower * (1e-5 + 2**at * 1e-11)}" for at in range(10, 30)]
    path.write_text("\n".join(["collective,bytes,n_gpus,n_nodes,time_s", *lines]) + "\n")
    return path


def cases(folder: Path) -> dict[str, tuple[list[list[str]], Path, Callable[[Path], str]]]:
    """By name: commands of the old and the new, where both write, and what tells them apart."""
    a, out = str(folder), folder / "out"
    both = (1.0, 2.0)
    fit = [
        ["fit", str(rows(folder / f"{x}.csv", x)), "--device", "v100", "--prior", "none"]
        for x in both
    ]
    system = [["fit", str(collectives(folder / f"c{x}.csv", x)), "--system", "dgx2"] for x in both]
    plan = [
        "plan",
        "--model",
        "gpt2-medium",
        "--system",
        "dgx2",
        "--device",
        "v100",
        "--dtype",
        "fp16",
        "--gpus",
    ]
    sweeps = [[*SWEEP.split(), "--m", f"1..{most}:1"] for most in (9999, 20000)]
    calibrate = ["calibrate", "--quick", "--ops", "gemm"]
    calibrations = ["calibrations", "--data", str(DATA), "--devices", "t4", "--families"]
    return {
        "fit": ([[*one, "--out", a + "/out"] for one in fit], out, model),
        "fit --system": (
            [[*one, "--out", a + "/out"] for one in system], out,
            lambda out: load_collectives(out).fingerprint(),
        ),
        "plan": (
            [[*plan, gpus, "--batch", "64", "--out", a + "/out.csv"] for gpus in ("8", "16")],
            folder / "out.csv", table,
        ),
        "sweep": (
            [[*one, "--out", a + "/out.parquet"] for one in sweeps], folder / "out.parquet", table
        ),
        "calibrate": (
            [[*calibrate, "--budget", budget, "--out", a + "/out"] for budget in ("5s", "60s")],
            out, model,
        ),
        "calibrations": (
            [[*calibrations, one, "--only", "ops", "--out", a + "/out"] for one in ("softmax", "softmax,norm")],
            out, shipped,
        ),
    }  # fmt: skip


def saving(folder: Path) -> Iterator[Path]:
    """Temporary files of saves, anywhere in a folder."""
    with contextlib.suppress(OSError):
        yield from (
            one for one in folder.rglob("*") if one.name.startswith((".hybridperf-", ".saved"))
        )


def killed(command: list[str], folder: Path, delay_s: float) -> bool:
    """Whether a command was killed while it saved; False where it ended before."""
    process = subprocess.Popen(
        ["nice", "-n", "9", *COMMAND, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    ends_s = time.monotonic() + _WAIT_S
    while process.poll() is None and time.monotonic() < ends_s:
        if next(saving(folder), None):
            time.sleep(delay_s)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            break
        time.sleep(0.0005)
    return process.wait() == -signal.SIGKILL


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--only", action="append", default=[])
    given = parser.parse_args()
    rng, neither = random.Random(0), 0
    home = Path(tempfile.mkdtemp(prefix="hybridperf-kills-"))
    for name in given.only or cases(home):
        folder, counts = (
            home / name.replace(" ", ""),
            {"old": 0, "new": 0, "neither": 0, "not killed": 0},
        )
        folder.mkdir()
        (first, second), out, tells = cases(folder)[name]
        known, before = {}, home / "before"
        for which, command in (("new", second), ("old", first)):
            for one in (out, out.with_name(f"{out.name}.parts")) if name != "calibrate" else ():
                shutil.rmtree(one, ignore_errors=True) if one.is_dir() else one.unlink(
                    missing_ok=True
                )
            subprocess.run([*COMMAND, *command], check=True, capture_output=True)
            known[tells(out)] = which
        shutil.rmtree(before, ignore_errors=True)
        shutil.copytree(folder, before)
        for _ in range(given.kills):
            shutil.rmtree(folder)
            shutil.copytree(before, folder)
            if not killed(second, folder, rng.choice([0, 0.01, 0.3, 1.0])):
                counts["not killed"] += 1
                continue
            try:
                counts[known.get(tells(out), "neither")] += 1
            except Exception as error:
                print(f"{name}: {error}")
                counts["neither"] += 1
        print(name, counts, flush=True)
        neither += counts["neither"]
    shutil.rmtree(home)
    sys.exit(bool(neither))


if __name__ == "__main__":
    main()
