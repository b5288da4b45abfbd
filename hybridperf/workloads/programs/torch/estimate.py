"""What a step of a PyTorch program would take on a GPU that is not here: time, memory, which module
holds it up, which device is cheapest.

    print(hp.estimate(net, images, device="h100_sxm", optimizer=torch.optim.AdamW))

    with hp.estimate("h100_sxm") as report:
        train_step(images, labels)
    print(report)

Either way the step is captured as `from_torch` has it (`capture.py`), priced as `hp.predict` has
it; here are the modules' shares (`modules.py`). A block's tensors are real, and stay as they are:
whatever is done with one is done with a twin without memory, the same one for the same.

A module's seconds are those by which the step's end moves on through its kernels, waits before
them included, so that all of them together are the step. Its bytes are what it made and was alive
when most was: its weights, their gradients, activations.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from hybridperf.engine.economy import HOUR_S, economy
from hybridperf.engine.prediction import Prediction, predict
from hybridperf.engine.workload import PeakMemory
from hybridperf.io import InputError
from hybridperf.io.later import pd
from hybridperf.model import PerfModel, model_or_datasheet
from hybridperf.workloads.memory import USABLE, chance_fits
from hybridperf.workloads.programs.torch.capture import Block, Captured, capture, captured_block
from hybridperf.workloads.programs.torch.modules import ModulePaths
from hybridperf.workloads.programs.torch.program import workload_of
from hybridperf.workloads.programs.torch.record import BACKWARD, FORWARD, OPTIMIZER

Device = str | Path | PerfModel
_OUTSIDE = "outside of modules"
_SHOWN, _DEPTH = 40, 3  # lines of a tree as text, and levels of modules
_OPEN = 2  # levels that a notebook shows at first
_MILLION = 1e6


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a step would take; what `hp.estimate` returns."""

    predictions: tuple[Prediction, ...]  # one for each device, in the order given
    captured: Captured
    samples: float  # of a step; 0: not known

    @property
    def prediction(self) -> Prediction:
        """On the first of the devices."""
        return self.predictions[0]

    @property
    def time_s(self) -> float:
        """Seconds of a step."""
        return self.prediction.time_s

    @property
    def low_s(self) -> float | None:
        """Where its 90 % interval begins."""
        return self.prediction.low_s

    @property
    def high_s(self) -> float | None:
        """Where its 90 % interval ends."""
        return self.prediction.high_s

    @property
    def peak_bytes(self) -> float:
        """The most that is alive at once: parameters, states, gradients, activations."""
        return _peak(self.prediction).bytes

    @property
    def chance(self) -> float:
        """Chance that the first device has room for it."""
        return _chance(self.prediction)

    @property
    def fits(self) -> bool:
        """Whether the first device has room for it, more likely than not."""
        return self.chance > 0.5

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before trusting the time."""
        return self.prediction.notes

    def tree(self, depth: int | None = None) -> pd.DataFrame:
        """A row for each module with all that is in it, in the order in which they were made.

        Columns: `module` its path, `kind` its class, `level` of nesting, `parameters` their number,
        `seconds`, of these `forward_s`, `backward_s`, and `share` of the step, `peak_bytes`. What
        no module asked for and the optimizer have a row each.

        Args:
            depth: levels of modules; None: all.
        """
        seconds, modules = _moved_s(self.prediction), self.captured.modules
        assert modules is not None
        found = (*modules.kinds, "", OPTIMIZER)
        own = {path: np.zeros(4) for path in found}  # forward, backward, all seconds, bytes
        origins = self.prediction.workload.origins
        for (path, phase), spent_s in zip(origins, seconds, strict=True):
            own[path][:3] += spent_s * np.array([phase == FORWARD, phase == BACKWARD, True])
        for path, held in self.captured.held.items():
            own[path][3] += held
        rows = []
        for path in found:
            level = path.count(".")
            if depth is not None and level >= depth:
                continue
            inside = [one for one in own if one == path or (path and one.startswith(f"{path}."))]
            forward_s, backward_s, all_s, held = np.sum([own[one] for one in inside], axis=0)
            if not path and not all_s and not held:
                continue
            rows.append({
                "module": path or _OUTSIDE, "kind": modules.kinds.get(path, ""), "level": level,
                "parameters": sum(modules.parameters[one] for one in inside),
                "seconds": all_s, "forward_s": forward_s, "backward_s": backward_s,
                "share": all_s / (self.time_s or 1.0), "peak_bytes": held,
            })  # fmt: skip
        return pd.DataFrame(rows)

    def devices(self) -> pd.DataFrame:
        """A row for each device, the cheapest of a sample first among those with room.

        Columns: `device, time_s, low_s, high_s, samples_per_s, memory_share, chance, usd_per_hour,
        usd_per_million`: USD of a million samples, or of as many steps where samples are not known.
        """
        rows = []
        for one in self.predictions:
            rent, each = economy(one.model.device).usd_per_hour, self.samples or 1.0
            usd = np.nan if rent is None else rent * one.time_s / HOUR_S / each * _MILLION
            rows.append({
                "device": one.model.device.id, "time_s": one.time_s, "low_s": one.low_s,
                "high_s": one.high_s, "samples_per_s": self.samples / one.time_s,
                "memory_share": _share(one), "chance": _chance(one),
                "usd_per_hour": np.nan if rent is None else rent, "usd_per_million": usd,
            })  # fmt: skip
        frame = pd.DataFrame(rows)
        return frame.assign(no_room=frame["chance"] <= 0.5).sort_values(
            ["no_room", "usd_per_million", "time_s"]
        ).drop(columns="no_room").reset_index(drop=True)  # fmt: skip

    @property
    def cheapest(self) -> str | None:
        """The device whose samples cost least, of those with room and a known price."""
        known = self.devices().query("chance > 0.5 and usd_per_million == usd_per_million")
        return None if known.empty else str(known["device"].iloc[0])

    def modules_text(self) -> str:
        """The modules of three levels, a line each."""
        tree = self.tree(_DEPTH)
        left = len(tree) - _SHOWN
        lines = [_LINE.format("module", "parameters", "ms", "share", "GB")]
        for row in tree.head(_SHOWN).itertuples():
            name = "  " * row.level + _short(row)
            numbers = (f"{row.parameters:,}", f"{row.seconds * 1e3:.3f}", f"{row.share:.1%}")
            lines.append(_LINE.format(name[:44], *numbers, f"{row.peak_bytes / 1e9:.3f}"))
        return "\n".join(lines + [f"and {left} more: `tree()` has all"] * (left > 0))

    def __repr__(self) -> str:
        """The step, the modules of three levels, the devices, what to know."""
        lines = [self.summary(), "", self.modules_text()]
        if len(self.predictions) > 1:
            lines += ["", self.devices().to_string(index=False, float_format="%.4g")]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def summary(self) -> str:
        """Time with its interval, memory and whether it fits, in a sentence."""
        one = self.prediction
        within = "no interval"
        if one.low_s is not None and one.high_s is not None:
            within = f"90 % interval {one.low_s * 1e3:.4g} to {one.high_s * 1e3:.4g} ms"
        has = one.model.device.memory_bytes
        return (
            f"{one.workload.name} on {one.model.device.id}: {one.time_s * 1e3:.4g} ms ({within});"
            f" {self.peak_bytes / 1e9:.4g} GB at once, of {has / 1e9:.4g} GB:"
            f" {'fits' if self.fits else 'does not fit'} (chance {self.chance:.0%})"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: the modules as a tree that opens level by level."""
        rows = [*self.tree().itertuples()]
        parts = [f"<p>{html.escape(self.summary())}</p>"]
        for at, row in enumerate(rows):
            after = rows[at + 1].level if at + 1 < len(rows) else 0
            says = html.escape(
                f"{_short(row)} ({row.kind or 'no module'}): {row.seconds * 1e3:.3f} ms,"
                f" {row.share:.1%}; {row.parameters:,} parameters; {row.peak_bytes / 1e9:.3f} GB"
            )
            if after > row.level:
                opened = " open" if row.level < _OPEN else ""
                parts.append(f'<details{opened} style="margin-left:1em"><summary>{says}</summary>')
            else:
                parts.append(f'<div style="margin-left:2em">{says}</div>')
                parts.append("</details>" * (row.level - after))
        if len(self.predictions) > 1:
            parts.append(self.devices().to_html(index=False, float_format="%.4g"))
        parts += [f"<p>{html.escape(note)}</p>" for note in self.notes]
        return "".join(parts)


