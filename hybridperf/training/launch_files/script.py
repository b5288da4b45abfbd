"""The shell script that starts a step: what Slurm and the launcher are told, then the program and
its settings; and such a script read, a user's own, too.

Of a script that was not written here a command over several lines, variables and arrays of the
script itself ($TP, ${ARGS[@]}, ${NODES:-2}) are followed; what a shell would compute is not.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hybridperf.io import InputError
from hybridperf.training.launch_files.target import Settings, Target, targets

_WIDEST = 100  # characters of a line
_HEAD = 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
_SEVERAL_NODES = (
    'srun torchrun --nnodes={nodes} --nproc-per-node={gpus} --rdzv-id="$SLURM_JOB_ID"'
    ' --rdzv-backend=c10d --rdzv-endpoint="$head:29500"'
)
_ONE_NODE = "torchrun --standalone --nnodes=1 --nproc-per-node={gpus}"
_ARRAY = re.compile(r"^\s*(?:export\s+)?(\w+)\+?=\((.*?)\)\s*$", re.MULTILINE | re.DOTALL)
_VARIABLE = re.compile(r"^\s*(?:export\s+)?(\w+)=(\"[^\"\n]*\"|'[^'\n]*'|[^\s;(]*)", re.MULTILINE)
_USED = re.compile(r"\$\{(\w+)(?:\[[@*]\])?(?::?-([^}]*))?\}|\$(\w+)")
_CHOSEN = re.compile(r"[a-z][a-z_-]*:[a-z][a-z_-]*")  # activation_checkpoint:full, of tyro
_NODES = ("--nnodes", "--nodes", "-N")
_PER_NODE = ("--nproc-per-node", "--gpus-per-node", "--ntasks-per-node")


@dataclasses.dataclass(frozen=True)
class Script:
    """What a launch script starts, as far as it says so."""

    target: Target
    settings: Settings
    nodes: int
    gpus_per_node: int
    said: Mapping[str, str]  # its comments `# name: value` and Slurm's options


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


def read_script(text: str, where: str) -> Script:
    """What a script starts; `InputError` where it starts none of the frameworks."""
    lines = _expanded(text).replace("\\\n", " ").splitlines()
    for line in lines:
        words = _split(line)
        for target in targets().values():
            if all(any(word.endswith(known) for word in words) for known in target.known_by):
                return _of_command(target, words, text, where)
    commands = ", ".join(f"{' '.join(one.known_by)} ({one.name})" for one in targets().values())
    raise InputError(
        f"expected a script that starts one of {commands} in {where}, found none; give the file"
        " with that command"
    )


def _of_command(target: Target, words: Sequence[str], text: str, where: str) -> Script:
    said = dict(re.findall(r"^# (\w+): (\S+)\s*$", text, re.MULTILINE))
    slurm = [word for line in text.splitlines() if (word := line.strip()).startswith("#SBATCH")]
    options = [word for line in slurm for word in _split(line.removeprefix("#SBATCH"))]
    said |= {name.lstrip("-"): str(value) for name, value in _settings(options).items()}
    launched = _settings(words) | _settings(options)
    before = _settings(words) if target.launcher == "torchrun" else {}
    counts = []
    for names in (_NODES, _PER_NODE):
        found = [before[one] for one in names if one in before]
        found += [launched[one] for one in names if one in launched]
        counts.append(_whole(found[0] if found else None, names, where))
    nodes, gpus_per_node = counts
    return Script(target, _settings(words), nodes, gpus_per_node, said)


def _whole(value: Any, names: Sequence[str], where: str) -> int:
    number = str(value).rpartition(":")[2]  # --gpus-per-node=h100:8
    if not re.fullmatch(r"\d{1,18}", number) or int(number) < 1:
        got = "nothing" if value is None else repr(value)
        raise InputError(f"expected a whole number in {names[0]} of {where}, got {got}; give it")
    return int(number)


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


def _settings(words: Sequence[str]) -> Settings:
    """Settings among the words of a command; a flag without a value is true."""
    found: Settings = {}
    flag = ""
    for word in words:
        name, equals, value = word.partition("=")
        if _CHOSEN.fullmatch(word):
            flag, found[_spelt(word)] = "", True
        elif word.startswith("-") and not _is_number(word):
            flag = "" if equals else _spelt(word)
            found[_spelt(name)] = _value(value) if equals else True
        elif flag:
            found[flag] = _value(word)
            flag = ""
        elif equals:
            found[name.lstrip("+")] = _value(value)
    return found


def _spelt(name: str) -> str:
    """A flag as tables spell it: hyphens are underscores behind a dot, and the other way round."""
    dashes = "--" if name.startswith("--") else ""
    bare = name.removeprefix("--")
    if not dashes and ":" not in bare:
        return name
    if "." in bare or ":" in bare:
        return dashes + bare.replace("-", "_").replace(".no_", ".no-")
    return dashes + bare.replace("_", "-") if bare in _LAUNCHED else name


_LAUNCHED = {name.lstrip("-").replace("-", "_") for name in (*_NODES, *_PER_NODE)}


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-?\d{1,300}(\.\d*)?([eE]-?\d{1,4})?", word) is not None


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if not _is_number(text):
        return text
    return int(text) if text.lstrip("-").isdecimal() else float(text)


def _expanded(text: str) -> str:
    """A script with its own variables and arrays in their places."""
    known = {name: value.strip("\"'") for name, value in _VARIABLE.findall(text)}
    for name, value in _ARRAY.findall(text):
        words = "\n".join(line.partition(" #")[0] for line in value.splitlines())
        known[name] = f"{known.get(name, '')} {words}".replace("\\\n", " ").replace("\n", " ")

    def used(match: re.Match) -> str:
        name = match[1] or match[3]
        return known.get(name, match[2] if match[2] is not None else match[0])

    for _ in range(4):  # variables of variables
        longer = _USED.sub(used, text)
        if longer == text or len(longer) > 2**20:
            break
        text = longer
    return text


def _split(line: str) -> list[str]:
    try:
        return [word.strip() for word in shlex.split(line.replace('"', " "), comments=True)]
    except ValueError:  # a quotation over several lines: no command of ours
        return []
