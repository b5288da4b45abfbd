"""Ranked deployments in words: the best, the front of throughput against speed, how to start it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.report.text import (
    dollars,
    energy,
    items_table,
    quantity,
    span_words,
    step_words,
)
from hybridperf.serving.launch_lines import checkpoint_words, launch_lines, prefill_row
from hybridperf.serving.requests import Served
from hybridperf.serving.sessions import ServedSessions

LEGEND = (
    "sequences: of each attention rank at once; tokens/s/GPU: of output, over all GPUs given;"
    " tokens/s/user: 1 / TPOT",
    "the first: most tokens/s/GPU of those predicted within the limits; keeps limits: the chance"
    " that measured latencies are within them",
    "intervals: 90 %, as wide as published operating points lie around the law without any"
    " fit; --fit-on ROWS narrows them by your own",
)
_TURNS = 24  # that are listed
_FITTED = "intervals: 90 %, by what {} measured rows tell"


def layout_words(row: Any) -> str:
    """tp2 pp1 ... of the engines of a deployment."""
    words = f"{row.replicas:g} x tp{row.tp}"
    sizes = (("pp", row.pp), ("dp", row.attention_dp), ("ep", row.expert_ep))
    words += "".join(f" {name}{size}" for name, size in sizes if size > 1)
    if row.mode == "aggregated":
        return words
    sizes = (("pp", row.prefill_pp), ("dp", row.prefill_dp), ("ep", row.prefill_ep))
    first = f"{row.prefill_replicas:g} x tp{row.prefill_tp:g}"
    first += "".join(f" {name}{size:g}" for name, size in sizes if size > 1)
    return f"prompts {first}, decode {words}"


def scheme_words(row: Any) -> str:
    """Formats of weights and cache."""
    experts = "" if row.expert_quant == row.quant else f", experts {row.expert_quant}"
    return f"{row.quant}{experts}, cache {row.kv_dtype}"


def serving_report(
    found: pd.DataFrame, head: str, model: str, count: int, money: str, notes: Sequence[str],
    fitted: int = 0,
) -> str:  # fmt: skip
    """The best deployments, the front, commands that start the best; `fitted`: to so many rows."""
    within = int(found["within"].sum())
    lines = [head, f"{len(found):,} deployments fit, {within:,} within the limits"]
    if not within:
        least = (f"{name} {step_words(found[f'{name.lower()}_s'].min())}"
                 for name in ("TTFT", "TPOT"))  # fmt: skip
        lines.append(
            f"none is within the limits: the least that any reaches is {' or '.join(least)}, alone;"
            " the nearest to the limits follow"
        )
    legend = (*LEGEND[:-1], _FITTED.format(fitted)) if fitted else LEGEND
    lines += ["", _table(found.head(count), money), *legend]
    front = found[found["front"]].sort_values("tokens_per_s_user")
    lines += ["", "Front: none is better in both tokens/s/GPU and tokens/s/user"]
    best = found.iloc[0].to_dict()
    lines += [_table(front, money), "", f"To start the best ({checkpoint_words(best, model)})"]
    lines += [f"  {name}: {line}" for name, line in commands(best, model).items()]
    return "\n".join([*lines, "", *(f"note: {note}" for note in notes)])


def open_loop_report(served: Served) -> str:
    """Percentiles of requests that came as they were recorded, served by the best deployment."""
    told = served.percentiles()
    columns: dict[str, Callable[[Any], Any]] = {
        "": lambda row: row.Index,
        "TTFT": lambda row: step_words(row.ttft_s),
        "TPOT": lambda row: step_words(row.tpot_s),
        "end to end": lambda row: step_words(row.end_to_end_s),
        "requests that wait": lambda row: f"{row.queued_requests:.3g}",
    }
    count, span_s = len(served.requests), float(np.ptp(served.arrival_s))
    head = (
        f"The best deployment under {count:,} recorded requests of {span_s:,.0f} s, by simulation:"
        f" {served.tokens_per_s():,.0f} output tokens/s, {served.preemptions:,} preemptions"
    )
    if served.requests.streams is not None:
        head += f"; of prompts' tokens caches hold: {_held(served)}"
    return "\n".join([head, items_table(told.itertuples(), columns)])


def _held(served: Served) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in served.hits().items())


def sessions_report(found: ServedSessions) -> str:
    """Tasks of sessions by the best deployment, and their turns."""
    row = next(found.summary().itertuples())
    lines = [
        f"The best deployment under {row.sessions:,} sessions of {row.requests:,} requests, by"
        f" simulation: {row.tasks_per_gpu_hour:,.4g} tasks per GPU hour, {row.preemptions:,}"
        " preemptions",
        f"a task takes {step_words(row.task_p50_s)} (P50), {step_words(row.task_p90_s)} (P90),"
        f" {step_words(row.task_p99_s)} (P99); of its prompts' tokens caches hold:"
        f" {_held(found.served)}",
    ]
    columns: dict[str, Callable[[Any], Any]] = {
        "turn": lambda row: row.turn,
        "requests": lambda row: f"{row.requests:,}",
        "prompt": lambda row: f"{row.prompt_tokens:,.0f}",
        "cached": lambda row: f"{row.hit_share:.0%}",
        "TTFT P50": lambda row: step_words(row.ttft_p50_s),
        "P90": lambda row: step_words(row.ttft_p90_s),
        "P99": lambda row: step_words(row.ttft_p99_s),
        "TPOT": lambda row: step_words(row.tpot_s),
    }
    turns = found.by_turn()
    if len(turns) > _TURNS:
        lines.append(f"the first and last of {len(turns)} turns; --json has all")
        turns = pd.concat([turns.head(_TURNS - 3), turns.tail(3)])
    return "\n".join([*lines, items_table(turns.itertuples(), columns)])


def commands(row: Mapping[str, Any], model: str) -> dict[str, str]:
    """Commands of a deployment by framework and kind of engine."""
    if row["mode"] == "aggregated":
        return launch_lines(row, model)
    first = launch_lines(prefill_row(row), model, "prefill")
    return {f"{name}, prompts": line for name, line in first.items()} | {
        f"{name}, decode": line for name, line in launch_lines(row, model, "decode").items()
    }


def _table(some: pd.DataFrame, money: str) -> str:
    columns: dict[str, Callable[[Any], Any]] = {
        "deployment": layout_words,
        "weights": scheme_words,
        "sequences": lambda row: row.sequences,
        "chunk": lambda row: row.chunk,
        "TTFT": lambda row: step_words(row.ttft_s),
        "TPOT": lambda row: step_words(row.tpot_s),
        "90 % interval": lambda row: span_words(step_words, row.tpot_s_low, row.tpot_s_high),
        "tokens/s/GPU": lambda row: f"{row.tokens_per_s_gpu:,.0f}",
        "keeps limits": lambda row: f"{row.chance:.0%}",
        "90 % interval of that": lambda row: span_words(
            "{:,.0f}".format, row.tokens_per_s_gpu_low, row.tokens_per_s_gpu_high
        ),
        "tokens/s/user": lambda row: f"{row.tokens_per_s_user:,.0f}",
        "memory": lambda row: quantity(row.memory_bytes, "B"),
        f"{money} of 1M tokens": lambda row: dollars(row.usd_per_million),
        "energy of 1M": lambda row: energy(row.joules_per_million),
    }
    if (some["chance"] == 1.0).all():
        del columns["keeps limits"]
    if not np.isfinite(some["usd_per_million"]).any():
        del columns[f"{money} of 1M tokens"]
    return items_table(some.itertuples(), columns)
