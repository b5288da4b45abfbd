"""A row of a plan as launch files."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import hybridperf
from hybridperf.io import InputError, replacing_in
from hybridperf.io.arrays import nested
from hybridperf.training.launch_files.facts import LaunchedStep
from hybridperf.training.launch_files.script import script_text
from hybridperf.training.launch_files.target import Settings, Target, refusal, target_called
from hybridperf.training.plans.layout_text import counted, layout_words
from hybridperf.training.plans.ranked import RankedLayouts
from hybridperf.training.steps.full_row import precision_word
from hybridperf.workloads.transformer import huggingface
from hybridperf.workloads.transformer.framework import framework_habits
from hybridperf.workloads.transformer.zoo import published_as

SCRIPT = "launch.sh"
_LOOKED_THROUGH = 5000  # rows of a plan, for one that a framework can run


def launched_step(plan: RankedLayouts, row: int, target: Target) -> LaunchedStep:
    """What a framework would be started with for a row of a plan, counted from 1.

    Raises:
        InputError: the plan has no such row.
    """
    choice = plan.choice(plan.place(row))
    setup, layout = plan.cases[choice.case].setup, plan.layout(choice)
    framework = setup.framework if setup.framework in target.choose["framework"] else ""
    machine = setup.machine
    return LaunchedStep(
        setup.shape, layout, precision_word(setup.template.dtype, setup.template.quant),
        framework or target.framework, published_as(setup.shape),
        min(machine.whole or machine.gpus_per_node, layout.ranks), machine.device,
        machine.system.id,
    )  # fmt: skip


def write_launch(
    plan: RankedLayouts, framework: str, row: int, folder: str | os.PathLike
) -> tuple[list[Path], list[str]]:
    """Write the files that start a row of a plan; all of them or none.

    Args:
        plan: of `hp.plan`.
        framework: name of one of `targets()`.
        row: of the plan, best first, counted from 1.
        folder: where the files go.

    Returns:
        (the files, the script first; remarks, one sentence each).

    Raises:
        InputError: there is no such row or framework, the framework cannot run the layout, or the
            folder cannot be written; the message names what can.
    """
    target = target_called(framework)
    step = launched_step(plan, row, target)
    if why := refusal(target, step.facts):
        raise InputError(f"row {row}: {why}{_nearest(plan, target)}")
    files, remarks = launch_files(step, target, _origin(plan, row, step))
    habits = plan.cases[plan.choice(row - 1).case].setup.framework
    if habits != step.framework:
        priced = f"row {row} was priced with the habits of {habits}"
        other = f"those of {framework} are not known, it may take 10 to 30 % longer"
        if step.framework in framework_habits():
            other = f"--framework {step.framework} prices what {target.title} does"
        remarks.append(f"{priced}; {other}")
    with replacing_in(folder) as new:
        for name, text in files.items():
            (new / name).write_text(text, "utf-8")
    return [Path(folder) / name for name in files], remarks


def launch_files(
    step: LaunchedStep, target: Target, origin: list[str]
) -> tuple[dict[str, str], list[str]]:
    """(texts by name, the script first; remarks) of a step that a framework can run."""
    facts, remarks = step.facts, list[str]()
    settings = _model_settings(step, target, remarks) | target.settings_of(facts)
    in_config = {
        name: value
        for name, value in settings.items()
        if target.config and not name.startswith("--")
    }
    in_command = {name: one for name, one in settings.items() if name not in in_config}
    head = [
        f"{target.title}: {step.shape.name}, {layout_words(step.layout)}",
        f"start it by `sbatch {SCRIPT}`"
        + (f", or `bash {SCRIPT}` on the node" if step.nodes == 1 else ""),
        *target.notes, *remarks,
    ]  # fmt: skip
    end = [f"gpu: {step.gpu}", f"system: {step.system}", *origin]
    files = {
        SCRIPT: script_text(
            target, in_command, step.nodes, step.gpus_per_node,
            re.sub(r"[^\w.-]", "-", step.shape.name),
            target.environment(facts), head, end,
        )
    }  # fmt: skip
    if in_config:
        files[target.config] = json.dumps(nested(in_config, "."), indent=2) + "\n"
    if target.model_file:
        config = huggingface.config_of(step.shape)
        files[target.model_file] = json.dumps(config, indent=2) + "\n"
    return files, remarks


def _model_settings(step: LaunchedStep, target: Target, remarks: list[str]) -> Settings:
    """A framework's own name of the model, where it goes by names."""
    if not target.model:
        return {}
    if known := target.named(step.model, step.precision):
        return dict(known["settings"])
    shape = step.shape
    precise = "" if step.precision == "bf16" else f"_{step.precision}"
    name = re.sub(r"\W+", "_", shape.name) + precise
    experts = f", {shape.experts} experts of which {shape.topk}" if shape.experts else ""
    remarks.append(
        f"{target.title} has no configuration of {shape.name} in {step.precision}: write {name} in"
        f" my_models/config_registry.py ({shape.layers} layers, hidden {shape.hidden},"
        f" {shape.heads} heads, {shape.key_heads} kv_heads, ffn {shape.ffn}, vocab"
        f" {shape.vocab}{experts})"
    )
    return {"--module": "my_models", "--config": name}


def _origin(plan: RankedLayouts, row: int, step: LaunchedStep) -> list[str]:
    choice = plan.choice(row - 1)
    case = plan.cases[choice.case]
    where = f"{counted(case.space.gpus, 'GPU')} of {step.system}"
    return [
        f"row {row} of {len(plan):,} of a plan by {plan.objective}: {case.setup.shape.name} on"
        f" {where}, batch {case.space.global_batch}, {case.setup.framework}; predicted"
        f" {plan.step_s(choice):.4g} s a step",
        f"written by hybridperf {hybridperf.__version__}",
    ]


def _nearest(plan: RankedLayouts, target: Target) -> str:
    """Which row of a plan a framework can run, as the end of a sentence."""
    rows = range(1, min(len(plan), _LOOKED_THROUGH) + 1)
    facts = (launched_step(plan, row, target).facts for row in rows)
    first = next((row for row, x in zip(rows, facts, strict=True) if not target.lacks(x)), None)
    if first is None:
        return f"; none of the best {len(rows):,} rows is one that {target.name} can run"
    return f"; row {first} is the best that {target.name} can run"
