"""A framework as a target of launch files: its table, `NAME.toml` beside this file.

    title, source    what was read, to the version; where
    command          what is started, behind the launcher
    launcher         torchrun (a process starts those of its node) or srun (a process a GPU)
    framework        by whose defaults its steps are priced, unless [choose.framework] says which
    [settings]       setting = fact (`facts.py`); nothing where a fact is None
    [choose.FACT]    value = settings by which the framework says it; a value that is not listed
                     cannot be run
    [axes]           of a mesh whose every axis has a part inside a node and one across nodes:
                     axis = fact, fastest first; `inside`, `across` are the settings' names
    [always], [[also]]    settings that are written for a reader to start with, and where a
                     condition holds; they say nothing of the layout. `env`: of the environment
    [[cannot]]       a condition on facts, and in words what the framework lacks there
    [[model]]        a published model under the framework's own settings

A setting that begins with -- is a flag; name:word stands as it is, last; others are name=value, or
entries of the JSON file that `config` names.
"""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np

from hybridperf.io import unknown
from hybridperf.io.expression import Expression, parse
from hybridperf.training.launch_files.facts import Facts

Settings = dict[str, Any]
_CALLED = {"zero": "ZeRO stage", "rank_order": "order of ranks", "recompute": "recomputation"}


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """How one framework's script says a layout: names, forms, limits."""

    name: str
    title: str
    source: Sequence[str]
    command: str
    launcher: str
    framework: str
    settings: Mapping[str, str]
    notes: Sequence[str] = ()  # for whoever starts the file
    config: str = ""  # name of a JSON file beside the script
    model_file: str = ""  # of a Hugging Face config beside it
    choose: Mapping[str, Mapping[str, Settings]] = dataclasses.field(default_factory=dict)
    axes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    inside: str = ""
    across: str = ""
    always: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    also: Sequence[Mapping[str, Any]] = ()
    cannot: Sequence[Mapping[str, str]] = ()
    model: Sequence[Mapping[str, Any]] = ()

    def lacks(self, facts: Facts) -> str:
        """What the framework lacks to run this, in words; "" where it runs."""
        for one in self.cannot:
            if _holds(one["when"], facts):
                return one["says"].format(**facts)
        for fact, values in self.choose.items():
            if (word := word_of(facts[fact])) not in values:
                return f"it has no {_called(fact)} {word}"
        if self.axes and self._split(facts) is None:
            per_node = facts["gpus_per_node"]
            return f"its mesh cannot lay these degrees on nodes of {per_node} GPUs"
        return ""

    def settings_of(self, facts: Facts) -> Settings:
        """All settings of a step that the framework can run."""
        found = dict(self.always)
        for setting, fact in self.settings.items():
            value = facts[fact]
            if value is not None:  # also where it is the default: a model's own may be another
                found[setting] = value
        for fact, values in self.choose.items():
            found |= values[word_of(facts[fact])]
        return found | self._also("settings", facts) | (self._split(facts) or {})

    def environment(self, facts: Facts) -> dict[str, str]:
        """Variables that are set before it starts."""
        return self._also("env", facts)

    def _also(self, kind: str, facts: Facts) -> Settings:
        holding = (one.get(kind, {}) for one in self.also if _holds(one["when"], facts))
        return {name: value for one in holding for name, value in one.items()}

    def named(self, model: str, precision: str) -> Mapping[str, Any] | None:
        """The framework's own settings of a published model, None where it has none."""
        for one in self.model:
            if (one["name"], one.get("precision", "bf16")) == (model, precision):
                return one
        return None

    def _split(self, facts: Facts) -> Settings | None:
        """Parts of each axis inside a node and across nodes; None where a node is not filled."""
        if not self.axes:
            return {}
        found: Settings = {}
        left = facts["gpus_per_node"]
        for axis, fact in self.axes.items():
            inside = int(np.gcd(facts[fact], left))
            left //= inside
            if facts[fact] > inside and left > 1:
                return None
            found[self.inside.format(axis)] = inside
            found[self.across.format(axis)] = facts[fact] // inside
        return found if left == 1 else None


@functools.cache
def targets() -> Mapping[str, Target]:
    found = {}
    for file in sorted(resources.files(__package__).iterdir(), key=lambda one: one.name):
        if file.name.endswith(".toml"):
            name = file.name.removesuffix(".toml")
            found[name] = Target(name=name, **tomllib.loads(file.read_text("utf-8")))
    return found


def target_called(name: str) -> Target:
    """A framework by its name; else `InputError`."""
    if name not in targets():
        raise unknown("framework of launch files", name, targets(), f"known are {_listed()}")
    return targets()[name]


def refusal(target: Target, facts: Facts) -> str:
    """One sentence on why a framework cannot run a step, and which others can; "" where it can."""
    why = target.lacks(facts)
    if not why:
        return ""
    others = [
        one.name
        for one in targets().values()
        if not one.lacks({**facts, "framework": one.framework})
    ]
    could = f"{', '.join(others)} can" if others else f"none of {_listed()} can"
    return f"{target.title} cannot run this layout: {why}; {could}"


def _listed() -> str:
    return ", ".join(targets())


def _holds(condition: str, facts: Facts) -> bool:
    formula = _formula(condition)
    columns = {
        name: np.array([facts[name]], object if isinstance(facts[name], str) else float)
        for name in formula.names
    }
    return bool(formula(columns, 1)[0])


@functools.cache
def _formula(condition: str) -> Expression:
    return parse(condition, "a condition of a launch file's table")


def _called(fact: str) -> str:
    return _CALLED.get(fact, fact.replace("_", " "))


def word_of(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
