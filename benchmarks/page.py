"""docs/speed.md from the benchmarks: `python benchmarks/page.py [NAME ...]`, all in half an hour.

Runs them one after another and puts what each printed into its section of the page, with its
command, date, commit and machine. For two idle cores: benchmarks pin themselves where one counts.
"""

import os
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # started as a file, it finds the claims
from benchmarks.claims.page import made_text, with_section
from hybridperf.io import replacing
from hybridperf.validate.harness import made_by

COMMANDS = {  # section: what is run
    "evaluator": "bench_evaluator.py --quick",
    "plan": "bench_plan.py",
    "steps": "bench_steps.py",
    "serving": "bench_serving.py",
    "moves": "bench_moves.py",
    "search": "bench_search.py",
    "sweep": "bench_sweep.py",
    "grid": "bench_grid.py",
    "shard": "bench_shard.py",
    "collectives": "bench_collectives.py",
    "frames": "bench_frames.py",
    "gradients": "bench_gradients.py",
    "prior": "bench_prior.py",
    "traces": "bench_traces.py",
    "import": "bench_import.py",
}
HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "speed.md"


def main(asked: list[str]) -> None:
    """Run the benchmarks named, all if none is; each section is written as it is measured."""
    if wrong := [name for name in asked if name not in COMMANDS]:
        sys.exit(f"expected names of {', '.join(COMMANDS)}, got {wrong[0]!r}")
    for name in asked or COMMANDS:
        command = COMMANDS[name]
        print(f"{command} ...", file=sys.stderr, flush=True)
        script, *options = command.split()
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "tests")}  # `support`
        done = subprocess.run(
            [sys.executable, str(HERE / script), *options],
            stdout=subprocess.PIPE, text=True, check=True, env=environment,
        )  # fmt: skip
        made = f"`.venv/bin/python benchmarks/{command}`\n\n{made_text(made_by())}"
        printed = with_section(
            PAGE.read_text(encoding="utf-8"), name, f"{made}\n\n```text\n{done.stdout.strip()}\n```"
        )
        with replacing(PAGE) as handle:
            handle.write(printed)


if __name__ == "__main__":
    main(sys.argv[1:])
