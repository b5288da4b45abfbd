"""A real training loop with checkpoints on disk, killed (SIGKILL) at given times and started again.

    python -m hybridperf_calibration.training_steps.killed SPEC.json --folder DIR --out RUN.json

SPEC.json is a list of phases: [{"interval_steps": 40, "gaps_s": [2.5, 0.4]}]. Each process is
killed when it has had so many seconds, and the next one begins from the last whole checkpoint; the
phase ends with the last kill. In turn with them others train for two intervals undisturbed, so that
both see the same machine. RUN.json says per phase how many steps lie in the last checkpoint, how
long the killed loop took, and what both wrote down: seconds until the first step, of steps, of
checkpoints.

All seconds are the processor's, of the processes that train: what else a shared core does meanwhile
is not the loop's, and neither is waiting for the disk.

A process is forked off one that has imported what training needs and started none of it, so that a
restart takes a second instead of ten: JAX's backend, compilation and loading are done again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf.io import InputError, write_json
from hybridperf_calibration.microbench import machine
from hybridperf_calibration.training_steps import read_objects

SCHEMA_VERSION = 1
STATE, LOG = "state.npz", "log.jsonl"
# a multi-layer perceptron, as quickly compiled as a restart is
_WIDTH, _LAYERS, _BATCH = 384, 4, 256
_MOMENTUM, _RATE = 0.9, 1e-3
_LOOK_S = 0.002  # between looks at whether a process has had its seconds


def save(folder: Path, step: int, leaves: Sequence[Any]) -> None:
    """A checkpoint that is there whole or not at all."""
    beside = folder / f"{STATE}.part"
    with open(beside, "wb") as handle:
        arrays: dict[str, Any] = {f"leaf{at}": np.asarray(x) for at, x in enumerate(leaves)}
        np.savez(handle, step=step, **arrays)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(beside, folder / STATE)
    place = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def steps_saved(folder: Path) -> int:
    """Steps in the last checkpoint; 0 where there is none."""
    path = folder / STATE
    if not path.exists():
        return 0
    with np.load(path, allow_pickle=False) as kept:
        return int(kept["step"])


def train(folder: Path, interval: int, most: int | None) -> None:
    """The loop, in a process of its own: from the last checkpoint until killed, or to `most`."""
    import jax
    import jax.numpy as jnp

    def loss_of(weights: list[Any], x: Any, y: Any) -> Any:
        for one in weights[:-1]:
            x = jnp.tanh(x @ one)
        return jnp.mean((x @ weights[-1] - y) ** 2)

    def step(weights: list[Any], speed: list[Any], x: Any, y: Any) -> tuple[Any, ...]:
        loss, slope = jax.value_and_grad(loss_of)(weights, x, y)
        speed = [_MOMENTUM * old + new for old, new in zip(speed, slope, strict=True)]
        return [w - _RATE * v for w, v in zip(weights, speed, strict=True)], speed, loss

    rng = np.random.default_rng(0)
    shapes = [(_WIDTH, _WIDTH)] * _LAYERS
    weights = [rng.normal(0, _WIDTH**-0.5, shape).astype(np.float32) for shape in shapes]
    state: tuple[Any, ...] = (weights, [np.zeros(shape, np.float32) for shape in shapes])
    batch = [rng.normal(size=(_BATCH, _WIDTH)).astype(np.float32) for _ in range(2)]
    done = 0
    if (folder / STATE).exists():
        with np.load(folder / STATE, allow_pickle=False) as kept:
            done = int(kept["step"])
            leaves = [kept[f"leaf{at}"] for at in range(2 * _LAYERS)]
        state = (leaves[:_LAYERS], leaves[_LAYERS:])
    program = jax.jit(step, donate_argnums=(0, 1)).lower(*state, *batch).compile()
    log = os.open(folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def tell(**what: float) -> None:
        os.write(log, (json.dumps(what) + "\n").encode())

    tell(restart_s=time.process_time())
    while most is None or done < most:
        start_s = time.process_time()
        for _ in range(interval):
            *new, loss = program(*state, *batch)
            state = tuple(new)
        jax.block_until_ready(loss)
        trained_s = time.process_time()
        done += interval
        save(folder, done, jax.tree.leaves(state))
        tell(step_s=(trained_s - start_s) / interval, checkpoint_s=time.process_time() - trained_s)


def process(folder: Path, interval: int, most: int | None, gap_s: float | None) -> float:
    """One process that trains, to `most` steps or until it has had `gap_s`; seconds it had."""
    child = os.fork()
    if not child:
        status = 1
        try:
            train(folder, interval, most)
            status = 0
        finally:
            os._exit(status)
    if gap_s is not None:
        clock = ~child << 3 | 2  # Linux: CPU clock of another process (clock_getcpuclockid)
        while time.clock_gettime(clock) < gap_s:
            time.sleep(_LOOK_S)
        os.kill(child, signal.SIGKILL)
    _, ended, used = os.wait4(child, 0)
    if (ended != 0) if gap_s is None else not os.WIFSIGNALED(ended):
        raise InputError("expected a loop that trains, it ended by itself; run it alone")
    return float(used.ru_utime + used.ru_stime)


def phase(folder: Path, told: Mapping[str, Any]) -> dict[str, Any]:
    """One phase from nothing: the killed loop, and an undisturbed one in turn with it."""
    places, interval = [folder / "killed", folder / "calm"], int(told["interval_steps"])
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        for name in (STATE, f"{STATE}.part", LOG):
            (place / name).unlink(missing_ok=True)
    killed, calm = places
    took_s = 0.0
    for gap_s in told["gaps_s"]:
        process(calm, interval, steps_saved(calm) + 2 * interval, None)
        took_s += process(killed, interval, None, float(gap_s))
    return {"seconds": took_s, "steps": steps_saved(killed), "killed": means(killed),
            "calm": means(calm)}  # fmt: skip


def means(folder: Path) -> dict[str, float | None]:
    """Mean seconds of what processes wrote down."""
    path = folder / LOG
    said = (
        [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    )
    found = {
        name: [one[name] for one in said if name in one]
        for name in ("restart_s", "step_s", "checkpoint_s")
    }
    return {name: statistics.fmean(some) if some else None for name, some in found.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit status: 0, or 2 after one sentence about what to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("spec", type=Path, metavar="SPEC.json")
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoints")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN.json")
    parser.add_argument("--cores", help="cores to run on, like 0 or 0-3; all if not given")
    options = parser.parse_args(arguments)
    return machine.exit_status(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    if not sys.platform.startswith("linux"):
        raise InputError(f"expected Linux, whose CPU clocks tell when to kill, got {sys.platform}")
    phases = read_objects(options.spec, 'phases like [{"interval_steps": 40, "gaps_s": [2.5]}]')
    if options.cores:
        machine.pin(machine.parse_cores(options.cores))
    import jax

    del jax  # its import is done once; nothing of it may be started here
    options.folder.mkdir(parents=True, exist_ok=True)
    found = [phase(options.folder, told) for told in phases]
    write_json(options.out, "killed-run", SCHEMA_VERSION, {"phases": found})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
