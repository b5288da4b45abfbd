"""Rows of measured or planned training steps, understood: model, layout, machine, and what is
missing or contradicts itself.

Both schemas are read (`data/README.md`): that of published steps and vTrain's. A row's own words
come first, then its framework's habits (`fields/frameworks/`), and each habit that was
used stands in the row's notes. What cannot be predicted is refused with one sentence that names the
row and the rule; what contradicts itself is predicted by its layout and flagged.

Everything is understood once: the words of a record, whatever its degrees and batches are
(`_Words`); the rules of layouts, for all layouts of a model in columns; a question, for all rows
that ask the same. Axes: R rows, U questions.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hybridperf.fields.columns import read_columns
from hybridperf.hardware import load_device, load_system
from hybridperf.hardware import machines as names
from hybridperf.hardware.machines import Machine
from hybridperf.io import InputError
from hybridperf.io.errors import plain
from hybridperf.ops.attention_kernels import SHARES
from hybridperf.training.steps.plausibility import contradictions
from hybridperf.training.steps.record import (
    FIELDS,
    Record,
    Refused,
    check_columns,
    row_names,
    row_shape,
    unique_records,
    whole_numbers,
    without_collector,
)
from hybridperf.training.steps.row_layout import Nodes, row_degrees, row_layout, with_shards
from hybridperf.workloads.transformer import Layout, TransformerShape
from hybridperf.workloads.transformer.columns import Layouts, Rule, broken_rules, remarks
from hybridperf.workloads.transformer.config import TransformerConfig, config_fields
from hybridperf.workloads.transformer.framework import (
    assumed_framework,
    defaults,
    framework_habits,
    implied_words,
    of_release,
    unknown_framework,
)
from hybridperf.workloads.transformer.step import refuse_unmodelled

_RANK = "16"  # of adapters where only a model's name says LoRA: adapter_dim of NeMo and of MLPerf
_FAR = 2.0  # how many times beyond what was measured is said
_WIDEST_FUSED_HEAD = 256  # of FlashAttention's kernels and cuDNN's
_NUMBERS, _WORDS = FIELDS.of("numbers"), FIELDS.of("words", "config")


@dataclasses.dataclass(eq=False)  # frozen ones take four times as long to make
class Question:
    """What rows ask, understood. `refused` says why it has no answer; then `config` is None."""

    config: TransformerConfig | None
    machine: Machine | None
    source: str
    framework: str
    notes: tuple[str, ...] = ()  # what was assumed
    refused: str = ""
    release: str = ""  # of its framework
    # its framework is given, and none of those that are known: another one is priced
    foreign: bool = False
    whole_node: int = 1  # GPUs of a node that runs take whole
    global_batch: int | None = None  # as it is given
    recompute_open: bool = False  # the framework's habit is assumed
    doubted: str = ""  # why what its publisher says of recomputation is


class ResolvedRow(NamedTuple):
    """One row: what it asks, and what is its own."""

    question: Question
    name: str  # how a message calls it
    flags: tuple[str, ...] = ()  # what contradicts itself

    @property
    def config(self) -> TransformerConfig | None:
        return self.question.config

    @property
    def machine(self) -> Machine | None:
        return self.question.machine

    @property
    def source(self) -> str:
        return self.question.source

    @property
    def framework(self) -> str:
        return self.question.framework

    @property
    def notes(self) -> tuple[str, ...]:
        return self.question.notes

    @property
    def refused(self) -> str:
        """Why the row cannot be predicted, "" where it can."""
        return self.question.refused and f"{self.name}: {self.question.refused}"

    @property
    def note(self) -> str:
        """Why the row is refused, else its flags and notes, in one line."""
        return self.refused or "; ".join((*self.flags, *self.notes))


@dataclasses.dataclass(frozen=True)
class ResolvedRows:
    """The rows of a table, in its order."""

    rows: tuple[ResolvedRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ResolvedRow]:
        return iter(self.rows)

    @property
    def predictable(self) -> list[int]:
        """Places of the rows that have a config."""
        return [at for at, row in enumerate(self.rows) if row.question.config is not None]

    def unique(self) -> tuple[ResolvedRows, np.ndarray]:
        """(a row for each question [U], without flags; whose question each row has [R])."""
        place: dict[Question, int] = {}
        of = [place.setdefault(row.question, len(place)) for row in self.rows]
        return ResolvedRows(tuple(ResolvedRow(one, "") for one in place)), np.array(of, int)


@without_collector()
def resolve(
    frame: pd.DataFrame, device: str | None = None, system: str | None = None,
    places: Iterable[int] | None = None,
) -> ResolvedRows:  # fmt: skip
    """Understand each row of a table of training steps; a row that is wrong is refused by itself.

    `device`, `system`: in place of the rows' own; `places`: as of `row_names`.

    Raises:
        InputError: for a device or system that nobody knows, and a table without a model.
    """
    read = read_columns(frame, "steps")
    frame = read.frame
    check_columns(frame.columns)
    if device:
        load_device(device)
    if system:
        load_system(system)
    words, of_words = unique_records(frame, _WORDS)
    said, of_numbers = unique_records(frame, _NUMBERS)
    numbers = [*map(whole_numbers, said)]
    of, pairs = pd.factorize(of_words * len(numbers) + of_numbers)
    files = names.contents(device, system)
    understood = [_understood(tuple(one.items()), device, system, *files) for one in words]
    at = [divmod(pair, len(numbers)) for pair in pairs.tolist()]
    questions = _questions([(understood[one], numbers[other]) for one, other in at])
    flags = contradictions(
        frame, [one.config for one in questions], [one.machine for one in questions],
        [one.global_batch for one in questions], of,
    )  # fmt: skip
    asked = zip(of.tolist(), row_names(frame, places), strict=True)
    rows = [
        ResolvedRow(questions[one], name, flags.get(place, ()))
        for place, (one, name) in enumerate(asked)
    ]
    for place, why in read.refused.items():
        one = dataclasses.replace(rows[place].question, config=None, refused=why)
        rows[place] = rows[place]._replace(question=one, flags=())
    return ResolvedRows(tuple(rows))


def _questions(asked: Sequence[tuple[_Words, Mapping[str, Any]]]) -> list[Question]:
    """Questions of pairs of words and numbers [U]; layouts of one model are checked together."""
    found: dict[int, Question] = {}
    alike: dict[TransformerShape, list[tuple[int, _Words, Record, Layout]]] = {}
    for at, (words, numbers) in enumerate(asked):
        row = Record({**words.said, **numbers})
        try:
            if words.fewer:
                words = words.of_batch(row)
                row = Record({**words.said, **numbers})
            layout = words.layout(row)
            alike.setdefault(words.model, []).append((at, words, row, layout))
        except (Refused, InputError) as error:
            found[at] = words.refused(error)
    for shape, some in alike.items():
        broken = broken_rules(shape, Layouts.of(layout for *_, layout in some))
        for (at, words, row, layout), rules in zip(some, broken, strict=True):
            try:
                found[at] = words.question(row, layout, rules)
            except (Refused, InputError) as error:
                found[at] = words.refused(error)
    return [found[at] for at in range(len(asked))]


@functools.lru_cache(4096)
def _understood(
    said: tuple[tuple[str, str], ...], device: str | None, system: str | None, *files: bytes
) -> _Words:
    """What words mean, once for all tables; `files`: what lies in those that are named."""
    del files  # what is remembered is of them, too
    return _Words.of(dict(said), device, system)


@dataclasses.dataclass
class _Words:
    """What a record says besides degrees and batches, understood."""

    said: Mapping[str, str]
    source: str
    framework: str
    publisher: Mapping[str, Any]
    release: str = ""
    foreign: bool = False
    shape: TransformerShape | None = None
    machine: Machine | None = None
    # what `defaults` is asked for the framework, and what it answers of any model and layout
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    habits: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    nodes: Nodes | None = None
    notes: tuple[str, ...] = ()
    wrong: Exception | None = None
    # (samples a GPU, what is understood of rows of no more of them), where the source says so
    fewer: tuple[int, _Words] | None = None
    # configs and what is assumed in them, by what of a layout a framework's habits depend on
    configs: dict[tuple[bool, ...], tuple[TransformerConfig, list[str]]] = dataclasses.field(
        default_factory=dict
    )

    @staticmethod
    def of(said: Mapping[str, str], device: str | None, system: str | None) -> _Words:
        """What a record says; what is wrong is remembered, and raised by `layout`."""
        said = with_shards(said)
        row, fewer = Record(said), None
        by_source = names.publisher_of(row.text("source"))
        publisher = names.publisher(plain(row.text("publisher")) or by_source)
        if open_ := publisher.get("unsaid", {}).get(plain(row.text("model"))):
            if few := open_.get("few"):
                of_few = {**open_["columns"], **few["columns"], **said, "model": open_["model"]}
                fewer = few["samples"], _Words.of(of_few, device, system)
                fewer[1].notes = (open_["note"], *fewer[1].notes)
            said = {**open_["columns"], **said, "model": open_["model"]}
            row = Record(said, [open_["note"]])
        if plain(row.text("model")).endswith("_lora") and not row.text("adapters"):
            said = {**said, "adapters": _RANK}
            row = Record(
                said, [*row.notes, f"adapters of rank {_RANK} assumed: the name says LoRA"]
            )
        framework = plain(row.text("framework")) or publisher.get("framework", "")
        found = _Words(said, row.text("source"), framework, publisher, fewer=fewer)
        try:
            found._understand(row, device, system)
        except (Refused, InputError) as error:
            found.wrong = error
        found.notes = tuple(row.notes)
        return found

    def _understand(self, row: Record, device: str | None, system: str | None) -> None:
        if why := names.aliases()["refused"].get(plain(row.text("model")), ""):
            raise Refused(f"expected a Transformer, got {row.text('model')}: {why}")
        if self.framework not in framework_habits():
            self._assume_framework(row)
        elif not row.text("framework"):
            row.notes.append(f"framework {self.framework} assumed, which its source runs")
        own: Mapping[str, Any] = {}
        row.word("publisher")  # of those that are known
        theirs = self.publisher.get("framework", self.framework)
        if self.framework.startswith(theirs) and not self.foreign:
            own = self.publisher.get("habits", {})
        self._release(row, own.get("release", ""))
        self.shape = row_shape(row)
        gpu = row.text("gpu")
        if not gpu and not device:
            named = system or row.text("system")
            gpu = (load_system(named).device if named else None) or ""
            if not gpu:
                raise Refused("expected an accelerator in gpu, got nothing; name it by --device")
            row.notes.append(f"gpu {gpu} assumed, which the system has")
        network = row.word("network") or self.publisher.get("network", "")
        self.machine = names.machine(gpu, network, device, system, row.text("system"))
        dtype, quant = _precision(row)
        self.asked = {
            "framework": self.framework, "device": self.machine.spec, "dtype": dtype,
            "quant": quant, "own": own,
        }  # fmt: skip
        self.habits = defaults(**self.asked)
        if precision := self.habits["precision"]:
            by_source = ", as its source runs" if own.get("precision") == precision else ""
            row.notes.append(f"precision {precision} assumed{by_source}")
        self.nodes = Nodes.of(row, self.machine)
        if row.yes("offload"):
            raise Refused(
                "expected offload false, got true: state that moves to host memory is not modelled"
            )

    def _assume_framework(self, row: Record) -> None:
        if self.framework:
            known = ", ".join(framework_habits())
            row.notes.append(
                f"framework {self.framework} is not known, only {known}: priced as the mean over"
                f" others (where the row does not say: {implied_words()})"
            )
            self.foreign, self.framework = True, unknown_framework()
            return
        self.framework = row.assume("framework", assumed_framework())
        row.notes[-1] += (
            f" (where the row does not say: {implied_words()}); it is the quickest, others may take"
            " 10 to 30 % longer"
        )

    def _release(self, row: Record, of_source: str) -> None:
        """Take the release that a row says or that is assumed, and the framework of it."""
        habits, given = framework_habits()[self.framework], row.text("release")
        self.release = names.release_of(given or row.text("section"))
        later = habits.get("releases", {})
        if given and later and not self.release:
            raise Refused(f"expected year and month, such as 26.06, in release, got {given!r}")
        usual = of_source or habits.get("release", "")
        if usual and not self.release:
            self.release = row.assume("release", usual)
            row.notes[-1] += "".join(f"; from {first} on it is priced apart" for first in later)
        self.framework = of_release(self.framework, self.release)

    @property
    def model(self) -> TransformerShape:
        """The model's sizes, of words that are right."""
        assert self.shape is not None
        return self.shape

    def machine_of(self, gpus: int) -> Machine:
        """The machine of so many GPUs: those that fill no racks as they are usually taken, in as
        few as hold them.
        """
        assert self.machine is not None
        per_node = self.machine.gpus_per_node
        broken = self.machine.switched and gpus > per_node and gpus % per_node
        return self.machine.for_gpus(gpus) if broken else self.machine

    def refused(self, error: Exception) -> Question:
        """The question of a record that is wrong."""
        return Question(None, self.machine, self.source, self.framework, refused=str(error))

    def of_batch(self, row: Record) -> _Words:
        """These words, or what they mean of as few samples a GPU as a record's."""
        batch, gpus = row.count("global_batch"), row.count("n_gpus")
        if not self.fewer or not batch or not gpus:
            return self
        samples, found = self.fewer
        return found if batch <= samples * gpus else self

    def layout(self, row: Record) -> Layout:
        """The layout of a record with these words, its numbers checked."""
        if self.wrong is not None:
            raise self.wrong.with_traceback(None)  # or each time would add to it
        assert self.nodes is not None
        row.notes += self.notes
        degrees = row_degrees(row)
        gpus = math.prod(degrees)
        per_node, whole = self.nodes.of_gpus(self.machine_of(gpus), gpus, degrees[0])
        row.notes += self.nodes.notes(whole)
        layout = row_layout(row, degrees, self.habits, per_node, self.model)
        layout.check_numbers()
        # of a rack runs take nodes whole, groups lie on racks
        layout.check_cluster(gpus, min(whole, per_node, gpus))
        return layout

    def question(self, row: Record, layout: Layout, broken: Sequence[Rule]) -> Question:
        """The question of a record with a layout that breaks some rules."""
        assert self.nodes is not None
        machine = self.machine_of(layout.ranks)
        strict = not self.habits.get("ragged_heads", False)
        per_node, whole = self.nodes.of_gpus(machine, layout.ranks, layout.tp)
        if broken:
            row.notes += remarks(broken, self.model, layout.columns, strict)
        row.notes += layout.across_nodes(min(per_node, layout.ranks))
        apart = layout.tp > 1, layout.cp > 1, layout.kind.pipes > 1
        if apart not in self.configs:
            self.configs[apart] = self._config(row, layout)
        config, assumed = self.configs[apart]
        config = _with_layout(config, layout, min(per_node, layout.ranks))
        notes = (*machine.notes, *row.notes, *assumed, *config.remarks, *_unseen(config))
        return Question(
            config, machine, self.source, self.framework, notes, release=self.release,
            foreign=self.foreign, whole_node=whole, global_batch=row.count("global_batch"),
            recompute_open="recompute" in row.assumed,
            doubted=self.publisher.get("doubts_recompute", ""),
        )  # fmt: skip

    def _config(self, row: Record, layout: Layout) -> tuple[TransformerConfig, list[str]]:
        """(a config of any layout for which a framework has the same habits, what is assumed)."""
        assumed = list[str]()
        if note := _meant(row.word("precision")).get("note"):
            assumed.append(note)
        habits = defaults(**self.asked, shape=self.model, layout=layout) | _switches(row)
        config = _config(self.model, tuple(config_fields(habits).items()))
        if config.attention != self.habits["attention"] and not row.text("attention"):
            why = f"{config.attention_kernel} takes no heads of {self.model.dim}"
            if config.attention == "fused":
                why = "unfused, this one is not modelled"
            assumed.append(f"{config.attention} attention assumed: {why}")
        if config.attention == "fused" and self.model.dim > _WIDEST_FUSED_HEAD:
            assumed.append(
                f"fused attention assumed for heads of {self.model.dim}, which kernels of up to"
                f" {_WIDEST_FUSED_HEAD} do not take"
            )
        return config, assumed


