"""A framework as a target of launch files: its table, `NAME.toml` beside this file.

    title, source    what was read, to the version; where
    command          what is started, behind the launcher; known_by: ends of words of it by which a
                     script is known
    launcher         torchrun (a process starts those of its node) or srun (a process a GPU)
    framework        whose habits a row that is read has, unless [choose.framework] says which
    [settings]       setting = fact (`facts.py`), in both directions; nothing where a fact is None
    [default]        settings that the framework has where a file does not give them
    [[means]]        facts that hold where a condition on what was read does, of no setting
    [choose.FACT]    value = settings by which the framework says it; a value that is not listed
                     cannot be run. Read: the value most of whose settings hold, the last of several
    [axes]           of a mesh whose every axis has a part inside a node and one across nodes:
                     axis = fact, fastest first; `inside`, `across` are the settings' names
    [always], [[also]]    settings that are written for a reader to start with, and where a
                     condition holds; they say nothing of the layout. `env`: of the environment
    [[cannot]]       a condition on facts, and in words what the framework lacks there
    [[alike]]        settings `given` that are read as others, `as`
    [[model]]        a published model under the framework's own settings, with its own defaults

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

from hybridperf.io import InputError, unknown
from hybridperf.io.expression import Expression, parse
from hybridperf.training.launch_files.facts import COUNTS, Facts, alike

Settings = dict[str, Any]
_CALLED = {"zero": "ZeRO stage", "rank_order": "order of ranks", "recompute": "recomputation"}


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """How one framework's script says a layout: names, forms, limits."""

    name: str
    title: str
    source: Sequence[str]
    command: str
    known_by: Sequence[str]
    launcher: str
    framework: str
    settings: Mapping[str, str]
    notes: Sequence[str] = ()  # for whoever starts the file
    config: str = ""  # name of a JSON file beside the script
    model_file: str = ""  # of a Hugging Face config beside it
    default: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    choose: Mapping[str, Mapping[str, Settings]] = dataclasses.field(default_factory=dict)
    axes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    inside: str = ""
    across: str = ""
    always: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    also: Sequence[Mapping[str, Any]] = ()
    means: Sequence[Mapping[str, Any]] = ()
    cannot: Sequence[Mapping[str, str]] = ()
    alike: Sequence[Mapping[str, Settings]] = ()
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

    def in_our_words(self, given: Settings) -> Settings:
        """Settings with what stands for others replaced by them."""
        every = self._with_defaults(given)
        for one in self.alike:
            if one["given"].keys() <= every.keys() and alike(one["given"], every):
                given = given | one["as"]
        return given

    def facts_in(self, given: Mapping[str, Any]) -> Facts:
        """Facts that a file's settings mean."""
        every = self._with_defaults(given)
        found = {fact: every[key] for key, fact in self.settings.items() if key in every}
        for key, fact in self.settings.items():
            if key in given and fact in COUNTS:
                _count(key, given[key])
        for fact, values in self.choose.items():
            holding = [
                (len(settings), at, value)
                for at, (value, settings) in enumerate(values.items())
                if settings.keys() <= every.keys() and alike(settings, every)
            ]
            if not holding:
                names = dict.fromkeys(key for settings in values.values() for key in settings)
                raise InputError(
                    f"expected a {_called(fact)} of {', '.join(values)} in {', '.join(names)}, got"
                    " none of these; mend the file"
                )
            word = max(holding)[-1]
            found[fact] = {"yes": True, "no": False}.get(word, word)
        for axis, fact in self.axes.items():
            parts = [name.format(axis) for name in (self.inside, self.across)]
            found[fact] = int(np.prod([_count(name, every.get(name, 1)) for name in parts]))
        for one in self.means:
            if _holds(one["when"], found):
                found |= one["facts"]
        return found

    def _with_defaults(self, given: Mapping[str, Any]) -> Settings:
        """What is given, and the defaults of what is not, by this name or another of it."""
        named = {_stem(name) for name in given}
        default = {**self.default, **(self.model_of(given) or {}).get("default", {})}
        return {name: one for name, one in default.items() if _stem(name) not in named} | {**given}

    def model_of(self, given: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The published model that a file's settings name, None of none."""
        for one in self.model:
            if one["settings"].keys() <= given.keys() and alike(one["settings"], given):
                return one
        return None

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
            found[name] = Target(name=name, **tomllib.loads(file.read_text()))
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


def _count(setting: str, value: Any) -> Any:
    """A number that counts something, of 1 or more; what is no number says so where it is used."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < 1 or value != int(value):
            raise InputError(
                f"expected a whole number of 1 or more in {setting}, got {value}; mend it"
            )
        return int(value)
    return value


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


def _stem(name: str) -> str:
    """What a setting is of: --compile.no-enable, --compile.enable; activation_checkpoint:full."""
    return name.replace(".no-", ".").partition(":")[0]


def word_of(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
