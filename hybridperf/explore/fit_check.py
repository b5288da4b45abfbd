"""Does a model fit on a device: to serve it, to train adapters (LoRA), to train all of it; on how
many at least, how fast, and what is the cheapest way.

    print(hp.fit_check("llama3-70b", "h200_sxm"))

Each use (`fit_check.toml`) is a row of the question that prices it, `serve` or `steps`, asked on
one device, then on the fewest that may hold what one would need, and on more until it fits. Memory,
time and interval are that question's own answer.

    chance     of training, that the predicted peak fits: `workloads.memory.chance_fits`, of a
               framework whose peaks nobody measured
    tokens/s   served: of answers, with the time of their prompts; trained: of all GPUs
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridperf.engine.economy import economy
from hybridperf.fields.frames import answering
from hybridperf.hardware import DeviceSpec, device_of, load_device, load_system
from hybridperf.hardware.attached import attached
from hybridperf.hardware.machines import machine
from hybridperf.io import InputError, shipped_toml
from hybridperf.io.later import pd
from hybridperf.model.files import shipped_from
from hybridperf.report import text
from hybridperf.workloads.memory import USABLE, chance_fits
from hybridperf.workloads.transformer.gguf import read_header
from hybridperf.workloads.transformer.safetensors import Stored, stored_in
from hybridperf.workloads.transformer.shape import TransformerShape
from hybridperf.workloads.transformer.zoo import CONFIG, file_of, load_shape

if TYPE_CHECKING:
    import pandas

CONTEXT = 4096  # tokens of a request with its answer, and of a sequence that trains
_ANSWER = 8  # a prompt and its answer are this many answers long
_TOGETHER = 2  # counts that are asked at once, after one device
_HALVES = ("bf16", "fp16")
_SURE = 0.995  # a chance that is called yes; less than one minus it: no
_AS_MANY = 0.02  # by which numbers of files may differ from those of sizes without a word
_WIDTH = 80


@dataclasses.dataclass(frozen=True)
class FitCheck:
    """What `hp.fit_check` returns; printed it is a page of text.

    Attributes:
        shape: the model.
        devices: each that was asked.
        uses: a row of each device and use: `device, what, how, fits` (one device; empty: not sure),
            `chance` (of training), `gpus` (the fewest), `memory_bytes` (of each), `tokens_per_s,
            low_tokens_per_s, high_tokens_per_s` on so many, `usd_per_hour` (empty: no rent is
            known), `measure` (the command that tells better there), `note` (what was assumed).
        settings: tokens of prompt, answer and training sequence, and requests at once.
        remarks: on which device was taken.
        stored: weights that lie beside the config, or in the file; None: none do.
    """

    shape: TransformerShape
    devices: tuple[DeviceSpec, ...]
    uses: pandas.DataFrame
    settings: Mapping[str, int]
    remarks: tuple[str, ...] = ()
    stored: Stored | None = None

    @functools.cached_property
    def cheapest(self) -> pandas.DataFrame:
        """Of each device and what is done the way that rents for least: the fewest GPUs where no
        rent is known, the first of `uses` among equals.
        """
        found = self.uses[self.uses.gpus.notna()]
        cost = found.usd_per_hour.fillna(found.gpus)
        ranked = found.assign(cost=cost).sort_values("cost", kind="stable")
        return ranked.drop(columns="cost").groupby(["device", "what"], sort=False).head(1)

    @property
    def answered(self) -> bool:
        """Whether any use was predicted."""
        return bool(self.uses.memory_bytes.notna().any())

    def basis(self) -> list[str]:
        """What the numbers rest on: measured rows of each device, what the questions assumed."""
        measured = shipped_from("model.json")
        said = []
        for one in self.devices:
            rows = measured.get(one.id)
            said.append(
                f"{one.id}: kernels by {rows['rows']:,} measured rows of it, {rows['date']}"
                if rows
                else f"{one.id}: no kernel of it was measured; its datasheet, and what other"
                " devices reach"
            )
            said += [f"{one.id}: {one.note}"] if one.note else []
        for question, its in self.uses.groupby("question", sort=False):
            told = its.gpus.notna() | its.memory_bytes.isna()  # what fits, and what was refused
            notes = its[told].note if told.any() else its.note
            plain = (re.sub(r"^row \d+: ", "", note) for note in notes)
            parts = dict.fromkeys(part for note in plain for part in note.split("; ") if part)
            said.append(f"{question}: {'; '.join(parts)}")
        return said

    def __str__(self) -> str:
        own = self.shape
        words = [f"{own.name}: {text.amount(own.parameters)} parameters, {own.family}"]
        words += [*self.remarks, *self._stored_words(), self._asked(), ""]
        several = len(self.devices) > 1
        for device in self.devices:
            facts = f"{device.name} ({device.id}), {text.quantity(device.memory_bytes, 'B')}"
            words += [f"{facts} each", self._table(device.id, several), ""]
        words += [self._cheapest_words(), "", "what this rests on", *self.basis()]
        lines = [line for one in words for line in _folded(one)]
        if len(self.cheapest):  # commands stay whole
            lines += ["", "to know better, measure there", *dict.fromkeys(self.cheapest.measure)]
            lines += ["and give measured rows: hybridperf serve or steps ROWS --fit-on ROWS"]
            lines += ["a GPU of your own: hybridperf calibrate --quick --folder my-machine"]
        return "\n".join(lines)

    def _stored_words(self) -> list[str]:
        """Weights that are here, and whether they are as many as the sizes say."""
        if self.stored is None:
            return []
        kinds = (
            f"{text.quantity(float(size), 'B')} {kind}"
            for kind, size in self.stored.bytes_by_format.items()
        )
        files = f"{self.stored.files} file{'s' if self.stored.files > 1 else ''}"
        own, meant = self.stored.numbers, self.shape.parameters
        said = f"weights here: {', '.join(kinds)} in {files}; {text.amount(own)} numbers"
        whole = any(kind.startswith(("i", "u")) for kind in self.stored.bytes_by_format)
        if not whole and abs(own - meant) > _AS_MANY * meant:
            said += f", where its sizes mean {text.amount(meant)} (parts besides, or some missing)"
        return [said]

    def _asked(self) -> str:
        said = self.settings
        return (
            f"served: requests of {said['prompt']:,} + {said['answer']:,} tokens, up to"
            f" {said['batch']:,} at once as far as there is room; trained: sequences of"
            f" {said['length']:,}, one a GPU"
        )

    def _table(self, device: str, several: bool) -> str:
        rows = self.cheapest if several else self.uses
        columns = {
            "use": lambda row: f"{row.what}, {row.how}",
            "fits one": _fits_words,
            "GPUs": _count_words,
            "of each": lambda row: text.quantity(row.memory_bytes, "B"),
            "tokens/s": lambda row: _rate(row.tokens_per_s),
            "90 % interval": lambda row: (
                "-"
                if pd.isna(row.tokens_per_s)
                else text.span_words(_rate, row.low_tokens_per_s, row.high_tokens_per_s)
            ),
        }
        found = [row for row in rows.itertuples() if row.device == device]
        if not found:
            return "nothing that was asked fits on any number that was tried"
        return text.items_table(found, columns)

    def _cheapest_words(self) -> str:
        said, money = [], False
        for what, rows in self.cheapest.groupby("what", sort=False):
            cost = rows.usd_per_hour.fillna(float("inf")) if len(rows) > 1 else rows.gpus
            row = rows.loc[cost.idxmin()]
            rent = "" if pd.isna(row.usd_per_hour) else f", {text.dollars(row.usd_per_hour)}/h"
            money |= bool(rent)
            place = f" x {row.device}" if len(self.devices) > 1 else _plural(row.gpus)
            said.append(f"{what} {row.how} on {row.gpus:.0f}{place}{rent}")
        if not self.answered:
            return "no use was answered; why stands below"
        if not said:
            return "none fits; shorten --context, or name a GPU with more memory"
        rents = "; rents are assumptions (--prices FILE: yours)" if money else ""
        return f"cheapest that fits: {'; '.join(said)}{rents}"


def fit_check(
    model: str | os.PathLike, device: str | None = None, *, context: int | None = None,
    batch: int = 1, rank: int = 16, prices: str | os.PathLike | None = None,
) -> FitCheck:  # fmt: skip
    """Whether a model fits on a device to be served, adapted and trained, and what follows.

        hp.fit_check("Qwen/Qwen3-8B", "rtx_4090").uses
        hp.fit_check("my-model/config.json", context=32768)
        hp.fit_check("llama-3-8b.Q4_K_M.gguf")

    Args:
        model: a published name, a config.json or its folder, a .gguf file, a .toml file of sizes,
            or a name on the hub whose config its cache here holds.
        device: a name of `hybridperf devices`; None: this machine's, else some that are common.
        context: tokens of a request with its answer, and of a sequence that trains; None: 4,096,
            the model's own where its positions are not rotary.
        batch: requests at once; those that find no room wait.
        rank: of the adapters.
        prices: your rents (.toml), over the shipped assumptions.

    Raises:
        InputError: a model or device that nobody knows, or a number that is none.
    """
    shape = load_shape(model)
    if context is None:
        context = CONTEXT if shape.positions == "rotary" else shape.seq
    for name, number, least in (("context", context, 2), ("batch", batch, 1), ("rank", rank, 1)):
        if not isinstance(number, int) or number < least:
            raise InputError(f"expected {name} of {least} or more, got {number!r}")
    answer = max(1, context // _ANSWER)
    path = file_of(model)
    header = read_header(path) if path is not None and path.suffix == ".gguf" else None
    scheme, stored = header.scheme if header else "", header.stored if header else None
    if path is not None and path.name == CONFIG:
        stored = stored_in(path.parent)
    settings = {"prompt": context - answer, "answer": answer, "length": context, "batch": batch}
    devices, remarks = _devices(device)
    uses = [
        _Use(words, one, {"model": str(model), "rank": rank, "scheme": scheme, **settings})
        for one in devices
        for words in _words()["uses"]
        if scheme or not words.get("file")
    ]
    while open_rows := [(use, counts) for use in uses for counts in use.next_counts()]:
        for question in _words()["questions"]:
            asked = [one for one in open_rows if one[0].question == question]
            for (use, counts), answered in zip(asked, _answers(question, asked), strict=True):
                use.answers[math.prod(counts)] = answered
    file = Path(prices) if prices else None
    rents = {one.id: economy(one, file).usd_per_hour for one in devices}
    rows = pd.DataFrame([use.found(rents[use.device.id]) for use in uses])
    return FitCheck(shape, tuple(devices), rows, settings, tuple(remarks), stored)


def _devices(named: str | None) -> tuple[list[DeviceSpec], list[str]]:
    """(devices to ask, remarks): the one named, this machine's, or some that are common."""
    if named is not None and not isinstance(named, str):
        raise InputError(f"expected the name of a device, got a {type(named).__name__}")
    if named:
        if named.endswith(".toml") or named == "here":
            raise InputError(
                f"expected a device that `hybridperf devices` lists, got {named}; `hybridperf plan"
                " --device` and `serve --shape --device` take files of others"
            )
        return [_device(named)], []
    usual = [load_device(one) for one in _words()["devices"]]
    found = attached()
    known = [load_device(one.device) for one in found if one.device]
    if known:
        says = ", ".join(f"{one.count} x {one.called}" for one in found)
        return known, [f"this machine has {says}"]
    if found:
        called = ", ".join(one.called for one in found)
        return usual, [f"this machine's {called} is not among `hybridperf devices`; common ones:"]
    return usual, ["no accelerator found here; common ones (name yours after the model):"]


