"""Serves a decoder on this machine and says what its clients saw.

    python -m hybridperf_calibration.serving.run --out SERVED.json --programs DIR --cores 0

The same requests (prompts and outputs of unlike lengths) come in several runs: from one client,
from as many as there are slots, and at two shares of what those got (a Poisson process). Rounds of
all runs follow each other, and of each run the round counts in which the loop had most of its core.

SERVED.json: facts of the machine, the decoder's sizes, seconds of a step of the loop around it and
of a request's way through it, and for each run the requests with the seconds at which they were
sent and at which each token left the server and came, and usual processor seconds of each program's
call. DIR keeps the decoder's programs, which `load_program` of `workloads/programs/jax` reads, or
`torch.exported`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf.io import InputError, write_json
from hybridperf_calibration.microbench import job, machine
from hybridperf_calibration.microbench.quiet import Yardstick
from hybridperf_calibration.serving import Decoder, DecoderConfig
from hybridperf_calibration.serving.server import Busy, Server
from hybridperf_calibration.training_steps import checked

# JAX is imported inside functions: the program has to pin itself first.

SCHEMA_VERSION = 3
LOADS = (0.5, 0.8)  # of the requests a second that all slots together get
_LONGEST_WAIT_S = 3.0  # for a disturbed machine, before a run
_SHORTEST = 4  # tokens of a prompt or an output


@dataclasses.dataclass(frozen=True)
class Run:
    """How the requests come."""

    name: str
    clients: int = 0  # a closed loop; 0: an open one
    per_s: float = 0.0  # requests of an open loop


def drawn(config: DecoderConfig, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of prompts and of outputs [N] each: from few to many, most of them short."""
    rng = np.random.default_rng(seed)
    prompt_most, output_most = 0.7 * config.longest, 0.3 * config.longest
    least = np.log(_SHORTEST)
    prompt, output = (
        np.exp(rng.uniform(least, np.log(most), count)).astype(int)
        for most in (prompt_most, output_most)
    )
    return prompt, output