def _precision(row: Record) -> tuple[str | None, str]:
    """(number format of activations, scheme of layers' products) of a row; None, "": left open."""
    meant = _meant(row.word("precision"))
    return meant.get("dtype"), meant.get("quant", "")


def _meant(precision: str) -> Mapping[str, str]:
    """Number format, scheme and a note of a precision; nothing of ""."""
    found: Mapping[str, str] = names.aliases()["precision"].get(precision, {})
    return found


def _switches(row: Record) -> dict[str, Any]:
    """What a row itself says of how its step is run, as fields of a config."""
    readers: dict[str, Callable[[str], Any]] = {
        "flag": row.yes, "whole": row.count, "word": row.word, "text": row.text,
    }  # fmt: skip
    none = {"adapters": 0} if plain(row.text("adapters")) in ("0", "0_0", "none") else {}
    own = [name for name in FIELDS.of("config") if name not in none]
    said = none | {name: readers[FIELDS[name].kind](name) for name in own}
    found = {name: value for name, value in said.items() if value not in ("", None)}
    if (kernel := found.get("attention")) in SHARES:
        found |= {"attention": "fused", "attention_kernel": kernel}
    return found


@functools.lru_cache(4096)
def _config(shape: TransformerShape, fields: tuple[tuple[str, Any], ...]) -> TransformerConfig:
    return TransformerConfig(shape, **dict(fields))