_LINE = "{:<44}{:>14}{:>12}{:>9}{:>9}"


class BlockEstimate:
    """A block whose step is estimated: `with hp.estimate(device) as report:`; after it `report`
    is an `Estimate`, before its end none.
    """

    def __init__(self, models: Sequence[PerfModel], samples: float, compiled: bool) -> None:
        self._models, self._samples, self._compiled = models, samples, compiled
        self._stack = contextlib.ExitStack()
        self._block: Block | None = None
        self._found: Estimate | None = None

    def __enter__(self) -> BlockEstimate:
        self._block = self._stack.enter_context(captured_block(ModulePaths()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> bool | None:  # fmt: skip
        assert self._block is not None
        captured = self._block.captured() if kind is None else None
        handled = self._stack.__exit__(kind, error, trace)
        if captured is not None:
            self._found = _estimated(captured, self._models, self._samples, self._compiled)
        return handled

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__.get("_found")
        if name.startswith("_") and name != "_repr_html_":
            raise AttributeError(name)
        if found is None:
            raise InputError(f"expected {name} of a step that is over; ask after the block")
        return getattr(found, name)

    def __repr__(self) -> str:
        return "a step that is not over" if self._found is None else repr(self._found)


@overload
def estimate(
    program: Device | Sequence[Device], *, samples: float | None = None, compiled: bool = False
) -> BlockEstimate: ...
@overload
def estimate(
    program: Callable, inputs: Any, *, device: Device | Sequence[Device],
    optimizer: Any = None, train: bool = True, compiled: bool = False,
    samples: float | None = None,
) -> Estimate: ...  # fmt: skip
def estimate(
    program: Any, inputs: Any = None, *, device: Any = None, optimizer: Any = None,
    train: bool = True, compiled: bool = False, samples: float | None = None,
) -> Any:  # fmt: skip
    """What a step of a PyTorch program would take on a GPU: time with its interval, memory and
    whether it fits, the modules that hold it up, the cheapest device.

    Nothing runs on a GPU, and no weights are needed: a model made in `hp.without_memory()` has
    none. With a device alone, the step is what stands in a `with` block; its tensors keep their
    numbers, and optimizers and gradients their states.

    Args:
        program: a module, or a function that returns a loss or does a whole step; or the device of
            a block's step.
        inputs: what it takes: a tensor, a list of arguments, or arguments by name.
        device: a device by name, folder or model; several, to compare: the first is the one whose
            modules are told.
        optimizer: of the module's parameters, or its class; None: none.
        train: with gradients; else inference alone.
        compiled: by `torch.compile`, as a whole; else op by op.
        samples: of a step; None: as many as the first tensor has rows, and of a block not known.

    Raises:
        InputError: as `hp.from_torch`; a device that nobody knows, or that is no GPU.
    """
    if _is_device(program):
        if inputs is not None or device is not None:
            raise InputError(
                "expected a program with inputs and device=..., or a device alone to begin a block,"
                f" got the device {program!r} with others"
            )
        return BlockEstimate(_models(program), samples or 0.0, compiled)
    if device is None:
        raise InputError("expected device=NAME or a list of names, got none; give one")
    models = _models(device)
    args, kwargs = _arguments(inputs)
    captured = capture(
        program, args, kwargs=kwargs, optimizer=optimizer, train=train, modules=ModulePaths()
    )
    if samples is None:
        samples = _rows((args, kwargs))
    return _estimated(captured, models, samples, compiled)


def _estimated(
    captured: Captured, models: Sequence[PerfModel], samples: float, compiled: bool
) -> Estimate:
    workload = workload_of(captured, compiled=compiled)
    return Estimate(tuple(predict(one, workload) for one in models), captured, float(samples))


def _is_device(value: object) -> bool:
    one = value[0] if isinstance(value, list | tuple) and value else value
    return isinstance(one, str | Path | PerfModel)


def _models(device: Any) -> list[PerfModel]:
    listed = [*device] if isinstance(device, list | tuple) else [device]
    if not listed or not all(_is_device(one) for one in listed):
        raise InputError(
            f"expected a device, its folder or model, or a list of such, got {device!r}"
        )
    models = [one if isinstance(one, PerfModel) else model_or_datasheet(one) for one in listed]
    for one in models:
        if one.device.kind != "gpu":
            raise InputError(
                f"expected a GPU, got {one.device.id}, a {one.device.kind}; hp.from_torch(...,"
                ' backend="cpu") is for those'
            )
    return models


def _arguments(inputs: Any) -> tuple[list[Any], dict[str, Any]]:
    """What a program takes by place, and by name."""
    if isinstance(inputs, Mapping):
        return [], dict(inputs)
    if inputs is None:
        return [], {}
    return [*inputs] if isinstance(inputs, list | tuple) else [inputs], {}


def _rows(given: Any) -> float:
    """Of the first tensor among arguments; 0 without one."""
    import torch

    leaves = torch.utils._pytree.tree_leaves(given)
    return float(next((len(x) for x in leaves if isinstance(x, torch.Tensor) and x.dim()), 0))


def _moved_s(prediction: Prediction) -> np.ndarray:
    """Seconds by which each node moves the end of all before it [N]."""
    end_s = prediction.timeline.end_s
    order = np.argsort(end_s, kind="stable")
    moved_s = np.zeros(len(end_s))
    moved_s[order] = np.diff(end_s[order], prepend=0.0)
    return moved_s


def _peak(prediction: Prediction) -> PeakMemory:
    peak = prediction.workload.peak_memory
    assert peak is not None  # of what was captured
    return peak


def _share(prediction: Prediction) -> float:
    """Of the memory that may be used."""
    return _peak(prediction).bytes / (USABLE * prediction.model.device.memory_bytes)


def _chance(prediction: Prediction) -> float:
    share = _share(prediction)
    return chance_fits(share) if share else 1.0


def _short(row: Any) -> str:
    """A module's name within the one around it."""
    return str(row.module).rpartition(".")[2] if row.level else str(row.module)
