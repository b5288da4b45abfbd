"""Twenty tasks of a new user, by the README and the docs alone: each command as its page gives it,
and once with something wrong in it.

    python benchmarks/new_user.py [--only N ...] [--folder FOLDER]

A task is a dead end if its command is not on its page, the right one does not end with status 0 or
makes no file that it promises, or the wrong one is not refused by one sentence and status 2 within
a minute. Prints a row a task; ends with 1 if any is a dead end. Minutes in all, most of them of two
calibrations; tests/cli/test_new_user.py runs those that are quick.
"""

import argparse
import dataclasses
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHARED = Path(os.environ.get("HYBRIDPERF_DATA", ROOT.parent / "shared" / "data")) / "traces"
TRACES = {
    "traces.tar.gz": "param_dlrm_8xV100_kineto.tar.gz",
    "execution_trace.json.gz": "param_resnet_2gpu_et_chakra1.1.0.json.gz",
}
_WRONG_S, _RIGHT_S = 60, 900
_TUTORIALS = "docs/tutorials/"


@dataclasses.dataclass(frozen=True)
class Task:
    """One thing that a user wants.

    `command` stands so on `page`, whose Python blocks before it make its files; `wrong` is what a
    user gets wrong, as (a part of the command, what stands there instead), and `says` a part of the
    sentence that then comes; `makes` are files that there are afterwards.
    """

    wants: str
    page: str
    command: str
    wrong: tuple[str, str]
    says: str
    makes: tuple[str, ...] = ()
    slow: bool = False  # measures this machine


TASKS = (
    Task("measure this machine", "README.md",
         "hybridperf calibrate --quick --folder my-machine",
         ("--quick", "--ops gem"), "did you mean 'gemm'",
         ("my-machine/model.json", "my-machine/fit.png"), slow=True),
    Task("see what is known of it", "README.md", "hybridperf show my-machine",
         ("my-machine", "my-mashine"), "unknown name 'my-mashine'", slow=True),
    Task("predict unseen steps on it", _TUTORIALS + "new_machine.md",
         "hybridperf validate here --model my-machine --steps 2",
         ("--steps 2", "--steps two"), "steps", slow=True),
    Task("the best layout of a model", "README.md",
         "hybridperf plan --shape llama2-7b --system dgx_h100 --gpus 8 --batch 64"
         " --out plan.parquet",
         ("llama2-7b", "llama2-7bb"), "did you mean", ("plan.parquet",)),
    Task("a page of the plan", _TUTORIALS + "cluster.md",
         "hybridperf plan --shape llama2-7b --system dgx_h100 --gpus 8 --batch 64 --only zero=1,3"
         " --out plan.parquet --html plan.html",
         ("zero=1,3", "zerro=1"), "did you mean 'zero'", ("plan.html",)),
    Task("times of training steps", _TUTORIALS + "cluster.md",
         "hybridperf steps layouts.csv --out steps.csv",
         ("layouts.csv", "layouts.cvs"), "layouts.cvs", ("steps.csv",)),
    Task("a GPU without measurements", _TUTORIALS + "new_machine.md",
         "hybridperf fit --device l40s --folder my-l40s",
         ("l40s", "l40ss"), "did you mean 'l40s'", ("my-l40s/model.json",)),
    Task("times of ops on it", _TUTORIALS + "new_machine.md",
         "hybridperf ops shapes.csv --model my-l40s --out predicted.csv",
         ("my-l40s", "my-l40"), "my-l40", ("predicted.csv",)),
    Task("which shapes to measure", _TUTORIALS + "new_machine.md",
         "hybridperf plan-measurements --device l40s --budget 60s --ops gemm --dtype bf16"
         " --out plan.csv",
         ("--ops gemm", "--ops gem"), "did you mean 'gemm'", ("plan.csv",)),
    Task("a GPU with measured rows", _TUTORIALS + "new_machine.md",
         "hybridperf fit plan.csv --device l40s --folder my-l40s",
         ("plan.csv", "shapes.csv"), "time_s", ("my-l40s/fit.png",)),
    Task("ops on a shipped GPU", _TUTORIALS + "new_machine.md",
         "hybridperf ops shapes.csv --model h100_sxm --out on_h100.csv",
         ("--out on_h100.csv", "--out shapes.csv"), "shapes.csv", ("on_h100.csv",)),
    Task("collectives of a new system", _TUTORIALS + "new_machine.md",
         "hybridperf fit --system dgx_h200 --folder h200",
         ("dgx_h200", "dgx_h201"), "did you mean", ("h200/collectives.json",)),
    Task("times of messages", _TUTORIALS + "new_machine.md",
         "hybridperf collectives messages.csv --model h200 --out collectives.csv",
         ("messages.csv", "shapes.csv"), "collective", ("collectives.csv",)),
    Task("my JAX program", _TUTORIALS + "jax_program.md",
         "hybridperf predict --jax mine:step --model here --timeline step.json --html step.html",
         ("mine:step", "mine:stepp"), "stepp", ("step.json", "step.html")),
    Task("where time went in a trace", _TUTORIALS + "trace.md",
         "hybridperf trace summary traces.tar.gz --out steps.csv --host my-host",
         ("traces.tar.gz", "trace.tar.gz"), "trace.tar.gz", ("steps.csv", "my-host/host.json")),
    Task("a trace with faster links", _TUTORIALS + "trace.md",
         "hybridperf trace replay traces.tar.gz --links 2x",
         ("2x", "twice"), "--links"),
    Task("a trace of shapes, priced", _TUTORIALS + "trace.md",
         "hybridperf predict --trace execution_trace.json.gz --model v100_sxm2",
         ("v100_sxm2", "v100_sxm3"), "did you mean"),
    Task("tables to shard", _TUTORIALS + "sharding.md",
         "hybridperf shard tables.csv --gpus 4 --batch 4096 --model a100_sxm4_80g --system dgx_a100"
         " --method size_lookup --folder placed",
         ("size_lookup", "size_lokup"), "did you mean 'size_lookup'",
         ("placed/shard.json", "placed/shard.png")),
    Task("a grid of messages", _TUTORIALS + "grids.md",
         "hybridperf sweep collectives --model aic_h100_sxm --collective all_reduce,all_gather"
         " --bytes 1024..1073741824 --gpus 2..8 --nodes 1 --out messages.parquet --top 5",
         ("messages.parquet", "grid.csv"), ".parquet", ("messages.parquet", "messages.top.csv")),
    Task("a grid of training steps", _TUTORIALS + "grids.md",
         "hybridperf sweep steps --model llama3-70b --gpu h100_sxm,b200_sxm --gpus 256..1024"
         " --tp 2,4,8 --pp 1,2,4,8 --global-batch 1024 --where \"fits == 1\""
         " --out by_command.parquet --top 3",
         ("--tp 2,4,8", "--tpp 2,4,8"), "did you mean", ("by_command.parquet",)),
)  # fmt: skip