def _device(name: str) -> DeviceSpec:
    """A device by its own name or that of a system it stands in."""
    try:
        return load_device(name)
    except InputError:
        with contextlib.suppress(InputError):
            return load_device(device_of(load_system(name)))
        raise


@functools.cache
def _words() -> dict[str, Any]:
    return shipped_toml(__package__, "fit_check.toml")


class _Use:
    """One use on one device while it is asked: numbers of GPUs ahead, and answers by them."""

    def __init__(self, use: Mapping[str, Any], device: DeviceSpec, said: Mapping[str, Any]) -> None:
        half = next((one for one in _HALVES if one in device.peak_flops_per_s), _HALVES[0])
        self.device, self.question = device, str(use["question"])
        self.said = said = {**said, "half": half}
        self.words = _words()["questions"][self.question]
        self.what, self.how = use["what"], use["how"].format(**said)
        self.columns = {"model": said["model"], self.words["device"]: device.id}
        self.columns |= self.words["columns"] | use["columns"]
        self.ahead = [tuple(one) for one in self.words["tried"]]
        self.answers: dict[int, Mapping[str, Any]] = {}

    def next_counts(self) -> list[tuple[int, ...]]:
        """What to ask next: one device, then the fewest that may hold what one would need."""
        if not self.answers:
            return self._taken(1)
        needed = self.answers[1]["memory_bytes"]
        if pd.isna(needed) or any(one["fits"] is True for one in self.answers.values()):
            return []
        least = needed / (self.device.memory_bytes or float("inf"))
        self.ahead = [one for one in self.ahead if math.prod(one) >= least]
        return self._taken(_TOGETHER)

    def _taken(self, count: int) -> list[tuple[int, ...]]:
        taken, self.ahead = self.ahead[:count], self.ahead[count:]
        return taken

    def row(self, counts: tuple[int, ...]) -> dict[str, Any]:
        """A row of the question."""
        said = {**self.said, "gpus": math.prod(counts)}
        columns = {name: str(value).format(**said) for name, value in self.columns.items()}
        return columns | dict(zip(self.words["counts"], counts, strict=True))

    def found(self, usd_per_hour: float | None) -> dict[str, Any]:
        """A row of `FitCheck.uses`."""
        one = self.answers[1]
        fewest = min((n for n, got in self.answers.items() if got["fits"] is True), default=None)
        shown = one if fewest is None else self.answers[fewest]
        counts = next(
            (c for c in map(tuple, self.words["tried"]) if math.prod(c) == fewest),
            self.words["tried"][0],
        )
        place = machine(self.device.id, "").system.id
        room = USABLE * (self.device.memory_bytes or float("inf"))
        trains = "tokens_per_s" in one
        measure = self.words["measured"].format(
            **self.said | self.row(counts), gpus=fewest or 1, place=place
        )
        return {
            "device": self.device.id, "what": self.what, "how": self.how,
            "question": self.question, "fits": one["fits"],
            "chance": chance_fits(one["memory_bytes"] / room, counted=True) if trains else None,
            "gpus": fewest, "memory_bytes": shown["memory_bytes"],
            **(_rates(shown, fewest) if fewest else dict.fromkeys(_RATES)),
            "usd_per_hour": usd_per_hour * fewest if fewest and usd_per_hour is not None else None,
            "measure": measure if fewest else "", "note": shown["note"],
        }  # fmt: skip


