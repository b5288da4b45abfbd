"""A launch file as a row of `steps`: of ours, or of a user's own."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hybridperf.io import InputError, parse_json, read_text
from hybridperf.training.launch_files.facts import (
    Facts,
    LaunchedStep,
    alike,
    layout_of,
    model_facts,
)
from hybridperf.training.launch_files.script import Script, read_script
from hybridperf.training.launch_files.target import Settings, Target, word_of
from hybridperf.workloads.transformer import TransformerShape, load_shape
from hybridperf.workloads.transformer.zoo import published_as, shape_names, shape_of

SCRIPT = "launch.sh"
_LONGEST = 100_000  # characters of a script
ENDINGS = (".sh", ".sbatch", ".slurm")
_SIZES = ("hidden", "heads", "layers", "vocab", "seq")
# of settings that may change what a step takes
_TELLS = re.compile(
    r"parallel|pipeline|recompute|remat|checkpoint_policy|batch|moe|layout|fsdp|shard|offload"
)
_MORE = ("kv_heads", "head_dim", "experts", "topk")


@dataclasses.dataclass(frozen=True)
class ReadLaunch:
    """A launch file as a row of `steps`, and what of it is not read."""

    step: LaunchedStep
    unread: tuple[str, ...]  # settings

    @property
    def row(self) -> dict[str, Any]:
        return self.step.row


def is_launch(path: str | os.PathLike) -> bool:
    """Whether a path is meant as a launch file: a shell script, or a folder with ours."""
    return str(path).endswith(ENDINGS) or os.path.isfile(Path(path) / SCRIPT)


def read_launch(path: str | os.PathLike) -> ReadLaunch:
    """The step that a launch file starts.

    Args:
        path: a script with the command of one of `targets()`, or the folder of one of ours; files
            that the script names lie beside it.

    Raises:
        InputError: there is no such file, it starts none of the frameworks, or its settings make no
            step.
    """
    path = Path(path) / SCRIPT if os.path.isdir(path) else Path(path)
    text = read_text(path, "launch file", str)
    if len(text) > _LONGEST:
        raise InputError(f"expected a launch file of up to {_LONGEST} characters, got {path}")
    script = read_script(text, str(path))
    target, settings = script.target, dict(script.settings)
    if target.config:
        name = str(settings.get("--deepspeed_config", target.config))
        settings |= _flattened(read_text(path.parent / name, "file of settings", parse_json))
    try:
        return _understood(script, settings, path)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        what = f"{error} is not given" if isinstance(error, KeyError) else "one is no such number"
        raise InputError(
            f"{path}: expected settings of a step of {target.title}, got others: {what}; mend the"
            " command"
        ) from error


def _understood(script: Script, settings: Settings, path: Path) -> ReadLaunch:
    target, gpus = script.target, script.nodes * script.gpus_per_node
    for name in {*target.settings, *(key for one in target.choose.values() for key in one)}:
        if str(settings.get(name, "")).startswith("$"):
            raise InputError(
                f"expected a value of {name}, got the variable {settings[name]}, which the script"
                " does not set; write it out"
            )
    settings = target.in_our_words(settings)
    x = target.facts_in(settings)
    if wrong := [*_unmeant(target, settings, x, "precision")]:
        known = ", ".join(target.choose["precision"])
        raise InputError(
            f"expected a precision that is priced ({known}), got {', '.join(wrong)}; mend it"
        )
    precision, job = str(x["precision"]), script.said.get("job-name", "")
    if target.model:
        model, precision = _named(target, settings, precision)
        shape = load_shape(model)
        shape = shape.replace(seq=x.get("seq", shape.seq))
    else:
        model, shape = _described(target, settings, x, job, path)
    layout = layout_of(x, gpus, shape.depth)
    step = LaunchedStep(
        shape, layout, precision, str(x["framework"]), model, script.gpus_per_node,
        script.said.get("gpu", ""), script.said.get("system", ""),
    )  # fmt: skip
    unmeant = (one for fact in target.choose for one in _unmeant(target, settings, x, fact))
    return ReadLaunch(step, (*_unread(target, settings), *unmeant))


def _described(
    target: Target, settings: Settings, x: Facts, job: str, path: Path
) -> tuple[str, TransformerShape]:
    """(name of the published model, "" of nobody's; its sizes)."""
    if target.model_file:
        file = path.parent / str(settings.get("--config_name", target.model_file))
        own = load_shape(file)
        own = own.replace(seq=x.get("seq", own.seq))
        name = published_as(own, job)
        return name or str(file), load_shape(name).replace(seq=own.seq) if name else own
    said = {**target.default, **settings}
    for name in dict.fromkeys((*(one for one in shape_names() if one == job), *shape_names())):
        shape = load_shape(name)
        if shape.family in target.choose["family"] and _is(target, said, shape, x["seq"]):
            return name, shape.replace(seq=x["seq"])
    return "", _own_sizes(x)


def _is(target: Target, said: Settings, shape: TransformerShape, seq: int) -> bool:
    """Whether all that a file says of its model is true of a published one."""
    facts = model_facts(shape.replace(seq=seq))
    own = {key: facts[fact] for key, fact in target.settings.items() if fact in facts}
    own = {key: target.default.get(key) if one is None else one for key, one in own.items()}
    if any(one is None and key in said for key, one in own.items()):
        return False
    chosen = (
        values.get(word_of(facts[name]), {})
        for name, values in target.choose.items()
        if name in facts
    )
    return all(alike(one, said) for one in (own, *chosen))


def _own_sizes(x: Facts) -> TransformerShape:
    if missing := [name for name in _SIZES if x.get(name) is None]:
        raise InputError(f"expected {', '.join(missing)} of the model, got none; give them")
    sizes = {name: x[name] for name in (*_SIZES, *_MORE) if x.get(name)}
    ffn = x.get("expert_ffn") or x.get("ffn") or x.get("mlp_ffn") or 4 * x["hidden"]
    family = "moe" if sizes.get("experts") else "llama" if x.get("norm") == "rmsnorm" else "gpt"
    return shape_of("unnamed", {"family": family, "ffn": ffn, **sizes})


def flavour(name: str, precision: str) -> str:
    """A model's name as a function's; a precision other than bf16 is its end."""
    return re.sub(r"\W+", "_", name) + ("" if precision == "bf16" else f"_{precision}")


def _named(target: Target, settings: Settings, otherwise: str) -> tuple[str, str]:
    """(the published model that a framework's own settings name, what it multiplies in)."""
    if one := target.model_of(settings):
        return str(one["name"]), str(one.get("precision", otherwise))
    config = str(settings.get("--config", ""))
    for precision in target.choose["precision"]:
        for name in shape_names():
            if flavour(name, precision) == config:
                return name, otherwise if precision == "bf16" else precision
    known = ", ".join(dict.fromkeys(str(one["settings"]["--config"]) for one in target.model))
    raise InputError(
        f"expected a --config of {known}, or a published model's name, got {config!r}; name one"
    )


def _unread(target: Target, settings: Settings) -> Iterator[str]:
    """Settings that tell of the step and are not read."""
    known: set[str] = {*target.settings, *target.default, *target.always}
    for values in target.choose.values():
        known |= {key for one in values.values() for key in one}
    known |= {key for one in target.also for key in one.get("settings", {})}
    known |= {key for one in target.model for key in one["settings"]}
    known |= {name.format(axis) for axis in target.axes for name in (target.inside, target.across)}
    return (name for name in settings if name not in known and _TELLS.search(name))


def _unmeant(target: Target, settings: Settings, x: Facts, fact: str) -> Iterator[str]:
    """Settings of which a fact is chosen whose words are of none of its choice."""
    values = target.choose[fact]
    chosen = values[word_of(x[fact])]
    for name in dict.fromkeys(key for one in values.values() for key in one):
        given = settings.get(name, target.default.get(name))
        of_no_choice = name not in chosen and given != target.default.get(name)
        if of_no_choice and not isinstance(given, bool) and name not in target.settings:
            yield f"{name} {given}"


def _flattened(content: Any, before: str = "") -> Settings:
    if not isinstance(content, dict):
        return {before.removesuffix("."): content}
    found: Iterable[Settings] = (
        _flattened(one, f"{before}{name}.") for name, one in content.items()
    )
    return {key: value for one in found for key, value in one.items()}
