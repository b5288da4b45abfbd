"""The shell script that starts a step: what Slurm and the launcher are told, then the program and
its settings.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hybridperf.training.launch_files.target import Settings, Target

_WIDEST = 100  # characters of a line
_HEAD = 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
_SEVERAL_NODES = (
    'srun torchrun --nnodes={nodes} --nproc-per-node={gpus} --rdzv-id="$SLURM_JOB_ID"'
    ' --rdzv-backend=c10d --rdzv-endpoint="$head:29500"'
)
_ONE_NODE = "torchrun --standalone --nnodes=1 --nproc-per-node={gpus}"
_CHOSEN = re.compile(r"[a-z][a-z_-]*:[a-z][a-z_-]*")  # activation_checkpoint:full, of tyro


def script_text(
    target: Target, settings: Settings, nodes: int, gpus_per_node: int, job: str,
    environment: Mapping[str, str], head: Iterable[str], end: Iterable[str],
) -> str:  # fmt: skip
    """A script as text.

    Args:
        target: the framework.
        settings: its settings that stand in the command.
        nodes, gpus_per_node: what is started.
        job: name of the job.
        environment: variables that are set.
        head, end: comments before the commands and behind them.
    """
    per_rank = target.launcher == "srun"
    lines = ["#!/bin/bash", *(f"# {one}" for one in head)]
    lines += [
        f"#SBATCH --job-name={job}", f"#SBATCH --nodes={nodes}",
        f"#SBATCH --ntasks-per-node={gpus_per_node if per_rank else 1}",
        f"#SBATCH --gpus-per-node={gpus_per_node}", "#SBATCH --exclusive", "set -euo pipefail",
        *(f"export {name}={value}" for name, value in environment.items()),
    ]  # fmt: skip
    launcher = "srun" if per_rank else (_SEVERAL_NODES if nodes > 1 else _ONE_NODE)
    if launcher is _SEVERAL_NODES:
        lines.append(_HEAD)
    launched = launcher.format(nodes=nodes, gpus=gpus_per_node)
    lines += [" \\\n".join([launched, f"  {target.command}", *_wrapped(_words(settings))])]
    return "\n".join([*lines, *(f"# {one}" for one in end), ""])


def _words(settings: Settings) -> list[str]:
    """Settings as words of a command; those that must be last are."""
    last = [name for name in settings if _CHOSEN.fullmatch(name)]
    words = []
    for name, value in settings.items():
        if name in last or (name.startswith("--") and value is False):
            continue
        if name.startswith("--"):
            words.append(name if value is True else f"{name} {shlex.quote(_text(value))}")
        else:
            words.append(shlex.quote(f"{name}={_text(value)}"))
    return words + last


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)


def _wrapped(words: Sequence[str]) -> list[str]:
    """Lines of words, none of them too long."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) < _WIDEST:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}")
    return lines