_RATES = ("tokens_per_s", "low_tokens_per_s", "high_tokens_per_s")


def _answers(question: str, asked: Sequence[tuple[_Use, tuple[int, ...]]]) -> list[dict[str, Any]]:
    """What a question answers to rows of its uses."""
    if not asked:
        return []
    app = answering(question)
    predict = app.predict_serving if question == "serve" else app.predict_steps
    found = predict([use.row(counts) for use, counts in asked])
    return [
        row | {"fits": None if pd.isna(row["fits"]) else bool(row["fits"])}
        for row in found.to_dict("records")
    ]


def _rates(answer: Mapping[str, Any], gpus: int) -> dict[str, float]:
    """Tokens a second of all GPUs, with their interval."""
    if "tokens_per_s" in answer:
        rate, seconds = answer["tokens_per_s"], answer["predicted_s"]
        rates = (rate, rate * seconds / answer["high_s"], rate * seconds / answer["low_s"])
    else:
        named = ("predicted_tokens_per_s_gpu", "tokens_per_s_gpu_low", "tokens_per_s_gpu_high")
        rates = tuple(answer[name] * gpus for name in named)
    return dict(zip(_RATES, rates, strict=True))


def _fits_words(row: Any) -> str:
    """Whether one device is enough; a chance where that is not sure."""
    if pd.isna(row.memory_bytes):
        return "-"
    if pd.isna(row.chance) or not 1 - _SURE < row.chance < _SURE:
        return "yes" if row.fits is True else "no"
    return text.whole_percent(row.chance)


def _count_words(row: Any) -> str:
    if pd.isna(row.memory_bytes):
        return "-"
    most = max(map(math.prod, _words()["questions"][row.question]["tried"]))
    return f"> {most}" if pd.isna(row.gpus) else f"{row.gpus:.0f}"


def _rate(tokens_per_s: float | None) -> str:
    return "-" if pd.isna(tokens_per_s) else f"{float(f'{tokens_per_s:.3g}'):,.0f}"


def _plural(gpus: float) -> str:
    return " GPU" if gpus == 1 else " GPUs"


def _folded(words: str) -> list[str]:
    """Lines of at most 80 characters; a table's are short enough."""
    lines = words.split("\n")
    if len(lines) > 1:
        return lines
    return textwrap.wrap(words, _WIDTH, subsequent_indent="  ", break_on_hyphens=False) or [""]