@functools.lru_cache(65536)
def _with_layout(
    config: TransformerConfig, layout: Layout, gpus_per_node: int
) -> TransformerConfig:
    """One object for all rows of equal configs; `InputError` for one whose step is not modelled."""
    found = config.with_layout(layout, gpus_per_node)
    refuse_unmodelled(found)
    return found


@functools.lru_cache(65536)
def with_recompute(config: TransformerConfig, mode: Any) -> TransformerConfig:
    """A step that recomputes otherwise; one object for all rows of equal configs."""
    return config.with_layout(config.layout.replace(recompute=mode), config.gpus_per_node)


def _unseen(config: TransformerConfig) -> Sequence[str]:
    """Sizes far outside all measured steps."""
    x, shape = config.layout, config.shape
    return _far_outside(
        (("seq", shape.seq), ("hidden", shape.hidden), ("n_gpus", x.ranks),
         ("micro_batch", x.micro_batch), ("tp", x.tp), ("pp", x.pp))
    )  # fmt: skip


@functools.lru_cache(65536)
def _far_outside(sizes: tuple[tuple[str, int], ...]) -> Sequence[str]:
    limits = names.aliases()["measured"]
    found = ((name, size, *limits[name]) for name, size in sizes)
    return [
        f"{name} {size} is far outside measured steps ({low} to {high}): extrapolated"
        for name, size, low, high in found
        if not low / _FAR <= size <= high * _FAR
    ]
