"""Settings that a published benchmark starts its servers with, where a row does not tell them.

A rule tells of the lengths that it names, else of the benchmark's; a row of other prompts and
answers than any gets none: engines' defaults.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from hybridperf.io import shipped_toml
from hybridperf.workloads.serving import Deployment

_SEARCHED = ("framework", "model", "system", "version", "scheme")
_EQUAL = ("prompt", "output", "attention_dp")
_WITHIN = ("clients", "tp")


def settings_of(
    engine: Deployment, model: str, system: str, version: str, clients: float, prompt: float,
    output: float,
) -> dict[str, Any]:  # fmt: skip
    """Columns of `serving_columns.READ` by their values; empty: no benchmark of these lengths.

    Args:
        engine: that takes the prompts.
        model: as we call it.
        system: the device.
        version: of the framework.
        clients: that send requests.
        prompt: tokens.
        output: tokens.
    """
    out: dict[str, Any] = {}
    told = {
        "framework": engine.framework, "model": model, "system": system, "version": version,
        "scheme": engine.of_experts(), "prompt": prompt, "output": output, "clients": clients,
        "tp": engine.tp, "attention_dp": engine.attention_dp > 1,
    }  # fmt: skip
    for rule in _known()["rule"]:
        if _fits(rule, told):
            out |= rule["set"]
    if out.pop("one_prompt_a_step", False):
        out["max_num_batched_tokens"] = prompt + clients + 64
    return out


def published(prompt: float, output: float) -> bool:
    """Whether the benchmark sends prompts and answers of such lengths."""
    return [prompt, output] in _known()["lengths"]


def _fits(rule: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    return (
        [told["prompt"], told["output"]] in rule.get("lengths", _known()["lengths"])
        and all(re.search(rule[name], told[name]) for name in _SEARCHED if name in rule)
        and all(rule[name] == told[name] for name in _EQUAL if name in rule)
        and all(rule[name][0] <= told[name] <= rule[name][1] for name in _WITHIN if name in rule)
    )


@functools.cache
def _known() -> dict[str, Any]:
    return shipped_toml(__package__, "serving_benchmarks.toml")
