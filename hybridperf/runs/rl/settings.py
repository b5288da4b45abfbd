"""What a row or a config of reinforcement learning says, with what its framework decides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hybridperf.io import InputError
from hybridperf.runs.rl.framework import RlFramework, algorithms, rl_framework
from hybridperf.runs.rl.step import RlConfig
from hybridperf.workloads.transformer import load_shape

_NEEDED = ("model", "n_gpus", "rollouts", "mean_length", "max_length")
_OF_TRAINER = {"train_tp": "tp", "train_cp": "cp", "train_ep": "ep", "train_pp": "pp",
               "train_vp": "vp", "precision_train": "precision", "recompute": "recompute",
               "gpus_per_node": "gpus_per_node"}  # fmt: skip
_BY_EIGHT_BITS = ("mxfp8", "fp8_block", "fp8_blockwise")  # engines call all of them fp8


def config_of(said: Mapping[str, Any]) -> RlConfig:
    """All of a step, from the fields of `rl.toml` that were said.

    Raises:
        InputError: for what is missing, contradicts itself or cannot be.
    """
    if lacking := [name for name in _NEEDED if name not in said]:
        raise InputError(f"expected {', '.join(lacking)} of a step of reinforcement learning, got"
                         " none; give them")  # fmt: skip
    if "gpu" not in said and "system" not in said:
        raise InputError("expected gpu or system, got neither; give one of them")
    shape, gpus, notes = load_shape(str(said["model"])), int(said["n_gpus"]), list[str]()
    name = str(said.get("framework", ""))
    framework, train_gpus = rl_framework(name).at(str(said.get("release", "")), shape.name, gpus)
    if not name:
        notes.append("no framework is told: habits between those of the known ones assumed")
    algorithm = algorithms()[said.get("algorithm", "grpo")]
    staleness = _staleness(said)
    shared = said.get("colocated", not staleness)
    if shared and staleness:
        raise InputError(
            f"expected colocated with a staleness of 0, got {staleness}: engines that share the"
            " trainer's GPUs cannot generate while it trains"
        )
    if not shared:
        train_gpus = int(said.get("train_gpus", train_gpus or gpus // 2))
        if "train_gpus" not in said:
            notes.append(f"train_gpus {train_gpus} assumed")
        if not 0 < train_gpus < gpus:
            raise InputError(
                f"expected train_gpus from 1 to {gpus - 1} of {gpus} GPUs, got {train_gpus}"
            )
    rollouts, group = int(said["rollouts"]), int(said.get("group", 1))
    if rollouts % group:
        raise InputError(
            f"expected groups that divide the {rollouts} rollouts of a step, got groups of {group};"
            " mend one of them"
        )
    prompt, longest = int(said.get("prompt_length", framework.prompt)), int(said["max_length"])
    if not 0 < prompt < longest:
        raise InputError(f"expected a max_length above the prompt's {prompt} tokens, got {longest}")
    if not 1 <= float(said["mean_length"]) <= longest:
        raise InputError(
            f"expected a mean_length from 1 to the {longest} tokens of max_length, got"
            f" {said['mean_length']:g}"
        )
    reference = framework.reference if algorithm.reference is None else algorithm.reference
    return RlConfig(
        str(said["model"]), str(said.get("gpu", "")), str(said.get("system", "")), gpus,
        gpus if shared else train_gpus, staleness, rollouts,
        int(said.get("train_batch", rollouts)), prompt, float(said["mean_length"]), longest,
        float(said.get("spread", framework.spread)), _engine(said, framework),
        (int(said.get("gen_tp", 1)), int(said.get("gen_pp", 1)), int(said.get("gen_ep", 1))),
        {column: said[name] for name, column in _OF_TRAINER.items() if name in said},
        framework.policy_logprobs + reference + algorithm.critics, 1 + algorithm.critics,
        algorithm.rejected, float(said.get("memory_share", 0.0)),
        float(said.get("tool_s", 0.0)), framework,
        tuple(notes),
    )  # fmt: skip


def _staleness(said: Mapping[str, Any]) -> int:
    text = str(said.get("policy", "")).strip().lower()
    told = re.search(r"\d+", text)
    of_policy = int(told[0]) if told else 0
    if not told and "off" in text.replace("-", " ").split():
        of_policy = 1
    found = int(said.get("staleness", of_policy))
    if text and "staleness" in said and found != of_policy:
        raise InputError(
            f"expected policy and staleness to say the same, got {text!r} and {found}; keep one"
        )
    return found


def _engine(said: Mapping[str, Any], framework: RlFramework) -> dict[str, Any]:
    """The engine as a row of operating points."""
    precision = str(said.get("precision_generate", "bf16")).lower()
    found: dict[str, Any] = {
        "model": said["model"], "system": said.get("gpu") or said["system"],
        "backend": framework.serves, "kv_dtype": "bf16",
        "precision": "fp8" if precision in _BY_EIGHT_BITS else precision,
    }  # fmt: skip
    if version := framework.serving_versions.get(str(said.get("release", ""))):
        found["backend_version"] = version
    return found
