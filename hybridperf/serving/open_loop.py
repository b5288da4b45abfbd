"""A deployment under recorded arrivals, which come whether or not it keeps up, and under sessions.

Rows of `deployments` are chosen by a closed loop in its steady state; here the event simulation
(`batching.py`) serves every request of a table, or of sessions (`sessions.py`), by the engines of
one row, with what is believed of the framework, so that bursts, unlike lengths, full caches,
preemption and what caches of prefixes find count. Tokens leave as much later as is believed of the
way to the engine and back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.fields.columns import read_small_table, read_whole
from hybridperf.io import InputError
from hybridperf.model.serving_effects import ServingEffects
from hybridperf.serving.batching import Link, serve
from hybridperf.serving.deployment_latency import Question
from hybridperf.serving.deployments import engine_of
from hybridperf.serving.engine import Engine
from hybridperf.serving.launch_lines import prefill_row
from hybridperf.serving.prefix_cache import Tier
from hybridperf.serving.requests import Requests, Served, arriving
from hybridperf.serving.sessions import ServedSessions, Sessions
from hybridperf.workloads.serving import prompt_launches, step_times
from hybridperf.workloads.serving.deployment import serving_memory

# bytes of a node's memory and of its drives, each GPU's share of which lies below its cache (0:
# none), and bytes/s of all of a node's drives
Lower = tuple[float, float, float]
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


def served_openly(
    asked: Question, row: Mapping[str, Any], requests: Requests, routing: str = "prefix_aware",
    lower: Lower = (0.0, 0.0, 0.0),
) -> Served:  # fmt: skip
    """Requests served by the engines of a row of `deployments(asked)`; those with streams find in
    caches what was computed before, as in `served_sessions`.
    """
    if requests.streams is not None:
        return _served(asked, row, requests, routing, _tiers(asked, row, lower))
    cached = np.floor(requests.prompt * asked.cached_share).astype(int)
    return _served(asked, row, dataclasses.replace(requests, cached=cached))


def served_sessions(
    asked: Question, row: Mapping[str, Any], sessions: Sessions, routing: str = "prefix_aware",
    lower: Lower = (0.0, 0.0, 0.0),
) -> ServedSessions:  # fmt: skip
    """Sessions served by the engines of a row of `deployments(asked)`, which find in their caches
    what they computed before.

    Args:
        asked: the question; its `cached_share` says nothing here.
        row: of the table.
        sessions: as requests.
        routing: of `batching.serve`.
        lower: tiers below the GPUs' caches.

    Raises:
        InputError: contexts beyond the model's or the cache's, tiers without a known machine.
    """
    requests, shape = sessions.requests, asked.shape
    places = (shape.max_positions or shape.seq) if shape.positions == "learned" else np.inf
    longest = int((requests.prompt + requests.output).max())
    if longest > places:
        raise InputError(
            f"expected sessions within the {places} positions of {shape.name}, got one of"
            f" {longest} tokens; give it fewer turns or tokens"
        )
    # answers are there as much later, and so is the next turn
    late_s = np.where(requests.after >= 0, asked.effects().first_token_s, 0.0)
    requests = dataclasses.replace(requests, arrival_s=requests.arrival_s + late_s)
    served = _served(asked, row, requests, routing, _tiers(asked, row, lower))
    return ServedSessions(sessions, served, float(row["gpus"]))


def _tiers(asked: Question, row: Mapping[str, Any], lower: Lower) -> list[Tier]:
    """Below the caches of the engines that compute a row's prompts."""
    if not any(lower[:2]):
        return []
    first = prefill_row(row) if row["mode"] != "aggregated" else row
    token = serving_memory(engine_of(asked, first)).token
    if asked.model.collectives is None:
        raise InputError("expected a system whose hosts are known, got none; leave tiers out")
    host_bytes, nvme_bytes, nvme_bytes_per_s = lower
    node = asked.model.collectives.system
    each = token * node.accelerators_per_node
    told = (
        ("host", host_bytes / each, node.host_link_bytes_per_s / token),
        ("nvme", nvme_bytes / each, nvme_bytes_per_s / each),
    )
    return [Tier(*one) for one in told if one[1]]


def _served(
    asked: Question, row: Mapping[str, Any], requests: Requests, routing: str = "least_loaded",
    tiers: Sequence[Tier] | None = None,
) -> Served:  # fmt: skip
    engine = _engine(asked, row)
    ranks = int(row["replicas"]) * int(row["attention_dp"])
    apart = row["mode"] != "aggregated"
    effects = asked.effects(apart)
    if not apart:
        found = serve(requests, [engine] * ranks, routing=routing, tiers=tiers)
        return _as_sent(found, engine, effects)
    first = {**prefill_row(row), "sequences": int(requests.prompt.size)}
    prompts = int(row["prefill_replicas"]) * int(row["prefill_dp"])
    system = asked.model.collectives.system if asked.model.collectives else None
    link = None
    if system is not None:
        token = serving_memory(engine_of(asked, first)).token
        link = Link(token, system.link_bytes_per_s(asked.gpus), system.latency_s)
    of_prompts = [_engine(asked, first, only_prompts=True)] * prompts
    found = serve(requests, [engine] * ranks, of_prompts, link, routing, tiers)
    return _as_sent(found, engine, effects)


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


def with_sessions(asked: Question, sessions: Sessions) -> Question:
    """The same for sessions, all of whose contexts are found unless the question has a share."""
    asked = with_lengths_of(asked, sessions.requests)
    share = 1.0 - float(sessions.new.sum() / sessions.requests.prompt.sum())
    return dataclasses.replace(asked, cached_share=asked.cached_share or share)