def prepared(task: Task, folder: Path) -> str:
    """Why the files that the page tells to make are not there, or nothing; run in `folder`."""
    page = (ROOT / task.page).read_text()
    if task.command not in page:
        return f"{task.page} has no such command"
    for name, shared in TRACES.items():
        if name in task.command and not (folder / name).exists():
            shutil.copy(SHARED / shared, folder / name)
    before = page[: page.index(task.command)]
    blocks = [part.partition("```")[0] for part in before.split("```python\n")[1:]]
    made = folder / f"{Path(task.page).stem}.made"
    done_before = len(made.read_text()) if made.exists() else 0
    todo = blocks[done_before:]
    if not task.slow:  # no other task needs this machine measured
        todo = [block for block in todo if "hp.calibrate(" not in block]
    if todo and task.page != "README.md":  # those of the README make no file
        program = "\n".join(["import pandas as pd", *todo])
        done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True)
        if done.returncode:
            return f"Python of {task.page}: {done.stderr.decode()[-200:]}"
    made.write_text("." * max(done_before, len(blocks)))
    return ""


def wrong_command(task: Task) -> str:
    """The command as a user gets it wrong."""
    right, instead = task.wrong
    assert right in task.command, (right, task.command)
    return task.command.replace(right, instead, 1)


def refusal(task: Task, status: int, said: str) -> str:
    """Why the answer to the wrong command leaves a user alone, or nothing."""
    lines = [line for line in said.strip().splitlines() if line]
    if status != 2:
        return f"wrong input ends with {status}"
    if len(lines) != 1 or "Traceback" in said:
        return f"{len(lines)} lines for wrong input: {said[:200]}"
    return "" if task.says in said else f"the sentence does not say {task.says!r}: {lines[0]}"


def tried(task: Task, folder: Path) -> tuple[str, float]:
    """Why a task is a dead end, or nothing; seconds."""
    start_s = time.monotonic()
    if why := prepared(task, folder):
        return why, 0.0
    found = []
    for command, limit_s in ((wrong_command(task), _WRONG_S), (task.command, _RIGHT_S)):
        words = [sys.executable, "-m", "hybridperf.cli", *shlex.split(command)[1:]]
        try:
            done = subprocess.run(
                words, cwd=folder, capture_output=True, text=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            found.append(f"more than {limit_s} s: {command}")
            continue
        if command != task.command:
            found.append(refusal(task, done.returncode, done.stderr))
        elif done.returncode:
            found.append(f"ends with {done.returncode}: {done.stderr[-200:]}")
    missing = [name for name in task.makes if not (folder / name).exists()]
    found.append(f"did not make {', '.join(missing)}" if missing else "")
    return "; ".join(filter(None, found)), time.monotonic() - start_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", type=int, nargs="+", help="numbers of tasks, from 1")
    parser.add_argument("--folder", type=Path, help="where to work; a temporary one if not given")
    options = parser.parse_args()
    dead = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [os.environ.get("PYTHONPATH", str(ROOT)), str(folder.resolve())]
        )
        for number, task in enumerate(TASKS, 1):
            if options.only and number not in options.only:
                continue
            why, took_s = tried(task, folder)
            dead += bool(why)
            print(f"{number:2} {task.wants:28} {took_s:6.1f} s  {why or 'ok'}", flush=True)
    return bool(dead)


if __name__ == "__main__":
    sys.exit(main())
