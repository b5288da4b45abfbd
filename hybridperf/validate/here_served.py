"""A decoder served on this machine, predicted and measured: percentiles of TTFT and TPOT.

A real loop with continuous batching serves real requests over loopback
(`hybridperf_calibration.serving`), by programs that the calibration has not seen. Each program is
predicted as any other (its instructions as calls, one price, one composition), which gives the
seconds of a step by what it holds; `serving.batching` then serves the same requests, sent at the
same seconds. Nothing is fitted to what was served: what the loop around the programs takes
(sockets, Python) and a request's way through it are measured with a decoder that computes nothing.
The decoder is JAX's, compiled, or PyTorch's, op by op, whichever the machine was calibrated with.
Two clocks judge: the clients', and when tokens left the server; clients of a busy machine wake
late. And the processor's, call by call, which tells a wrong price from a core that was shared.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.engine.prediction import Prediction, predict
from hybridperf.engine.step_times import StepTimes
from hybridperf.io import read_json, write_json, write_table
from hybridperf.model import PerfModel
from hybridperf.model.fit.programs import run_program, usable_core
from hybridperf.report import text
from hybridperf.serving.batching import serve
from hybridperf.serving.engine import Engine
from hybridperf.serving.requests import Requests, Served, arriving, looping
from hybridperf.validate.harness import ResultLine, lines_table, model_record
from hybridperf.workloads.programs.jax.program import load_program
from hybridperf.workloads.programs.torch.exported import from_exported

SERVED_SCHEMA_VERSION = 3  # of what `hybridperf_calibration.serving.run` writes
SUMMARY_SCHEMA_VERSION = 1
PERCENTS = (50, 90)
_UNDISTURBED = 0.8  # of its core that a loop has in a step where no other program runs, believed
_NOTHING_S = 1e-12  # tables of seconds are above zero
_LATENCIES = ("ttft_s", "tpot_s")


@dataclasses.dataclass(frozen=True)
class ServedRun:
    """A run as clients saw it: N requests."""

    name: str
    requests: Requests
    ttft_s: np.ndarray  # [N] from sending to the first token
    tpot_s: np.ndarray  # [N] between tokens; NaN for one token
    left_ttft_s: np.ndarray  # [N] the same until tokens leave the server
    left_tpot_s: np.ndarray
    loop_share: float  # of the steps' seconds, outside the decoder
    cpu_share: float  # of its core that the loop had in a step

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> ServedRun:
        """Of a run that was written."""
        asked = run["requests"]
        sent_s = np.array([one["sent_s"] for one in asked])
        prompt = np.array([one["prompt"] for one in asked])
        output = np.array([len(one["token_s"]) for one in asked])
        requests = arriving(sent_s, prompt, output)
        if clients := run["clients"]:  # whose turn takes long enough to miss the next step
            after = np.arange(clients, len(asked))
            ended_s = np.array([one["left_s"][-1] for one in asked])
            turn_s = max(float(np.median(sent_s[after] - ended_s[after - clients])), 0.0)
            requests = looping(clients, prompt, output, sent_s[:clients], turn_s)

        def latencies(clock: str) -> tuple[np.ndarray, np.ndarray]:
            first_s, last_s = (np.array([one[clock][at] for one in asked]) for at in (0, -1))
            more = np.maximum(output - 1, 1)
            return first_s - sent_s, np.where(output > 1, (last_s - first_s) / more, np.nan)

        loop_share = 1 - run["decoder_s"] / run["step_s"]
        seen, left = latencies("token_s"), latencies("left_s")
        return cls(run["name"], requests, *seen, *left, loop_share, run["cpu_share"])


def measure(
    folder: Path, cores: str, *, config: Mapping[str, Any] | None = None, requests: int = 120,
    rounds: int = 3, library: str = "jax",
) -> Mapping[str, Any]:  # fmt: skip
    """Serve here, in a process of its own.

    Args:
        folder: what was served and the decoder's programs are left there.
        cores: of the server, such as "0".
        config: sizes of the decoder; its usual ones if not given.
        requests: of each run.
        rounds: of all runs; of each the least disturbed counts.
        library: that computes the decoder, jax or torch.

    Returns:
        What `hybridperf_calibration.serving.run` wrote.
    """
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "served.json"
    options = ["--out", str(out), "--programs", str(folder / "programs"), "--cores", cores]
    options += ["--config", json.dumps(config or {}), "--requests", str(requests)]
    options += ["--library", library]
    run_program("hybridperf_calibration.serving.run", [*options, "--rounds", str(rounds)])
    return read_json(out, "served", SERVED_SCHEMA_VERSION)


def predicted_programs(model: PerfModel, folder: Path) -> dict[str, Prediction]:
    """Each program of the decoder by its name, `decode 4`: calls, price, composition."""
    made = {
        file: load_program(file) if file.suffix == ".json" else from_exported(file, backend="cpu")
        for file in sorted((folder / "programs").glob("*.*"))
    }
    return {file.stem.replace("_", " "): predict(model, one) for file, one in made.items()}


def step_times(seconds: Mapping[str, float], loop_s: float = 0.0) -> StepTimes:
    """Seconds of steps by those of the decoder's programs, all of which look at a whole cache, and
    of the loop around each.

    Fewer sequences or tokens than a program has are padded: the table is flat up to its size.
    """
    tables = {}
    for kind in ("decode", "prefill"):
        sizes = sorted(int(name.split()[1]) for name in seconds if name.startswith(kind))
        before = [1, *(size + 1 for size in sizes[:-1])]
        held = [*itertools.chain(*zip(before, sizes, strict=True))]
        seconds_of = np.repeat([seconds[f"{kind} {size}"] for size in sizes], 2)
        tables[kind] = (np.array(held, float), seconds_of[:, None])
    one = np.ones(1)
    return StepTimes(one, one * _NOTHING_S, tables["decode"][0], one, tables["decode"][1],
                     tables["prefill"][0], one, tables["prefill"][1], loop_s)  # fmt: skip


def simulated(run: ServedRun, seconds: Mapping[str, float], content: Mapping[str, Any]) -> Served:
    """The run's requests through an engine with the server's settings."""
    slots, budget = content["config"]["batches"][-1], content["config"]["chunks"][-1]
    times = step_times(seconds, content["loop_s"])
    return serve(run.requests, [Engine(times, slots, budget, one_by_one=True)])


def compared(
    model: PerfModel, content: Mapping[str, Any], folder: Path
) -> tuple[pd.DataFrame, dict[str, Prediction]]:
    """A row for each run, latency and percentile; and the programs that it follows from."""
    programs = predicted_programs(model, folder)
    seconds = {name: one.time_s for name, one in programs.items()}
    sources = {"predicted": seconds, "roofline": {n: one.roofline_s for n, one in programs.items()}}
    if all(one.low_s is not None for one in programs.values()):
        sources["low"] = {name: float(one.low_s or 0) for name, one in programs.items()}
        sources["high"] = {name: float(one.high_s or 0) for name, one in programs.items()}
    rows = []
    for run in map(ServedRun.of, content["runs"]):
        by_source = {name: simulated(run, one, content) for name, one in sources.items()}
        for latency, percent in itertools.product(_LATENCIES, PERCENTS):
            way_s = {name: one * (latency == "ttft_s") for name, one in content["way_s"].items()}
            until_left = {
                name: float(np.nanpercentile(getattr(one, latency), percent)) + way_s["left"]
                for name, one in by_source.items()
            }
            back_s = way_s["seen"] - way_s["left"]
            rows.append(
                {
                    "run": run.name, "latency": latency, "percent": percent,
                    "measured_s": float(np.nanpercentile(getattr(run, latency), percent)),
                    "left_s": float(np.nanpercentile(getattr(run, f"left_{latency}"), percent)),
                    **{f"{name}_s": one + back_s for name, one in until_left.items()},
                    "back_s": back_s, "requests": len(run.requests), "loop_share": run.loop_share,
                    "cpu_share": run.cpu_share,
                }
            )  # fmt: skip
    frame = pd.DataFrame(rows)
    frame["error"] = frame["predicted_s"] / frame["measured_s"] - 1
    frame["left_error"] = (frame["predicted_s"] - frame["back_s"]) / frame["left_s"] - 1
    frame["roofline_error"] = frame["roofline_s"] / frame["measured_s"] - 1
    return frame, programs


def in_the_loop(content: Mapping[str, Any], programs: Mapping[str, Prediction]) -> pd.DataFrame:
    """Processor seconds of a usual call of each program, the least of the runs, and what was
    predicted, a row each: what others took of the core is in neither.
    """
    rows = []
    for name, one in programs.items():
        seen = [run["program_s"][name] for run in content["runs"] if name in run["program_s"]]
        if seen:
            rows.append({
                "program": name, "measured_s": min(seen), "predicted_s": one.time_s,
                "roofline_s": one.roofline_s, "error": one.time_s / min(seen) - 1,
                "roofline_error": one.roofline_s / min(seen) - 1,
            })  # fmt: skip
    return pd.DataFrame(rows)


def run(
    model: PerfModel,
    out: str | os.PathLike,
    *,
    cores: str | None = None,
    config: Mapping[str, Any] | None = None,
    requests: int = 120,
    rounds: int = 3,
    say: Callable[[str], None] = print,
) -> list[ResultLine]:
    """Serve, predict, print both; `served.csv`, `served_programs.csv`, `served.json` are left in
    `out`.

    Args:
        model: of this machine.
        out: a folder.
        cores: of the server; else those of the calibration, else one.
        config: sizes of the decoder; its usual ones if not given.
        requests: of each run.
        rounds: of all runs.
        say: takes what is printed.
    """
    out = Path(out)
    cores = cores or str(model.provenance.get("cores") or usable_core())
    say(f"serving a decoder on core {cores}, a minute or two")
    library = str(model.provenance.get("library") or "jax")
    content = measure(
        out / "served", cores, config=config, requests=requests, rounds=rounds, library=library
    )
    frame, programs = compared(model, content, out / "served")
    write_table(frame, out / "served.csv")
    record = {
        "machine": content["machine"], "cores": cores, "config": content["config"],
        "library": library, "loop_s": content["loop_s"],
        "model": model_record(model), "programs": {n: one.time_s for n, one in programs.items()},
        "percentiles": frame.to_dict("records"),
    }  # fmt: skip
    write_json(out / "served.json", "validate-here-served", SUMMARY_SCHEMA_VERSION, record)
    calls = in_the_loop(content, programs)
    write_table(calls, out / "served_programs.csv")
    errors = (float(calls[name].abs().mean()) for name in ("error", "roofline_error"))
    ours, roofline = errors
    baselines = {"datasheet roofline": roofline}
    line = ResultLine("served here, programs on the processor", ours, len(calls), None, baselines)
    lines = [*lines_of(frame), line]
    shown = frame[[name for name in frame if name not in ("back_s", "requests", "loop_share")]]
    runs = frame.drop_duplicates("run")
    core = runs["cpu_share"].min()
    shared = "" if core > _UNDISTURBED else ": others had it, too; run again when idle"
    say(
        "\n\n".join(["", *map(text.frame_table, (shown, calls)), lines_table(lines, "percentiles")])
        + f"\nof the steps, up to {runs['loop_share'].max():.0%} passed outside the decoder; the"
        f" loop had {core:.0%} of its core or more{shared}"
    )
    return lines


def lines_of(frame: pd.DataFrame) -> list[ResultLine]:
    """Mean absolute error of a latency's percentiles over all runs, by both clocks."""
    found = []
    for latency, some in frame.groupby("latency", sort=False):
        name = f"served here, {str(latency).removesuffix('_s').upper()}"
        for clock, error in (("measured_s", "error"), ("left_s", "left_error")):
            back_s = some["back_s"] * (clock == "left_s")
            covered, roofline = None, (some["roofline_s"] - back_s) / some[clock] - 1
            if "low_s" in some:
                ends = (some[name] - back_s for name in ("low_s", "high_s"))
                covered = float(some[clock].between(*ends).mean())
            found.append(ResultLine(
                name + (" when it left" if clock == "left_s" else ""),
                float(some[error].abs().mean()), len(some), None,
                {"datasheet roofline": float(roofline.abs().mean())},
                "mean of P50 and P90 of each run", coverage=covered,
            ))  # fmt: skip
    return found