def plan(run: Run, config: DecoderConfig, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """The run's requests, as clients take them."""
    rng = np.random.default_rng([seed, 1])
    at_s = np.zeros(count)
    if not run.clients:
        at_s = np.cumsum(rng.exponential(1 / run.per_s, count))
    prompts, outputs = drawn(config, count, seed)
    return [
        {
            "at_s": float(at_s[one]),
            "after": one - run.clients if run.clients and one >= run.clients else -1,
            "prompt": rng.integers(0, config.vocab, prompts[one]).tolist(),
            "output": int(outputs[one]),
        }
        for one in range(count)
    ]


def served(
    server: Server, requests: Sequence[dict[str, Any]], core: int | None
) -> tuple[list[dict[str, Any]], Busy]:
    """What clients in a process of their own saw, and what the loop did."""
    asked = json.dumps({"port": server.port, "core": core, "requests": list(requests)})
    command = [sys.executable, "-m", "hybridperf_calibration.serving.clients"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as clients:
        assert clients.stdin is not None
        assert clients.stdout is not None
        try:
            with clients.stdin as stdin:
                stdin.write(asked)
            busy = server.serve(len(requests), lambda: clients.poll() is None)
            found = json.loads(clients.stdout.read())
        finally:
            clients.kill()
    for number, one in enumerate(found["requests"]):
        one["left_s"] = [at_s - found["start_s"] for at_s in busy.left_s[number]]
    return found["requests"], busy


def made(library: str, config: DecoderConfig) -> Decoder:
    """The decoder by JAX, compiled, or by PyTorch, op by op."""
    if library == "torch":
        from hybridperf_calibration.serving.torch_decoder import TorchDecoder

        return TorchDecoder(config)
    from hybridperf_calibration.serving.decoder import JaxDecoder

    job.say("compiling the decoder")
    return JaxDecoder(config)


class _Nothing:
    """A decoder that computes nothing: what is left of a step is the loop's own."""

    def __init__(self, config: DecoderConfig) -> None:
        self.config = config

    def cache(self) -> None:
        return None

    def prefill(self, cache: Any, tokens: Sequence[int], start: int) -> tuple[int, Any]:
        return 0, cache

    def decode(
        self, caches: Sequence[Any], tokens: Sequence[int], positions: Sequence[int]
    ) -> tuple[list[int], list[Any]]:
        return [0] * len(tokens), list(caches)

    def write_programs(self, folder: Path) -> None:
        del folder  # there are none


def loop_of(
    config: DecoderConfig, requests: int, core: int | None
) -> tuple[float, dict[str, float]]:
    """Of runs whose decoder computes nothing: seconds of a step of the loop, and of a request's way
    to its first token besides, until this has `left` the server and until one client has `seen` it.
    """
    slots = config.batches[-1]
    server = Server(_Nothing(config), slots, config.chunks[-1])
    try:
        _, busy = served(server, plan(Run("", slots), config, requests), core)
        loop_s = busy.step_s / busy.steps
        alone = plan(Run("", 1), config, requests)
        seen, _ = served(server, alone, core)
    finally:
        server.close()
    # a prompt takes as many steps as it has chunks
    steps = np.ceil([len(one["prompt"]) / config.chunks[-1] for one in alone])
    way_s = {}
    for name, clock in (("left", "left_s"), ("seen", "token_s")):
        first_s = np.array([one[clock][0] - one["sent_s"] for one in seen])
        way_s[name] = max(float(np.median(first_s - loop_s * steps)), 0.0)
    return loop_s, way_s


def other_core(cores: Sequence[int]) -> int | None:
    """A core that the server does not have; None: there is none."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return next((core for core in range(os.cpu_count() or 1) if core not in cores), None)


def measured(
    decoder: Decoder, requests: int, rounds: int, core: int | None, yardstick: Yardstick
) -> list[dict[str, Any]]:
    """The best round of each run."""
    config = decoder.config
    server = Server(decoder, config.batches[-1], config.chunks[-1])
    try:
        slots = config.batches[-1]
        all_slots = Run(f"{slots} clients", slots)
        seen, _ = served(server, plan(all_slots, config, requests), core)
        per_s = requests / max(one["token_s"][-1] for one in seen)
        runs = [Run("1 client", 1), all_slots]
        runs += [Run(f"open, load {load:g}", per_s=load * per_s) for load in LOADS]
        found: list[dict[str, Any]] = []
        for number in range(1, rounds + 1):
            for run in runs:
                yardstick.wait(_LONGEST_WAIT_S)
                asked = plan(run, config, requests)
                seen, busy = served(server, asked, core)
                for one, request in zip(seen, asked, strict=True):
                    one |= {"prompt": len(request["prompt"]), "after": request["after"]}
                    del one["tokens"]
                told = {name: one for name, one in vars(busy).items() if name != "left_s"}
                of_calls = busy.program_s.items()
                told["program_s"] = {name: float(np.median(some)) for name, some in of_calls}
                found.append({**vars(run), **told, "requests": seen})
                took = f"{max(one['token_s'][-1] for one in seen):.1f} s"
                share = f"{busy.cpu_share:.0%} of its core"
                job.say(f"round {number}/{rounds}, {run.name}: {took}, {share}")
    finally:
        server.close()
    of_run = [[one for one in found if one["name"] == run.name] for run in runs]
    return [max(some, key=lambda one: one["cpu_share"]) for some in of_run]


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit status: 0, or 2 after one sentence about what to do."""
    parser = argparse.ArgumentParser(
        prog="python -m hybridperf_calibration.serving.run", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FILE.json")
    add("--programs", type=Path, metavar="DIR", help="folder to keep the compiled programs in")
    add("--cores", default="0", help="cores of the server, like 0 or 0-3")
    add("--library", choices=("jax", "torch"), default="jax", help="that computes the decoder")
    add("--config", default="{}", help='sizes of the decoder, like {"layers": 2}')
    add("--requests", type=int, default=120, help="of each run")
    add("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    return machine.exit_status(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    if not options.out.parent.is_dir():  # before minutes of measuring, not after
        folder = options.out.parent
        raise InputError(f"cannot write {options.out}: the folder {folder} does not exist.")
    try:
        config = checked(DecoderConfig, json.loads(options.config), "--config")
    except json.JSONDecodeError as error:
        raise InputError(f"expected --config as JSON, got {options.config!r}: {error}") from error
    cores = machine.parse_cores(options.cores)
    machine.pin(cores)
    decoder = made(options.library, config)
    yardstick = Yardstick()
    core = other_core(cores)
    loop_s, way_s = loop_of(config, options.requests, core)
    runs = measured(decoder, options.requests, options.rounds, core, yardstick)
    if options.programs:
        decoder.write_programs(options.programs)
    facts = {**machine.machine_facts(options.library), **yardstick.facts()}
    content = {"machine": facts, "library": options.library, "loop_s": loop_s,
               "way_s": way_s, "config": dataclasses.asdict(config), "runs": runs}  # fmt: skip
    write_json(options.out, "served", SCHEMA_VERSION, content)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
