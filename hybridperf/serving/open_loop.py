"""A deployment under recorded arrivals: requests that come whether or not it keeps up.

Rows of `deployments` are chosen by a closed loop in its steady state; here the event simulation
(`batching.py`) serves every request of a table by the engines of one row, with what is believed of
the framework, so that bursts, unlike lengths, full caches and preemption count. Tokens leave as
much later as is believed of the way to the engine and back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.fields.columns import read_small_table, read_whole
from hybridperf.io import InputError
from hybridperf.model.serving_effects import ServingEffects
from hybridperf.serving.batching import Engine, Link, serve
from hybridperf.serving.deployment_latency import Question
from hybridperf.serving.deployments import engine_of
from hybridperf.serving.launch_lines import prefill_row
from hybridperf.serving.requests import Requests, Served, arriving
from hybridperf.workloads.serving import prompt_launches, step_times
from hybridperf.workloads.serving.deployment import serving_memory

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")


def recorded(frame: pd.DataFrame, trace: str = "") -> Requests:
    """Requests of a table with `COLUMNS`, those of one of its traces (column `trace`).

    Raises:
        InputError: a column is missing, several traces and none is named, no request.
    """
    frame = read_whole(frame, "requests")
    if "trace" in frame:
        known = sorted(map(str, frame["trace"].dropna().unique()))
        if trace not in known and (trace or len(known) > 1):
            raise InputError(f"expected --trace of {', '.join(known)}, got {trace or 'none'}")
        frame = frame[frame["trace"] == trace] if trace else frame
    elif trace:
        raise InputError(f"expected a column trace with --trace {trace}, got none; leave it out")
    return arriving(*read_small_table(frame, "requests")[[*COLUMNS]].to_numpy(float).T)


def served_openly(asked: Question, row: Mapping[str, Any], requests: Requests) -> Served:
    """Requests served by the engines of a row of `deployments(asked)`."""
    cached = np.floor(requests.prompt * asked.cached_share).astype(int)
    requests = dataclasses.replace(requests, cached=cached)
    engine = _engine(asked, row)
    ranks = int(row["replicas"]) * int(row["attention_dp"])
    apart = row["mode"] != "aggregated"
    effects = asked.effects(apart)
    if not apart:
        return _as_sent(serve(requests, [engine] * ranks), engine, effects)
    first = {**prefill_row(row), "sequences": int(requests.prompt.size)}
    prompts = int(row["prefill_replicas"]) * int(row["prefill_dp"])
    system = asked.model.collectives.system if asked.model.collectives else None
    link = None
    if system is not None:
        token = serving_memory(engine_of(asked, first)).token
        link = Link(token, system.link_bytes_per_s(asked.gpus), system.latency_s)
    of_prompts = [_engine(asked, first, only_prompts=True)] * prompts
    return _as_sent(serve(requests, [engine] * ranks, of_prompts, link), engine, effects)


def _as_sent(served: Served, engine: Engine, effects: ServingEffects) -> Served:
    """Tokens as a framework sends them: later than its engine makes them, as the law has it
    (`engine_load.py`), which does not feed back into the arrivals of recorded requests.
    """
    long = served.requests.output > 1
    step_s = engine.tokens_a_step * served.tpot_s[long].mean() if long.any() else 0.0
    prompt_s = served.first_token_s - served.scheduled_s
    late_s = (effects.prefill - 1.0) * prompt_s
    late_s = late_s + effects.waited_steps * step_s + effects.first_token_s
    return dataclasses.replace(
        served,
        first_token_s=served.first_token_s + late_s,
        last_token_s=served.last_token_s + late_s,
    )


def _engine(asked: Question, row: Mapping[str, Any], *, only_prompts: bool = False) -> Engine:
    """One attention rank of an engine, its slots and the cache that memory leaves it."""
    made, apart = engine_of(asked, row), row["mode"] != "aggregated"
    effects = asked.effects(apart)
    if asked.fit is not None and not only_prompts:  # what measured rows like this keep of their own
        one = asked.row(made, apart=apart, held=row["sequences"], workers=row["replicas"])
        own = np.exp(float(asked.fit.left([one], "tpot_s")[0][0]))
        effects = dataclasses.replace(effects, kernels=effects.kernels * own)
    alone = step_times(asked.model, [made], asked.all_reduce)[0]
    launches = prompt_launches(made, asked.model.device)
    times = alone.as_run(effects, launches, float(made.launches == "eager"), made.tokens_per_pass)
    tokens = serving_memory(made).cached_tokens(asked.model.device.memory_bytes or np.inf)
    return Engine(
        times, int(row["sequences"]), int(row["chunk"]), max(tokens, 0.0), drafted=asked.drafted,
        acceptance=asked.acceptance,
    )  # fmt: skip


def with_lengths_of(asked: Question, requests: Requests) -> Question:
    """The question for requests of a table's mean lengths."""
    prompt, output = (max(round(float(one.mean())), least) for one, least in
                      ((requests.prompt, 1), (requests.output, 2)))  # fmt: skip
    return dataclasses.replace(asked, prompt=prompt, output=output)
